//! What an application may do on the store's connections.

use std::{sync::Arc, time::Duration};

use counterfoil_sqlite::Options;
use counterfoil_store::{Atomic, Error, Store, Value, read, transact};

use crate::scene::{Runs, Scene, atomic, identity};

#[tokio::test(flavor = "multi_thread")]
async fn the_stores_own_tables_settings_and_files_are_out_of_reach() {
    let scene = Scene::new(Options::default()).await;
    for sql in [
        "DELETE FROM counterfoil_receipts",
        "UPDATE Counterfoil_Receipts SET state = 5",
        "INSERT INTO counterfoil_notes VALUES ('a', x'00')",
        "DROP TABLE counterfoil_events",
        "ALTER TABLE counterfoil_results ADD COLUMN x",
        "CREATE INDEX mine ON counterfoil_receipts(key)",
        "CREATE TRIGGER mine AFTER INSERT ON counterfoil_receipts BEGIN SELECT 1; END",
        "CREATE TABLE counterfoil_mine(x)",
        "PRAGMA synchronous = OFF",
        "PRAGMA defer_foreign_keys = ON",
        "ATTACH ':memory:' AS other",
        "COMMIT",
        "BEGIN IMMEDIATE",
        "ROLLBACK TO handler",
        "RELEASE handler",
    ] {
        let handler = Runs::statements("n", &[sql]);
        let refused = scene.store.atomically(atomic("k"), handler).await;
        assert!(
            matches!(refused, Err(Error::Handler(_))),
            "{sql}: {refused:?}"
        );
        assert_eq!(scene.store.find(&identity("k")).await.unwrap(), None);
    }
    assert!(scene.notes().await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trigger_cannot_reach_the_stores_tables_either() {
    let scene = Scene::new(Options::default()).await;
    let trap = "CREATE TRIGGER trap AFTER INSERT ON parents
                BEGIN DELETE FROM counterfoil_receipts; END";
    let made = scene
        .store
        .atomically(atomic("trap"), Runs::statements("trap", &[trap]));
    assert!(matches!(made.await, Ok(Atomic::Ran(..))));
    let sprung = Runs::statements("n", &["INSERT INTO parents VALUES (1)"]);
    let refused = scene.store.atomically(atomic("k"), sprung).await;
    assert!(matches!(refused, Err(Error::Handler(_))), "{refused:?}");
    assert!(scene.store.find(&identity("trap")).await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn i6_a_statement_without_end_is_interrupted_and_delays_others_no_longer() {
    let options = Options {
        handler_limit: Duration::from_millis(100),
        ..Options::default()
    };
    let scene = Scene::new(options).await;
    let endless = "INSERT INTO parents
                   WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)
                   SELECT x FROM n WHERE x < 0";
    let held = scene.hold();
    let spawn = |key: &'static str, handler: Arc<Runs>| {
        let store = scene.store.clone();
        tokio::spawn(async move { store.atomically(atomic(key), handler).await })
    };
    let before = spawn("before", Runs::note("before"));
    let stuck = spawn("stuck", Runs::statements("stuck", &[endless]));
    let behind = spawn("behind", Runs::note("behind"));
    scene.queued(3).await;
    held.release();
    assert!(matches!(before.await.unwrap(), Ok(Atomic::Ran(..))));
    assert!(matches!(behind.await.unwrap(), Ok(Atomic::Ran(..))));
    let stuck = stuck.await.unwrap();
    assert!(matches!(stuck, Err(Error::Handler(_))), "{stuck:?}");
    assert_eq!(scene.notes().await, ["before", "behind"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_waits_for_something_else_is_refused() {
    let scene = Scene::new(Options::default()).await;
    let waited = transact(&scene.store, None, |tx| {
        Box::pin(async move {
            tx.execute("INSERT INTO notes VALUES ('n')", &[]).await?;
            tokio::task::yield_now().await;
            Ok(())
        })
    })
    .await;
    assert!(matches!(waited, Err(Error::Handler(_))), "{waited:?}");
    assert!(scene.notes().await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn placeholders_are_bound_by_their_numbers() {
    let scene = Scene::new(Options::default()).await;
    let rows = read(&scene.store, |sql| {
        Box::pin(async move {
            let values = [
                Value::Int(1),
                Value::from("two"),
                Value::Null,
                Value::Blob(vec![4]),
            ];
            sql.query("SELECT $2, $1, $4, $3, $2", &values).await
        })
    });
    let two = || Value::from("two");
    let expected = vec![
        two(),
        Value::Int(1),
        Value::Blob(vec![4]),
        Value::Null,
        two(),
    ];
    assert_eq!(rows.await.unwrap()[0].0, expected);
    for (sql, values) in [
        ("SELECT $2", vec![Value::Int(1)]),
        ("SELECT $1", vec![Value::Int(1), Value::Int(2)]),
        ("SELECT ?", vec![Value::Int(1)]),
        ("SELEKT 1", vec![]),
        ("SELECT 1; SELECT 2", vec![]),
    ] {
        let values = Arc::new(values);
        let wrong = read(&scene.store, move |tx| {
            let values = Arc::clone(&values);
            Box::pin(async move { tx.query(sql, &values).await })
        });
        let wrong = wrong.await;
        assert!(
            matches!(wrong, Err(Error::Statement(_))),
            "{sql}: {wrong:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reading_connection_writes_nothing_whatever_the_statement() {
    let scene = Scene::new(Options::default()).await;
    for sql in [
        "INSERT INTO notes VALUES ('n') RETURNING name",
        "PRAGMA query_only = OFF",
        "ATTACH ':memory:' AS other",
        "COMMIT",
    ] {
        let refused = read(&scene.store, move |tx| {
            Box::pin(async move { tx.query(sql, &[]).await })
        });
        let refused = refused.await;
        assert!(
            matches!(refused, Err(Error::Handler(_))),
            "{sql}: {refused:?}"
        );
    }
    assert!(scene.notes().await.is_empty());
}
