//! Two nodes sweep at once, while callers use the keys.

use std::time::Duration;

use counterfoil_core::{Event, Retention, State};
use counterfoil_postgres::PostgresStore;
use counterfoil_store::{Admission, Admitted, Error, Store, SweepPlan, Swept};
use counterfoil_test_postgres::{Database, Plan, Proxy};

use crate::scene::{
    completion, finish, guarded, in_progress, node, node_at, now, outsider, run, until,
};

const HOUR: Duration = Duration::from_secs(3600);
const MILLI: Duration = Duration::from_millis(1);

fn keeping(admission: Admission, replay_for: Duration, tombstone_for: Duration) -> Admission {
    let mut admission = admission;
    admission.policy.retention = Retention {
        replay_for,
        tombstone_for,
    };
    admission
}

/// Sweeps to the end in small steps.
async fn sweep(store: &PostgresStore, ahead: Duration) -> Swept {
    let mut all = Swept::default();
    let mut after = 0;
    loop {
        let plan = SweepPlan {
            horizon: now().plus(ahead),
            limit: 50,
            after,
        };
        let step = store.sweep(plan).await.unwrap();
        all.results += step.results;
        all.receipts += step.receipts;
        match step.next {
            Some(next) => after = next,
            None => return all,
        }
    }
}

async fn make(store: &PostgresStore, count: usize, kind: &str, replay: Duration, keep: Duration) {
    let made: Vec<_> = (0..count)
        .map(|number| {
            let store = store.clone();
            let admission = keeping(guarded(&format!("{kind} {number}")), replay, keep);
            tokio::spawn(async move {
                let granted = run(&store, admission).await;
                finish(&store, granted.fence, "done").await
            })
        })
        .collect();
    for made in made {
        assert_eq!(made.await.unwrap().status.state, State::Succeeded);
    }
}

/// What hangs on receipts that are not there.
const ORPHANS: &str = "SELECT (SELECT count(*) FROM counterfoil_events AS e WHERE NOT EXISTS
      (SELECT 1 FROM counterfoil_receipts AS r WHERE r.id = e.id >> 20)),
    (SELECT count(*) FROM counterfoil_results AS a WHERE NOT EXISTS
      (SELECT 1 FROM counterfoil_receipts AS r WHERE r.id = a.receipt))";

/// Everything past its time goes, once; what is young, unresolved or a tombstone stays.
#[tokio::test(flavor = "multi_thread")]
async fn i6_two_nodes_sweep_at_once() {
    let database = Database::new();
    let nodes = [node(&database).await, node(&database).await];
    make(&nodes[0], 300, "gone", MILLI, MILLI).await;
    make(&nodes[1], 100, "tombstone", MILLI, HOUR * 10).await;
    make(&nodes[0], 100, "young", HOUR * 5, HOUR * 10).await;
    for number in 0..30 {
        let granted = run(
            &nodes[1],
            keeping(guarded(&format!("open {number}")), MILLI, MILLI),
        )
        .await;
        if number % 2 == 0 {
            let attempt = granted.fence.attempt;
            let maybe = completion(Event::Lost { attempt });
            nodes[1].complete(granted.fence, maybe).await.unwrap();
        }
    }
    let sweeps = nodes
        .clone()
        .map(|node| tokio::spawn(async move { sweep(&node, HOUR).await }));
    let (mut results, mut receipts) = (0, 0);
    for swept in sweeps {
        let swept = swept.await.unwrap();
        results += swept.results;
        receipts += swept.receipts;
    }
    // What one of them held at that moment the other one left to it.
    let rest = sweep(&nodes[0], HOUR).await;
    assert_eq!((rest.results, rest.receipts), (0, 0));
    assert_eq!((results, receipts), (100, 300));
    let left = "SELECT split_part(key, ' ', 1), count(*) FROM counterfoil_receipts
        GROUP BY 1 ORDER BY 1";
    assert_eq!(database.psql(left), "open|30\ntombstone|100\nyoung|100");
    assert_eq!(
        database.psql("SELECT count(*) FROM counterfoil_results"),
        "100"
    );
    assert_eq!(database.psql(ORPHANS), "0|0");
}

/// A key that is past its windows is swept on one node while the other one takes it anew: each
/// runs once, and no new receipt is swept.
#[tokio::test(flavor = "multi_thread")]
async fn i1_a_sweep_and_new_calls_of_the_same_keys_do_not_meet() {
    let database = Database::new();
    let nodes = [node(&database).await, node(&database).await];
    let outside = outsider(&database).await;
    for round in 0..4 {
        make(&nodes[0], 120, &format!("{round}"), MILLI, MILLI).await;
        until(
            &outside,
            "SELECT max(finished_at) + 5 < extract(epoch FROM clock_timestamp()) * 1000
             FROM counterfoil_receipts",
        )
        .await;
        let sweeping = nodes[0].clone();
        let sweeping = tokio::spawn(async move {
            for _ in 0..3 {
                sweep(&sweeping, Duration::ZERO).await;
            }
        });
        let calls: Vec<_> = (0..240)
            .map(|number| {
                let node = nodes[1].clone();
                let admission = guarded(&format!("{round} {}", number % 120));
                tokio::spawn(async move { (number % 120, node.admit(admission).await) })
            })
            .collect();
        let mut runs = vec![0; 120];
        let mut held = vec![0; 120];
        for call in calls {
            match call.await.unwrap() {
                (number, Ok(Admitted::Run(granted))) => {
                    assert_eq!(granted.fence.attempt, 1);
                    runs[number] += 1;
                }
                (number, Ok(Admitted::Held)) => held[number] += 1,
                (_, Ok(Admitted::Decided(decision, _))) => {
                    assert!(in_progress(decision), "{decision:?}");
                }
                (number, Err(error)) => panic!("{number}: {error:?}"),
            }
        }
        sweeping.await.unwrap();
        for (number, (runs, held)) in runs.into_iter().zip(held).enumerate() {
            assert!(
                runs == 1 || (runs == 0 && held == 2),
                "{number}: {runs} {held}"
            );
        }
        assert_eq!(database.psql(ORPHANS), "0|0");
    }
}

/// A step of a sweep in doubt says so, and the next sweep finds what there is.
#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_in_doubt_is_told_as_such() {
    let database = Database::new();
    let proxy = Proxy::start(database.address());
    let store = node_at(
        &database.url_at(proxy.address()),
        counterfoil_postgres::Options::default(),
    )
    .await;
    for plan in [Plan::cut_after_commit(), Plan::cut_before_commit()] {
        make(&store, 10, "gone", MILLI, MILLI).await;
        let lost = proxy.apply(plan);
        let step = SweepPlan {
            horizon: now().plus(HOUR),
            limit: 50,
            after: 0,
        };
        assert_eq!(store.sweep(step).await, Err(Error::CommitUnknown));
        assert_eq!(lost.count(), 1);
        sweep(&store, HOUR).await;
        assert_eq!(
            database.psql("SELECT count(*) FROM counterfoil_receipts"),
            "0"
        );
        assert_eq!(database.psql(ORPHANS), "0|0");
    }
}
