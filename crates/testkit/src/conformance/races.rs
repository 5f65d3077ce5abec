//! Of any number of first calls with one identity exactly one runs.

use std::sync::Arc;

use counterfoil_core::Decision;
use counterfoil_store::{Admitted, Atomic, Store};

use super::Subject;
use super::scene::{End, START, atomic, create_table, effects, guarded, note, reply, stored};

const CALLERS: usize = 64;

pub async fn field_05_of_64_first_calls_one_runs(subject: Subject) {
    let store = subject.open().await;
    let calls: Vec<_> = (0..CALLERS)
        .map(|_| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { store.admit(guarded("k", START)).await.unwrap() })
        })
        .collect();
    let mut runs = 0;
    for call in calls {
        match call.await.unwrap() {
            Admitted::Run(granted) => {
                assert_eq!(granted.fence.attempt, 1);
                runs += 1;
            }
            Admitted::Decided(decision, _) => {
                assert!(
                    matches!(decision, Decision::InProgress { .. }),
                    "{decision:?}"
                );
            }
            // It has not run: the one that does was not through yet.
            Admitted::Held => {}
        }
    }
    assert_eq!(runs, 1);
}

/// Races atomic calls over these stores; how many ran.
async fn race(stores: &[Arc<dyn Store>]) -> usize {
    let calls: Vec<_> = (0..CALLERS)
        .zip(stores.iter().cycle())
        .map(|(_, store)| {
            let store = Arc::clone(store);
            tokio::spawn(async move {
                let handler = Arc::new(note("n", End::Success));
                store.atomically(atomic("k", START), handler).await.unwrap()
            })
        })
        .collect();
    let mut runs = 0;
    for call in calls {
        match call.await.unwrap() {
            Atomic::Ran(_, answer) => {
                assert_eq!(answer, reply("n"));
                runs += 1;
            }
            Atomic::Decided(Decision::Replay, found) => {
                assert_eq!(found.reply, Some(stored("n")));
            }
            Atomic::Decided(decision, _) => {
                assert!(
                    matches!(decision, Decision::InProgress { .. }),
                    "{decision:?}"
                );
            }
            // It has not run: the one that does was not through yet.
            Atomic::Held => {}
            other @ (Atomic::Aborted(_) | Atomic::Own(_)) => {
                panic!("nobody's token was used twice: {other:?}")
            }
        }
    }
    runs
}

pub async fn field_05_of_64_atomic_calls_one_runs(subject: Subject) {
    let store = subject.open().await;
    create_table(&*store).await;
    assert_eq!(race(&[Arc::clone(&store)]).await, 1);
    assert_eq!(effects(&*store, "n").await, 1);
}

pub async fn two_openings_race_for_one_key(subject: Subject) {
    let stores = [subject.open().await, subject.open().await];
    create_table(&*stores[0]).await;
    assert_eq!(race(&stores).await, 1);
    for store in &stores {
        assert_eq!(effects(&**store, "n").await, 1);
    }
}

pub async fn two_openings_migrate_at_once(subject: Subject) {
    let stores = [subject.open().await, subject.open().await];
    let migrations = stores
        .clone()
        .map(|store| tokio::spawn(async move { create_table(&*store).await }));
    for migration in migrations {
        migration.await.unwrap();
    }
    assert_eq!(effects(&*stores[1], "n").await, 0);
}
