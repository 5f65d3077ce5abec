//! Traps of admission: rivals whose transactions are open.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use counterfoil_core::{Decision, State};
use counterfoil_postgres::{Options, PostgresStore};
use counterfoil_store::{Admitted, Atomic, Failure, Store};
use counterfoil_test_postgres::{Database, Plan, Proxy};

use crate::scene::{
    Gate, SOON, atomic, decided, guarded, handler, in_progress, node, node_at, outsider, reply, run,
};

const HOLD: Duration = Duration::from_secs(1);

/// The number of the advisory lock under which an identity is decided on, as the server shows it.
async fn lock_of(store: &PostgresStore, outside: &tokio_postgres::Client, key: &str) -> i64 {
    let gate = Gate::new();
    let stands = gate.clone();
    let aborts = handler(move |_| {
        let stands = stands.clone();
        Box::pin(async move {
            stands.pass().await;
            Err(Failure::Aborted(reply("nothing is kept")))
        })
    });
    let (rival, admission) = (store.clone(), atomic(key));
    let rival = tokio::spawn(async move { rival.atomically(admission, aborts).await });
    gate.reached().await;
    let lock = outside
        .query_one(
            "SELECT (l.classid::bigint << 32) | l.objid::bigint FROM pg_locks AS l
             JOIN pg_database AS d ON d.oid = l.database AND d.datname = current_database()
             WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted",
            &[],
        )
        .await
        .unwrap();
    gate.open();
    assert!(matches!(rival.await.unwrap(), Ok(Atomic::Aborted(_))));
    lock.get(0)
}

/// The rival's row is inserted and its commit is under way: not seen is not "none".
#[tokio::test(flavor = "multi_thread")]
async fn i1_an_uncommitted_rival_is_never_taken_for_none() {
    let database = Database::new();
    let proxy = Proxy::start(database.address());
    let rival = node_at(&database.url_at(proxy.address()), Options::default()).await;
    let store = node(&database).await;
    // Its scope is known beforehand, so that the next commit is the reservation's.
    run(&rival, guarded("before")).await;
    let held = proxy.hold_commit(HOLD);
    let admission = guarded("k");
    let operation_id = admission.operation_id;
    let reserving = tokio::spawn(async move { rival.admit(admission).await });
    held.wait(1);
    let mut told = 0;
    while held.late_commits() == 0 {
        match store.admit(guarded("k")).await {
            Ok(Admitted::Held) => told += 1,
            // Committed between the two looks.
            Ok(Admitted::Decided(decision, _)) if in_progress(decision) => break,
            other => panic!("a rival holds it, and yet: {other:?}"),
        }
    }
    assert!(told > 0, "nobody looked while it was held");
    held.wait_late(1);
    let (decision, found) = decided(&store, guarded("k")).await;
    assert!(in_progress(decision), "{decision:?}");
    assert_eq!(found.receipt.operation_id, operation_id);
    match reserving.await.unwrap() {
        Ok(Admitted::Run(granted)) => assert_eq!(granted.fence.operation_id, operation_id),
        other => panic!("its own reservation was committed late: {other:?}"),
    }
}

/// One identity of the batch is held open by somebody else; the 63 others are served.
#[tokio::test(flavor = "multi_thread")]
async fn i6_a_held_identity_stalls_nobody_else_in_its_batch() {
    let database = Database::new();
    let options = Options {
        lanes: 1,
        ..Options::default()
    };
    let store = node_at(database.url(), options).await;
    let outside = outsider(&database).await;
    let lock = lock_of(&store, &outside, "held").await;
    outside.batch_execute("BEGIN").await.unwrap();
    outside
        .execute("SELECT pg_advisory_xact_lock($1)", &[&lock])
        .await
        .unwrap();
    let started = Instant::now();
    let callers: Vec<_> = (0..64)
        .map(|number| {
            let store = store.clone();
            let key = if number == 31 {
                "held".to_owned()
            } else {
                format!("k{number}")
            };
            tokio::spawn(async move { (number, store.admit(guarded(&key)).await.unwrap()) })
        })
        .collect();
    for caller in callers {
        match caller.await.unwrap() {
            (31, said) => assert!(matches!(said, Admitted::Held), "{said:?}"),
            (_, said) => assert!(matches!(said, Admitted::Run(_)), "{said:?}"),
        }
    }
    assert!(started.elapsed() < SOON, "{:?}", started.elapsed());
    outside.batch_execute("ROLLBACK").await.unwrap();
    run(&store, guarded("held")).await;
}

async fn all_admit(
    nodes: &[PostgresStore; 2],
    keys: &[String],
) -> Vec<(usize, usize, Result<Admitted, counterfoil_store::Error>)> {
    let mut callers = Vec::new();
    for number in 0..keys.len() {
        for (side, node) in nodes.iter().enumerate() {
            // One node goes up the keys, the other one down.
            let index = if side == 0 {
                number
            } else {
                keys.len() - 1 - number
            };
            let (node, admission) = (node.clone(), guarded(&keys[index]));
            callers.push(tokio::spawn(async move {
                (side, index, node.admit(admission).await)
            }));
        }
    }
    let mut said = Vec::new();
    for caller in callers {
        said.push(caller.await.unwrap());
    }
    said
}

/// 64 callers on each of two nodes, the same keys in opposite orders, again and again.
#[tokio::test(flavor = "multi_thread")]
async fn i1_overlapping_batches_in_opposite_orders_neither_deadlock_nor_run_twice() {
    let database = Database::new();
    let nodes = [node(&database).await, node(&database).await];
    for round in 0..12 {
        let keys: Vec<_> = (0..64).map(|key| format!("{round}-{key}")).collect();
        let mut runs = vec![0; keys.len()];
        let started = Instant::now();
        let mut granted = Vec::new();
        for (side, index, said) in all_admit(&nodes, &keys).await {
            match said {
                Ok(Admitted::Run(run)) => {
                    runs[index] += 1;
                    granted.push((side, run));
                }
                Ok(Admitted::Held) => {}
                Ok(Admitted::Decided(decision, _)) => {
                    assert!(in_progress(decision), "{decision:?}")
                }
                Err(error) => panic!("{error:?}"),
            }
        }
        assert_eq!(runs, vec![1; keys.len()]);
        // Completions from the other node, in whatever order they come.
        let completions: Vec<_> = granted
            .into_iter()
            .map(|(side, run)| {
                let node = nodes[1 - side].clone();
                tokio::spawn(async move { crate::scene::finish(&node, run.fence, "done").await })
            })
            .collect();
        for completion in completions {
            assert_eq!(completion.await.unwrap().status.state, State::Succeeded);
        }
        assert!(started.elapsed() < SOON * 2, "{:?}", started.elapsed());
    }
    assert_eq!(
        database.psql("SELECT count(*) FROM counterfoil_receipts"),
        "768"
    );
    let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    assert_eq!(database.psql(deadlocks), "0");
}

/// A rival that commits between the try of the lock and the look is seen.
#[tokio::test(flavor = "multi_thread")]
async fn i1_two_nodes_race_for_each_of_many_keys() {
    let database = Database::new();
    let nodes = [node(&database).await, node(&database).await];
    for number in 0..400 {
        let key = format!("k{number}");
        let calls = nodes.clone().map(|node| {
            let admission = guarded(&key);
            tokio::spawn(async move { node.admit(admission).await })
        });
        let mut runs = 0;
        for call in calls {
            match call.await.unwrap() {
                Ok(Admitted::Run(_)) => runs += 1,
                Ok(Admitted::Held) => {}
                Ok(Admitted::Decided(decision, _)) => {
                    assert!(in_progress(decision), "{decision:?}")
                }
                Err(error) => panic!("{key}: {error:?}"),
            }
        }
        assert_eq!(runs, 1, "{key}");
    }
}

/// A database whose default would take the snapshot before the lock, and acknowledge before the
/// disk: the store says itself what it needs.
#[tokio::test(flavor = "multi_thread")]
async fn i2_the_databases_own_defaults_do_not_weaken_a_reservation() {
    let database = Database::new();
    let name = database.name();
    database.psql(&format!(
        "ALTER DATABASE {name} SET default_transaction_isolation = 'repeatable read';
         ALTER DATABASE {name} SET synchronous_commit = off"
    ));
    let store = node(&database).await;
    database.psql(
        "CREATE TABLE seen(isolation text, synchronous text);
         CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
           INSERT INTO seen VALUES (current_setting('transaction_isolation'),
             current_setting('synchronous_commit'));
           RETURN NULL; END $$;
         CREATE TRIGGER see AFTER INSERT OR UPDATE ON counterfoil_receipts
           FOR EACH STATEMENT EXECUTE FUNCTION see()",
    );
    let granted = run(&store, guarded("k")).await;
    crate::scene::finish(&store, granted.fence, "done").await;
    let done = store
        .atomically(atomic("a"), handler(|_| Box::pin(async { Ok(reply("a")) })))
        .await;
    assert!(matches!(done, Ok(Atomic::Ran(..))), "{done:?}");
    let seen = database.psql("SELECT DISTINCT isolation, synchronous FROM seen");
    assert_eq!(seen, "read committed|on");
}

/// Repeated with its token, on another node too, it is the same reservation.
#[tokio::test(flavor = "multi_thread")]
async fn i1_a_token_is_known_on_every_node() {
    let database = Database::new();
    let nodes = [node(&database).await, node(&database).await];
    let admission = guarded("k");
    let first = run(&nodes[0], admission.clone()).await;
    for node in &nodes {
        let again = run(node, admission.clone()).await;
        assert_eq!(again.fence, first.fence);
    }
    let other = decided(&nodes[1], guarded("k")).await.0;
    assert!(in_progress(other), "{other:?}");
    assert_eq!(
        database.psql("SELECT count(*) FROM counterfoil_events"),
        "1"
    );
}

/// The scopes of first calls are created by several nodes at once.
#[tokio::test(flavor = "multi_thread")]
async fn first_calls_of_new_scopes_race_on_two_nodes() {
    let database = Database::new();
    let nodes = [node(&database).await, node(&database).await];
    for round in 0..20 {
        let calls: Vec<_> = (0..16)
            .map(|number| {
                let node = nodes[number % 2].clone();
                let workspace = format!("w{round}-{}", number % 4);
                let key = format!("k{number}");
                let admission = crate::scene::in_workspace(&workspace, guarded(&key));
                tokio::spawn(async move { node.admit(admission).await })
            })
            .collect();
        for call in calls {
            let said = call.await.unwrap();
            assert!(matches!(said, Ok(Admitted::Run(_))), "{said:?}");
        }
    }
    assert_eq!(
        database.psql("SELECT count(*) FROM counterfoil_scopes"),
        "80"
    );
}

/// A reservation whose commit never reached the server is made again, under the same token.
#[tokio::test(flavor = "multi_thread")]
async fn i1_a_rival_may_win_while_a_commit_is_lost() {
    let database = Database::new();
    let proxy = Proxy::start(database.address());
    let store = node_at(&database.url_at(proxy.address()), Options::default()).await;
    let rival = node(&database).await;
    run(&store, guarded("before")).await;
    run(&rival, guarded("before too")).await;
    for number in 0..10 {
        let key = format!("k{number}");
        let cut = proxy.apply(Plan::cut_before_commit());
        let calls = [&store, &rival].map(|node| {
            let (node, admission) = (node.clone(), guarded(&key));
            tokio::spawn(async move { node.admit(admission).await })
        });
        let mut runs = 0;
        for call in calls {
            match call.await.unwrap() {
                Ok(Admitted::Run(granted)) => {
                    assert_eq!(granted.fence.attempt, 1);
                    runs += 1;
                }
                Ok(Admitted::Held) => {}
                Ok(Admitted::Decided(decision, _)) => {
                    assert!(in_progress(decision), "{decision:?}")
                }
                Err(error) => panic!("{key}: {error:?}"),
            }
        }
        assert_eq!(runs, 1, "{key}");
        cut.wait(1);
    }
    assert!(matches!(
        decided(&rival, guarded("k0")).await.0,
        Decision::InProgress { .. }
    ));
    drop(Arc::new(store));
}
