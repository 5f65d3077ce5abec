//! An open attempt holds its receipt, and the database ends one whose client fell silent.

use std::time::{Duration, Instant};

use counterfoil_core::{Decision, Event, State};
use counterfoil_postgres::{Options, PostgresStore};
use counterfoil_store::{Admission, Admitted, Atomic, Error, Store, transact};
use counterfoil_test_postgres::{Database, Pooler, Proxy};

use crate::scene::{
    Gate, SOON, atomic, completion, create_effects, decided, effect, effects, finish, guarded,
    handler, node, node_at, outsider, reply, run, standing, until,
};

fn spawn_atomic(
    node: &PostgresStore,
    admission: Admission,
    handler: std::sync::Arc<crate::scene::Handler>,
) -> tokio::task::JoinHandle<Result<Atomic, Error>> {
    let node = node.clone();
    tokio::spawn(async move { node.atomically(admission, handler).await })
}

/// While a handler is open, its duplicates are told so at once, on every node, by every way in:
/// for a new key and for one that was released.
#[tokio::test(flavor = "multi_thread")]
async fn i6_a_duplicate_of_an_open_handler_does_not_wait() {
    let database = Database::new();
    create_effects(&database);
    let nodes = [node(&database).await, node(&database).await];
    let granted = run(&nodes[0], guarded("released")).await;
    let attempt = granted.fence.attempt;
    let released = completion(Event::NotApplied { attempt });
    nodes[0].complete(granted.fence, released).await.unwrap();
    for key in ["new", "released"] {
        let gate = Gate::new();
        let holding = spawn_atomic(&nodes[0], atomic(key), standing(&gate, "first"));
        gate.reached().await;
        for node in &nodes {
            let asked = Instant::now();
            let said = node.admit(guarded(key)).await;
            assert!(matches!(said, Ok(Admitted::Held)), "{said:?}");
            let said = node.atomically(atomic(key), effect("second")).await;
            assert!(matches!(said, Ok(Atomic::Held)), "{said:?}");
            assert!(asked.elapsed() < SOON / 2, "{:?}", asked.elapsed());
        }
        gate.open();
        assert!(matches!(holding.await.unwrap(), Ok(Atomic::Ran(..))));
        for node in &nodes {
            match node.atomically(atomic(key), effect("second")).await {
                Ok(Atomic::Decided(Decision::Replay, found)) => {
                    assert_eq!(found.reply.unwrap().reply, reply("first"));
                }
                other => panic!("its answer is stored: {other:?}"),
            }
        }
    }
    assert_eq!(effects(&database), 2);
}

/// A receipt that an open transaction holds is alive, whatever its lease says; others lapse.
#[tokio::test(flavor = "multi_thread")]
async fn i6_a_locked_receipt_does_not_lapse() {
    let database = Database::new();
    create_effects(&database);
    let nodes = [node(&database).await, node(&database).await];
    let outside = outsider(&database).await;
    let short = |key: &str| {
        let mut admission = guarded(key);
        admission.policy.lease = Duration::from_millis(200);
        admission
    };
    let held = run(&nodes[0], short("held")).await;
    let free = run(&nodes[0], short("free")).await;
    let gate = Gate::new();
    let (working, stands, fence) = (nodes[0].clone(), gate.clone(), held.fence);
    let marking = tokio::spawn(async move {
        transact(&working, None, move |tx| {
            let stands = stands.clone();
            Box::pin(async move {
                tx.mark_committed(fence).await?;
                stands.pass().await;
                Ok(())
            })
        })
        .await
    });
    gate.reached().await;
    until(
        &outside,
        "SELECT bool_and(lease_until < extract(epoch FROM clock_timestamp()) * 1000)
         FROM counterfoil_receipts",
    )
    .await;
    let now = crate::scene::now();
    assert_eq!(nodes[1].lapse(now, 100).await, Ok(1), "the free one");
    let state = |id| {
        let node = nodes[1].clone();
        async move { node.get(id).await.unwrap().unwrap().receipt.status.state }
    };
    assert_eq!(state(free.fence.operation_id).await, State::OutcomeUnknown);
    assert_eq!(state(held.fence.operation_id).await, State::Running);
    let said = nodes[1].admit(guarded("held")).await;
    assert!(matches!(said, Ok(Admitted::Held)), "{said:?}");
    gate.open();
    assert_eq!(marking.await.unwrap(), Ok(()));
    // It is committed now, its answer is lost, and nothing holds it.
    assert_eq!(nodes[1].lapse(now, 100).await, Ok(1));
    let (decision, _) = decided(&nodes[1], guarded("held")).await;
    assert_eq!(decision, Decision::Committed { retry_after: None });
}

/// A completion of a row that somebody else holds waits for them, and is recorded then.
#[tokio::test(flavor = "multi_thread")]
async fn i6_a_completion_waits_for_whoever_holds_its_row() {
    let database = Database::new();
    let store = node(&database).await;
    let outside = outsider(&database).await;
    let granted = run(&store, guarded("k")).await;
    let other = run(&store, guarded("other")).await;
    outside.batch_execute("BEGIN").await.unwrap();
    let lock = "SELECT id FROM counterfoil_receipts WHERE key = 'k' FOR UPDATE";
    outside.query_one(lock, &[]).await.unwrap();
    let (completing, fence) = (store.clone(), granted.fence);
    let completing = tokio::spawn(async move { finish(&completing, fence, "done").await });
    // The one beside it is not held up.
    let done = tokio::time::timeout(SOON, finish(&store, other.fence, "done")).await;
    assert_eq!(done.unwrap().status.state, State::Succeeded);
    assert!(!completing.is_finished());
    outside.batch_execute("ROLLBACK").await.unwrap();
    let done = tokio::time::timeout(SOON, completing).await;
    assert_eq!(done.unwrap().unwrap().status.state, State::Succeeded);
}

/// A client that falls silent in the middle of its transaction: the server ends the session, and
/// another node runs the key. When the first one comes back, it finds the other one's answer.
#[tokio::test(flavor = "multi_thread")]
async fn i1_a_session_that_fell_silent_is_ended_by_the_database() {
    let database = Database::new();
    create_effects(&database);
    let proxy = Proxy::start(database.address());
    let options = || Options {
        database_timeout: Duration::from_secs(2),
        ..Options::default()
    };
    let lost = node_at(&database.url_at(proxy.address()), options()).await;
    let store = node_at(database.url(), options()).await;
    let gate = Gate::new();
    let mut admission = atomic("k");
    admission.patience = Duration::from_secs(20);
    let first = spawn_atomic(&lost, admission, standing(&gate, "lost"));
    gate.reached().await;
    proxy.silent(true);
    let silent = Instant::now();
    let mut held = 0;
    loop {
        match store.atomically(atomic("k"), effect("second")).await {
            Ok(Atomic::Held) => held += 1,
            Ok(Atomic::Ran(..)) => break,
            other => panic!("held, or to be run: {other:?}"),
        }
        assert!(silent.elapsed() < Duration::from_secs(6), "never ended");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(held > 0);
    assert!(silent.elapsed() > Duration::from_secs(1));
    proxy.silent(false);
    proxy.cut_now();
    gate.open();
    match first.await.unwrap() {
        Ok(Atomic::Decided(Decision::Replay, found)) => {
            assert_eq!(found.reply.unwrap().reply, reply("second"));
        }
        other => panic!("the other one ran: {other:?}"),
    }
    assert_eq!(database.psql("SELECT label FROM effects"), "second");
}

/// What the database is told of time-outs, seen from inside every kind of transaction, through a
/// pooler as well.
#[tokio::test(flavor = "multi_thread")]
async fn the_databases_time_outs_are_in_force() {
    let database = Database::new();
    let pooler = Pooler::start(database.address());
    let direct = node(&database).await;
    let pooled = Options {
        pooler: true,
        ..Options::default()
    };
    let pooled = node_at(&database.url_at(pooler.address()), pooled).await;
    database.psql(
        "CREATE TABLE seen(statement text, idle text, lock text, durable text);
         CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
           INSERT INTO seen VALUES (current_setting('statement_timeout'),
             current_setting('idle_in_transaction_session_timeout'),
             current_setting('lock_timeout'), current_setting('synchronous_commit'));
           RETURN NULL; END $$;
         CREATE TRIGGER see AFTER INSERT OR UPDATE ON counterfoil_receipts
           FOR EACH STATEMENT EXECUTE FUNCTION see()",
    );
    for (name, store) in [("direct", &direct), ("pooled", &pooled)] {
        let granted = run(store, guarded(name)).await;
        finish(store, granted.fence, "done").await;
        let answer = handler(|_| Box::pin(async { Ok(reply("a")) }));
        let done = store.atomically(atomic(&format!("a {name}")), answer).await;
        assert!(matches!(done, Ok(Atomic::Ran(..))), "{done:?}");
    }
    // A handler waits for locks no longer than its caller would.
    let seen = database.psql("SELECT DISTINCT statement, idle, durable, lock <> '0' FROM seen");
    assert_eq!(seen, "10s|10s|on|t");
    assert_eq!(database.psql("SELECT count(*) FROM seen"), "6");
    drop((direct, pooled));
}
