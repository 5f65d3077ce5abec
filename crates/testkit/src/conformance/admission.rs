//! The decision table, through `admit`.

use std::time::Duration;

use counterfoil_core::{Decision, Effect, Event, Illegal, Kept, Policy, State, Verdict};
use counterfoil_store::{Completion, Error};

use super::Subject;
use super::scene::{
    START, after, atomic, completion, decided, guarded, question, receipt, run, stored, success,
    with_body,
};

pub async fn a_first_call_runs_and_its_reservation_is_durable(subject: Subject) {
    let store = subject.open().await;
    let admission = guarded("k", START);
    let granted = run(&*store, admission.clone()).await;
    assert_eq!(granted.fence.operation_id, admission.operation_id);
    assert_eq!(granted.fence.attempt, 1);
    assert_eq!(granted.round, 0);
    assert_eq!(granted.lease_until, after(30));
    assert_eq!(granted.hard_deadline, after(120));

    let again = subject.open().await;
    let found = again.find(&admission.identity).await.unwrap().unwrap();
    assert_eq!(found.receipt.operation_id, admission.operation_id);
    assert_eq!(found.receipt.identity, admission.identity);
    assert_eq!(found.receipt.fingerprint, admission.fingerprint);
    assert_eq!(found.receipt.status.state, State::Running);
    assert_eq!(found.receipt.created_at, START);
    assert_eq!(found.receipt.lease_until, after(30));
    assert_eq!(found.receipt.hard_deadline, after(120));
    assert_eq!(found.receipt.finished_at, None);
    assert_eq!(found.receipt.kept, Kept::Nothing);
    assert_eq!(found.receipt.version, 1);
    assert_eq!(found.reply, None);
}

pub async fn i2_a_finished_call_replays_its_bytes(subject: Subject) {
    let store = subject.open().await;
    let granted = run(&*store, guarded("k", START)).await;
    let mut answer = success(granted.fence, "bytes", after(1));
    let bytes: Vec<u8> = (0..=255).collect();
    let mut kept = stored("");
    kept.reply.body = bytes.into();
    kept.reply.content_type = None;
    kept.reply.headers = vec![
        ("a".to_owned(), "ä".to_owned()),
        ("a".to_owned(), String::new()),
    ];
    kept.sealed = Some(7);
    answer.reply = Some(kept.clone());
    let recorded = store.complete(granted.fence, answer).await.unwrap();
    assert_eq!(recorded.status.state, State::Succeeded);
    assert_eq!(recorded.finished_at, Some(after(1)));
    assert_eq!(recorded.kept, Kept::Stored);

    let again = subject.open().await;
    for store in [&store, &again] {
        let (decision, found) = decided(&**store, guarded("k", after(2))).await;
        assert_eq!(decision, Decision::Replay);
        assert_eq!(found.receipt, recorded);
        assert_eq!(found.reply.as_ref(), Some(&kept));
    }
}

pub async fn a_running_call_is_in_progress(subject: Subject) {
    let store = subject.open().await;
    run(&*store, guarded("k", START)).await;
    let (decision, found) = decided(&*store, guarded("k", after(29))).await;
    assert!(
        matches!(decision, Decision::InProgress { .. }),
        "{decision:?}"
    );
    assert_eq!(found.receipt.status.attempts.latest(), 1);
}

pub async fn field_02_a_conflict_is_found_in_every_state(subject: Subject) {
    let store = subject.open().await;
    let settle = |name: &'static str| {
        let store = store.clone();
        async move {
            let granted = run(&*store, guarded(name, START)).await;
            let attempt = granted.fence.attempt;
            let event = match name {
                "running" => return,
                "free" => Event::NotApplied { attempt },
                "failed" => Event::Refused {
                    attempt,
                    effect_none: false,
                },
                "cancelled" => Event::Stopped { attempt },
                "unknown" => Event::Lost { attempt },
                "asked" => Event::Asked {
                    attempt,
                    effect_none: true,
                },
                _ => Event::Succeeded { attempt },
            };
            let told = Completion {
                reply: (name != "free" && name != "unknown").then(|| stored("x")),
                ..completion(event, after(1))
            };
            store.complete(granted.fence, told).await.unwrap();
        }
    };
    let day = 24 * 3600;
    for (name, when) in [
        ("running", 2),
        ("lapsed running", 2),
        ("free", 2),
        ("failed", 2),
        ("cancelled", 2),
        ("unknown", 2),
        ("asked", 2),
        ("succeeded", 2),
        ("tombstone", 3 * day),
    ] {
        settle(name).await;
        let before = store.find(&guarded(name, START).identity).await.unwrap();
        let other = with_body("another", guarded(name, after(when)));
        let (decision, found) = decided(&*store, other).await;
        assert_eq!(decision, Decision::Conflict, "{name}");
        assert_eq!(
            Some(&found.receipt),
            before.as_ref().map(|found| &found.receipt),
            "{name}"
        );
        let afterwards = store.find(&guarded(name, START).identity).await.unwrap();
        assert_eq!(afterwards, before, "{name}: a conflict changes nothing");
    }
}

pub async fn a_lost_answer_of_admit_is_recognized_by_its_token(subject: Subject) {
    let store = subject.open().await;
    let admission = guarded("k", START);
    let first = run(&*store, admission.clone()).await;
    let mut repeated = admission.clone();
    repeated.now = after(1);
    let second = run(&*store, repeated).await;
    assert_eq!(second.fence, first.fence);
    assert_eq!(second.round, first.round);
    assert_eq!(second.lease_until, first.lease_until);
    assert_eq!(second.hard_deadline, first.hard_deadline);
    let events = store.events(first.fence.operation_id).await.unwrap();
    assert_eq!(events.len(), 1, "repeating an admission is no transition");
    let (decision, _) = decided(&*store, guarded("k", after(1))).await;
    assert!(
        matches!(decision, Decision::InProgress { .. }),
        "{decision:?}"
    );
}

pub async fn a_token_of_the_past_reserves_nothing(subject: Subject) {
    let store = subject.open().await;
    let admission = guarded("finished", START);
    let granted = run(&*store, admission.clone()).await;
    let answer = success(granted.fence, "x", after(1));
    store.complete(granted.fence, answer).await.unwrap();
    let (decision, found) = decided(&*store, admission).await;
    assert_eq!(decision, Decision::Replay);
    assert_eq!(found.reply, Some(stored("x")));

    let admission = guarded("unknown", START);
    let granted = run(&*store, admission.clone()).await;
    let attempt = granted.fence.attempt;
    let lost = completion(Event::Lost { attempt }, after(1));
    store.complete(granted.fence, lost).await.unwrap();
    let (decision, _) = decided(&*store, admission).await;
    assert!(matches!(decision, Decision::Unknown { .. }), "{decision:?}");

    let admission = guarded("asked", START);
    let granted = run(&*store, admission.clone()).await;
    let asked = question(granted.fence, "q", after(1));
    store.complete(granted.fence, asked).await.unwrap();
    let (decision, found) = decided(&*store, admission).await;
    assert_eq!(decision, Decision::ReplayQuestion { round: 0 });
    assert_eq!(found.reply, Some(stored("q")));
}

pub async fn field_06_a_result_too_large_leaves_a_marker(subject: Subject) {
    let store = subject.open().await;
    let granted = run(&*store, guarded("k", START)).await;
    let attempt = granted.fence.attempt;
    let told = Completion {
        kept: Kept::TooLarge,
        ..completion(Event::Succeeded { attempt }, after(1))
    };
    let recorded = store.complete(granted.fence, told).await.unwrap();
    assert_eq!(recorded.kept, Kept::TooLarge);
    let (decision, found) = decided(&*store, guarded("k", after(2))).await;
    assert_eq!(decision, Decision::ResultUnavailable);
    assert_eq!(found.reply, None);
    assert_eq!(found.receipt.status.attempts.latest(), 1);
}

pub async fn a_refusal_is_kept_with_its_effect(subject: Subject) {
    let store = subject.open().await;
    for (name, effect_none, effect) in [
        ("none", true, Effect::None),
        ("unknown", false, Effect::Unknown),
    ] {
        let granted = run(&*store, guarded(name, START)).await;
        let attempt = granted.fence.attempt;
        let told = Completion {
            reply: Some(stored(name)),
            ..completion(
                Event::Refused {
                    attempt,
                    effect_none,
                },
                after(1),
            )
        };
        let recorded = store.complete(granted.fence, told).await.unwrap();
        assert_eq!(recorded.status.state, State::Failed);
        assert_eq!(recorded.effect(), effect);
        let (decision, found) = decided(&*store, guarded(name, after(2))).await;
        assert_eq!(decision, Decision::Replay);
        assert_eq!(found.reply, Some(stored(name)));
    }
}

pub async fn an_atomic_policy_cannot_be_admitted(subject: Subject) {
    let store = subject.open().await;
    let admission = atomic("k", START);
    let refused = store.admit(admission.clone()).await;
    assert_eq!(refused.err(), Some(Error::Fenced(Illegal::NotPossible)));
    assert_eq!(store.find(&admission.identity).await.unwrap(), None);
}

pub async fn cancelling_says_what_is_established(subject: Subject) {
    let store = subject.open().await;
    let granted = run(&*store, guarded("k", START)).await;
    let id = granted.fence.operation_id;
    let asked = store
        .record(
            id,
            Event::CancelRequested,
            after(1),
            "asked".to_owned(),
            None,
        )
        .await
        .unwrap();
    assert_eq!(asked.status.state, State::CancelRequested);
    assert_eq!(asked.effect(), Effect::Unknown);
    let (decision, _) = decided(&*store, guarded("k", after(2))).await;
    assert!(
        matches!(decision, Decision::InProgress { .. }),
        "{decision:?}"
    );
    let attempt = granted.fence.attempt;
    let stopped = completion(Event::Stopped { attempt }, after(3));
    let stopped = store.complete(granted.fence, stopped).await.unwrap();
    assert_eq!(stopped.status.state, State::Cancelled);
    assert_eq!(stopped.finished_at, Some(after(3)));
    let (decision, _) = decided(&*store, guarded("k", after(4))).await;
    assert_eq!(decision, Decision::ResultUnavailable);
    // Once more is what happened already.
    let again = store
        .record(
            id,
            Event::CancelRequested,
            after(5),
            "asked".to_owned(),
            None,
        )
        .await
        .unwrap();
    assert_eq!(again, receipt(&*store, id).await);
    assert_eq!(again.status.state, State::Cancelled);
}

pub async fn a_resolution_settles_an_unknown_outcome(subject: Subject) {
    let store = subject.open().await;
    for (name, verdict, state) in [
        ("happened", Verdict::Happened, State::Succeeded),
        ("not", Verdict::NotHappened, State::Failed),
    ] {
        let granted = run(&*store, guarded(name, START)).await;
        let id = granted.fence.operation_id;
        let early = store
            .record(
                id,
                Event::Resolved { verdict },
                after(1),
                "a person".to_owned(),
                None,
            )
            .await;
        assert_eq!(
            early.err(),
            Some(Error::Fenced(Illegal::NotPossible)),
            "{name}"
        );
        let attempt = granted.fence.attempt;
        let lost = completion(Event::Lost { attempt }, after(1));
        store.complete(granted.fence, lost).await.unwrap();
        let evidence = Some("ticket 12".to_owned());
        let resolved = store
            .record(
                id,
                Event::Resolved { verdict },
                after(2),
                "a person".to_owned(),
                evidence.clone(),
            )
            .await
            .unwrap();
        assert_eq!(resolved.status.state, state, "{name}");
        assert_eq!(resolved.finished_at, Some(after(2)), "{name}");
        let last = store.events(id).await.unwrap().pop().unwrap();
        assert_eq!(
            (last.reason.as_str(), last.evidence),
            ("a person", evidence),
            "{name}"
        );
        let (decision, _) = decided(&*store, guarded(name, after(3))).await;
        let unavailable = matches!(
            decision,
            Decision::ResultUnavailable | Decision::Committed { retry_after: None }
        );
        assert!(unavailable, "{name}: {decision:?}");
    }
    let unknown = super::scene::operation_id(START);
    let nothing = store
        .record(unknown, Event::CancelRequested, START, String::new(), None)
        .await;
    assert_eq!(nothing.err(), Some(Error::NotFound));
}

pub async fn a_provider_window_makes_unknown_retryable(subject: Subject) {
    let store = subject.open().await;
    let mut admission = guarded("k", START);
    admission.policy = Policy {
        provider_window: Duration::from_secs(3600),
        ..Policy::default()
    };
    let granted = run(&*store, admission).await;
    let attempt = granted.fence.attempt;
    let lost = completion(Event::Lost { attempt }, after(1));
    store.complete(granted.fence, lost).await.unwrap();
    for (when, retryable) in [(2, true), (3419, true), (3420, false)] {
        let (decision, _) = decided(&*store, guarded("k", after(when))).await;
        assert_eq!(
            decision,
            Decision::Unknown {
                lapsed: false,
                retryable
            }
        );
    }
}
