use std::sync::Arc;

use counterfoil_core::{Identity, Kept};
use counterfoil_store::Found;
use quick_cache::{Weighter, sync::Cache};

/// Bytes of a cached receipt that are not its strings or its body.
const ROW_BYTES: usize = 512;
/// Receipts the bound is made for, so that the cache sizes itself.
const TYPICAL_BYTES: u64 = 1024;

/// Finished receipts that are being replayed, in bounded memory.
///
/// Architecture invariant: only finished receipts with a stored result are kept. Those never
/// change again; their windows are judged at each use, by the clock of that use; and sealed
/// bodies stay sealed. So a hit decides as the row would.
pub(crate) struct Hot(Option<Cache<Identity, Arc<Found>, Bytes>>);

#[derive(Clone)]
struct Bytes;

impl Weighter<Identity, Arc<Found>> for Bytes {
    fn weight(&self, identity: &Identity, found: &Arc<Found>) -> u64 {
        let body = found
            .reply
            .as_ref()
            .map_or(0, |stored| stored.reply.body.len());
        let strings = identity.key.as_str().len()
            + identity.target.operation.len()
            + identity
                .target
                .parameters
                .iter()
                .map(String::len)
                .sum::<usize>();
        u64::try_from(ROW_BYTES + 2 * strings + body).unwrap_or(u64::MAX)
    }
}

impl Hot {
    pub(crate) fn new(bytes_max: u64) -> Self {
        let receipts = usize::try_from(bytes_max / TYPICAL_BYTES).unwrap_or(usize::MAX);
        Self((bytes_max > 0).then(|| Cache::with_weighter(receipts, bytes_max, Bytes)))
    }

    pub(crate) fn get(&self, identity: &Identity) -> Option<Arc<Found>> {
        self.0.as_ref()?.get(identity)
    }

    pub(crate) fn keep(&self, found: &Arc<Found>) {
        let receipt = &found.receipt;
        if let Some(cache) = &self.0
            && receipt.status.state.is_finished()
            && receipt.kept == Kept::Stored
        {
            cache.insert(receipt.identity.clone(), Arc::clone(found));
        }
    }

    pub(crate) fn forget(&self, identity: &Identity) {
        if let Some(cache) = &self.0 {
            cache.remove(identity);
        }
    }
}
