//! Rounds: a question is no outcome, the same key goes on with its inputs.

use counterfoil_core::{Decision, Event, State};
use counterfoil_store::{Completion, Granted, Store};

use super::Subject;
use super::scene::{
    START, after, completion, decided, guarded, question, receipt, run, stored, success,
    with_inputs,
};

async fn ask(store: &dyn Store, granted: &Granted, body: &str, at: u64) {
    let asked = question(granted.fence, body, after(at));
    let recorded = store.complete(granted.fence, asked).await.unwrap();
    assert_eq!(recorded.status.state, State::InputRequired);
    assert_eq!(recorded.finished_at, None);
    assert_eq!(recorded.lease_until, after(at + 600));
}

pub async fn a_question_is_replayed(subject: Subject) {
    let store = subject.open().await;
    let granted = run(&*store, guarded("k", START)).await;
    ask(&*store, &granted, "who pays?", 1).await;
    let again = subject.open().await;
    let found = again
        .get(granted.fence.operation_id)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(found.reply, Some(stored("who pays?")));
    let (decision, found) = decided(&*store, guarded("k", after(2))).await;
    assert_eq!(decision, Decision::ReplayQuestion { round: 0 });
    assert_eq!(found.reply, Some(stored("who pays?")));
}

pub async fn the_next_round_keeps_the_operation(subject: Subject) {
    let store = subject.open().await;
    let first = run(&*store, guarded("k", START)).await;
    ask(&*store, &first, "q0", 1).await;
    let second = run(&*store, with_inputs(1, guarded("k", after(2)))).await;
    assert_eq!(second.fence.operation_id, first.fence.operation_id);
    assert_eq!((second.fence.attempt, second.round), (2, 1));
    assert_eq!(second.lease_until, after(32));
    assert_eq!(second.hard_deadline, after(122));
    ask(&*store, &second, "q1", 3).await;
    let third = run(&*store, with_inputs(2, guarded("k", after(4)))).await;
    assert_eq!((third.fence.attempt, third.round), (3, 2));
    store
        .complete(third.fence, success(third.fence, "done", after(5)))
        .await
        .unwrap();
    let recorded = receipt(&*store, first.fence.operation_id).await;
    assert_eq!(recorded.status.state, State::Succeeded);
    assert_eq!(recorded.rounds, [[1; 32], [2; 32]]);
    let (decision, found) = decided(&*store, with_inputs(2, guarded("k", after(6)))).await;
    assert_eq!(decision, Decision::Replay);
    assert_eq!(found.reply, Some(stored("done")));
    let (decision, found) = decided(&*store, guarded("k", after(6))).await;
    assert_eq!(decision, Decision::Replay);
    assert_eq!(found.reply, Some(stored("done")));
}

pub async fn a_repeated_round_is_answered_as_before(subject: Subject) {
    let store = subject.open().await;
    let first = run(&*store, guarded("k", START)).await;
    ask(&*store, &first, "q0", 1).await;
    let second = run(&*store, with_inputs(1, guarded("k", after(2)))).await;
    // While the second round runs: the first call gets its question, the second waits.
    let (decision, found) = decided(&*store, guarded("k", after(3))).await;
    assert_eq!(decision, Decision::ReplayQuestion { round: 0 });
    assert_eq!(found.receipt.status.state, State::Running);
    let (decision, _) = decided(&*store, with_inputs(1, guarded("k", after(3)))).await;
    assert!(
        matches!(decision, Decision::InProgress { .. }),
        "{decision:?}"
    );
    ask(&*store, &second, "q1", 4).await;
    let (decision, found) = decided(&*store, with_inputs(1, guarded("k", after(5)))).await;
    assert_eq!(decision, Decision::ReplayQuestion { round: 1 });
    assert_eq!(found.reply, Some(stored("q1")));
    run(&*store, with_inputs(2, guarded("k", after(6)))).await;
    for (round, kept) in [(0, Some(stored("q0"))), (1, Some(stored("q1"))), (2, None)] {
        let id = first.fence.operation_id;
        assert_eq!(store.question(id, round).await.unwrap(), kept, "{round}");
    }
    let (decision, found) = decided(&*store, with_inputs(1, guarded("k", after(7)))).await;
    assert_eq!(decision, Decision::ReplayQuestion { round: 1 });
    assert_eq!(found.receipt.status.round, 2);
}

pub async fn another_answer_to_an_answered_round_conflicts(subject: Subject) {
    let store = subject.open().await;
    let first = run(&*store, guarded("k", START)).await;
    ask(&*store, &first, "q0", 1).await;
    let second = run(&*store, with_inputs(1, guarded("k", after(2)))).await;
    let (decision, _) = decided(&*store, with_inputs(9, guarded("k", after(3)))).await;
    assert_eq!(decision, Decision::Conflict);
    store
        .complete(second.fence, success(second.fence, "done", after(4)))
        .await
        .unwrap();
    let (decision, _) = decided(&*store, with_inputs(9, guarded("k", after(5)))).await;
    assert_eq!(decision, Decision::Conflict);
}

pub async fn a_round_not_sent_leaves_its_question_standing(subject: Subject) {
    let store = subject.open().await;
    let first = run(&*store, guarded("k", START)).await;
    ask(&*store, &first, "q0", 1).await;
    let second = run(&*store, with_inputs(1, guarded("k", after(2)))).await;
    let attempt = second.fence.attempt;
    let told = completion(Event::NotApplied { attempt }, after(3));
    let recorded = store.complete(second.fence, told).await.unwrap();
    assert_eq!(recorded.status.state, State::InputRequired);
    assert_eq!(recorded.status.round, 0);
    assert!(recorded.rounds.is_empty());
    let (decision, found) = decided(&*store, guarded("k", after(4))).await;
    assert_eq!(decision, Decision::ReplayQuestion { round: 0 });
    assert_eq!(found.reply, Some(stored("q0")));
    let third = run(&*store, with_inputs(2, guarded("k", after(5)))).await;
    assert_eq!((third.fence.attempt, third.round), (3, 1));
}

pub async fn i6_an_abandoned_question_frees_its_key(subject: Subject) {
    let store = subject.open().await;
    for key in ["by lapse", "by admission"] {
        let first = run(&*store, guarded(key, START)).await;
        ask(&*store, &first, "q0", 1).await;
        if key == "by lapse" {
            assert_eq!(store.lapse(after(600), 10).await.unwrap(), 0);
            assert_eq!(store.lapse(after(601), 10).await.unwrap(), 1);
            let recorded = receipt(&*store, first.fence.operation_id).await;
            assert_eq!(recorded.status.state, State::Free);
        }
        let second = run(&*store, guarded(key, after(601))).await;
        assert_eq!(second.fence.operation_id, first.fence.operation_id);
        assert_eq!((second.fence.attempt, second.round), (2, 0));
        store
            .complete(second.fence, success(second.fence, "x", after(602)))
            .await
            .unwrap();
    }
}

pub async fn an_abandoned_question_that_may_have_applied_is_unknown(subject: Subject) {
    let store = subject.open().await;
    let granted = run(&*store, guarded("k", START)).await;
    let event = Event::Asked {
        attempt: granted.fence.attempt,
        effect_none: false,
    };
    let told = Completion {
        reply: Some(stored("q")),
        ..completion(event, after(1))
    };
    store.complete(granted.fence, told).await.unwrap();
    assert_eq!(store.lapse(after(601), 10).await.unwrap(), 1);
    let (decision, _) = decided(&*store, guarded("k", after(602))).await;
    assert!(matches!(decision, Decision::Unknown { .. }), "{decision:?}");
}
