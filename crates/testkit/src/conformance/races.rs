//! Of any number of first calls with one identity exactly one runs.

use std::collections::BTreeSet;
use std::sync::Arc;

use counterfoil_core::{Decision, OperationId, Reply};
use counterfoil_store::{
    Admission, Admitted, Atomic, AtomicHandler, BoxFuture, Error, Failure, Sql, Store, StoredReply,
    Value, read, transact,
};

use super::Subject;
use super::scene::{
    End, INSERT, START, after, atomic, create_table, decided, effects, guarded, identity, not_run,
    note, reply, stored, success,
};

const CALLERS: usize = 64;
const TURNS: usize = 12;

pub async fn field_05_of_64_first_calls_one_runs(subject: Subject) {
    let store = subject.open().await;
    let calls: Vec<_> = (0..CALLERS)
        .map(|_| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { store.admit(guarded("k", START)).await.unwrap() })
        })
        .collect();
    let mut granted = Vec::new();
    for call in calls {
        match call.await.unwrap() {
            Admitted::Run(run) => {
                assert_eq!(run.fence.attempt, 1);
                granted.push(run);
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
    assert_eq!(granted.len(), 1);
    let fence = granted[0].fence;
    for _ in 0..CALLERS {
        let (decision, found) = decided(&*store, guarded("k", after(1))).await;
        assert!(
            matches!(decision, Decision::InProgress { .. }),
            "{decision:?}"
        );
        assert_eq!(found.receipt.operation_id, fence.operation_id);
    }
    let answer = success(fence, "one", after(2));
    store.complete(fence, answer).await.unwrap();
    for _ in 0..CALLERS {
        let (decision, found) = decided(&*store, guarded("k", after(3))).await;
        assert_eq!(decision, Decision::Replay);
        assert_eq!(found.reply, Some(stored("one")));
    }
}

/// Races atomic calls over these stores: one runs, and afterwards all who ask get its answer.
async fn race(stores: &[Arc<dyn Store>]) {
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
    assert_eq!(runs, 1);
    for (_, store) in (0..CALLERS).zip(stores.iter().cycle()) {
        let again = atomic("k", after(1));
        let (decision, found) = not_run(&**store, again, note("n", End::Success)).await;
        assert_eq!(decision, Decision::Replay);
        assert_eq!(found.reply, Some(stored("n")));
    }
    for store in stores {
        assert_eq!(effects(&**store, "n").await, 1);
    }
}

pub async fn field_05_of_64_atomic_calls_one_runs(subject: Subject) {
    let store = subject.open().await;
    create_table(&*store).await;
    race(&[store]).await;
}

pub async fn two_openings_race_for_one_key(subject: Subject) {
    let stores = [subject.open().await, subject.open().await];
    create_table(&*stores[0]).await;
    race(&stores).await;
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

/// Counts the effects there are, and adds one that says how many.
async fn count_one_more(tx: &mut dyn Sql) -> Result<(), Error> {
    let query = "SELECT label FROM conformance_effects LIMIT 1000";
    let seen = tx.query(query, &[]).await?.len();
    let label = Value::from(format!("after {seen}"));
    tx.execute(INSERT, &[label]).await?;
    Ok(())
}

struct Counting;

impl AtomicHandler for Counting {
    fn call<'t>(
        &'t self,
        _operation_id: OperationId,
        tx: &'t mut dyn Sql,
    ) -> BoxFuture<'t, Result<Reply, Failure>> {
        Box::pin(async move {
            count_one_more(tx).await?;
            Ok(reply("counted"))
        })
    }

    fn keep(
        &self,
        _operation_id: OperationId,
        reply: &Reply,
    ) -> Result<StoredReply, counterfoil_core::Kept> {
        Ok(StoredReply {
            reply: reply.clone(),
            sealed: None,
        })
    }
}

/// What one mutation of a workspace has read no other one changes before it commits, with a key
/// and without, in this process and in another one.
pub async fn mutations_of_one_workspace_take_turns(subject: Subject) {
    let stores = [subject.open().await, subject.open().await];
    create_table(&*stores[0]).await;
    let mut mutations = Vec::new();
    for (number, store) in (0..TURNS).zip(stores.iter().cycle()) {
        let keyed = Arc::clone(store);
        mutations.push(tokio::spawn(async move {
            let admission = atomic(&format!("turn {number}"), START);
            let done = keyed.atomically(admission, Arc::new(Counting)).await;
            assert!(matches!(done, Ok(Atomic::Ran(..))), "{done:?}");
        }));
        let unkeyed = Arc::clone(store);
        mutations.push(tokio::spawn(async move {
            let workspace = identity("k").workspace;
            let done = transact(&*unkeyed, Some(&workspace), |tx| {
                Box::pin(count_one_more(tx))
            });
            assert_eq!(done.await, Ok(()));
        }));
    }
    for mutation in mutations {
        mutation.await.unwrap();
    }
    let rows = read(&*stores[0], |sql| {
        Box::pin(async move {
            sql.query("SELECT label FROM conformance_effects LIMIT 1000", &[])
                .await
        })
    })
    .await
    .unwrap();
    let told: BTreeSet<_> = rows.iter().map(|row| row.text(0).unwrap()).collect();
    let all: Vec<_> = (0..2 * TURNS).map(|seen| format!("after {seen}")).collect();
    assert_eq!(told, all.iter().map(String::as_str).collect());
    assert_eq!(rows.len(), all.len());
}

/// One key in each workspace is as many operations.
pub async fn first_calls_of_many_workspaces_all_run(subject: Subject) {
    let store = subject.open().await;
    create_table(&*store).await;
    let calls: Vec<_> = (0..TURNS)
        .map(|number| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                let mut admission: Admission = atomic("k", START);
                let workspace = format!("w{number}");
                admission.identity.workspace =
                    counterfoil_core::WorkspaceId::new(workspace.as_str()).unwrap();
                let handler = Arc::new(note(&workspace, End::Success));
                store.atomically(admission, handler).await.unwrap()
            })
        })
        .collect();
    for call in calls {
        let done = call.await.unwrap();
        assert!(matches!(done, Atomic::Ran(..)), "{done:?}");
    }
    for number in 0..TURNS {
        assert_eq!(effects(&*store, &format!("w{number}")).await, 1);
    }
}
