use std::time::Duration;

use crate::{Fingerprint, Kept, Mode, Phase, Receipt, State, Timestamp, Token};

/// The shortest wait suggested to a caller, so that a retry is not a busy loop.
const RETRY_AFTER_MIN: Duration = Duration::from_secs(1);

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
    /// The reservation is this caller's own; its answer was lost on the way back.
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
        /// The lease has lapsed and the row does not say so yet: the store must record it.
        lapsed: bool,
        /// A provider key makes another attempt safe now.
        retryable: bool,
    },
    /// The key is past its replay window and will not run again.
    Expired,
}

/// The decision table of the contract (§4), on what was found under the identity.
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
    if presented.token == Some(receipt.token) && receipt.status.state != State::Free {
        return Decision::Own;
    }
    if let Some(decision) = of_round(receipt, presented) {
        return decision;
    }
    match receipt.status.state {
        State::Free => Decision::Run { replaces: false },
        State::Accepted => handle_or_wait(receipt, now),
        State::Running | State::CancelRequested => under_way(receipt, now),
        State::InputRequired => open_question(receipt, presented, now),
        State::Succeeded | State::Failed | State::Cancelled => finished(receipt),
        State::OutcomeUnknown if receipt.kept == Kept::Stored => Decision::Replay,
        State::OutcomeUnknown => unknown(receipt, false, now),
    }
}

/// A repeated round is answered as before; a different answer to an answered round is a conflict.
fn of_round(receipt: &Receipt, presented: &Presented) -> Option<Decision> {
    let finished = receipt.status.state.is_finished();
    let round = receipt.status.round;
    let Some(inputs) = presented.inputs else {
        // The first call again while a later round is under way.
        return (round > 0 && !finished).then_some(Decision::ReplayQuestion { round: 0 });
    };
    let answered = receipt.rounds.iter().position(|seen| *seen == inputs);
    match answered.and_then(|index| u16::try_from(index + 1).ok()) {
        Some(seen) if seen < round => Some(Decision::ReplayQuestion { round: seen }),
        Some(_) => None,
        None if receipt.status.state == State::InputRequired
            || receipt.status.state == State::Free =>
        {
            None
        }
        None => Some(Decision::Conflict),
    }
}

fn handle_or_wait(receipt: &Receipt, now: Timestamp) -> Decision {
    if receipt.kept == Kept::Stored {
        return Decision::Replay;
    }
    in_progress(receipt, now)
}

fn in_progress(receipt: &Receipt, now: Timestamp) -> Decision {
    Decision::InProgress {
        retry_after: receipt
            .lease_until
            .since(now)
            .clamp(RETRY_AFTER_MIN, RETRY_AFTER_MIN * 5),
    }
}

fn under_way(receipt: &Receipt, now: Timestamp) -> Decision {
    if receipt.mode == Mode::Dispatched {
        return handle_or_wait(receipt, now);
    }
    let alive = now < receipt.lease_until;
    if receipt.status.committed {
        return Decision::Committed {
            retry_after: alive.then_some(RETRY_AFTER_MIN),
        };
    }
    if alive {
        in_progress(receipt, now)
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
        Some(inputs) if receipt.rounds.last() == Some(&inputs) => Decision::ReplayQuestion {
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
