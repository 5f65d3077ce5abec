//! The conformance suite on the memory store, and again through a faulty store without faults.

use std::sync::Arc;

use counterfoil_store::Store;
use counterfoil_testkit::{FaultyStore, MemoryStore, conformance::Subject};

fn always(store: Arc<dyn Store>) -> Subject {
    Subject::new(move || {
        let store = Arc::clone(&store);
        Box::pin(async move { store })
    })
}

mod memory {
    use super::*;
    counterfoil_testkit::store_conformance!(always(Arc::new(MemoryStore::new())));
}

mod through_a_faulty_store {
    use super::*;
    counterfoil_testkit::store_conformance!(always(Arc::new(FaultyStore::passing(Arc::new(
        MemoryStore::new()
    )))));
}
