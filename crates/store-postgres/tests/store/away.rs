//! The answer to a commit is lost, and the database stays away: unknown, never "not done".

use std::time::{Duration, Instant};

use counterfoil_core::{State, WorkspaceId};
use counterfoil_postgres::{Options, PostgresStore};
use counterfoil_store::{Atomic, Error, Store, transact};
use counterfoil_test_postgres::{Database, Plan, Proxy};

use crate::scene::{
    atomic, create_effects, effect, effects, finish, guarded, in_workspace, node_at, outsider, run,
    until, write_effect,
};

async fn far_node(database: &Database, proxy: &Proxy) -> PostgresStore {
    let options = Options {
        lanes: 1,
        connections_max: 1,
        ..Options::default()
    };
    node_at(&database.url_at(proxy.address()), options).await
}

async fn work(store: &PostgresStore) -> Result<(), Error> {
    let workspace = WorkspaceId::new("work").unwrap();
    transact(store, Some(&workspace), |tx| {
        Box::pin(async move { write_effect(tx, "work").await.map(drop) })
    })
    .await
}

/// Every step whose commit was sent says that it does not know; what was not begun says so. When
/// the database is back, repeating the step finds what it did.
#[tokio::test(flavor = "multi_thread")]
async fn i3_a_commit_in_doubt_is_never_told_as_not_done() {
    let database = Database::new();
    create_effects(&database);
    let proxy = Proxy::start(database.address());
    let [reserving, running, working] = [
        far_node(&database, &proxy).await,
        far_node(&database, &proxy).await,
        far_node(&database, &proxy).await,
    ];
    // Each has its connection open.
    run(&reserving, guarded("before")).await;
    let before = in_workspace("run", atomic("before"));
    let done = running.atomically(before, effect("before")).await;
    assert!(matches!(done, Ok(Atomic::Ran(..))), "{done:?}");
    assert_eq!(work(&working).await, Ok(()));
    proxy.refuse(true);
    let lost = proxy.apply(Plan::cut_after_commit().times(3));
    let mut admission = guarded("k");
    admission.patience = Duration::from_secs(1);
    let mut atomically = in_workspace("run", atomic("a"));
    atomically.patience = Duration::from_secs(1);
    let started = Instant::now();
    let (reserved, ran, worked) = tokio::join!(
        reserving.admit(admission.clone()),
        running.atomically(atomically.clone(), effect("run")),
        work(&working),
    );
    assert!(started.elapsed() < Duration::from_secs(20));
    assert_eq!(lost.count(), 3);
    assert!(
        matches!(reserved, Err(Error::CommitUnknown)),
        "{reserved:?}"
    );
    assert!(matches!(ran, Err(Error::CommitUnknown)), "{ran:?}");
    assert!(matches!(worked, Err(Error::CommitUnknown)), "{worked:?}");
    let mut fresh = guarded("fresh");
    fresh.patience = Duration::from_millis(300);
    let fresh = reserving.admit(fresh).await;
    assert!(matches!(fresh, Err(Error::Unavailable(_))), "{fresh:?}");
    let fresh = running.atomically(atomic("fresh"), effect("fresh")).await;
    assert!(
        matches!(fresh, Err(Error::Unavailable(_) | Error::Busy { .. })),
        "{fresh:?}"
    );
    assert_eq!(effects(&database), 4, "before, before, and what was lost");
    proxy.refuse(false);
    admission.patience = Duration::from_secs(5);
    let granted = run(&reserving, admission.clone()).await;
    assert_eq!(granted.fence.operation_id, admission.operation_id);
    let again = running.atomically(atomically, effect("run")).await;
    assert!(matches!(again, Ok(Atomic::Own(_))), "{again:?}");
    assert_eq!(effects(&database), 4);
}

/// A note whose answer is lost is set again; if that cannot be, it is unknown whether it is set.
#[tokio::test(flavor = "multi_thread")]
async fn a_note_in_doubt_is_never_told_as_not_set() {
    let database = Database::new();
    let proxy = Proxy::start(database.address());
    let store = far_node(&database, &proxy).await;
    let outside = outsider(&database).await;
    store.set_note("before", vec![0]).await.unwrap();
    for (name, comes_back) in [("one", true), ("two", false)] {
        outside
            .batch_execute("BEGIN; LOCK TABLE counterfoil_notes IN ACCESS EXCLUSIVE MODE")
            .await
            .unwrap();
        let setting = store.clone();
        let setting = tokio::spawn(async move { setting.set_note(name, vec![1]).await });
        until(
            &outside,
            "SELECT EXISTS (SELECT 1 FROM pg_locks WHERE NOT granted
             AND relation = 'counterfoil_notes'::regclass)",
        )
        .await;
        proxy.silent(true);
        outside.batch_execute("COMMIT").await.unwrap();
        let there = format!("SELECT count(*) = 1 FROM counterfoil_notes WHERE name = '{name}'");
        until(&outside, &there).await;
        // The answer is under way, and swallowed.
        tokio::time::sleep(Duration::from_millis(100)).await;
        proxy.refuse(!comes_back);
        proxy.silent(false);
        proxy.cut_now();
        let expected = if comes_back {
            Ok(())
        } else {
            Err(Error::CommitUnknown)
        };
        assert_eq!(setting.await.unwrap(), expected, "{name}");
    }
    proxy.refuse(false);
    for name in ["one", "two"] {
        assert_eq!(store.note(name).await, Ok(Some(vec![1])));
    }
}

/// A way to the database that swallowed something never says so, not even when it works again: what
/// was under way on it is given up, by everybody who waited for an answer, and done anew.
#[tokio::test(flavor = "multi_thread")]
async fn i6_connections_lost_in_silence_are_given_up() {
    let database = Database::new();
    create_effects(&database);
    let proxy = Proxy::start(database.address());
    let options = Options {
        lanes: 1,
        readers: 1,
        connections_max: 2,
        patience: Duration::from_secs(2),
        // Whoever looks something up waits a second longer than the patience, and no more.
        database_timeout: Duration::from_secs(1),
        ..Options::default()
    };
    let store = node_at(&database.url_at(proxy.address()), options).await;
    let granted = run(&store, guarded("k")).await;
    let (id, identity) = (granted.fence.operation_id, guarded("k").identity);
    let before = in_workspace("run", atomic("before"));
    let done = store.atomically(before, effect("before")).await;
    assert!(matches!(done, Ok(Atomic::Ran(..))), "{done:?}");
    assert!(store.find(&identity).await.unwrap().is_some());
    assert!(store.get(id).await.unwrap().is_some());
    proxy.silent(true);
    let started = Instant::now();
    let waiting = async {
        tokio::join!(
            finish(&store, granted.fence, "done"),
            store.find(&identity),
            store.get(id),
            store.atomically(in_workspace("run", atomic("a")), effect("run")),
            store.admit(guarded("meanwhile")),
        )
    };
    let over = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        proxy.silent(false);
    };
    let ((receipt, found, got, ran, _), ()) = tokio::join!(waiting, over);
    assert!(started.elapsed() < Duration::from_secs(15));
    assert_eq!(receipt.status.state, State::Succeeded);
    assert!(found.unwrap().is_some());
    assert!(got.unwrap().is_some());
    assert!(matches!(ran, Ok(Atomic::Ran(..))), "{ran:?}");
    assert_eq!(effects(&database), 2);
    run(&store, guarded("after")).await;
    assert!(store.health().await.is_ok());
}
