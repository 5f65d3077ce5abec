use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Instant,
};

use counterfoil_core::{Identity, Timestamp};
use counterfoil_store::{Error, Slot};
use tokio_postgres::Row;

use crate::{
    Options, TimeSource,
    clock::Clock,
    connect::{Connector, Session, Text},
    error::{Done, Fault},
    listen::Watchers,
    locator::{Locator, locate},
    queue::{Queue, say_busy},
    rows::parameters_of,
    scopes::{Scope, Scopes},
    upkeep::Strange,
};

/// What every task of one store shares.
pub(crate) struct Shared {
    pub(crate) options: Options,
    pub(crate) connector: Connector,
    pub(crate) scopes: Scopes,
    pub(crate) queue: Queue,
    pub(crate) clock: Clock,
    pub(crate) watchers: Watchers,
    pub(crate) tally: Tally,
    pub(crate) slots: Arc<AtomicUsize>,
    /// A write was refused because the database could not take it, and none has succeeded since.
    pub(crate) failing: AtomicBool,
    pub(crate) strange: Strange,
    pub(crate) secret: [u8; 32],
}

impl Shared {
    pub(crate) fn locate(&self, scope: Scope, identity: &Identity) -> Locator {
        let parameters = parameters_of(identity);
        locate(&self.secret, scope.name, parameters.as_deref(), identity)
    }

    /// The time that counts: what the database said, or what the caller brings.
    pub(crate) const fn time(&self, said: Timestamp, brought: Timestamp) -> Timestamp {
        match self.options.time {
            TimeSource::Database => said,
            TimeSource::Caller => brought,
        }
    }

    /// Whether the scopes of a transaction are what they were. If not, another database has taken
    /// over: nothing of this try may stay, and the next one reads them anew.
    pub(crate) fn check_scopes(&self, locked: &[Row], scopes: usize) -> Done<()> {
        let same = locked.first().map_or(0, |row| row.get::<_, i64>(3));
        if usize::try_from(same) == Ok(scopes) {
            return Ok(());
        }
        self.scopes.forget();
        Err(Fault::Lost(
            "the database lost something it had (a failover?)".to_owned(),
        ))
    }

    /// A write went through.
    pub(crate) fn note_success(&self) {
        self.failing.store(false, Ordering::Release);
    }

    /// A write was refused.
    pub(crate) fn note_failure(&self, error: &Error) {
        if matches!(error, Error::Unavailable(_)) {
            self.failing.store(true, Ordering::Release);
        }
    }

    /// Books the capacity of a completion, before there is anything to complete.
    pub(crate) fn book(&self) -> Result<Slot, Error> {
        let max = self.options.slots_max;
        let booked = self
            .slots
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |booked| {
                (booked < max).then_some(booked + 1)
            });
        match booked {
            Ok(_) => Ok(Slot::new(Booked(Arc::clone(&self.slots)))),
            Err(_) => Err(say_busy()),
        }
    }
}

/// A booked slot; counted until it is dropped.
struct Booked(Arc<AtomicUsize>);

impl Drop for Booked {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The unresolved receipts of each workspace: counted now and then, and carried on by what this
/// node does in between. No row of its own is kept for them, because every reservation of a
/// workspace, on every node, would have to wait for it.
#[derive(Default)]
pub(crate) struct Tally {
    counts: Mutex<HashMap<i64, i64>>,
}

static COUNT: Text = Text {
    sql: "SELECT workspace, count(*) FROM counterfoil_open GROUP BY workspace",
    types: &[],
};
static NOW: Text = Text {
    sql: "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint",
    types: &[],
};

impl Tally {
    pub(crate) fn of(&self, workspace: i64) -> u64 {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.get(&workspace).copied().unwrap_or_default();
        u64::try_from(count).unwrap_or_default()
    }

    pub(crate) fn sum(&self) -> u64 {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        u64::try_from(counts.values().sum::<i64>()).unwrap_or_default()
    }

    pub(crate) fn add<'a>(&self, deltas: impl IntoIterator<Item = (&'a i64, &'a i64)>) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        for (workspace, delta) in deltas {
            if *delta != 0 {
                *counts.entry(*workspace).or_default() += delta;
            }
        }
    }

    pub(crate) async fn count(&self, session: &Session) -> Done<()> {
        let rows = session.ask(&COUNT, &[]).await?;
        let counted = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner) = counted;
        Ok(())
    }
}

/// Reads the database's clock.
pub(crate) async fn read_clock(session: &Session, clock: &Clock) -> Done<Timestamp> {
    let ready = session.ready(&NOW).await?;
    let sent = Instant::now();
    let rows = session.query(&ready, &[]).await?;
    let said = rows.first().map_or(0, |row| row.get(0));
    let said = Timestamp::from_millis(said);
    clock.read(said, sent);
    Ok(said)
}
