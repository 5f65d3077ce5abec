//! The whole suite once more, through PgBouncer in transaction mode.

use std::sync::Arc;

use counterfoil_postgres::{Options, PostgresStore, TimeSource};
use counterfoil_store::Store;
use counterfoil_test_postgres::{Database, Pooler};
use counterfoil_testkit::conformance::Subject;

/// The suite brings its own times.
fn subject() -> Subject {
    let database = Database::new();
    let pooler = Pooler::start(database.address());
    let behind = Arc::new((pooler, database));
    Subject::new(move || {
        let behind = Arc::clone(&behind);
        Box::pin(async move {
            let options = Options {
                pooler: true,
                time: TimeSource::Caller,
                ..Options::default()
            };
            let (pooler, database) = &*behind;
            let url = database.url_at(pooler.address());
            Arc::new(PostgresStore::open(&url, options).await.unwrap()) as Arc<dyn Store>
        })
    })
}

counterfoil_testkit::store_conformance!(subject());
