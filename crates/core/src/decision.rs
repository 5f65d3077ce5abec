use std::time::Duration;

use crate::{Fingerprint, Kept, Mode, Phase, Receipt, State, Timestamp, Token};

/// The wait suggested to a caller while an attempt is under way.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// What a call presents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Presented {
    /// Its fingerprint.
    pub fingerprint: Fingerprint,
    /// The digest of its inputs or payment, if it answers a question.
    pub inputs: Option<[u8; 32]>,
    /// The token of this admission, where there is one yet.
    pub token: Option<Token>,
}

/// What a call gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It runs.
    Run {
        /// An earlier operation under this identity is over and past every window; this one is new.
        replaces: bool,
    },
    /// The reservation is this caller's own and nothing has overtaken it; only its answer was lost
    /// on the way back. Guarded: the lease is alive, go on under the same fence. Dispatched: no
    /// worker has taken it yet. Atomic: it ran and is committed.
    Own,
    /// The key was used for another request.
    Conflict,
    /// The stored result, as it was.
    Replay,
    /// The stored question of an earlier round, or the open one.
    ReplayQuestion {
        /// Which round's question, the first one 0.
        round: u16,
    },
    /// It ran and will not run again; its result cannot be had.
    ResultUnavailable,
    /// The write reached the database; the answer is not stored.
    Committed {
        /// When to ask again; `None` once nothing more will come.
        retry_after: Option<Duration>,
    },
    /// An attempt is under way.
    InProgress {
        /// When to ask again.
        retry_after: Duration,
    },
    /// Nobody knows.
    Unknown {
        /// The lease has lapsed and the row does not say so yet: the store must record
        /// [`Receipt::overdue`] and decide again, for what is recorded may be a release.
        lapsed: bool,
        /// A provider key makes another attempt safe now.
        retryable: bool,
    },
    /// The key is past its replay window and will not run again.
    Expired,
}

impl Decision {
    /// Which round's question belongs to it.
    #[must_use]
    pub const fn round(self) -> Option<u16> {
        match self {
            Self::ReplayQuestion { round } => Some(round),
            Self::Run { .. }
            | Self::Own
            | Self::Conflict
            | Self::Replay
            | Self::ResultUnavailable
            | Self::Committed { .. }
            | Self::InProgress { .. }
            | Self::Unknown { .. }
            | Self::Expired => None,
        }
    }
}

/// The decision table of the contract (§4), on what was found under the identity.
///
/// `Unknown { lapsed: true }` and `Committed { retry_after: None }` on an unfinished row say that
/// the clock has overtaken the row: a store records [`Receipt::overdue`] and decides again.
#[must_use]
pub fn decide(found: Option<&Receipt>, presented: &Presented, now: Timestamp) -> Decision {
    let Some(receipt) = found else {
        return Decision::Run { replaces: false };
    };
    let phase = receipt.phase(now);
    if phase == Phase::Gone {
        return Decision::Run { replaces: true };
    }
    if receipt.fingerprint != presented.fingerprint {
        return Decision::Conflict;
    }
    if phase == Phase::Tombstone {
        return Decision::Expired;
    }
    if presented.token == Some(receipt.token) && still_own(receipt, now) {
        return Decision::Own;
    }
    if let Some(decision) = of_round(receipt, presented, now) {
        return decision;
    }
    match receipt.status.state {
        State::Free => Decision::Run { replaces: false },
        State::Accepted => handle_or_wait(receipt),
        State::Running | State::CancelRequested => under_way(receipt, now),
        State::InputRequired => open_question(receipt, presented, now),
        State::Succeeded | State::Failed | State::Cancelled => finished(receipt),
        State::OutcomeUnknown => match receipt.mode {
            Mode::Dispatched if receipt.kept == Kept::Stored => Decision::Replay,
            Mode::Atomic | Mode::Guarded | Mode::Dispatched => unknown(receipt, false, now),
        },
    }
}

/// The reservation this token made is still only a reservation, so that its maker may go on with
/// it. Once the clock or other evidence has overtaken it, somebody may rely on its not being sent
/// any more; once its write is committed, it has been sent.
fn still_own(receipt: &Receipt, now: Timestamp) -> bool {
    match receipt.status.state {
        State::Accepted => true,
        State::Running | State::CancelRequested => match receipt.mode {
            Mode::Guarded => !receipt.status.committed && now < receipt.lease_until,
            // A worker has taken it: what this caller gets is its handle.
            Mode::Atomic | Mode::Dispatched => false,
        },
        // One step: reserved, run and recorded.
        State::Succeeded | State::Failed => receipt.mode == Mode::Atomic,
        State::Free | State::InputRequired | State::Cancelled | State::OutcomeUnknown => false,
    }
}

/// A repeated round is answered as before; a different answer to an answered round is a conflict.
/// The first call is round 0.
fn of_round(receipt: &Receipt, presented: &Presented, now: Timestamp) -> Option<Decision> {
    let state = receipt.status.state;
    let round = receipt.status.round;
    let seen = match presented.inputs {
        None => 0,
        Some(inputs) => {
            let mut answered = receipt.rounds.iter().take(usize::from(round));
            let index = answered.position(|digest| *digest == inputs);
            match index.and_then(|index| u16::try_from(index + 1).ok()) {
                Some(seen) => seen,
                // They answer the open question, or no question was ever answered.
                None if round == 0 || state == State::InputRequired || state == State::Free => {
                    return None;
                }
                None => return Some(Decision::Conflict),
            }
        }
    };
    (seen < round && questions_stand(receipt, now))
        .then_some(Decision::ReplayQuestion { round: seen })
}

/// Earlier questions are shown again only while the dialogue goes on. Whoever does not know
/// whether a payment went through must not be shown the bill (row 18 of tests/e2e/FIELD.md).
fn questions_stand(receipt: &Receipt, now: Timestamp) -> bool {
    match receipt.status.state {
        State::Running | State::CancelRequested => {
            !receipt.status.committed && now < receipt.lease_until
        }
        State::InputRequired => now < receipt.lease_until,
        State::Free
        | State::Accepted
        | State::Succeeded
        | State::Failed
        | State::Cancelled
        | State::OutcomeUnknown => false,
    }
}

fn handle_or_wait(receipt: &Receipt) -> Decision {
    if receipt.kept == Kept::Stored {
        return Decision::Replay;
    }
    IN_PROGRESS
}

const IN_PROGRESS: Decision = Decision::InProgress {
    retry_after: RETRY_AFTER,
};

fn under_way(receipt: &Receipt, now: Timestamp) -> Decision {
    if receipt.mode == Mode::Dispatched {
        return handle_or_wait(receipt);
    }
    let alive = now < receipt.lease_until;
    if receipt.status.committed {
        return Decision::Committed {
            retry_after: alive.then_some(RETRY_AFTER),
        };
    }
    if alive {
        IN_PROGRESS
    } else {
        unknown(receipt, true, now)
    }
}

fn open_question(receipt: &Receipt, presented: &Presented, now: Timestamp) -> Decision {
    if now >= receipt.lease_until {
        return unknown(receipt, true, now);
    }
    match presented.inputs {
        // Inputs that were answered with this very question.
        Some(inputs) if receipt.answered_last() == Some(inputs) => Decision::ReplayQuestion {
            round: receipt.status.round,
        },
        Some(_) => Decision::Run { replaces: false },
        None => Decision::ReplayQuestion {
            round: receipt.status.round,
        },
    }
}

fn finished(receipt: &Receipt) -> Decision {
    match receipt.kept {
        Kept::Stored => Decision::Replay,
        Kept::AnswerLost => Decision::Committed { retry_after: None },
        Kept::TooLarge | Kept::Withheld | Kept::Nothing => Decision::ResultUnavailable,
    }
}

fn unknown(receipt: &Receipt, lapsed: bool, now: Timestamp) -> Decision {
    let window_end = receipt.created_at.plus(receipt.provider_window);
    Decision::Unknown {
        lapsed,
        retryable: !receipt.provider_window.is_zero() && now < window_end,
    }
}

#[cfg(test)]
mod tests;
