use std::sync::Arc;

use counterfoil_postgres::{Options, PostgresStore, TimeSource};
use counterfoil_store::Store;
use counterfoil_test_postgres::Database;
use counterfoil_testkit::conformance::Subject;

/// The suite brings its own times.
fn subject() -> Subject {
    let database = Arc::new(Database::new());
    Subject::new(move || {
        let database = Arc::clone(&database);
        Box::pin(async move {
            let options = Options {
                time: TimeSource::Caller,
                ..Options::default()
            };
            let store = PostgresStore::open(database.url(), options).await.unwrap();
            Arc::new(store) as Arc<dyn Store>
        })
    })
}

counterfoil_testkit::store_conformance!(subject());
