//! What a handler may not touch.

use counterfoil_store::{Error, Store as _};
use counterfoil_test_postgres::Database;

use crate::scene::{atomic, handler, node, reply};

/// Asked of the database, so that a table that comes later is not forgotten.
#[tokio::test(flavor = "multi_thread")]
async fn every_table_of_the_store_is_out_of_a_handlers_reach() {
    let database = Database::new();
    let store = node(&database).await;
    let tables = database.psql("SELECT tablename FROM pg_tables WHERE schemaname = 'public'");
    assert!(tables.lines().count() >= 10, "{tables}");
    for table in tables.lines() {
        let sql = format!("SELECT count(*) FROM {table}");
        let told = store
            .atomically(
                atomic(table),
                handler(move |tx| {
                    let sql = sql.clone();
                    Box::pin(async move {
                        tx.query(&sql, &[]).await?;
                        Ok(reply("read"))
                    })
                }),
            )
            .await;
        assert!(matches!(told, Err(Error::Handler(_))), "{table}: {told:?}");
    }
}
