//! Invariant I6: an attempt that stays silent is looked into, and nothing runs again for it.

use std::time::Duration;

use counterfoil_core::{Decision, Event, Illegal, State, Timestamp};
use counterfoil_store::{Error, Fence, Store};

use super::Subject;
use super::scene::{START, after, completion, decided, guarded, receipt, run, success};

/// Renews at 1 s, until `until` seconds after the start.
async fn renew(store: &dyn Store, fence: Fence, until: u64) -> Result<Timestamp, Error> {
    let lease = Duration::from_secs(until - 1);
    store.renew(fence, after(1), lease).await
}

pub async fn i6_a_lapsed_lease_becomes_unknown(subject: Subject) {
    let store = subject.open().await;
    let granted = run(&*store, guarded("k", START)).await;
    assert_eq!(store.lapse(after(30), 10).await.unwrap(), 1);
    let again = subject.open().await;
    let recorded = receipt(&*again, granted.fence.operation_id).await;
    assert_eq!(recorded.status.state, State::OutcomeUnknown);
    assert_eq!(recorded.finished_at, None);
    assert_eq!(store.lapse(after(31), 10).await.unwrap(), 0);
    let events = store.events(granted.fence.operation_id).await.unwrap();
    assert_eq!(events.len(), 2);
    assert_eq!(events[1].from, Some(State::Running));
    assert_eq!(events[1].to, State::OutcomeUnknown);
    assert_eq!(events[1].attempt, 1);
    assert_eq!(events[1].at, after(30));
}

pub async fn i6_lapse_is_bounded_and_finds_everything(subject: Subject) {
    let store = subject.open().await;
    for number in 0..7 {
        run(&*store, guarded(&format!("k{number}"), START)).await;
    }
    let mut steps = Vec::new();
    for _ in 0..4 {
        steps.push(store.lapse(after(31), 3).await.unwrap());
    }
    assert_eq!(steps, [3, 3, 1, 0]);
}

pub async fn field_03_a_lapsed_lease_runs_nothing_again(subject: Subject) {
    let store = subject.open().await;
    let granted = run(&*store, guarded("k", START)).await;
    let (decision, _) = decided(&*store, guarded("k", after(30))).await;
    assert!(matches!(decision, Decision::Unknown { .. }), "{decision:?}");
    let recorded = receipt(&*store, granted.fence.operation_id).await;
    assert_eq!(
        recorded.status.state,
        State::OutcomeUnknown,
        "recorded on the way"
    );
    assert_eq!(recorded.status.attempts.latest(), 1);
    let (decision, found) = decided(&*store, guarded("k", after(4_000_000))).await;
    assert_eq!(
        decision,
        Decision::Unknown {
            lapsed: false,
            retryable: false
        }
    );
    assert_eq!(found.receipt.status.attempts.latest(), 1);
}

pub async fn a_lease_is_renewed_never_past_the_hard_deadline(subject: Subject) {
    let store = subject.open().await;
    let granted = run(&*store, guarded("k", START)).await;
    assert_eq!(renew(&*store, granted.fence, 50).await.unwrap(), after(50));
    assert_eq!(renew(&*store, granted.fence, 50).await.unwrap(), after(50));
    let again = subject.open().await;
    assert_eq!(
        receipt(&*again, granted.fence.operation_id)
            .await
            .lease_until,
        after(50)
    );
    let (decision, _) = decided(&*store, guarded("k", after(49))).await;
    assert!(
        matches!(decision, Decision::InProgress { .. }),
        "{decision:?}"
    );
    assert_eq!(
        renew(&*store, granted.fence, 500).await.unwrap(),
        after(120)
    );
    assert_eq!(store.lapse(after(119), 10).await.unwrap(), 0);
    assert_eq!(store.lapse(after(120), 10).await.unwrap(), 1);
}

pub async fn a_renewal_is_fenced(subject: Subject) {
    let store = subject.open().await;
    let granted = run(&*store, guarded("k", START)).await;
    let fenced = Err(Error::Fenced(Illegal::Fenced));
    let wrong = Fence {
        attempt: 2,
        ..granted.fence
    };
    assert_eq!(renew(&*store, wrong, 40).await, fenced);
    store
        .complete(granted.fence, success(granted.fence, "x", after(1)))
        .await
        .unwrap();
    assert_eq!(renew(&*store, granted.fence, 40).await, fenced);

    let lapsed = run(&*store, guarded("lapsed", START)).await;
    store.lapse(after(31), 10).await.unwrap();
    assert_eq!(renew(&*store, lapsed.fence, 60).await, fenced);

    let released = run(&*store, guarded("released", START)).await;
    let attempt = released.fence.attempt;
    let told = completion(Event::NotApplied { attempt }, after(1));
    store.complete(released.fence, told).await.unwrap();
    assert_eq!(renew(&*store, released.fence, 60).await, fenced);
}

pub async fn a_live_lease_does_not_lapse(subject: Subject) {
    let store = subject.open().await;
    let granted = run(&*store, guarded("k", START)).await;
    assert_eq!(store.lapse(after(29), 10).await.unwrap(), 0);
    let recorded = receipt(&*store, granted.fence.operation_id).await;
    assert_eq!(recorded.status.state, State::Running);
}
