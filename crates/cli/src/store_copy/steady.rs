//! A copy takes long: it says how it goes, and outlives a store that is away for a moment.

use std::{
    fmt,
    time::{Duration, Instant},
};

use counterfoil_store::{Error, Part, Store};

use crate::output::say;

/// How long a store that is away is waited for, in the middle of a copy.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_secs(1);
/// How often a line is printed while it works.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// Repeats a step that may be repeated, while a store is away or busy.
pub(super) async fn steadily<T, E: fmt::Display>(
    step: impl AsyncFn() -> Result<T, E>,
    passes: impl Fn(&E) -> bool,
) -> Result<T, E> {
    let start = Instant::now();
    loop {
        match step().await {
            Err(error) if passes(&error) && start.elapsed() < PATIENCE => {
                say(&format!("{error}; trying again"));
                tokio::time::sleep(PAUSE).await;
            }
            done => return done,
        }
    }
}

/// Whether the same step may well succeed a little later. Every step of a copy finds what it did
/// the first time.
pub(super) fn may_pass(error: &Error) -> bool {
    match error {
        Error::Busy { .. } | Error::Unavailable(_) | Error::CommitUnknown => true,
        Error::Corrupt(_)
        | Error::Fenced(_)
        | Error::NotFound
        | Error::Handler(_)
        | Error::Statement(_)
        | Error::RolledBack
        | Error::Quota { .. } => false,
    }
}

pub(super) async fn export(store: &dyn Store, after: i64, page: u32) -> Result<Part, Error> {
    steadily(async || store.export(after, page).await, may_pass).await
}

/// Says on standard error how it goes, about once a second.
pub(super) struct Telling {
    told: Instant,
}

impl Telling {
    pub(super) fn new() -> Self {
        Self {
            told: Instant::now(),
        }
    }

    pub(super) fn say(&mut self, text: &str) {
        self.told = Instant::now();
        say(text);
    }

    pub(super) fn maybe(&mut self, text: impl FnOnce() -> String) {
        if self.told.elapsed() >= TELL_EVERY {
            self.say(&text());
        }
    }
}
