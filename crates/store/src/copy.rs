//! Receipts on their way from one store to another.

use std::{
    collections::{HashMap, hash_map::Entry},
    time::Duration,
};

use counterfoil_core::{EventRecord, OperationId, Receipt, State, Timestamp};
use sha2::{Digest as _, Sha256};

use crate::StoredReply;

/// About how many bytes one part of an export holds; one receipt is always whole.
pub const EXPORT_BYTES: usize = 8 << 20;

/// A receipt with everything that hangs on it, as one store hands it to another. Sealed bodies
/// stay sealed: what they are bound to (identity and operation) moves with them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whole {
    /// The row.
    pub receipt: Receipt,
    /// Its log, the oldest row first.
    pub events: Vec<EventRecord>,
    /// The stored result.
    pub result: Option<StoredReply>,
    /// The stored questions with their rounds, the first one first.
    pub questions: Vec<(u16, StoredReply)>,
}

/// A part of an export.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// The receipts, in the order of their making.
    pub rows: Vec<Whole>,
    /// The rows of this part that cannot be read, or not be found under their identity.
    pub damaged: Vec<Damaged>,
    /// Where the next part begins; `None` at the end. The last part may be empty.
    pub next: Option<i64>,
}

/// A row that is not what it must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damaged {
    /// Of which operation, as far as that can be read.
    pub operation_id: Option<OperationId>,
    /// What is wrong with it. Never a stored value.
    pub why: String,
}

/// What an import did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// Receipts written.
    pub new: u64,
    /// Receipts that were there already, the same in everything.
    pub same: u64,
}

/// Why nothing was imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Clash {
    /// The operation is there with another content.
    #[error("{0} is there already, and differs from what is to be written")]
    Differs(OperationId),
    /// The identity (the key in its scope) belongs to another operation there.
    #[error("the key of {brought} is taken there by {there}")]
    Taken {
        /// The operation that was to be written.
        brought: OperationId,
        /// The operation that has its identity.
        there: OperationId,
    },
}

impl Whole {
    /// The form that every store can hold: texts without NUL, durations in whole milliseconds.
    /// A store that imports writes and compares this form.
    #[must_use]
    pub fn portable(mut self) -> Self {
        let receipt = &mut self.receipt;
        for duration in [
            &mut receipt.retention.replay_for,
            &mut receipt.retention.tombstone_for,
            &mut receipt.provider_window,
        ] {
            *duration = Duration::from_millis(millis(*duration));
        }
        for event in &mut self.events {
            clean(&mut event.reason);
            event.evidence.as_mut().map(clean);
        }
        let questions = self.questions.iter_mut().map(|(_, question)| question);
        for stored in self.result.iter_mut().chain(questions) {
            stored.reply.content_type.as_mut().map(clean);
        }
        self.questions.sort_by_key(|(round, _)| *round);
        self
    }

    /// About how many bytes it is.
    #[must_use]
    pub fn size(&self) -> usize {
        let bodies = self.questions.iter().map(|(_, question)| question);
        let bodies: usize = self
            .result
            .iter()
            .chain(bodies)
            .map(|stored| stored.reply.body.len())
            .sum();
        512 + bodies + self.events.len() * 128
    }

    /// Whether it is to be written, given what is there of its operation and of its identity. Both
    /// sides must be in the portable form.
    ///
    /// # Errors
    /// [`Clash`] if it cannot be written beside what is there.
    pub fn is_new(
        &self,
        of_operation: Option<&Self>,
        of_identity: Option<&Self>,
    ) -> Result<bool, Clash> {
        let brought = self.receipt.operation_id;
        if let Some(there) = of_operation {
            return if there == self {
                Ok(false)
            } else {
                Err(Clash::Differs(brought))
            };
        }
        match of_identity {
            Some(there) => Err(Clash::Taken {
                brought,
                there: there.receipt.operation_id,
            }),
            None => Ok(true),
        }
    }

    /// A digest of everything in it, the same in whichever store it is.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        let whole = self.clone().portable();
        let mut fields = Fields(Sha256::new());
        fields.receipt(&whole.receipt);
        fields.count(whole.events.len());
        for event in &whole.events {
            fields.event(event);
        }
        fields.reply(whole.result.as_ref());
        fields.count(whole.questions.len());
        for (round, question) in &whole.questions {
            fields.int(i64::from(*round));
            fields.reply(Some(question));
        }
        fields.0.finalize().into()
    }
}

/// The rows of an import in their portable form, each once, and how many were there twice.
///
/// # Errors
/// [`Clash`] if two of them cannot stand beside each other.
pub fn distinct(rows: Vec<Whole>) -> Result<(Vec<Whole>, u64), Clash> {
    let mut kept: Vec<Whole> = Vec::with_capacity(rows.len());
    let mut operations = HashMap::new();
    let mut identities = HashMap::new();
    let mut twice = 0;
    for whole in rows {
        let whole = whole.portable();
        let receipt = &whole.receipt;
        let of_operation = operations.get(&receipt.operation_id);
        let of_identity = identities.entry(receipt.identity.clone());
        let there = match &of_identity {
            Entry::Occupied(entry) => Some(*entry.get()),
            Entry::Vacant(_) => None,
        };
        let row = |index: Option<usize>| index.and_then(|index| kept.get(index));
        if whole.is_new(row(of_operation.copied()), row(there))? {
            operations.insert(receipt.operation_id, kept.len());
            of_identity.insert_entry(kept.len());
            kept.push(whole);
        } else {
            twice += 1;
        }
    }
    Ok((kept, twice))
}

fn millis(duration: Duration) -> u64 {
    let most = u64::try_from(i64::MAX).unwrap_or(u64::MAX);
    u64::try_from(duration.as_millis())
        .unwrap_or(most)
        .min(most)
}

fn clean(text: &mut String) {
    if text.contains('\0') {
        *text = text.replace('\0', "\u{fffd}");
    }
}

/// Feeds a digest, each field with its length or in a fixed width, so that no two rows are fed
/// alike.
struct Fields(Sha256);

impl Fields {
    fn int(&mut self, int: i64) {
        self.0.update(int.to_be_bytes());
    }

    fn count(&mut self, count: usize) {
        self.int(i64::try_from(count).unwrap_or(i64::MAX));
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.0.update(bytes);
    }

    fn maybe<T>(&mut self, value: Option<T>, feed: impl FnOnce(&mut Self, T)) {
        self.0.update([u8::from(value.is_some())]);
        if let Some(value) = value {
            feed(self, value);
        }
    }

    fn duration(&mut self, duration: Duration) {
        self.int(i64::try_from(millis(duration)).unwrap_or(i64::MAX));
    }

    fn receipt(&mut self, receipt: &Receipt) {
        let identity = &receipt.identity;
        self.bytes(&receipt.operation_id.to_bytes());
        for text in [
            identity.workspace.as_str(),
            identity.principal.as_str(),
            &identity.target.operation,
            &identity.target.upstream,
            identity.key.as_str(),
        ] {
            self.bytes(text.as_bytes());
        }
        self.count(identity.target.parameters.len());
        for parameter in &identity.target.parameters {
            self.bytes(parameter.as_bytes());
        }
        self.bytes(&receipt.fingerprint.to_bytes());
        self.int(i64::from(receipt.version));
        self.bytes(&[
            receipt.mode.to_byte(),
            receipt.status.state.to_byte(),
            u8::from(receipt.status.committed),
            receipt.kept.to_byte(),
        ]);
        self.bytes(&receipt.status.attempts.to_bytes());
        self.int(i64::from(receipt.status.round));
        self.bytes(receipt.rounds.as_flattened());
        self.bytes(&receipt.token.to_bytes());
        self.int(receipt.created_at.as_millis());
        self.int(receipt.lease_until.as_millis());
        self.int(receipt.hard_deadline.as_millis());
        let finished_at = receipt.finished_at.map(Timestamp::as_millis);
        self.maybe(finished_at, Self::int);
        self.duration(receipt.retention.replay_for);
        self.duration(receipt.retention.tombstone_for);
        self.duration(receipt.provider_window);
    }

    fn event(&mut self, event: &EventRecord) {
        self.int(event.at.as_millis());
        self.int(i64::from(event.attempt));
        self.maybe(event.from.map(State::to_byte), |fields, state| {
            fields.0.update([state]);
        });
        self.0.update([event.to.to_byte()]);
        self.bytes(event.reason.as_bytes());
        self.maybe(event.evidence.as_deref(), |fields, text| {
            fields.bytes(text.as_bytes());
        });
    }

    fn reply(&mut self, stored: Option<&StoredReply>) {
        self.maybe(stored, |fields, stored| {
            let reply = &stored.reply;
            fields.int(i64::from(reply.status));
            fields.maybe(stored.sealed, |fields, key| fields.int(i64::from(key)));
            fields.maybe(reply.content_type.as_deref(), |fields, text| {
                fields.bytes(text.as_bytes());
            });
            fields.count(reply.headers.len());
            for (name, value) in &reply.headers {
                fields.bytes(name.as_bytes());
                fields.bytes(value.as_bytes());
            }
            fields.bytes(&reply.body);
        });
    }
}
