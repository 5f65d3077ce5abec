//! Invariants I1 and I3: who may write after an admission, and what evidence proves.

use std::time::Duration;

use counterfoil_core::{Decision, Effect, Event, Illegal, Kept, Knowledge, State};
use counterfoil_store::{Completion, Error, Fence, Granted, Store, Value, transact};

use super::Subject;
use super::scene::{
    INSERT, START, after, completion, create_table, decided, effects, guarded, operation_id,
    receipt, run, stored, success,
};

async fn tell(store: &dyn Store, granted: &Granted, event: Event, at: u64) -> Result<State, Error> {
    let told = Completion {
        reply: Some(stored("told")),
        ..completion(event, after(at))
    };
    let receipt = store.complete(granted.fence, told).await?;
    Ok(receipt.status.state)
}

pub async fn i1_a_wrong_attempt_is_fenced(subject: Subject) {
    let store = subject.open().await;
    let granted = run(&*store, guarded("k", START)).await;
    let before = receipt(&*store, granted.fence.operation_id).await;
    for attempt in [0, 2, u32::MAX] {
        let fence = Fence {
            attempt,
            ..granted.fence
        };
        let wrong = store
            .complete(fence, success(fence, "wrong", after(1)))
            .await;
        assert_eq!(
            wrong.err(),
            Some(Error::Fenced(Illegal::Fenced)),
            "{attempt}"
        );
    }
    // The event's attempt is the fence's, or nothing is written.
    let other = Event::Succeeded { attempt: 2 };
    let wrong = store
        .complete(granted.fence, completion(other, after(1)))
        .await;
    assert_eq!(wrong.err(), Some(Error::Fenced(Illegal::Fenced)));
    assert_eq!(receipt(&*store, granted.fence.operation_id).await, before);
}

pub async fn i1_a_wrong_operation_is_not_found(subject: Subject) {
    let store = subject.open().await;
    let granted = run(&*store, guarded("k", START)).await;
    let fence = Fence {
        operation_id: operation_id(START),
        ..granted.fence
    };
    let wrong = store
        .complete(fence, success(fence, "wrong", after(1)))
        .await;
    assert_eq!(wrong.err(), Some(Error::NotFound));
    assert_eq!(
        store
            .renew(fence, after(10), Duration::from_secs(30))
            .await
            .err(),
        Some(Error::NotFound)
    );
    // Another operation with the same attempt number is another operation.
    let other = run(&*store, guarded("other", START)).await;
    store
        .complete(other.fence, success(other.fence, "o", after(1)))
        .await
        .unwrap();
    assert_eq!(
        receipt(&*store, granted.fence.operation_id)
            .await
            .status
            .state,
        State::Running
    );
}

pub async fn i1_a_finished_operation_takes_no_other_verdict(subject: Subject) {
    let store = subject.open().await;
    let granted = run(&*store, guarded("k", START)).await;
    let attempt = granted.fence.attempt;
    let answer = success(granted.fence, "first", after(1));
    store.complete(granted.fence, answer).await.unwrap();
    let before = store.get(granted.fence.operation_id).await.unwrap();
    for event in [
        Event::NotApplied { attempt },
        Event::Refused {
            attempt,
            effect_none: true,
        },
        Event::Refused {
            attempt,
            effect_none: false,
        },
        Event::Stopped { attempt },
        Event::Asked {
            attempt,
            effect_none: true,
        },
    ] {
        let told = tell(&*store, &granted, event, 2).await;
        assert!(matches!(told, Err(Error::Fenced(_))), "{event:?}: {told:?}");
    }
    // What proves nothing, changes nothing.
    assert_eq!(
        tell(&*store, &granted, Event::Lost { attempt }, 2).await,
        Ok(State::Succeeded)
    );
    assert_eq!(store.get(granted.fence.operation_id).await.unwrap(), before);
}

pub async fn i1_an_earlier_attempt_cannot_judge_a_later_one(subject: Subject) {
    let store = subject.open().await;
    let first = run(&*store, guarded("k", START)).await;
    let released = Event::NotApplied { attempt: 1 };
    assert_eq!(tell(&*store, &first, released, 1).await, Ok(State::Free));
    let second = run(&*store, guarded("k", after(2))).await;
    assert_eq!(second.fence.attempt, 2);
    assert_eq!(tell(&*store, &first, released, 3).await, Ok(State::Running));
    let late = Event::Refused {
        attempt: 1,
        effect_none: true,
    };
    let late = tell(&*store, &first, late, 3).await;
    assert!(matches!(late, Err(Error::Fenced(_))), "{late:?}");
    let succeeded = Event::Succeeded { attempt: 2 };
    assert_eq!(
        tell(&*store, &second, succeeded, 4).await,
        Ok(State::Succeeded)
    );
}

pub async fn i3_a_late_answer_settles_unknown(subject: Subject) {
    let store = subject.open().await;
    let granted = run(&*store, guarded("k", START)).await;
    assert_eq!(store.lapse(after(31), 10).await.unwrap(), 1);
    let id = granted.fence.operation_id;
    assert_eq!(
        receipt(&*store, id).await.status.state,
        State::OutcomeUnknown
    );
    let answer = success(granted.fence, "late", after(300));
    let recorded = store.complete(granted.fence, answer).await.unwrap();
    assert_eq!(recorded.status.state, State::Succeeded);
    assert_eq!(recorded.finished_at, Some(after(300)));
    let (decision, found) = decided(&*store, guarded("k", after(301))).await;
    assert_eq!(decision, Decision::Replay);
    assert_eq!(found.reply, Some(stored("late")));
}

pub async fn i3_a_late_refusal_after_a_lapse_is_kept(subject: Subject) {
    let store = subject.open().await;
    let granted = run(&*store, guarded("k", START)).await;
    store.lapse(after(31), 10).await.unwrap();
    let attempt = granted.fence.attempt;
    let refused = Event::Refused {
        attempt,
        effect_none: false,
    };
    assert_eq!(
        tell(&*store, &granted, refused, 40).await,
        Ok(State::Failed)
    );
    let id = granted.fence.operation_id;
    assert_eq!(receipt(&*store, id).await.effect(), Effect::Unknown);
}

pub async fn i3_maybe_sent_is_never_released(subject: Subject) {
    let store = subject.open().await;
    let granted = run(&*store, guarded("k", START)).await;
    let attempt = granted.fence.attempt;
    let lost = tell(&*store, &granted, Event::Lost { attempt }, 1).await;
    assert_eq!(lost, Ok(State::OutcomeUnknown));
    let recorded = receipt(&*store, granted.fence.operation_id).await;
    assert_eq!(recorded.effect(), Effect::Unknown);
    assert_eq!(
        recorded.finished_at, None,
        "an unresolved receipt does not age"
    );
    assert_ne!(recorded.kept, Kept::Stored, "there is no answer to replay");
    let (decision, _) = decided(&*store, guarded("k", after(400 * 24 * 3600))).await;
    assert!(matches!(decision, Decision::Unknown { .. }), "{decision:?}");
}

pub async fn a_release_keeps_operation_and_attempt_counter(subject: Subject) {
    let store = subject.open().await;
    let mut fence = None;
    for attempt in 1..=3 {
        let at = u64::from(attempt) * 10;
        let admission = guarded("k", after(at));
        let granted = run(&*store, admission.clone()).await;
        let first = *fence.get_or_insert(granted.fence);
        assert_eq!(granted.fence.operation_id, first.operation_id);
        assert_eq!(granted.fence.attempt, attempt);
        let released = tell(&*store, &granted, Event::NotApplied { attempt }, at + 1).await;
        assert_eq!(released, Ok(State::Free));
        let recorded = receipt(&*store, first.operation_id).await;
        assert_eq!(recorded.effect(), Effect::None);
        assert_eq!(recorded.created_at, after(10));
        assert_eq!(recorded.finished_at, Some(after(at + 1)));
        assert_eq!(recorded.token, admission.token);
    }
}

pub async fn a_repeated_completion_says_the_same(subject: Subject) {
    let store = subject.open().await;
    let granted = run(&*store, guarded("k", START)).await;
    let answer = success(granted.fence, "x", after(1));
    let first = store.complete(granted.fence, answer.clone()).await.unwrap();
    let second = store.complete(granted.fence, answer).await.unwrap();
    assert_eq!(first, second);
    let later = success(granted.fence, "other bytes", after(9));
    let third = store.complete(granted.fence, later).await.unwrap();
    assert_eq!(first, third, "the first answer stands");
    let found = store
        .get(granted.fence.operation_id)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(found.reply, Some(stored("x")));
    let events = store.events(granted.fence.operation_id).await.unwrap();
    assert_eq!(events.len(), 2, "a repetition is no transition");
}

/// Writes an effect and the committed flag in one transaction.
async fn write_and_mark(store: &dyn Store, fence: Fence, fail: bool) -> Result<(), Error> {
    transact(store, None, move |tx| {
        Box::pin(async move {
            tx.execute(INSERT, &[Value::from("marked")]).await?;
            tx.mark_committed(fence).await?;
            if fail { Err(Error::RolledBack) } else { Ok(()) }
        })
    })
    .await
}

pub async fn field_04_a_committed_write_cannot_be_released(subject: Subject) {
    let store = subject.open().await;
    create_table(&*store).await;
    let granted = run(&*store, guarded("k", START)).await;
    let attempt = granted.fence.attempt;
    write_and_mark(&*store, granted.fence, false).await.unwrap();
    assert_eq!(effects(&*store, "marked").await, 1);
    // A handler that was not sure of its commit and repeats its transaction writes nothing.
    let repeated = write_and_mark(&*store, granted.fence, false).await;
    assert_eq!(repeated, Err(Error::Fenced(Illegal::Fenced)));
    let fence = granted.fence;
    let going_on = transact(&*store, None, move |tx| {
        Box::pin(async move {
            tx.execute(INSERT, &[Value::from("marked")]).await?;
            let _ = tx.mark_committed(fence).await;
            Ok(())
        })
    });
    let told = going_on.await;
    assert_eq!(
        told,
        Err(Error::Fenced(Illegal::Fenced)),
        "it went on all the same"
    );
    assert_eq!(effects(&*store, "marked").await, 1);

    let again = subject.open().await;
    let recorded = receipt(&*again, granted.fence.operation_id).await;
    assert!(recorded.status.committed);
    assert_eq!(recorded.effect(), Effect::Happened);
    for event in [Event::NotApplied { attempt }, Event::Stopped { attempt }] {
        let told = tell(&*store, &granted, event, 1).await;
        assert_eq!(
            told,
            Err(Error::Fenced(Illegal::Contradiction)),
            "{event:?}"
        );
    }
    let (decision, _) = decided(&*store, guarded("k", after(1))).await;
    let alive = matches!(
        decision,
        Decision::Committed {
            retry_after: Some(_)
        }
    );
    assert!(alive, "{decision:?}");
    let succeeded = Event::Succeeded { attempt };
    assert_eq!(
        tell(&*store, &granted, succeeded, 2).await,
        Ok(State::Succeeded)
    );
}

pub async fn the_committed_flag_rolls_back_with_its_transaction(subject: Subject) {
    let store = subject.open().await;
    create_table(&*store).await;
    let granted = run(&*store, guarded("k", START)).await;
    let attempt = granted.fence.attempt;
    let failed = write_and_mark(&*store, granted.fence, true).await;
    assert_eq!(failed, Err(Error::RolledBack));
    assert_eq!(effects(&*store, "marked").await, 0);
    assert!(
        !receipt(&*store, granted.fence.operation_id)
            .await
            .status
            .committed
    );
    let released = tell(&*store, &granted, Event::NotApplied { attempt }, 1).await;
    assert_eq!(released, Ok(State::Free));
}

pub async fn the_committed_flag_is_fenced(subject: Subject) {
    let store = subject.open().await;
    create_table(&*store).await;
    let granted = run(&*store, guarded("k", START)).await;
    let later = Fence {
        attempt: 2,
        ..granted.fence
    };
    let wrong = write_and_mark(&*store, later, false).await;
    assert_eq!(wrong, Err(Error::Fenced(Illegal::Fenced)));
    let unknown = Fence {
        operation_id: operation_id(START),
        ..granted.fence
    };
    assert_eq!(
        write_and_mark(&*store, unknown, false).await,
        Err(Error::NotFound)
    );
    store.lapse(after(31), 10).await.unwrap();
    let lapsed = write_and_mark(&*store, granted.fence, false).await;
    assert_eq!(lapsed, Err(Error::Fenced(Illegal::Fenced)));
    assert_eq!(
        effects(&*store, "marked").await,
        0,
        "a fenced write is rolled back"
    );
}

pub async fn a_committed_attempt_without_answer_stays_committed(subject: Subject) {
    let store = subject.open().await;
    create_table(&*store).await;
    let granted = run(&*store, guarded("k", START)).await;
    write_and_mark(&*store, granted.fence, false).await.unwrap();
    let (decision, _) = decided(&*store, guarded("k", after(31))).await;
    assert_eq!(decision, Decision::Committed { retry_after: None });
    store.lapse(after(32), 10).await.unwrap();
    let recorded = receipt(&*store, granted.fence.operation_id).await;
    assert_eq!(recorded.status.state, State::Succeeded);
    assert_eq!(recorded.status.attempts.get(1), Some(Knowledge::Happened));
    assert_eq!(recorded.kept, Kept::AnswerLost);
    assert!(recorded.finished_at.is_some());
    let (decision, _) = decided(&*store, guarded("k", after(33))).await;
    assert_eq!(decision, Decision::Committed { retry_after: None });
}
