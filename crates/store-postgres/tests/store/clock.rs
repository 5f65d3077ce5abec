//! The database's clock counts, whatever time the callers bring.

use std::time::Duration;

use counterfoil_core::{Decision, Retention, State, Timestamp};
use counterfoil_store::{Admission, Store};
use counterfoil_test_postgres::Database;

use crate::scene::{
    decided, finish, guarded, in_progress, node, now, outsider, run, stored, success, until,
};

const HOUR: Duration = Duration::from_secs(3600);
const LEASE: Duration = Duration::from_secs(30);

fn hour_ahead() -> Timestamp {
    now().plus(HOUR)
}

fn hour_behind() -> Timestamp {
    Timestamp::from_millis(now().as_millis() - 3_600_000)
}

fn at(time: Timestamp, admission: Admission) -> Admission {
    Admission {
        now: time,
        ..admission
    }
}

/// How far two times lie apart.
fn apart(a: Timestamp, b: Timestamp) -> Duration {
    a.since(b).max(b.since(a))
}

const CLOSE: Duration = Duration::from_secs(3);

/// A lease that has lapsed by the database's clock.
const LAPSED: &str = "SELECT bool_or(lease_until <= extract(epoch FROM clock_timestamp()) * 1000)
    FROM counterfoil_receipts";

/// Two nodes whose machines are two hours apart agree on what is alive.
#[tokio::test(flavor = "multi_thread")]
async fn i6_leases_are_judged_by_the_databases_clock() {
    let database = Database::new();
    let nodes = [node(&database).await, node(&database).await];
    for (key, time) in [("ahead", hour_ahead()), ("behind", hour_behind())] {
        let granted = run(&nodes[0], at(time, guarded(key))).await;
        assert!(apart(granted.lease_until, now().plus(LEASE)) < CLOSE);
        let limit = Duration::from_secs(120);
        assert!(apart(granted.hard_deadline, now().plus(limit)) < CLOSE);
        for time in [hour_ahead(), hour_behind()] {
            let (decision, _) = decided(&nodes[1], at(time, guarded(key))).await;
            assert!(in_progress(decision), "{decision:?}");
            assert_eq!(nodes[1].lapse(time, 100).await, Ok(0));
        }
        for time in [hour_ahead(), hour_behind()] {
            let minute = Duration::from_secs(60);
            let renewed = nodes[1].renew(granted.fence, time, minute).await.unwrap();
            assert!(apart(renewed, now().plus(minute)) < CLOSE);
        }
    }
}

/// A lease lapses by the database's clock too, for a caller whose own clock is far behind.
#[tokio::test(flavor = "multi_thread")]
async fn i6_a_clock_that_is_behind_keeps_nothing_alive() {
    let database = Database::new();
    let nodes = [node(&database).await, node(&database).await];
    let outside = outsider(&database).await;
    for key in ["admitted", "lapsed"] {
        let mut admission = at(hour_ahead(), guarded(key));
        admission.policy.lease = Duration::from_millis(300);
        let granted = run(&nodes[0], admission).await;
        let id = granted.fence.operation_id;
        until(
            &outside,
            &format!("{LAPSED} WHERE key = '{key}' AND state = 2"),
        )
        .await;
        if key == "admitted" {
            let (decision, _) = decided(&nodes[1], at(hour_behind(), guarded(key))).await;
            assert!(matches!(decision, Decision::Unknown { .. }), "{decision:?}");
        } else {
            assert_eq!(nodes[1].lapse(hour_behind(), 100).await, Ok(1));
        }
        let found = nodes[1].get(id).await.unwrap().unwrap();
        assert_eq!(found.receipt.status.state, State::OutcomeUnknown);
        let events = nodes[1].events(id).await.unwrap();
        assert!(events.iter().all(|event| apart(event.at, now()) < CLOSE));
    }
}

/// Windows count from an end on the database's clock, and are judged by it.
#[tokio::test(flavor = "multi_thread")]
async fn i2_windows_are_judged_by_the_databases_clock() {
    let database = Database::new();
    let nodes = [node(&database).await, node(&database).await];
    let keeping = |key: &str, replay: Duration, tombstone: Duration| {
        let mut admission = guarded(key);
        admission.policy.retention = Retention {
            replay_for: replay,
            tombstone_for: tombstone,
        };
        admission
    };
    let short = Duration::from_millis(300);
    for (key, tombstone) in [("expires", HOUR), ("is free again", Duration::ZERO)] {
        let granted = run(&nodes[0], keeping(key, short, tombstone)).await;
        let mut done = success(granted.fence, "done");
        done.at = hour_ahead();
        let receipt = nodes[0].complete(granted.fence, done).await.unwrap();
        assert!(apart(receipt.finished_at.unwrap(), now()) < CLOSE);
    }
    let granted = run(&nodes[0], keeping("lives", HOUR / 2, HOUR)).await;
    finish(&nodes[0], granted.fence, "done").await;
    let outside = outsider(&database).await;
    until(
        &outside,
        "SELECT max(finished_at) + 400 < extract(epoch FROM clock_timestamp()) * 1000
         FROM counterfoil_receipts",
    )
    .await;
    for time in [hour_ahead(), hour_behind()] {
        let (decision, _) = decided(&nodes[1], at(time, guarded("expires"))).await;
        assert_eq!(decision, Decision::Expired);
        let (decision, found) = decided(&nodes[1], at(time, guarded("lives"))).await;
        assert_eq!(decision, Decision::Replay);
        assert_eq!(found.reply, Some(stored("done")));
    }
    let again = at(hour_behind(), guarded("is free again"));
    let id = again.operation_id;
    let granted = run(&nodes[1], again).await;
    assert_eq!(granted.fence.operation_id, id);
}

/// What the store says of the present is the database's, within a tenth of a second.
#[tokio::test(flavor = "multi_thread")]
async fn the_stores_present_is_the_databases() {
    let database = Database::new();
    let store = node(&database).await;
    let outside = outsider(&database).await;
    let present = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint";
    let slack = 100;
    for _ in 0..20 {
        let row = outside.query_one(present, &[]).await.unwrap();
        let before: i64 = row.get(0);
        let said = store.now().unwrap().as_millis();
        let row = outside.query_one(present, &[]).await.unwrap();
        let after: i64 = row.get(0);
        assert!(
            before - slack <= said && said <= after + slack,
            "{before} {said} {after}"
        );
        tokio::time::sleep(Duration::from_millis(60)).await;
    }
}
