//! Windows are a function of row and clock; a sweep only saves space.

use std::time::Duration;

use counterfoil_core::{Decision, Kept, Retention, State};
use counterfoil_store::{Store, SweepPlan, Swept};

use super::Subject;
use super::scene::{
    START, after, completion, decided, guarded, question, receipt, run, stored, success,
};

const DAY: u64 = 24 * 3600;

async fn finish(store: &dyn Store, key: &str, retention: Retention) -> counterfoil_store::Fence {
    let mut admission = guarded(key, START);
    admission.policy.retention = retention;
    let granted = run(store, admission).await;
    store
        .complete(granted.fence, success(granted.fence, key, after(10)))
        .await
        .unwrap();
    granted.fence
}

fn without_tombstone() -> Retention {
    Retention {
        replay_for: Duration::from_secs(2 * DAY),
        tombstone_for: Duration::ZERO,
    }
}

async fn sweep(store: &dyn Store, at: u64) -> Swept {
    let plan = SweepPlan {
        horizon: after(at),
        limit: 1000,
        after: 0,
    };
    store.sweep(plan).await.unwrap()
}

pub async fn windows_with_a_tombstone_are_judged_by_the_clock(subject: Subject) {
    let store = subject.open().await;
    let fence = finish(&*store, "k", Retention::default()).await;
    let (decision, _) = decided(&*store, guarded("k", after(2 * DAY + 9))).await;
    assert_eq!(decision, Decision::Replay);
    let (decision, _) = decided(&*store, guarded("k", after(2 * DAY + 10))).await;
    assert_eq!(decision, Decision::Expired);
    let (decision, _) = decided(&*store, guarded("k", after(30 * DAY + 9))).await;
    assert_eq!(decision, Decision::Expired);
    let new = run(&*store, guarded("k", after(30 * DAY + 10))).await;
    assert_ne!(new.fence.operation_id, fence.operation_id);
    assert_eq!(new.fence.attempt, 1);
}

pub async fn windows_without_a_tombstone_make_a_new_operation(subject: Subject) {
    let store = subject.open().await;
    let fence = finish(&*store, "k", without_tombstone()).await;
    let (decision, _) = decided(&*store, guarded("k", after(2 * DAY + 9))).await;
    assert_eq!(decision, Decision::Replay);
    // Another body is a new action too, once both windows are over.
    let admission = super::scene::with_body("another", guarded("k", after(2 * DAY + 10)));
    let new = run(&*store, admission.clone()).await;
    assert_eq!(new.fence.operation_id, admission.operation_id);
    assert_eq!(new.fence.attempt, 1);
    assert_eq!(store.get(fence.operation_id).await.unwrap(), None);
    assert!(store.events(fence.operation_id).await.unwrap().is_empty());
    let found = store.find(&admission.identity).await.unwrap().unwrap();
    assert_eq!(found.receipt.operation_id, new.fence.operation_id);
    assert_eq!(found.reply, None, "the old answer is not the new one's");
    let late = success(fence, "late", after(2 * DAY + 11));
    let late = store.complete(fence, late).await;
    assert_eq!(late.err(), Some(counterfoil_store::Error::NotFound));
}

pub async fn a_clock_that_jumps_back_replays_again(subject: Subject) {
    let store = subject.open().await;
    finish(&*store, "k", Retention::default()).await;
    let (decision, _) = decided(&*store, guarded("k", after(3 * DAY))).await;
    assert_eq!(decision, Decision::Expired);
    let (decision, found) = decided(&*store, guarded("k", after(20))).await;
    assert_eq!(decision, Decision::Replay);
    assert_eq!(found.reply, Some(stored("k")));
}

pub async fn a_sweep_keeps_its_horizon(subject: Subject) {
    let store = subject.open().await;
    let fence = finish(&*store, "k", Retention::default()).await;
    let nothing = sweep(&*store, 2 * DAY + 9).await;
    assert_eq!((nothing.results, nothing.receipts), (0, 0));
    let results = sweep(&*store, 2 * DAY + 10).await;
    assert_eq!((results.results, results.receipts), (1, 0));
    let again = sweep(&*store, 2 * DAY + 11).await;
    assert_eq!((again.results, again.receipts), (0, 0), "deleted once");
    let found = store.get(fence.operation_id).await.unwrap().unwrap();
    assert_eq!(found.reply, None);
    assert_eq!(found.receipt.fingerprint, guarded("k", START).fingerprint);
    let (decision, _) = decided(&*store, guarded("k", after(3 * DAY))).await;
    assert_eq!(decision, Decision::Expired);
    let conflict = super::scene::with_body("another", guarded("k", after(3 * DAY)));
    assert_eq!(decided(&*store, conflict).await.0, Decision::Conflict);
    let receipts = sweep(&*store, 30 * DAY + 10).await;
    assert_eq!((receipts.results, receipts.receipts), (0, 1));
    assert_eq!(store.get(fence.operation_id).await.unwrap(), None);
    assert!(store.events(fence.operation_id).await.unwrap().is_empty());
    run(&*store, guarded("k", after(30 * DAY + 11))).await;
}

pub async fn a_sweep_never_touches_what_is_unresolved(subject: Subject) {
    let store = subject.open().await;
    let running = run(&*store, guarded("running", START)).await;
    let asked = run(&*store, guarded("asked", START)).await;
    store
        .complete(asked.fence, question(asked.fence, "q", after(1)))
        .await
        .unwrap();
    let unknown = run(&*store, guarded("unknown", START)).await;
    let lost = counterfoil_core::Event::Lost {
        attempt: unknown.fence.attempt,
    };
    store
        .complete(unknown.fence, completion(lost, after(1)))
        .await
        .unwrap();
    let swept = sweep(&*store, 10_000 * DAY).await;
    assert_eq!((swept.results, swept.receipts), (0, 0));
    for (fence, state) in [
        (running.fence, State::Running),
        (asked.fence, State::InputRequired),
        (unknown.fence, State::OutcomeUnknown),
    ] {
        assert_eq!(
            receipt(&*store, fence.operation_id).await.status.state,
            state
        );
    }
    let found = store.get(asked.fence.operation_id).await.unwrap().unwrap();
    assert_eq!(found.reply, Some(stored("q")));
}

pub async fn a_sweep_is_bounded_and_gets_through(subject: Subject) {
    let store = subject.open().await;
    for number in 0..7 {
        finish(&*store, &format!("k{number}"), without_tombstone()).await;
    }
    run(&*store, guarded("kept", START)).await;
    let mut plan = SweepPlan {
        horizon: after(3 * DAY),
        limit: 3,
        after: 0,
    };
    let mut receipts = 0;
    for step in 0.. {
        assert!(step < 10, "a sweep gets through");
        let swept = store.sweep(plan).await.unwrap();
        assert!(swept.receipts + swept.results <= 3, "a step is bounded");
        receipts += swept.receipts;
        match swept.next {
            Some(next) => {
                assert!(next > plan.after, "a sweep goes forward");
                plan.after = next;
            }
            None => break,
        }
    }
    assert_eq!(receipts, 7);
    assert!(
        store
            .find(&guarded("kept", START).identity)
            .await
            .unwrap()
            .is_some()
    );
}

pub async fn a_swept_result_is_not_invented(subject: Subject) {
    let store = subject.open().await;
    let fence = finish(&*store, "k", Retention::default()).await;
    assert_eq!(sweep(&*store, 3 * DAY).await.results, 1);
    // The clock jumps back into the replay window: the result is gone all the same.
    let (decision, found) = decided(&*store, guarded("k", after(20))).await;
    assert_eq!(decision, Decision::ResultUnavailable);
    assert_eq!(found.reply, None);
    assert_ne!(
        receipt(&*store, fence.operation_id).await.kept,
        Kept::Stored
    );
}

pub async fn a_released_key_is_forgotten_after_its_windows(subject: Subject) {
    let store = subject.open().await;
    for key in ["replaced", "swept"] {
        let granted = run(&*store, guarded(key, START)).await;
        let attempt = granted.fence.attempt;
        let released = completion(counterfoil_core::Event::NotApplied { attempt }, after(10));
        store.complete(granted.fence, released).await.unwrap();
        let kept = sweep(&*store, 30 * DAY + 9).await;
        assert_eq!((kept.results, kept.receipts), (0, 0), "{key}");
        if key == "swept" {
            assert_eq!(sweep(&*store, 30 * DAY + 10).await.receipts, 1);
            assert_eq!(store.get(granted.fence.operation_id).await.unwrap(), None);
        }
        let new = run(&*store, guarded(key, after(30 * DAY + 10))).await;
        assert_ne!(new.fence.operation_id, granted.fence.operation_id, "{key}");
        assert_eq!(new.fence.attempt, 1, "{key}");
    }
}
