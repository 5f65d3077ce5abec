//! Where receipts lie, how they are found and how they go.

use std::sync::Arc;

use counterfoil_core::{Decision, Event, Policy, Retention, State};
use counterfoil_sqlite::{Fault, Injected, Options, Point};
use counterfoil_store::{Admission, Atomic, Error, Query, Store, SweepPlan};

use crate::scene::{
    Runs, START, Scene, after, atomic, body, decided, granted, guarded, identity, success,
};

struct OneLocator;

impl Fault for OneLocator {
    fn at(&self, _point: Point) -> Option<Injected> {
        None
    }

    fn locator(&self, _locator: i64) -> i64 {
        42
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn i4_identities_with_one_locator_stay_apart() {
    let scene = Scene::with(Options::default(), Arc::new(OneLocator)).await;
    for key in ["a", "b", "c"] {
        let fence = granted(&scene.store, guarded(key)).await.fence;
        scene
            .store
            .complete(fence, success(fence, key))
            .await
            .unwrap();
    }
    let mut parameters = guarded("a");
    parameters.identity.target.parameters = vec!["nd_1".to_owned()];
    granted(&scene.store, parameters).await;
    for key in ["a", "b", "c"] {
        let found = scene.store.find(&identity(key)).await.unwrap().unwrap();
        assert_eq!(body(&found), key.as_bytes());
        let (decision, found) = decided(&scene.store, guarded(key)).await;
        assert_eq!((decision, body(&found)), (Decision::Replay, key.as_bytes()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn i6_a_workspace_over_its_quota_starts_nothing_new_and_others_do() {
    let options = Options {
        unresolved_max: 2,
        ..Options::default()
    };
    let scene = Scene::new(options).await;
    let first = granted(&scene.store, guarded("1")).await.fence;
    granted(&scene.store, guarded("2")).await;
    let refused = scene.store.admit(guarded("3")).await.unwrap_err();
    assert_eq!(refused, Error::Quota { limit: 2 });
    assert_eq!(scene.store.find(&identity("3")).await.unwrap(), None);
    let mut other = guarded("3");
    other.identity.workspace = counterfoil_core::WorkspaceId::new("w2").unwrap();
    granted(&scene.store, other).await;
    // Retries are answered all the same, and what leaves nothing unresolved runs.
    let (decision, _) = decided(&scene.store, guarded("1")).await;
    assert!(matches!(decision, Decision::InProgress { .. }));
    let ran = scene.store.atomically(atomic("a"), Runs::note("a")).await;
    assert!(matches!(ran, Ok(Atomic::Ran(..))));
    // Lost is still unresolved; a resolution makes room.
    assert_eq!(scene.store.lapse(after(3600), 10).await.unwrap(), 3);
    let refused = scene.store.admit(guarded("3")).await.unwrap_err();
    assert_eq!(refused, Error::Quota { limit: 2 });
    let verdict = counterfoil_core::Verdict::NotHappened;
    let resolved = scene.store.record(
        first.operation_id,
        Event::Resolved { verdict },
        after(3601),
        "looked up".to_owned(),
        None,
    );
    resolved.await.unwrap();
    granted(&scene.store, guarded("3")).await;
    assert_eq!(scene.store.health().await.unwrap().unresolved, 3);
}

fn short(key: &str) -> Admission {
    let retention = Retention {
        replay_for: std::time::Duration::from_secs(60),
        tombstone_for: std::time::Duration::from_secs(600),
    };
    Admission {
        policy: Policy {
            retention,
            ..Policy::default()
        },
        ..guarded(key)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_in_steps_passes_rows_of_a_clock_that_jumped() {
    let scene = Scene::new(Options::default()).await;
    let mut fences = Vec::new();
    for number in 0..10 {
        let now = if number == 3 {
            after(90 * 24 * 3600)
        } else {
            START
        };
        let admission = Admission {
            now,
            ..short(&format!("k{number}"))
        };
        let fence = granted(&scene.store, admission).await.fence;
        fences.push(fence);
        if number != 5 {
            let mut told = success(fence, "done");
            told.at = now;
            scene.store.complete(fence, told).await.unwrap();
        }
    }
    let sweep = async |seconds| {
        let mut plan = SweepPlan {
            horizon: after(seconds),
            limit: 4,
            after: 0,
        };
        let (mut results, mut receipts) = (0, 0);
        loop {
            let swept = scene.store.sweep(plan).await.unwrap();
            results += swept.results;
            receipts += swept.receipts;
            match swept.next {
                Some(next) => plan.after = next,
                None => return (results, receipts),
            }
        }
    };
    assert_eq!(sweep(59).await, (0, 0));
    assert_eq!(
        sweep(60).await,
        (8, 0),
        "all but the running and the future one"
    );
    assert_eq!(sweep(60).await, (0, 0));
    assert_eq!(sweep(600).await, (0, 8));
    let left = scene.store.get(fences[5].operation_id).await.unwrap();
    assert_eq!(left.unwrap().receipt.status.state, State::Running);
    assert!(
        scene
            .store
            .get(fences[3].operation_id)
            .await
            .unwrap()
            .is_some()
    );
    assert!(
        scene
            .store
            .events(fences[0].operation_id)
            .await
            .unwrap()
            .is_empty()
    );
    let leftovers: i64 = rusqlite::Connection::open(scene.path())
        .unwrap()
        .query_row(
            "SELECT (SELECT count(*) FROM counterfoil_results)
                  + (SELECT count(*) FROM counterfoil_events)",
            [],
            |row| row.get(0),
        )
        .unwrap();
    assert_eq!(
        leftovers, 4,
        "one result, three events of the two that are left"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_doubt_is_listed_newest_first() {
    let scene = Scene::new(Options::default()).await;
    for number in 0..6 {
        let fence = granted(&scene.store, guarded(&format!("k{number}")))
            .await
            .fence;
        if number % 2 == 0 {
            scene
                .store
                .complete(fence, success(fence, "done"))
                .await
                .unwrap();
        }
    }
    assert_eq!(scene.store.lapse(after(3600), 2).await.unwrap(), 2);
    let query = Query {
        workspace: identity("k").workspace,
        principal: None,
        states: vec![State::OutcomeUnknown],
        cursor: None,
        limit: 1,
    };
    let first = scene.store.list(&query).await.unwrap();
    assert_eq!(first.receipts[0].identity, identity("k3"));
    let query = Query {
        cursor: first.next,
        ..query
    };
    let second = scene.store.list(&query).await.unwrap();
    assert_eq!(second.receipts[0].identity, identity("k1"));
    assert_eq!(second.next, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_search_has_its_index() {
    let scene = Scene::new(Options::default()).await;
    granted(&scene.store, guarded("k")).await;
    let other = rusqlite::Connection::open(scene.path()).unwrap();
    for (condition, index) in [
        (
            "locator = 1 AND scope = 1 AND key = 'k'",
            "counterfoil_identity",
        ),
        ("operation_id = x'00'", "counterfoil_handle"),
        (
            "workspace = 1 AND id < 9 ORDER BY id DESC",
            "counterfoil_listing",
        ),
        (
            "workspace = 1 AND (state = 4 OR state = 8) AND id < 9 ORDER BY id DESC",
            "counterfoil_",
        ),
        (
            "state BETWEEN 2 AND 4 AND mode <> 2 AND lease_until <= 9 ORDER BY lease_until",
            "counterfoil_lapsing",
        ),
    ] {
        let plan: String = other
            .query_row(
                &format!("EXPLAIN QUERY PLAN SELECT * FROM counterfoil_receipts WHERE {condition}"),
                [],
                |row| row.get(3),
            )
            .unwrap();
        assert!(plan.contains(index), "{condition}: {plan}");
        assert!(plan.starts_with("SEARCH"), "{condition}: {plan}");
    }
}
