//! Waiting for an operation that runs on another node.

use std::{
    future::poll_fn,
    time::{Duration, Instant},
};

use counterfoil_core::OperationId;
use counterfoil_postgres::{Options, PostgresStore};
use counterfoil_store::Store;
use counterfoil_test_postgres::{Database, Pooler};

use tokio::{sync::mpsc, task::JoinHandle};
use tokio_postgres::{AsyncMessage, NoTls};

use crate::scene::{atomic, create_effects, effect, finish, guarded, node, node_at, run};

/// Hears what is said on a channel, on a connection of its own.
async fn listener(database: &Database, channel: &str) -> mpsc::UnboundedReceiver<String> {
    let (client, mut connection) = tokio_postgres::connect(database.url(), NoTls)
        .await
        .unwrap();
    let (tell, told) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(message) = poll_fn(|context| connection.poll_message(context)).await {
            if let Ok(AsyncMessage::Notification(note)) = message {
                let _ = tell.send(note.payload().to_owned());
            }
        }
    });
    client
        .batch_execute(&format!("LISTEN {channel}"))
        .await
        .unwrap();
    // Listens as long as the test does.
    std::mem::forget(client);
    told
}

async fn hear(told: &mut mpsc::UnboundedReceiver<String>) -> String {
    tokio::time::timeout(Duration::from_secs(5), told.recv())
        .await
        .expect("nothing was said")
        .unwrap()
}

fn spawn_waiting(node: &PostgresStore, id: OperationId) -> JoinHandle<Instant> {
    let node = node.clone();
    tokio::spawn(async move {
        node.changed(id).await;
        Instant::now()
    })
}

async fn woken(waiting: JoinHandle<Instant>) -> Instant {
    tokio::time::timeout(Duration::from_secs(5), waiting)
        .await
        .expect("nobody was woken")
        .unwrap()
}

/// A waiter on one node is woken soon after the other one completes.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_on_another_node_is_woken_soon() {
    let database = Database::new();
    let nodes = [node(&database).await, node(&database).await];
    let mut announced = listener(&database, "counterfoil_wait").await;
    let mut quickest = Duration::MAX;
    for round in 0..5 {
        let granted = run(&nodes[0], guarded(&format!("k{round}"))).await;
        let id = granted.fence.operation_id;
        let waiting = spawn_waiting(&nodes[1], id);
        assert_eq!(hear(&mut announced).await, id.to_string());
        // The first node hears it at the same time as we do.
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(!waiting.is_finished());
        let completed = Instant::now();
        finish(&nodes[0], granted.fence, "done").await;
        let woken = woken(waiting).await;
        quickest = quickest.min(woken.duration_since(completed));
    }
    assert!(quickest < Duration::from_millis(300), "{quickest:?}");
}

/// Commits are not made to queue for a notification that nobody waits for.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_is_told_only_if_somebody_waits() {
    let database = Database::new();
    create_effects(&database);
    let nodes = [node(&database).await, node(&database).await];
    let mut announced = listener(&database, "counterfoil_wait").await;
    let mut told = listener(&database, "counterfoil_changed").await;
    for number in 0..20 {
        let granted = run(&nodes[0], guarded(&format!("k{number}"))).await;
        finish(&nodes[0], granted.fence, "done").await;
        let key = format!("a{number}");
        nodes[0]
            .atomically(atomic(&key), effect("e"))
            .await
            .unwrap();
    }
    let granted = run(&nodes[0], guarded("waited for")).await;
    let id = granted.fence.operation_id;
    let waiting = spawn_waiting(&nodes[1], id);
    assert_eq!(hear(&mut announced).await, id.to_string());
    tokio::time::sleep(Duration::from_millis(100)).await;
    finish(&nodes[0], granted.fence, "done").await;
    woken(waiting).await;
    let granted = run(&nodes[0], guarded("no more")).await;
    finish(&nodes[0], granted.fence, "done").await;
    // Commits are told in their order: what is told next is the one waited for, and then nothing.
    assert_eq!(hear(&mut told).await, id.to_string());
    database.psql("NOTIFY counterfoil_changed, 'the end'");
    assert_eq!(hear(&mut told).await, "the end");
    assert!(announced.try_recv().is_err());
}

/// Many waiters of one operation are one announcement, and all are woken.
#[tokio::test(flavor = "multi_thread")]
async fn all_waiters_of_an_operation_are_woken() {
    let database = Database::new();
    let nodes = [node(&database).await, node(&database).await];
    let mut announced = listener(&database, "counterfoil_wait").await;
    let granted = run(&nodes[0], guarded("k")).await;
    let id = granted.fence.operation_id;
    let waiting: Vec<_> = (0..20).map(|_| spawn_waiting(&nodes[1], id)).collect();
    assert_eq!(hear(&mut announced).await, id.to_string());
    tokio::time::sleep(Duration::from_millis(100)).await;
    finish(&nodes[0], granted.fence, "done").await;
    for waiting in waiting {
        woken(waiting).await;
    }
    assert!(announced.try_recv().is_err(), "announced twice");
}

/// A listener whose connection is ended wakes its waiters, who may have missed something, and
/// listens again.
#[tokio::test(flavor = "multi_thread")]
async fn a_listener_that_was_cut_off_comes_back() {
    let database = Database::new();
    let nodes = [node(&database).await, node(&database).await];
    let granted = run(&nodes[0], guarded("k")).await;
    let id = granted.fence.operation_id;
    let waiting = spawn_waiting(&nodes[1], id);
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!waiting.is_finished());
    let ended = database.psql(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
         WHERE datname = current_database() AND pid <> pg_backend_pid()",
    );
    assert_ne!(ended, "0");
    woken(waiting).await;
    let mut announced = listener(&database, "counterfoil_wait").await;
    let waiting = spawn_waiting(&nodes[1], id);
    assert_eq!(hear(&mut announced).await, id.to_string());
    // The first node has to be back as well.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    if !waiting.is_finished() {
        finish(&nodes[0], granted.fence, "done").await;
        woken(waiting).await;
    }
}

/// Through a pooler nobody listens: waiting does no harm, and polling sees the change.
#[tokio::test(flavor = "multi_thread")]
async fn without_listening_waiters_poll() {
    let database = Database::new();
    let pooler = Pooler::start(database.address());
    let pooled = || async {
        let options = Options {
            pooler: true,
            ..Options::default()
        };
        node_at(&database.url_at(pooler.address()), options).await
    };
    let nodes = [pooled().await, pooled().await];
    // Beyond what may be announced, too.
    for round in 0..3 {
        let granted = run(&nodes[0], guarded(&format!("k{round}"))).await;
        let id = granted.fence.operation_id;
        let waiting: Vec<_> = (0..2000).map(|_| spawn_waiting(&nodes[1], id)).collect();
        finish(&nodes[0], granted.fence, "done").await;
        let found = nodes[1].get(id).await.unwrap().unwrap();
        assert!(found.receipt.status.state.is_finished());
        assert!(waiting.iter().all(|waiting| !waiting.is_finished()));
        for waiting in waiting {
            waiting.abort();
        }
    }
    let channels = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
        AND query ILIKE 'LISTEN%'";
    assert_eq!(database.psql(channels), "0");
    drop(nodes);
}
