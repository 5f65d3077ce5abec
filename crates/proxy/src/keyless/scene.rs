//! What is known when a call without a key is judged.

use counterfoil_core::{OperationId, Receipt, Timestamp};
use counterfoil_store::{Error, read};

use super::{
    CallDigest, Channel, Inner, KeylessCall, SLACK,
    judge::{Earlier, Handing, Standing, is_delivered},
    key,
    memory::{Entry, Memory},
    standing::standing,
    table::{self, First, Holder, Known, NOBODY, Place, UNSETTLED_MAX},
};

/// Receipts without a row that are looked for beyond the known ones; beyond it the call asks.
const PROBES_MAX: usize = 64;

/// How often the rows are read, while what they are put together with is let go of.
const READS_MAX: usize = 8;

/// An earlier identical call with its receipt.
pub(super) struct Seen {
    /// What is known of it: from the memory, the row, or only its receipt.
    pub(super) known: Known,
    /// Its number in the memory, if that is where it is known from.
    pub(super) number: Option<u64>,
    /// The row as read; of nobody if there was none.
    pub(super) row: (Holder, Handing),
    pub(super) live: bool,
    pub(super) receipt: Receipt,
    pub(super) standing: Standing,
    pub(super) mutated_since: Option<bool>,
}

/// All that is known when a call is judged.
pub(super) struct Scene {
    /// In the order of their start.
    pub(super) seen: Vec<Seen>,
    /// Of which nothing but the receipt was found.
    pub(super) leftovers: Vec<Known>,
    /// The number of its own key, should it run.
    pub(super) next: u32,
    /// There are more than were looked at.
    pub(super) crowded: Option<OperationId>,
}

impl Scene {
    /// Nothing but the highest number.
    pub(super) const fn after(highest: u32) -> Self {
        Self {
            seen: Vec::new(),
            leftovers: Vec::new(),
            next: highest,
            crowded: None,
        }
    }

    /// An identical call runs here for a client that still waits, as far as is known.
    pub(super) fn is_live(&self) -> bool {
        self.seen.iter().any(|seen| seen.live)
    }
}

/// Where what is known of an earlier call comes from.
struct Source {
    known: Known,
    number: Option<u64>,
    row: (Holder, Handing),
    live: bool,
}

impl Inner {
    /// Everything known of the identical calls whose delivery is not proven.
    pub(super) async fn gather(&self, call: &KeylessCall, now: Timestamp) -> Result<Scene, Error> {
        let store = self.engine.store().as_ref();
        let digest = call.digest;
        let window = self.windows.ask_for.saturating_add(SLACK);
        let window = i64::try_from(window.as_millis()).unwrap_or(i64::MAX);
        let since = Timestamp::from_millis(now.as_millis().saturating_sub(window));
        let mut tries = 0;
        let (sources, highest, is_crowded) = loop {
            tries += 1;
            let before = self.remember(|memory| memory.numbers(digest));
            let (rows, highest) =
                read(store, move |sql| Box::pin(table::read(sql, digest, since))).await?;
            let is_crowded = rows.len() > UNSETTLED_MAX;
            // What was let go of while the rows were read may be written only since.
            let merged = self.remember(|memory| {
                let after = memory.numbers(digest);
                let is_whole = before.iter().all(|number| after.contains(number));
                (is_whole || tries == READS_MAX).then(|| merge(memory, digest, rows, highest))
            });
            if let Some((sources, highest)) = merged {
                break (sources, highest, is_crowded);
            }
        };

        let new = self.new_call(call, now);
        let mut seen = Vec::new();
        for source in sources {
            let Known {
                handing,
                channel,
                started_at,
                ..
            } = source.known;
            if is_delivered(handing, channel, started_at, &new, &self.windows) {
                continue;
            }
            let place = &source.known.place;
            let identity = call.identity(&place.operation, &place.key);
            if let Some(found) = store.find(&identity).await? {
                seen.push(self.seen(call, source, found.receipt, now).await?);
            }
        }
        let mut scene = Scene::after(highest);
        scene.seen = seen;
        let goes_on = self.probe(call, &mut scene, now).await?;
        scene
            .seen
            .sort_by_key(|seen| (seen.receipt.created_at, seen.known.place.serial()));
        if is_crowded || goes_on {
            scene.crowded = scene.seen.last().map(|seen| seen.receipt.operation_id);
        }
        Ok(scene)
    }

    /// Looks for receipts beyond the highest known number: what a crash left behind, or another
    /// process has not written a row for. Whether there may be more.
    pub(super) async fn probe(
        &self,
        call: &KeylessCall,
        scene: &mut Scene,
        now: Timestamp,
    ) -> Result<bool, Error> {
        let store = self.engine.store().as_ref();
        for _ in 0..=PROBES_MAX {
            let numbers = Error::Unavailable("the numbers of a call are used up".to_owned());
            scene.next = scene.next.checked_add(1).ok_or(numbers)?;
            let place = Place {
                digest: call.digest,
                operation: call.operation.clone(),
                key: key(call.digest, scene.next)?,
            };
            let identity = call.identity(&place.operation, &place.key);
            let Some(found) = store.find(&identity).await? else {
                return Ok(false);
            };
            let known = Known {
                place,
                holder: NOBODY,
                paired: false,
                channel: Channel([0; 16]),
                handing: Handing::Open,
                started_at: found.receipt.created_at,
            };
            scene.leftovers.push(known.clone());
            let source = Source::of_row(known);
            let seen = self.seen(call, source, found.receipt, now).await?;
            scene.seen.push(seen);
        }
        Ok(true)
    }

    async fn seen(
        &self,
        call: &KeylessCall,
        source: Source,
        receipt: Receipt,
        now: Timestamp,
    ) -> Result<Seen, Error> {
        let standing = standing(self.engine.store().as_ref(), call, &receipt, now).await?;
        Ok(Seen {
            known: source.known,
            number: source.number,
            row: source.row,
            live: source.live,
            receipt,
            standing,
            mutated_since: None,
        })
    }
}

impl Seen {
    pub(super) fn earlier(&self) -> Earlier {
        Earlier {
            handing: self.known.handing,
            channel: self.known.channel,
            started_at: self.known.started_at,
            live: self.live,
            paired: self.known.paired,
            standing: self.standing,
            mutated_since: self.mutated_since,
        }
    }
}

impl Source {
    fn of_row(row: Known) -> Self {
        Self {
            number: None,
            row: (row.holder, row.handing),
            live: false,
            known: row,
        }
    }

    fn of_memory(number: u64, entry: &Entry, row: Option<&Known>) -> Self {
        Self {
            number: Some(number),
            row: row.map_or((NOBODY, Handing::Open), |row| (row.holder, row.handing)),
            live: entry.ran && entry.held,
            known: entry.known.clone(),
        }
    }
}

/// Puts rows and memory together, with the highest number of a key. The memory knows better of its
/// own handings out, unless another followed.
fn merge(
    memory: &Memory,
    digest: CallDigest,
    rows: Vec<Known>,
    highest: u32,
) -> (Vec<Source>, u32) {
    let mut highest = highest;
    let mut sources = Vec::new();
    let latest = memory.latest(digest);
    for (number, entry) in &latest {
        if entry.recorded {
            highest = highest.max(entry.known.place.serial());
        }
        let row = rows.iter().find(|row| row.place == entry.known.place);
        if !row.is_some_and(|row| is_overtaken(entry, row)) {
            sources.push(Source::of_memory(*number, entry, row));
        }
    }
    for row in rows {
        if !sources.iter().any(|source| source.known.place == row.place) {
            sources.push(Source::of_row(row));
        }
    }
    (sources, highest)
}

/// Another handing out followed the one in the memory.
fn is_overtaken(entry: &Entry, row: &Known) -> bool {
    let another = row.holder != entry.known.holder;
    match entry.first {
        First::There => another,
        First::Fresh => another && row.holder != NOBODY,
        First::Next => another && row.paired && row.handing == Handing::Open,
    }
}
