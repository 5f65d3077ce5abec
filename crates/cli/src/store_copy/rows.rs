//! The receipts of a side, read one after the other and compared.

use std::collections::VecDeque;

use counterfoil_core::OperationId;
use counterfoil_store::{Damaged, Store, Whole};

use super::steady::export;
use crate::exit::Failure;

/// Damaged rows that are named.
const NAMED_MAX: usize = 10;

/// A receipt in short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Digest {
    pub(super) operation_id: OperationId,
    pub(super) digest: [u8; 32],
}

/// What was read of one side.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub(super) receipts: u64,
    pub(super) events: u64,
    pub(super) results: u64,
    pub(super) questions: u64,
    pub(super) digest: [u8; 32],
}

/// The receipts of one side, one after the other.
pub(super) struct Rows<'s> {
    store: &'s dyn Store,
    page: u32,
    waiting: VecDeque<Whole>,
    next: Option<i64>,
    pub(super) tally: Tally,
    pub(super) damaged: Vec<Damaged>,
}

impl<'s> Rows<'s> {
    pub(super) fn new(store: &'s dyn Store, page: u32) -> Self {
        Self {
            store,
            page,
            waiting: VecDeque::new(),
            next: Some(0),
            tally: Tally::default(),
            damaged: Vec::new(),
        }
    }

    pub(super) async fn next(&mut self) -> Result<Option<Digest>, Failure> {
        while self.waiting.is_empty() {
            let Some(after) = self.next else {
                return Ok(None);
            };
            let part = export(self.store, after, self.page).await?;
            self.next = part.next;
            self.waiting = part.rows.into();
            let room = NAMED_MAX.saturating_sub(self.damaged.len());
            self.damaged.extend(part.damaged.into_iter().take(room));
        }
        Ok(self.waiting.pop_front().map(|whole| self.count(&whole)))
    }

    fn count(&mut self, whole: &Whole) -> Digest {
        let many = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        let digest = whole.digest();
        let tally = &mut self.tally;
        tally.receipts += 1;
        tally.events += many(whole.events.len());
        tally.results += u64::from(whole.result.is_some());
        tally.questions += many(whole.questions.len());
        // No receipt is there twice, so that none takes another one out.
        for (sum, byte) in tally.digest.iter_mut().zip(digest) {
            *sum ^= byte;
        }
        Digest {
            operation_id: whole.receipt.operation_id,
            digest,
        }
    }
}

pub(super) fn differ(one: Option<Digest>, other: Option<Digest>) -> Option<String> {
    match (one, other) {
        (Some(one), Some(other)) if one == other => None,
        (Some(one), Some(other)) if one.operation_id == other.operation_id => Some(format!(
            "{} is not the same on both sides",
            one.operation_id
        )),
        (Some(one), Some(other)) => Some(format!(
            "where the source has {}, the target has {}",
            one.operation_id, other.operation_id
        )),
        (Some(one), None) => Some(format!("{} is missing in the target", one.operation_id)),
        (None, Some(other)) => Some(format!("{} is only in the target", other.operation_id)),
        (None, None) => None,
    }
}
