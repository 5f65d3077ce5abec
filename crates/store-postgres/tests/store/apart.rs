//! One host, one workspace or one row that is in a bad way, and what the others notice of it:
//! nothing.

use std::time::{Duration, Instant};

use counterfoil_core::State;
use counterfoil_postgres::{Options, TimeSource};
use counterfoil_store::{Atomic, Error, Store, SweepPlan, read, transact};
use counterfoil_test_postgres::{Database, Pooler, Proxy};

use crate::scene::{
    Gate, SOMEBODY_WAITS, SOON, atomic, create_effects, effect, effects, finish, guarded,
    in_workspace, node, node_at, now, outsider, run, standing, until, write_effect,
};

async fn soon<T>(what: &str, step: impl Future<Output = T>) -> T {
    let done = tokio::time::timeout(SOON, step).await;
    done.unwrap_or_else(|_| panic!("{what} has to wait"))
}

/// The first host takes connections and says nothing; the second one is the primary. Whatever the
/// patience, there is time for a handshake with each.
#[tokio::test(flavor = "multi_thread")]
async fn i6_a_host_that_says_nothing_leaves_time_for_the_next_one() {
    let database = Database::new();
    let dead = Proxy::start(database.address());
    dead.silent(true);
    let url = format!(
        "postgres://postgres@{},{}/{}?target_session_attrs=read-write",
        dead.address(),
        database.address(),
        database.name(),
    );
    let started = Instant::now();
    let options = Options {
        patience: Duration::from_millis(10),
        ..Options::default()
    };
    let store = node_at(&url, options).await;
    // All connections but the first one know which host is good.
    assert!(started.elapsed() < Duration::from_secs(4));
    let granted = run(&store, guarded("k")).await;
    finish(&store, granted.fence, "done").await;
    assert!(store.get(granted.fence.operation_id).await.is_ok());
}

/// More mutations of one workspace wait for their turn than there are connections.
#[tokio::test(flavor = "multi_thread")]
async fn i6_a_workspace_that_keeps_everybody_waiting_is_alone_with_it() {
    let database = Database::new();
    create_effects(&database);
    let store = node(&database).await;
    let outside = outsider(&database).await;
    let gate = Gate::new();
    let spawn = |admission, handler| {
        let store = store.clone();
        tokio::spawn(async move { store.atomically(admission, handler).await })
    };
    let mut calls = vec![spawn(atomic("open"), standing(&gate, "hot"))];
    gate.reached().await;
    // Some wait already, and a duplicate is told so at once all the same.
    calls.push(spawn(atomic("next"), effect("hot")));
    until(&outside, SOMEBODY_WAITS).await;
    let twice = store.atomically(atomic("open"), effect("hot"));
    let twice = soon("a duplicate", twice).await;
    assert!(matches!(twice, Ok(Atomic::Held)), "{twice:?}");
    for number in 0..20 {
        calls.push(spawn(atomic(&format!("k{number}")), effect("hot")));
    }
    let hot = atomic("open").identity.workspace;
    let work = {
        let store = store.clone();
        tokio::spawn(async move {
            transact(&store, Some(&hot), |tx| {
                Box::pin(async move { write_effect(tx, "hot").await.map(drop) })
            })
            .await
        })
    };
    tokio::time::sleep(Duration::from_millis(300)).await;
    let call = store.atomically(in_workspace("w2", atomic("k")), effect("other"));
    let ran = soon("another workspace", call).await;
    assert!(matches!(ran, Ok(Atomic::Ran(..))), "{ran:?}");
    let count = read(&store, |sql| {
        Box::pin(async move {
            let rows = sql.query("SELECT count(*) FROM effects", &[]).await?;
            rows[0].int(0)
        })
    });
    assert_eq!(soon("a read", count).await, Ok(1));
    assert!(soon("a look at its health", store.health()).await.is_ok());
    let identity = in_workspace("w2", atomic("k")).identity;
    let found = soon("a look-up", store.find(&identity)).await;
    assert!(found.unwrap().is_some());
    gate.open();
    for call in calls {
        let ran = call.await.unwrap();
        assert!(matches!(ran, Ok(Atomic::Ran(..))), "{ran:?}");
    }
    assert_eq!(work.await.unwrap(), Ok(()));
    assert_eq!(effects(&database), 24);
}

/// Whoever looks something up is answered in time, and those who come later are not held up by it.
#[tokio::test(flavor = "multi_thread")]
async fn i6_a_look_up_that_is_swallowed_is_given_up() {
    let database = Database::new();
    let proxy = Proxy::start(database.address());
    let options = Options {
        patience: Duration::from_millis(200),
        ..Options::default()
    };
    let store = node_at(&database.url_at(proxy.address()), options).await;
    let granted = run(&store, guarded("k")).await;
    finish(&store, granted.fence, "done").await;
    let identity = guarded("k").identity;
    assert!(store.find(&identity).await.unwrap().is_some());
    proxy.silent(true);
    let swallowed = soon("a look-up", store.find(&identity)).await;
    assert!(
        matches!(swallowed, Err(Error::Unavailable(_))),
        "{swallowed:?}"
    );
    proxy.silent(false);
    // The other reader.
    let found = soon("a later look-up", store.find(&identity)).await;
    assert!(found.unwrap().is_some());
}

const FULL: &str = "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RAISE EXCEPTION 'no space left on device' USING ERRCODE = '53100'; END $$;
    CREATE TRIGGER full_disk BEFORE INSERT ON counterfoil_receipts
      FOR EACH ROW EXECUTE FUNCTION full_disk();
    CREATE TRIGGER full_disk BEFORE INSERT ON counterfoil_notes
      FOR EACH ROW EXECUTE FUNCTION full_disk()";

/// A database that can be read but not written to is ill from the first refusal until a write
/// works again.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_takes_no_writes_is_not_healthy() {
    let database = Database::new();
    let store = node(&database).await;
    for refused_is_a_note in [true, false] {
        database.psql(FULL);
        let refused = if refused_is_a_note {
            store.set_note("n", vec![1]).await.map(drop)
        } else {
            store.admit(guarded("k")).await.map(drop)
        };
        assert!(matches!(refused, Err(Error::Unavailable(_))), "{refused:?}");
        for _ in 0..2 {
            let ill = store.health().await;
            assert!(matches!(ill, Err(Error::Unavailable(_))), "{ill:?}");
        }
        database.psql("DROP FUNCTION full_disk CASCADE");
        assert!(store.health().await.is_ok());
    }
}

/// Nothing that the database's owner sets for it makes a node's sessions weaker, behind a pooler
/// either.
#[tokio::test(flavor = "multi_thread")]
async fn i2_a_pooler_weakens_neither_reads_nor_notes() {
    let database = Database::new();
    drop(node(&database).await);
    database.psql(&format!(
        "ALTER DATABASE {} SET synchronous_commit = off;
         CREATE TABLE seen(setting text);
         CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$
           BEGIN INSERT INTO seen VALUES (current_setting('synchronous_commit')); RETURN NEW; END $$;
         CREATE TRIGGER look BEFORE INSERT ON counterfoil_notes
           FOR EACH ROW EXECUTE FUNCTION look()",
        database.name()
    ));
    let pooler = Pooler::start(database.address());
    let options = Options {
        pooler: true,
        ..Options::default()
    };
    let store = node_at(&database.url_at(pooler.address()), options).await;
    store.set_note("n", vec![1]).await.unwrap();
    assert_eq!(store.note("n").await, Ok(Some(vec![1])));
    assert_eq!(database.psql("SELECT setting FROM seen"), "on");
    let limits = read(&store, |sql| {
        Box::pin(async move {
            let rows = sql
                .query(
                    "SELECT current_setting('statement_timeout') || ' ' ||
                       current_setting('idle_in_transaction_session_timeout')",
                    &[],
                )
                .await?;
            rows[0].text(0).map(str::to_owned)
        })
    });
    assert_eq!(limits.await.as_deref(), Ok("10s 10s"));
}

/// A caller that goes away in the middle of a transaction takes its locks along at once, not when
/// somebody else wants the connection.
#[tokio::test(flavor = "multi_thread")]
async fn i6_a_caller_that_goes_away_leaves_no_transaction_open() {
    let database = Database::new();
    let store = node(&database).await;
    let outside = outsider(&database).await;
    let gate = Gate::new();
    let reading = {
        let (store, gate) = (store.clone(), gate.clone());
        tokio::spawn(async move {
            read(&store, move |sql| {
                let gate = gate.clone();
                Box::pin(async move {
                    sql.query("SELECT 1", &[]).await?;
                    gate.pass().await;
                    Ok(())
                })
            })
            .await
        })
    };
    gate.reached().await;
    let open = "SELECT EXISTS (SELECT 1 FROM pg_stat_activity
        WHERE datname = current_database() AND state = 'idle in transaction')";
    until(&outside, open).await;
    reading.abort();
    let went = Instant::now();
    until(&outside, &open.replacen("EXISTS", "NOT EXISTS", 1)).await;
    assert!(went.elapsed() < SOON, "{:?}", went.elapsed());
}

/// Rows that somebody broke from outside are left alone; what lies behind them lapses and is swept.
#[tokio::test(flavor = "multi_thread")]
async fn i6_a_broken_row_stops_nobody_elses_end() {
    let database = Database::new();
    let options = Options {
        time: TimeSource::Caller,
        ..Options::default()
    };
    let store = node_at(database.url(), options).await;
    let mut opened = Vec::new();
    for key in ["broken", "a", "b"] {
        opened.push(run(&store, guarded(key)).await);
    }
    database.psql("UPDATE counterfoil_receipts SET fingerprint = '\\x00' WHERE key = 'broken'");
    let later = now().plus(Duration::from_secs(86_400));
    // A step of one row at a time: the broken one is the first in line.
    assert_eq!(store.lapse(later, 1).await, Ok(1));
    assert_eq!(store.lapse(later, 1).await, Ok(1));
    assert_eq!(store.lapse(later, 1).await, Ok(0));
    let receipt = store.get(opened[1].fence.operation_id).await.unwrap();
    assert_eq!(receipt.unwrap().receipt.status.state, State::OutcomeUnknown);
    for key in ["broken too", "c", "d"] {
        let granted = run(&store, guarded(key)).await;
        finish(&store, granted.fence, key).await;
    }
    database.psql("UPDATE counterfoil_receipts SET fingerprint = '\\x00' WHERE key = 'broken too'");
    let mut receipts = 0;
    let mut after = Some(0);
    while let Some(from) = after {
        let plan = SweepPlan {
            horizon: now().plus(Duration::from_secs(10 * 365 * 86_400)),
            limit: 1,
            after: from,
        };
        let step = store.sweep(plan).await.unwrap();
        receipts += step.receipts;
        after = step.next;
    }
    assert_eq!(receipts, 2);
    let left = database.psql("SELECT key FROM counterfoil_receipts ORDER BY id");
    assert_eq!(left, "broken\na\nb\nbroken too");
}

/// Counting what is unresolved may take long; nobody waits for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_waits_for_no_count() {
    let database = Database::new();
    drop(node(&database).await);
    let outside = outsider(&database).await;
    outside
        .batch_execute("BEGIN; LOCK TABLE counterfoil_open IN ACCESS EXCLUSIVE MODE")
        .await
        .unwrap();
    let opening = tokio::time::timeout(Duration::from_secs(5), node(&database));
    let store = opening.await.expect("it waits for the count");
    assert!(store.health().await.is_ok());
    outside.batch_execute("ROLLBACK").await.unwrap();
    let granted = run(&store, guarded("k")).await;
    finish(&store, granted.fence, "done").await;
}
