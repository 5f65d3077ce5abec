//! Handlers that run into each other, break their transaction, or are left alone.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use counterfoil_core::{Decision, State};
use counterfoil_postgres::{Options, PostgresStore};
use counterfoil_store::{Atomic, BoxFuture, Error, Failure, Sql, Store, Value, read, transact};
use counterfoil_test_postgres::Database;

use crate::scene::{
    Gate, Handler, SOON, atomic, create_effects, effect, effects, handler, in_workspace, node,
    node_at, outsider, reply, standing, until, write_effect,
};

/// Adds one to a row and holds it.
async fn add(tx: &mut dyn Sql, row: i64) -> Result<(), Error> {
    let sql = "UPDATE counters SET n = n + 1 WHERE id = $1";
    tx.execute(sql, &[Value::from(row)]).await.map(drop)
}

/// Locks the rows in this order; on its first run it goes on only when the other one has its first
/// row too.
fn crossing<'t>(
    tx: &'t mut dyn Sql,
    rows: [i64; 2],
    here: Gate,
    there: Gate,
    runs: &Arc<AtomicUsize>,
) -> BoxFuture<'t, Result<(), Error>> {
    runs.fetch_add(1, Ordering::SeqCst);
    Box::pin(async move {
        add(tx, rows[0]).await?;
        there.open();
        here.pass().await;
        add(tx, rows[1]).await
    })
}

/// Two mutations in two workspaces lock two rows in opposite orders: the database ends one of them,
/// and it runs again. Both have their effect once.
#[tokio::test(flavor = "multi_thread")]
async fn i6_two_mutations_that_deadlock_both_succeed() {
    let database = Database::new();
    database.psql(
        "CREATE TABLE counters(id bigint PRIMARY KEY, n bigint NOT NULL);
         INSERT INTO counters VALUES (1, 0), (2, 0)",
    );
    let nodes = [node(&database).await, node(&database).await];
    let gates = [Gate::new(), Gate::new()];
    let runs = Arc::new(AtomicUsize::new(0));
    let keyed = {
        let (gates, runs) = (gates.clone(), Arc::clone(&runs));
        handler(move |tx| {
            let [here, there] = gates.clone();
            let crossing = crossing(tx, [1, 2], here, there, &runs);
            Box::pin(async move {
                crossing.await?;
                Ok(reply("done"))
            })
        })
    };
    let first = nodes[0].clone();
    let first = tokio::spawn(async move { first.atomically(atomic("k"), keyed).await });
    let second = {
        let ([there, here], runs) = (gates, Arc::clone(&runs));
        let node = nodes[1].clone();
        tokio::spawn(async move {
            transact(&node, None, move |tx| {
                crossing(tx, [2, 1], here.clone(), there.clone(), &runs)
            })
            .await
        })
    };
    let first = first.await.unwrap();
    assert!(matches!(first, Ok(Atomic::Ran(..))), "{first:?}");
    assert_eq!(second.await.unwrap(), Ok(()));
    assert_eq!(
        database.psql("SELECT id, n FROM counters ORDER BY id"),
        "1|2\n2|2"
    );
    assert!(runs.load(Ordering::SeqCst) > 2, "there was no deadlock");
}

/// A handler whose failure leaves neither effect nor receipt, and whose key can be run again.
async fn leaves_nothing(
    store: &PostgresStore,
    database: &Database,
    broken: Arc<Handler>,
    is_right: fn(&Error) -> bool,
) {
    let failed = store.atomically(atomic("k"), broken).await;
    assert!(failed.as_ref().is_err_and(is_right), "{failed:?}");
    assert_eq!(effects(database), 0);
    assert_eq!(
        database.psql("SELECT count(*) FROM counterfoil_receipts"),
        "0"
    );
    assert_eq!(nobody_left_open(database), "0");
}

fn nobody_left_open(database: &Database) -> String {
    database.psql(
        "SELECT count(*) FROM pg_stat_activity
         WHERE datname = current_database() AND state LIKE 'idle in transaction%'",
    )
}

fn statement(error: &Error) -> bool {
    matches!(error, Error::Statement(_))
}

fn handlers_fault(error: &Error) -> bool {
    matches!(error, Error::Handler(_))
}

/// A constraint put off to the commit is checked before it: refused, and nothing is in doubt.
#[tokio::test(flavor = "multi_thread")]
async fn a_deferred_constraint_is_refused_before_the_commit() {
    let database = Database::new();
    database.psql(
        "CREATE TABLE effects(label text NOT NULL,
           CONSTRAINT once UNIQUE (label) DEFERRABLE INITIALLY DEFERRED)",
    );
    let store = node(&database).await;
    let twice = handler(|tx| {
        Box::pin(async move {
            write_effect(tx, "same").await?;
            write_effect(tx, "same").await?;
            Ok(reply("both"))
        })
    });
    leaves_nothing(
        &store,
        &database,
        twice,
        |error| matches!(error, Error::Statement(why) if why.contains("once")),
    )
    .await;
    let work = transact(&store, None, |tx| {
        Box::pin(async move {
            write_effect(tx, "same").await?;
            write_effect(tx, "same").await.map(drop)
        })
    });
    assert!(work.await.is_err_and(|error| statement(&error)));
    assert_eq!(effects(&database), 0);
    let done = store.atomically(atomic("k"), effect("same")).await;
    assert!(matches!(done, Ok(Atomic::Ran(..))), "{done:?}");
}

/// A handler that goes on after a statement failed keeps nothing, whatever it answers.
#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_ignores_a_failed_statement_keeps_nothing() {
    let database = Database::new();
    create_effects(&database);
    let store = node(&database).await;
    let ignores = handler(|tx| {
        Box::pin(async move {
            write_effect(tx, "before").await?;
            let failed = tx.execute("INSERT INTO effects(label) VALUES (NULL)", &[]);
            assert!(failed.await.is_err());
            let _ = write_effect(tx, "after").await;
            Ok(reply("all is well"))
        })
    });
    leaves_nothing(&store, &database, ignores, statement).await;
    let work = transact(&store, None, |tx| {
        Box::pin(async move {
            write_effect(tx, "before").await?;
            let _ = tx.query("SELECT * FROM nowhere", &[]).await;
            Ok(())
        })
    });
    assert!(work.await.is_err_and(|error| statement(&error)));
    assert_eq!(effects(&database), 0);
    let done = store.atomically(atomic("k"), effect("e")).await;
    assert!(matches!(done, Ok(Atomic::Ran(..))), "{done:?}");
}

/// A judgement after a statement that failed (a name that is taken) is recorded, also by the first
/// call of a connection, when no statement of the store has been prepared on it.
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_after_a_failed_statement_is_kept() {
    let database = Database::new();
    database.psql("CREATE TABLE effects(label text NOT NULL UNIQUE)");
    database.psql("INSERT INTO effects VALUES ('taken')");
    let store = node(&database).await;
    let refusing = handler(|tx| {
        Box::pin(async move {
            write_effect(tx, "other").await?;
            assert!(write_effect(tx, "taken").await.is_err());
            Err(Failure::Refused(reply("taken")))
        })
    });
    let ran = store
        .atomically(atomic("k"), refusing.clone())
        .await
        .unwrap();
    let Atomic::Ran(receipt, _) = ran else {
        panic!("{ran:?}");
    };
    assert_eq!(receipt.status.state, State::Failed);
    let again = store.atomically(atomic("k"), refusing).await.unwrap();
    assert!(
        matches!(again, Atomic::Decided(Decision::Replay, _)),
        "{again:?}"
    );
    assert_eq!(effects(&database), 1);
}

/// One connection for everything: whoever breaks it, the next one gets a clean one.
async fn one_connection(database: &Database) -> PostgresStore {
    let options = Options {
        connections_max: 1,
        handler_limit: Duration::from_millis(300),
        database_timeout: Duration::from_secs(1),
        ..Options::default()
    };
    node_at(database.url(), options).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_panics_or_takes_too_long_keeps_nothing() {
    let database = Database::new();
    create_effects(&database);
    let store = one_connection(&database).await;
    let panics = handler(|tx| {
        Box::pin(async move {
            write_effect(tx, "e").await?;
            panic!("as told by the test")
        })
    });
    leaves_nothing(&store, &database, panics, handlers_fault).await;
    let waits = standing(&Gate::new(), "e");
    let started = Instant::now();
    leaves_nothing(&store, &database, waits, handlers_fault).await;
    assert!(started.elapsed() < SOON, "{:?}", started.elapsed());
    // In the middle of a statement it is the database's time-out that ends it.
    let sleeps = handler(|tx| {
        Box::pin(async move {
            write_effect(tx, "e").await?;
            tx.query("SELECT pg_sleep(30)::text", &[]).await?;
            Ok(reply("late"))
        })
    });
    let started = Instant::now();
    leaves_nothing(&store, &database, sleeps, handlers_fault).await;
    assert!(started.elapsed() < SOON * 2, "{:?}", started.elapsed());
    let done = store.atomically(atomic("k"), effect("e")).await;
    assert!(matches!(done, Ok(Atomic::Ran(..))), "{done:?}");
    assert_eq!(effects(&database), 1);
}

/// A caller that goes away stops nothing: the handler is carried to its end, and its duplicate
/// finds the answer.
#[tokio::test(flavor = "multi_thread")]
async fn i2_a_handler_outlives_its_caller() {
    let database = Database::new();
    create_effects(&database);
    let store = node(&database).await;
    let outside = outsider(&database).await;
    let gate = Gate::new();
    let (calling, standing) = (store.clone(), standing(&gate, "e"));
    let caller = tokio::spawn(async move { calling.atomically(atomic("k"), standing).await });
    gate.reached().await;
    caller.abort();
    assert!(caller.await.is_err_and(|error| error.is_cancelled()));
    let said = store.atomically(atomic("k"), effect("second")).await;
    assert!(matches!(said, Ok(Atomic::Held)), "{said:?}");
    gate.open();
    until(&outside, "SELECT count(*) = 1 FROM effects").await;
    match store.atomically(atomic("k"), effect("second")).await {
        Ok(Atomic::Decided(Decision::Replay, found)) => {
            assert_eq!(found.reply.unwrap().reply, reply("e"));
        }
        other => panic!("its answer is stored: {other:?}"),
    }
    assert_eq!(effects(&database), 1);
}

/// A connection that was left in the middle of a transaction is lent to nobody.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_left_in_a_transaction_is_not_lent() {
    let database = Database::new();
    create_effects(&database);
    let store = one_connection(&database).await;
    let outside = outsider(&database).await;
    for round in 0..3 {
        let gate = Gate::new();
        let (reading, stands) = (store.clone(), gate.clone());
        let reader = tokio::spawn(async move {
            read(&reading, |sql| {
                let stands = stands.clone();
                Box::pin(async move {
                    sql.query("SELECT label FROM effects", &[]).await?;
                    stands.pass().await;
                    Ok(())
                })
            })
            .await
        });
        gate.reached().await;
        reader.abort();
        assert!(reader.await.is_err_and(|error| error.is_cancelled()));
        // A reader's snapshot would not see this, and its transaction could not write.
        let admission = in_workspace(&format!("w{round}"), atomic("k"));
        let done = store.atomically(admission, effect("e")).await;
        assert!(matches!(done, Ok(Atomic::Ran(..))), "{done:?}");
        let count = read(&store, |sql| {
            Box::pin(async move {
                let rows = sql.query("SELECT count(*) FROM effects", &[]).await?;
                rows[0].int(0)
            })
        });
        assert_eq!(count.await, Ok(round + 1));
    }
    until(
        &outside,
        "SELECT count(*) = 0 FROM pg_stat_activity
         WHERE datname = current_database() AND state LIKE 'idle in transaction%'",
    )
    .await;
}
