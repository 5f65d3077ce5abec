//! What a call without a key gets, from what is known of the earlier identical ones. Pure.

use std::time::Duration;

use counterfoil_core::Timestamp;

use super::Channel;
use crate::settings::Settings;

/// The windows that the judgement is made with; from [`Settings`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Windows {
    /// How long a client usually waits for an answer.
    pub(crate) client_patience: Duration,
    /// How soon after another an identical call is one of two at once.
    pub(crate) parallel_within: Duration,
    /// For how long a call is paired after the evidence.
    pub(crate) attach_for: Duration,
    /// For how long an unproven delivery makes an identical call ask.
    pub(crate) ask_for: Duration,
    /// The same for an answer that was written in time.
    pub(crate) ask_for_written: Duration,
    /// How old a finished result of a tool that says nothing of itself may be when it is attached.
    pub(crate) unannotated_fresh_for: Duration,
    /// How long receipts are kept. No number of a call's keys is forgotten before that.
    pub(crate) tombstone_for: Duration,
}

impl Windows {
    /// Those of the settings.
    #[must_use]
    pub(crate) fn of(settings: &Settings) -> Self {
        Self {
            client_patience: settings.client_patience,
            parallel_within: settings.parallel_within.min(settings.client_patience),
            attach_for: settings.attach_for,
            ask_for: settings.ask_for,
            ask_for_written: settings.ask_for_written.min(settings.ask_for),
            unannotated_fresh_for: settings.unannotated_fresh_for,
            tombstone_for: settings.tombstone_for.max(settings.replay_for),
        }
    }
}

/// What became of the latest handing out of a call's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Handing {
    /// Nothing is known.
    Open,
    /// Proven: the client cancelled, or its connection ended, before the answer was written.
    Undelivered {
        /// Since when.
        since: Timestamp,
    },
    /// What was written was no answer, only that there was none yet (in progress, unknown).
    Told {
        /// When.
        at: Timestamp,
    },
    /// It was written and flushed.
    Presumed {
        /// When.
        at: Timestamp,
    },
    /// A later message came on the channel that it was flushed to in time.
    Confirmed {
        /// When.
        at: Timestamp,
    },
    /// Unproven for good: a cancel crossed it.
    Doubted {
        /// When.
        at: Timestamp,
    },
}

impl Handing {
    /// When it became so; `None` while nothing is known.
    pub(super) const fn at(self) -> Option<Timestamp> {
        match self {
            Self::Open => None,
            Self::Undelivered { since } => Some(since),
            Self::Told { at }
            | Self::Presumed { at }
            | Self::Confirmed { at }
            | Self::Doubted { at } => Some(at),
        }
    }
}

/// Where the receipt of an earlier call stands, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Proven that nothing happened, or gone past every window, or no receipt of this call.
    Nothing,
    /// An attempt is under way and its lease is alive.
    Running,
    /// It ended in a question.
    Asking,
    /// It has a definite outcome.
    Finished {
        /// Since when.
        at: Timestamp,
    },
    /// Nobody knows its outcome.
    Unknown {
        /// Since when.
        since: Timestamp,
    },
}

/// An earlier identical call, with the latest handing out of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Earlier {
    /// What became of the answer.
    pub(super) handing: Handing,
    /// The connection it was meant for.
    pub(super) channel: Channel,
    /// When the call came that it was meant for.
    pub(super) started_at: Timestamp,
    /// This process runs it for a client that still waits.
    pub(super) live: bool,
    /// This handing out is itself a pairing.
    pub(super) paired: bool,
    /// Its receipt.
    pub(super) standing: Standing,
    /// Another mutating call of its principal to its upstream started after it; `None`: nobody
    /// looked yet.
    pub(super) mutated_since: Option<bool>,
}

/// The call that is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct New {
    /// The connection it came on.
    pub(super) channel: Channel,
    /// When.
    pub(super) now: Timestamp,
    /// Its tool says of itself what it does.
    pub(super) annotated: bool,
    /// It may be paired at all.
    pub(super) may_attach: bool,
}

/// What it gets. Numbers are places among the earlier calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is a new action.
    Run,
    /// It is paired with this one.
    Attach(usize),
    /// It may be a duplicate of this one.
    Ask(usize),
    /// Look whether there was a mutation since this one, then judge again.
    Look(usize),
}

/// What one earlier call means for the new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bearing {
    Nothing,
    Attach,
    Look,
    Ask,
}

/// Judges. `earlier` in the order in which the calls started; the first that can be paired is, and
/// that goes before asking about another.
pub(super) fn judge(earlier: &[Earlier], new: &New, windows: &Windows) -> Verdict {
    let mut asked = None;
    for (place, call) in earlier.iter().enumerate() {
        match bearing(call, new, windows) {
            Bearing::Nothing => {}
            Bearing::Attach => return Verdict::Attach(place),
            Bearing::Look => return Verdict::Look(place),
            Bearing::Ask => asked = Some(place),
        }
    }
    asked.map_or(Verdict::Run, Verdict::Ask)
}

/// The answer is proven to have reached a client, or is by the new call itself. An answer that
/// came later than clients usually wait proves nothing: it may have been thrown away.
pub(super) fn is_delivered(
    handing: Handing,
    on: Channel,
    started_at: Timestamp,
    new: &New,
    windows: &Windows,
) -> bool {
    match handing {
        Handing::Confirmed { .. } => true,
        Handing::Presumed { at } => {
            on == new.channel && at.since(started_at) <= windows.client_patience
        }
        Handing::Open
        | Handing::Undelivered { .. }
        | Handing::Told { .. }
        | Handing::Doubted { .. } => false,
    }
}

fn bearing(call: &Earlier, new: &New, windows: &Windows) -> Bearing {
    let delivered = is_delivered(call.handing, call.channel, call.started_at, new, windows);
    if call.standing == Standing::Nothing || delivered || is_old(call, new, windows) {
        return Bearing::Nothing;
    }
    let Some(evidence) = evidence(call) else {
        // Its client waits and cannot have given up yet: two parallel calls on purpose.
        let parallel = call.live
            && !call.paired
            && call.handing == Handing::Open
            && new.now.since(call.started_at) < windows.parallel_within;
        return if parallel {
            Bearing::Nothing
        } else {
            Bearing::Ask
        };
    };
    let stale = match call.standing {
        Standing::Finished { at } => {
            !new.annotated && new.now.since(at) > windows.unannotated_fresh_for
        }
        Standing::Nothing | Standing::Running | Standing::Asking | Standing::Unknown { .. } => {
            false
        }
    };
    if !new.may_attach || stale || new.now.since(evidence) > windows.attach_for {
        return Bearing::Ask;
    }
    match call.mutated_since {
        None => Bearing::Look,
        Some(true) => Bearing::Ask,
        Some(false) => Bearing::Attach,
    }
}

/// When it was last proven that the answer reached nobody; `None`: it is not proven.
fn evidence(call: &Earlier) -> Option<Timestamp> {
    match (call.handing, call.standing) {
        (Handing::Undelivered { since }, Standing::Unknown { since: unknown }) => {
            Some(since.max(unknown))
        }
        (
            Handing::Undelivered { since },
            Standing::Nothing | Standing::Running | Standing::Asking | Standing::Finished { .. },
        ) => Some(since),
        // It is unknown, and whoever was paired with it has been told so: that was its pairing.
        (
            Handing::Told { .. }
            | Handing::Open
            | Handing::Presumed { .. }
            | Handing::Confirmed { .. }
            | Handing::Doubted { .. },
            Standing::Unknown { .. },
        ) if call.paired => None,
        (Handing::Told { at }, Standing::Unknown { since }) => Some(at.max(since)),
        (
            Handing::Told { at },
            Standing::Nothing | Standing::Running | Standing::Asking | Standing::Finished { .. },
        ) => Some(at),
        (
            Handing::Open
            | Handing::Presumed { .. }
            | Handing::Confirmed { .. }
            | Handing::Doubted { .. },
            Standing::Unknown { since },
        ) => Some(since),
        (
            Handing::Open
            | Handing::Presumed { .. }
            | Handing::Confirmed { .. }
            | Handing::Doubted { .. },
            Standing::Nothing | Standing::Running | Standing::Asking | Standing::Finished { .. },
        ) => None,
    }
}

/// Whatever is known of it is older than anybody asks about.
fn is_old(call: &Earlier, new: &New, windows: &Windows) -> bool {
    let of_receipt = match call.standing {
        Standing::Finished { at } => Some(at),
        Standing::Unknown { since } => Some(since),
        Standing::Nothing | Standing::Running | Standing::Asking => None,
    };
    let latest = [call.handing.at(), of_receipt]
        .into_iter()
        .flatten()
        .fold(call.started_at, Timestamp::max);
    let written_in_time = match (call.handing, call.standing) {
        // What is unknown is no answer.
        (_, Standing::Unknown { .. }) => false,
        (Handing::Presumed { at }, _) => at.since(call.started_at) <= windows.client_patience,
        (
            Handing::Open
            | Handing::Undelivered { .. }
            | Handing::Told { .. }
            | Handing::Confirmed { .. }
            | Handing::Doubted { .. },
            _,
        ) => false,
    };
    let window = if written_in_time {
        windows.ask_for_written
    } else {
        windows.ask_for
    };
    new.now.since(latest) > window
}
