//! Mutations of one workspace take turns, whatever node they are on; those of two do not.

use std::{sync::Arc, time::Duration};

use counterfoil_core::{Event, WorkspaceId};
use counterfoil_postgres::PostgresStore;
use counterfoil_store::{Admitted, Atomic, Store, read, transact};
use counterfoil_test_postgres::Database;

use crate::scene::{
    Gate, SOMEBODY_WAITS, atomic, completion, create_effects, effect, effects, guarded,
    in_workspace, node, outsider, reply, run, standing, until, write_effect,
};

fn spawn_atomic(
    node: &PostgresStore,
    admission: counterfoil_store::Admission,
    handler: Arc<crate::scene::Handler>,
) -> tokio::task::JoinHandle<Result<Atomic, counterfoil_store::Error>> {
    let node = node.clone();
    tokio::spawn(async move { node.atomically(admission, handler).await })
}

fn w1() -> WorkspaceId {
    WorkspaceId::new("w1").unwrap()
}

/// Work that writes one effect once it is its turn.
fn spawn_work(
    node: &PostgresStore,
    gate: &Gate,
) -> tokio::task::JoinHandle<Result<(), counterfoil_store::Error>> {
    let (node, gate) = (node.clone(), gate.clone());
    tokio::spawn(async move {
        transact(&node, Some(&w1()), move |tx| {
            let gate = gate.clone();
            Box::pin(async move {
                write_effect(tx, "work").await?;
                gate.pass().await;
                Ok(())
            })
        })
        .await
    })
}

/// The second mutation waits for the first one's end, on the same node and on another one, with a
/// key and without.
#[tokio::test(flavor = "multi_thread")]
async fn mutations_of_one_workspace_take_turns_over_nodes() {
    let database = Database::new();
    create_effects(&database);
    let nodes = [node(&database).await, node(&database).await];
    let outside = outsider(&database).await;
    for (round, second) in nodes.iter().enumerate() {
        let first = Gate::new();
        let key = format!("first {round}");
        let holding = spawn_atomic(&nodes[0], atomic(&key), standing(&first, "first"));
        first.reached().await;
        let keyed = Gate::new();
        let key = format!("keyed {round}");
        let keyed_call = spawn_atomic(second, atomic(&key), standing(&keyed, "keyed"));
        until(&outside, SOMEBODY_WAITS).await;
        assert!(!keyed.has_been_reached(), "two mutations at once");
        first.open();
        assert!(matches!(holding.await.unwrap(), Ok(Atomic::Ran(..))));
        keyed.reached().await;
        let unkeyed = Gate::new();
        let unkeyed_call = spawn_work(second, &unkeyed);
        until(&outside, SOMEBODY_WAITS).await;
        assert!(!unkeyed.has_been_reached(), "two mutations at once");
        keyed.open();
        assert!(matches!(keyed_call.await.unwrap(), Ok(Atomic::Ran(..))));
        unkeyed.reached().await;
        let last = Gate::new();
        let key = format!("last {round}");
        let last_call = spawn_atomic(&nodes[1 - round], atomic(&key), standing(&last, "last"));
        until(&outside, SOMEBODY_WAITS).await;
        assert!(!last.has_been_reached(), "two mutations at once");
        unkeyed.open();
        assert_eq!(unkeyed_call.await.unwrap(), Ok(()));
        last.reached().await;
        last.open();
        assert!(matches!(last_call.await.unwrap(), Ok(Atomic::Ran(..))));
    }
    assert_eq!(effects(&database), 8);
}

/// Each of the two waits for the other one to have begun.
#[tokio::test(flavor = "multi_thread")]
async fn mutations_of_two_workspaces_run_side_by_side() {
    let database = Database::new();
    create_effects(&database);
    let nodes = [node(&database).await, node(&database).await];
    for (round, second) in nodes.iter().enumerate() {
        let gates = [Gate::new(), Gate::new()];
        let key = format!("k{round}");
        let calls = [
            spawn_atomic(
                &nodes[0],
                in_workspace("w1", atomic(&key)),
                standing(&gates[0], "one"),
            ),
            spawn_atomic(
                second,
                in_workspace("w2", atomic(&key)),
                standing(&gates[1], "two"),
            ),
        ];
        for gate in &gates {
            gate.reached().await;
        }
        for gate in &gates {
            gate.open();
        }
        for call in calls {
            assert!(matches!(call.await.unwrap(), Ok(Atomic::Ran(..))));
        }
    }
    assert_eq!(effects(&database), 4);
}

/// While a mutation holds its workspace, a read goes through and sees what was before; so do
/// reservations and completions of guarded calls.
#[tokio::test(flavor = "multi_thread")]
async fn i6_an_open_mutation_holds_up_neither_reads_nor_guarded_calls() {
    let database = Database::new();
    create_effects(&database);
    let nodes = [node(&database).await, node(&database).await];
    let gate = Gate::new();
    let holding = spawn_atomic(&nodes[0], atomic("held"), standing(&gate, "held"));
    gate.reached().await;
    for node in &nodes {
        let count = read(node, |sql| {
            Box::pin(async move {
                let rows = sql.query("SELECT count(*) FROM effects", &[]).await?;
                rows[0].int(0)
            })
        });
        let count = tokio::time::timeout(Duration::from_secs(1), count).await;
        assert_eq!(count, Ok(Ok(0)));
        let key = format!("beside {:p}", std::ptr::from_ref(node));
        let granted = tokio::time::timeout(Duration::from_secs(1), run(node, guarded(&key)));
        let granted = granted.await.unwrap();
        let done = crate::scene::finish(node, granted.fence, "done");
        tokio::time::timeout(Duration::from_secs(1), done)
            .await
            .unwrap();
    }
    gate.open();
    assert!(matches!(holding.await.unwrap(), Ok(Atomic::Ran(..))));
    assert_eq!(effects(&database), 1);
}

/// An atomic attempt on a released key locks the receipt first and waits for its workspace then:
/// meanwhile its duplicates are told so, and the row is alive.
#[tokio::test(flavor = "multi_thread")]
async fn the_receipt_is_locked_before_the_workspace() {
    let database = Database::new();
    create_effects(&database);
    let nodes = [node(&database).await, node(&database).await];
    let outside = outsider(&database).await;
    let granted = run(&nodes[0], guarded("k")).await;
    let attempt = granted.fence.attempt;
    let released = completion(Event::NotApplied { attempt });
    nodes[0].complete(granted.fence, released).await.unwrap();
    let gate = Gate::new();
    let working = spawn_work(&nodes[1], &gate);
    gate.reached().await;
    let waiting = spawn_atomic(&nodes[0], atomic("k"), effect("k"));
    until(&outside, SOMEBODY_WAITS).await;
    let free = "SELECT key FROM counterfoil_receipts FOR NO KEY UPDATE SKIP LOCKED";
    assert!(outside.query(free, &[]).await.unwrap().is_empty());
    for node in &nodes {
        let said = node.admit(guarded("k")).await;
        assert!(matches!(said, Ok(Admitted::Held)), "{said:?}");
    }
    gate.open();
    assert_eq!(working.await.unwrap(), Ok(()));
    assert!(matches!(waiting.await.unwrap(), Ok(Atomic::Ran(..))));
    assert_eq!(effects(&database), 2);
}

/// Beyond its patience a mutation that waits for its turn is told so, and has done nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_does_not_come_is_busy() {
    let database = Database::new();
    create_effects(&database);
    let nodes = [node(&database).await, node(&database).await];
    let gate = Gate::new();
    let working = spawn_work(&nodes[1], &gate);
    gate.reached().await;
    let mut admission = atomic("k");
    admission.patience = Duration::from_millis(300);
    let told = spawn_atomic(&nodes[0], admission, effect("k"))
        .await
        .unwrap();
    assert!(
        matches!(told, Err(counterfoil_store::Error::Busy { .. })),
        "{told:?}"
    );
    gate.open();
    assert_eq!(working.await.unwrap(), Ok(()));
    assert_eq!(effects(&database), 1);
    let ran = spawn_atomic(&nodes[0], atomic("k"), effect("k"));
    match ran.await.unwrap() {
        Ok(Atomic::Ran(_, answer)) => assert_eq!(answer, reply("k")),
        other => panic!("its turn has come: {other:?}"),
    }
}
