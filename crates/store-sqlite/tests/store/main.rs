//! The conformance suite on SQLite, and what only SQLite can get wrong.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod faults;
mod handlers;
mod locks;
mod opening;
mod rows;
mod scene;

use std::sync::Arc;

use counterfoil_sqlite::{Options, SqliteStore};
use counterfoil_store::Store;
use counterfoil_testkit::conformance::Subject;

fn subject() -> Subject {
    let folder = Arc::new(tempfile::tempdir().expect("a folder"));
    Subject::new(move || {
        let folder = Arc::clone(&folder);
        Box::pin(async move {
            let path = folder.path().join("receipts.db");
            let store = SqliteStore::open(path, Options::default()).expect("a store");
            Arc::new(store) as Arc<dyn Store>
        })
    })
}

counterfoil_testkit::store_conformance!(subject());
