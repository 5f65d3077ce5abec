//! What arrives from another store while callers are at work, and what somebody breaks from
//! outside.

use std::time::{Duration, Instant};

use counterfoil_core::{Event, Policy};
use counterfoil_postgres::{Options, PostgresStore};
use counterfoil_store::{Admission, Admitted, Clash, Error, Imported, Store, Whole};
use counterfoil_test_postgres::Database;

use crate::scene::{
    Gate, SOON, atomic, completion, create_effects, decided, finish, guarded, in_progress, node,
    node_at, outsider, run, standing, stored, until,
};

/// A receipt of another store.
fn elsewhere(key: &str) -> Whole {
    let reply = stored("done elsewhere");
    let admission = Admission {
        policy: Policy::atomic(),
        ..guarded(key)
    };
    let change = admission.execute(None, false, Ok(&reply)).unwrap();
    Whole {
        receipt: change.receipt,
        events: vec![change.event],
        result: Some(reply),
        questions: Vec::new(),
    }
}

/// Neither waits for what the other has not committed.
#[tokio::test(flavor = "multi_thread")]
async fn i1_an_import_leaves_an_identity_to_whoever_decides_on_it() {
    let database = Database::new();
    create_effects(&database);
    let options = Options {
        patience: Duration::from_millis(300),
        ..Options::default()
    };
    let store = node_at(database.url(), options).await;
    let gate = Gate::new();
    let calling = tokio::spawn({
        let (store, handler) = (store.clone(), standing(&gate, "here"));
        async move { store.atomically(atomic("k"), handler).await }
    });
    gate.reached().await;
    let started = Instant::now();
    let brought = vec![elsewhere("other"), elsewhere("k")];
    let refused = store.import(brought.clone()).await;
    assert!(matches!(refused, Err(Error::Busy { .. })), "{refused:?}");
    assert!(started.elapsed() < SOON, "{:?}", started.elapsed());
    assert_eq!(
        database.psql("SELECT count(*) FROM counterfoil_receipts"),
        "0",
        "nothing of a part that could not be written"
    );
    gate.open();
    calling.await.unwrap().unwrap();
    let clash = store.import(brought).await.unwrap();
    assert!(matches!(clash, Err(Clash::Taken { .. })), "{clash:?}");
}

/// A reservation that meets the lock of an import is told so, and stalls nobody in its batch.
#[tokio::test(flavor = "multi_thread")]
async fn i6_no_caller_waits_for_an_import() {
    let database = Database::new();
    let store = node(&database).await;
    // The import stands still behind this: in its transaction, with the lock of its identity.
    let mut outside = outsider(&database).await;
    let rival = outside.transaction().await.unwrap();
    rival
        .batch_execute("LOCK TABLE counterfoil_results IN ACCESS EXCLUSIVE MODE")
        .await
        .unwrap();
    let importing = tokio::spawn({
        let store = store.clone();
        async move { store.import(vec![elsewhere("k")]).await }
    });
    let watching = outsider(&database).await;
    until(
        &watching,
        "SELECT EXISTS (SELECT 1 FROM pg_locks WHERE NOT granted \
         AND relation = 'counterfoil_results'::regclass)",
    )
    .await;
    let started = Instant::now();
    let told = store.admit(guarded("k")).await;
    let is_held = match &told {
        Ok(Admitted::Held) | Err(Error::Busy { .. }) => true,
        Ok(Admitted::Decided(decision, _)) => in_progress(*decision),
        Ok(Admitted::Run(_)) | Err(_) => false,
    };
    assert!(is_held, "{told:?}");
    run(&store, guarded("another")).await;
    assert!(started.elapsed() < SOON, "{:?}", started.elapsed());
    rival.rollback().await.unwrap();
    let imported = importing.await.unwrap().unwrap();
    assert_eq!(imported, Ok(Imported { new: 1, same: 0 }));
    let (_, found) = decided(&store, guarded("k")).await;
    assert_eq!(found.reply, Some(stored("done elsewhere")));
}

async fn problems(store: &PostgresStore) -> Vec<String> {
    store.inspect().await.unwrap().problems
}

/// The entries of unresolved receipts decide what lapses, what is listed as in doubt, and what
/// counts against the quota.
#[tokio::test(flavor = "multi_thread")]
async fn i6_entries_that_do_not_fit_their_receipts_are_found() {
    let database = Database::new();
    let store = node(&database).await;
    let done = run(&store, guarded("done")).await.fence;
    finish(&store, done, "done").await;
    run(&store, guarded("running")).await;
    run(&store, guarded("also running")).await;
    let lost = run(&store, guarded("lost")).await.fence;
    let event = Event::Lost {
        attempt: lost.attempt,
    };
    store.complete(lost, completion(event)).await.unwrap();
    assert_eq!(problems(&store).await, [""; 0]);
    let of = |key: &str| format!("(SELECT id FROM counterfoil_receipts WHERE key = '{key}')");
    for (damage, remedy, found) in [
        (
            "INSERT INTO counterfoil_open SELECT id, workspace, NULL, true \
             FROM counterfoil_receipts WHERE key = 'done'"
                .to_owned(),
            format!(
                "DELETE FROM counterfoil_open WHERE receipt = {}",
                of("done")
            ),
            "1 entries of unresolved receipts belong to none",
        ),
        (
            "INSERT INTO counterfoil_open VALUES (4711, 1, NULL, true)".to_owned(),
            "DELETE FROM counterfoil_open WHERE receipt = 4711".to_owned(),
            "1 entries of unresolved receipts belong to none",
        ),
        (
            format!(
                "DELETE FROM counterfoil_open WHERE receipt = {}",
                of("lost")
            ),
            "INSERT INTO counterfoil_open SELECT id, workspace, NULL, true \
             FROM counterfoil_receipts WHERE key = 'lost'"
                .to_owned(),
            "1 unresolved receipts have no entry",
        ),
        (
            format!(
                "UPDATE counterfoil_open SET lapse_at = lapse_at + 1 WHERE receipt = {}",
                of("running")
            ),
            format!(
                "UPDATE counterfoil_open SET lapse_at = lapse_at - 1 WHERE receipt = {}",
                of("running")
            ),
            "1 entries of unresolved receipts are not what their receipts say",
        ),
        (
            "UPDATE counterfoil_open SET lapse_at = NULL".to_owned(),
            "UPDATE counterfoil_open AS o SET lapse_at = lease_until FROM counterfoil_receipts AS r \
             WHERE r.id = o.receipt AND NOT o.doubt"
                .to_owned(),
            "2 entries of unresolved receipts are not what their receipts say",
        ),
        (
            "UPDATE counterfoil_open SET doubt = NOT doubt".to_owned(),
            "UPDATE counterfoil_open SET doubt = NOT doubt".to_owned(),
            "3 entries of unresolved receipts are not what their receipts say",
        ),
        (
            "UPDATE counterfoil_open SET workspace = workspace + 1".to_owned(),
            "UPDATE counterfoil_open SET workspace = workspace - 1".to_owned(),
            "3 entries of unresolved receipts are not what their receipts say",
        ),
    ] {
        database.psql(&damage);
        let problems = problems(&store).await;
        let [problem] = problems.as_slice() else {
            panic!("{damage}: {problems:?}");
        };
        assert!(problem.starts_with(found), "{damage}: {problem}");
        assert!(problem.contains("; "), "what to do: {problem}");
        database.psql(&remedy);
        assert_eq!(self::problems(&store).await, [""; 0], "{remedy}");
    }
}
