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
