//! What this process knows of deliveries and has not written yet, or is still in the middle of.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use counterfoil_core::Timestamp;

use super::{
    CallDigest, Channel,
    judge::Handing,
    table::{First, Known},
};

/// Handings out held here. Beyond it the oldest that nobody holds is forgotten: what was not
/// written of it counts as unproven.
const ENTRIES_MAX: usize = 16_384;
/// Rows written in one transaction.
const BATCH_MAX: usize = 256;

/// One handing out.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) known: Known,
    /// How it comes into the table.
    pub(super) first: First,
    /// The call is run here for it.
    pub(super) ran: bool,
    /// Something was said of it that is worth a row.
    pub(super) recorded: bool,
    /// Somebody here may still say something of it.
    pub(super) held: bool,
    /// It waits for a later message on its channel.
    waiting: bool,
    /// Counts what was said of it, so that what was said while it was written is written again.
    said: u32,
    /// The table says that another has followed it.
    lost: bool,
}

impl Entry {
    pub(super) const fn new(known: Known, first: First) -> Self {
        Self {
            known,
            first,
            ran: false,
            recorded: false,
            held: true,
            waiting: false,
            said: 0,
            lost: false,
        }
    }
}

/// A row to write, and what it was written for.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    number: u64,
    said: u32,
    pub(super) known: Known,
    pub(super) first: First,
}

/// All of them, in the order of their beginning.
#[derive(Debug, Default)]
pub(super) struct Memory {
    entries: BTreeMap<u64, Entry>,
    of_call: HashMap<CallDigest, Vec<u64>>,
    on_channel: HashMap<Channel, Vec<u64>>,
    dirty: BTreeSet<u64>,
    last: u64,
}

impl Memory {
    /// Takes one up; its number.
    pub(super) fn add(&mut self, entry: Entry) -> u64 {
        if self.entries.len() >= ENTRIES_MAX {
            self.forget_oldest();
        }
        self.last += 1;
        let number = self.last;
        self.put(number, entry);
        number
    }

    fn put(&mut self, number: u64, entry: Entry) {
        let digest = entry.known.place.digest;
        let numbers = self.of_call.entry(digest).or_default();
        numbers.push(number);
        numbers.sort_unstable();
        if entry.recorded {
            self.dirty.insert(number);
        }
        self.entries.insert(number, entry);
    }

    /// Lets `change` say something of the one under `number`. `copy` takes its place if it was
    /// written and let go of since. What it is afterwards, and whether anything changed.
    pub(super) fn say(
        &mut self,
        number: u64,
        copy: &Entry,
        patience: std::time::Duration,
        change: impl FnOnce(&mut Entry),
    ) -> (Entry, bool) {
        let mut entry = self.entries.get(&number).unwrap_or(copy).clone();
        let before = (entry.known.handing, entry.ran, entry.recorded);
        change(&mut entry);
        if before == (entry.known.handing, entry.ran, entry.recorded) {
            return (entry, false);
        }
        if !self.entries.contains_key(&number) {
            // It was let go of since, and so written.
            entry.waiting = false;
            entry.first = First::There;
            self.put(number, entry.clone());
        }
        entry.said += 1;
        if entry.recorded {
            self.dirty.insert(number);
        }
        let in_time = match entry.known.handing {
            Handing::Presumed { at } => at.since(entry.known.started_at) <= patience,
            Handing::Open
            | Handing::Undelivered { .. }
            | Handing::Told { .. }
            | Handing::Confirmed { .. }
            | Handing::Doubted { .. } => false,
        };
        if in_time && !entry.waiting {
            entry.waiting = true;
            let channel = entry.known.channel;
            self.on_channel.entry(channel).or_default().push(number);
        }
        self.entries.insert(number, entry.clone());
        (entry, true)
    }

    /// A message came on `channel`: what was flushed to it in time before is confirmed. Whether
    /// anything was.
    pub(super) fn heard(&mut self, channel: Channel, now: Timestamp) -> bool {
        let Self {
            entries,
            on_channel,
            dirty,
            ..
        } = self;
        let Some(numbers) = on_channel.get_mut(&channel) else {
            return false;
        };
        let before = numbers.len();
        numbers.retain(|number| {
            let Some(entry) = entries.get_mut(number) else {
                return false;
            };
            match entry.known.handing {
                Handing::Presumed { at } if at > now => return true,
                Handing::Presumed { at } => {
                    entry.known.handing = Handing::Confirmed { at };
                    entry.said += 1;
                    dirty.insert(*number);
                }
                Handing::Open
                | Handing::Undelivered { .. }
                | Handing::Told { .. }
                | Handing::Confirmed { .. }
                | Handing::Doubted { .. } => {}
            }
            entry.waiting = false;
            false
        });
        let any = numbers.len() < before;
        if numbers.is_empty() {
            on_channel.remove(&channel);
        }
        any
    }

    /// No further message comes on `channel`.
    pub(super) fn closed(&mut self, channel: Channel) {
        let numbers = self.on_channel.remove(&channel).unwrap_or_default();
        for number in &numbers {
            if let Some(entry) = self.entries.get_mut(number) {
                entry.waiting = false;
            }
            self.let_go(*number);
        }
    }

    /// Some answer waits for a later message on its channel.
    pub(super) fn is_waiting(&self) -> bool {
        !self.on_channel.is_empty()
    }

    /// How many handings out are held.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Nobody will say anything of it any more; `worthless`: and nothing of it is to be kept.
    pub(super) fn release(&mut self, number: u64, worthless: bool) {
        if let Some(entry) = self.entries.get_mut(&number) {
            entry.held = false;
            if worthless || !entry.recorded {
                self.remove(number);
            } else {
                self.let_go(number);
            }
        }
    }

    /// The numbers of all handings out of a call.
    pub(super) fn numbers(&self, digest: CallDigest) -> Vec<u64> {
        self.of(digest).map(|(number, _)| number).collect()
    }

    /// The latest handing out of every key of a call.
    pub(super) fn latest(&self, digest: CallDigest) -> Vec<(u64, &Entry)> {
        let mut latest: Vec<(u64, &Entry)> = Vec::new();
        for (number, entry) in self.of(digest) {
            latest.retain(|(_, other)| other.known.place != entry.known.place);
            latest.push((number, entry));
        }
        latest
    }

    /// The table says that another has followed it.
    pub(super) fn lose(&mut self, number: u64) {
        if let Some(entry) = self.entries.get_mut(&number) {
            entry.lost = true;
            self.dirty.remove(&number);
            self.let_go(number);
        }
    }

    /// The next rows to write, in the order of their beginning; empty: everything is written.
    pub(super) fn batch(&mut self) -> Vec<Pending> {
        let mut batch = Vec::new();
        while batch.len() < BATCH_MAX {
            let after = batch.last().map_or(0, |last: &Pending| last.number + 1);
            let Some(number) = self.dirty.range(after..).next().copied() else {
                break;
            };
            let Some(entry) = self
                .entries
                .get(&number)
                .filter(|e| !self.is_followed(number, e))
            else {
                self.dirty.remove(&number);
                self.let_go(number);
                continue;
            };
            batch.push(Pending {
                number,
                said: entry.said,
                known: entry.known.clone(),
                first: entry.first,
            });
        }
        batch
    }

    /// These are written.
    pub(super) fn written(&mut self, batch: &[Pending]) {
        for pending in batch {
            let Some(entry) = self.entries.get_mut(&pending.number) else {
                continue;
            };
            entry.first = First::There;
            if entry.said == pending.said {
                self.dirty.remove(&pending.number);
                self.let_go(pending.number);
            }
        }
    }

    fn of(&self, digest: CallDigest) -> impl Iterator<Item = (u64, &Entry)> {
        let numbers = self.of_call.get(&digest).map(Vec::as_slice);
        numbers
            .unwrap_or_default()
            .iter()
            .filter_map(|number| Some((*number, self.entries.get(number)?)))
            .filter(|(_, entry)| !entry.lost)
    }

    /// A later one here takes its row.
    fn is_followed(&self, number: u64, entry: &Entry) -> bool {
        self.of(entry.known.place.digest).any(|(other, later)| {
            other > number && later.recorded && later.known.place == entry.known.place
        })
    }

    /// Forgets it if it is in the table and nothing more is expected of it.
    fn let_go(&mut self, number: u64) {
        let done = self.entries.get(&number).is_some_and(|entry| {
            let settled = !entry.waiting && entry.known.handing != Handing::Open;
            !self.dirty.contains(&number) && (settled || !entry.held) && !entry.waiting
        });
        if done {
            self.remove(number);
        }
    }

    fn remove(&mut self, number: u64) {
        self.dirty.remove(&number);
        let Some(entry) = self.entries.remove(&number) else {
            return;
        };
        let digest = entry.known.place.digest;
        if let Some(numbers) = self.of_call.get_mut(&digest) {
            numbers.retain(|other| *other != number);
            if numbers.is_empty() {
                self.of_call.remove(&digest);
            }
        }
        if entry.waiting
            && let Some(numbers) = self.on_channel.get_mut(&entry.known.channel)
        {
            numbers.retain(|other| *other != number);
            if numbers.is_empty() {
                self.on_channel.remove(&entry.known.channel);
            }
        }
    }

    fn forget_oldest(&mut self) {
        let oldest = self
            .entries
            .iter()
            .find(|(_, entry)| !entry.held || entry.waiting)
            .map(|(number, _)| *number);
        if let Some(number) = oldest {
            self.remove(number);
        }
    }
}
