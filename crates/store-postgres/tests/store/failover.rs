//! A failover that loses the latest commits, as nodes that stay up see it: what the database had,
//! it has no more, and the numbers of what is missing are given to others.

use counterfoil_core::{PrincipalId, State};
use counterfoil_postgres::PostgresStore;
use counterfoil_store::{Admission, Admitted, Error, Store as _};
use counterfoil_test_postgres::Database;

use crate::scene::{atomic, create_effects, effect, finish, guarded, identity, node, run};

/// Loses everything, but for numbers that go on from where a standby was: the next scope gets the
/// number that `ada`'s had.
fn lose_everything(database: &Database) {
    database.psql(
        "TRUNCATE counterfoil_receipts, counterfoil_results, counterfoil_questions,
            counterfoil_events, counterfoil_open;
         TRUNCATE counterfoil_scopes RESTART IDENTITY;",
    );
}

fn of_bob(mut admission: Admission) -> Admission {
    admission.identity.principal = PrincipalId::new("bob").unwrap();
    admission
}

/// A look-up may be told that the store is busy, once, while it finds out.
async fn found(store: &PostgresStore, key: &str) -> Option<State> {
    let identity = identity(key);
    let found = match store.find(&identity).await {
        Err(Error::Busy { .. }) => store.find(&identity).await,
        other => other,
    };
    found.unwrap().map(|found| found.receipt.status.state)
}

#[tokio::test(flavor = "multi_thread")]
async fn i1_i4_numbers_that_are_given_anew_lead_nobody_to_anybody_elses_receipts() {
    let database = Database::new();
    let (stays, other) = (node(&database).await, node(&database).await);
    let before = run(&stays, guarded("before")).await;
    finish(&stays, before.fence, "lost").await;
    lose_everything(&database);
    // Another principal's scope takes the number, and uses the same key.
    let bobs = run(&other, of_bob(guarded("k"))).await;
    finish(&other, bobs.fence, "bob's").await;
    assert_eq!(found(&stays, "k").await, None, "it is bob's");
    let granted = run(&stays, guarded("k")).await;
    assert_ne!(granted.fence.operation_id, bobs.fence.operation_id);
    finish(&stays, granted.fence, "ada's").await;
    // Every node finds what was written under a number that it had to learn anew.
    assert_eq!(found(&other, "k").await, Some(State::Succeeded));
    let again = other.admit(guarded("k")).await.unwrap();
    assert!(matches!(again, Admitted::Decided(..)), "{again:?}");
    let strays = "SELECT count(*) FROM counterfoil_receipts AS r
                  LEFT JOIN counterfoil_scopes AS s ON s.id = r.scope WHERE s.id IS NULL";
    assert_eq!(database.psql(strays), "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn i1_an_atomic_call_after_a_loss_is_found_by_every_node() {
    let database = Database::new();
    let (stays, other) = (node(&database).await, node(&database).await);
    let before = run(&stays, guarded("before")).await;
    finish(&stays, before.fence, "lost").await;
    lose_everything(&database);
    create_effects(&database);
    let handler = effect("done");
    let ran = stays
        .atomically(atomic("k"), handler.clone())
        .await
        .unwrap();
    assert!(matches!(ran, counterfoil_store::Atomic::Ran(..)), "{ran:?}");
    let again = other.atomically(atomic("k"), handler).await.unwrap();
    assert!(
        matches!(again, counterfoil_store::Atomic::Decided(..)),
        "{again:?}"
    );
}

/// The same name, another database: every key would run again on it, beside nodes that remember.
#[tokio::test(flavor = "multi_thread")]
async fn i1_a_database_that_was_made_anew_is_not_gone_on_with() {
    let database = Database::new();
    let store = node(&database).await;
    run(&store, guarded("k")).await;
    database.psql(
        "UPDATE counterfoil_meta SET value = decode(repeat('00', 32), 'hex')
         WHERE name = 'locator_secret';
         SELECT pg_terminate_backend(pid) FROM pg_stat_activity
         WHERE datname = current_database() AND pid <> pg_backend_pid();",
    );
    for _ in 0..3 {
        let refused = store.admit(guarded("other")).await;
        assert!(
            matches!(
                refused,
                Err(Error::Unavailable(_) | Error::CommitUnknown | Error::Busy { .. })
            ),
            "{refused:?}"
        );
    }
    assert_eq!(
        database.psql("SELECT count(*) FROM counterfoil_receipts"),
        "1"
    );
    assert!(store.health().await.is_err());
}

/// A lane that fails over a table that somebody changed begins anew when it is as it was.
#[tokio::test(flavor = "multi_thread")]
async fn i6_lanes_and_readers_outlive_a_table_that_was_changed() {
    let database = Database::new();
    let store = node(&database).await;
    let granted = run(&store, guarded("before")).await;
    finish(&store, granted.fence, "done").await;
    database.psql("ALTER TABLE counterfoil_receipts ALTER COLUMN state TYPE integer");
    for _ in 0..4 {
        let _ = store.admit(guarded("before")).await;
        let _ = store.find(&identity("before")).await;
    }
    database.psql("ALTER TABLE counterfoil_receipts ALTER COLUMN state TYPE smallint");
    let started = std::time::Instant::now();
    loop {
        let well = matches!(store.admit(guarded("after")).await, Ok(Admitted::Run(_)))
            && matches!(store.find(&identity("before")).await, Ok(Some(_)));
        if well {
            break;
        }
        assert!(started.elapsed().as_secs() < 30, "it does not recover");
    }
}
