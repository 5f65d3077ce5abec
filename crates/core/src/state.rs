use crate::{
    Mode,
    attempts::{Attempts, Effect, Knowledge, MAX_ATTEMPTS},
};

/// Where an operation stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Reserved once and released, or never reserved: the next call runs.
    Free,
    /// Dispatched: committed with its intent, no attempt begun.
    Accepted,
    /// An attempt is under way.
    Running,
    /// An attempt is under way and was asked to stop.
    CancelRequested,
    /// Between rounds: the same key goes on with its inputs.
    InputRequired,
    /// The executor said so.
    Succeeded,
    /// A definite error answer.
    Failed,
    /// Proven: never started, or stopped before any effect.
    Cancelled,
    /// Nobody knows yet.
    OutcomeUnknown,
}

impl State {
    const ALL: [(Self, u8, &'static str); 9] = [
        (Self::Free, 0, "free"),
        (Self::Accepted, 1, "accepted"),
        (Self::Running, 2, "running"),
        (Self::CancelRequested, 3, "cancel_requested"),
        (Self::InputRequired, 4, "input_required"),
        (Self::Succeeded, 5, "succeeded"),
        (Self::Failed, 6, "failed"),
        (Self::Cancelled, 7, "cancelled"),
        (Self::OutcomeUnknown, 8, "outcome_unknown"),
    ];

    /// Every state.
    pub fn all() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().map(|(state, _, _)| state)
    }

    /// No transition leaves it.
    #[must_use]
    pub const fn is_finished(self) -> bool {
        match self {
            Self::Succeeded | Self::Failed | Self::Cancelled => true,
            Self::Free
            | Self::Accepted
            | Self::Running
            | Self::CancelRequested
            | Self::InputRequired
            | Self::OutcomeUnknown => false,
        }
    }

    /// It has an owner that must still settle it: neither free nor finished. Such receipts never
    /// age and are never swept (contract §7).
    #[must_use]
    pub const fn is_unresolved(self) -> bool {
        match self {
            Self::Accepted
            | Self::Running
            | Self::CancelRequested
            | Self::InputRequired
            | Self::OutcomeUnknown => true,
            Self::Free | Self::Succeeded | Self::Failed | Self::Cancelled => false,
        }
    }

    /// The word used on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        Self::ALL[usize::from(self.to_byte())].2
    }

    /// From the word used on the wire.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find_map(|(state, _, name)| (name == word).then_some(state))
    }

    /// The byte a store keeps.
    #[must_use]
    pub const fn to_byte(self) -> u8 {
        self as u8
    }

    /// From the byte a store kept.
    #[must_use]
    pub fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find_map(|(state, code, _)| (code == byte).then_some(state))
    }
}

/// The part of a receipt that transitions work on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Status {
    /// Where it stands.
    pub state: State,
    /// What is known of every attempt.
    pub attempts: Attempts,
    /// The latest attempt's write reached the database; set in the transaction that wrote it.
    pub committed: bool,
    /// The number of questions answered so far.
    pub round: u16,
}

impl Status {
    /// A receipt that does not exist yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            state: State::Free,
            attempts: Attempts::default(),
            committed: false,
            round: 0,
        }
    }

    /// What is established about the world.
    #[must_use]
    pub fn effect(&self) -> Effect {
        let maybe = self.may_have_applied();
        match self.state {
            State::Succeeded => Effect::Happened,
            State::Free | State::Accepted | State::Cancelled => Effect::None,
            State::Failed | State::InputRequired if !maybe => Effect::None,
            State::Running | State::CancelRequested if self.committed => Effect::Happened,
            State::Failed
            | State::InputRequired
            | State::Running
            | State::CancelRequested
            | State::OutcomeUnknown => Effect::Unknown,
        }
    }

    /// Some attempt may have left an effect behind.
    fn may_have_applied(&self) -> bool {
        self.attempts.iter().any(Knowledge::may_have_applied)
    }
}

impl Default for Status {
    fn default() -> Self {
        Self::new()
    }
}

/// What a lookup that qualifies, or a person with a reason, establishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// It happened.
    Happened,
    /// It did not happen, and no attempt of it still can.
    NotHappened,
}

/// Something that happened to an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// A reservation was made. Guarded: the next attempt begins. Dispatched: the intent waits.
    Admitted {
        /// How the operation runs; atomic operations use [`Event::Executed`].
        mode: Mode,
    },
    /// An atomic handler ran: reservation, effect and outcome are one step. `refused` means its
    /// writes were rolled back before the refusal was recorded.
    Executed {
        /// It gave a definite refusal.
        refused: bool,
    },
    /// A worker begins the next attempt of a dispatched operation.
    Taken {
        /// It sends under the provider key of the earlier attempts, inside that key's window.
        same_provider_key: bool,
    },
    /// The attempt's write reached the database. At most once an operation: a transaction that
    /// marks it a second time is fenced off, and its write with it.
    Committed {
        /// Which attempt.
        attempt: u32,
    },
    /// A definite success answer.
    Succeeded {
        /// Which attempt.
        attempt: u32,
    },
    /// A definite error answer.
    Refused {
        /// Which attempt.
        attempt: u32,
        /// It is established that nothing was left behind.
        effect_none: bool,
    },
    /// Proven: no byte was sent on any hop, or everything was rolled back.
    NotApplied {
        /// Which attempt.
        attempt: u32,
    },
    /// Bytes may have been sent and no answer came.
    Lost {
        /// Which attempt.
        attempt: u32,
    },
    /// The attempt ended in a question; the same key goes on with its inputs.
    Asked {
        /// Which attempt.
        attempt: u32,
        /// It is established that nothing was applied before asking.
        effect_none: bool,
    },
    /// The question's deadline passed.
    Abandoned,
    /// Somebody asks for it to stop.
    CancelRequested,
    /// Proven: the attempt was stopped before any effect.
    Stopped {
        /// Which attempt.
        attempt: u32,
    },
    /// A qualifying lookup or a person settled it.
    Resolved {
        /// How.
        verdict: Verdict,
    },
}

impl Event {
    /// The attempt it speaks of.
    #[must_use]
    pub const fn attempt(self) -> Option<u32> {
        match self {
            Self::Committed { attempt }
            | Self::Succeeded { attempt }
            | Self::Refused { attempt, .. }
            | Self::NotApplied { attempt }
            | Self::Lost { attempt }
            | Self::Asked { attempt, .. }
            | Self::Stopped { attempt } => Some(attempt),
            Self::Admitted { .. }
            | Self::Executed { .. }
            | Self::Taken { .. }
            | Self::Abandoned
            | Self::CancelRequested
            | Self::Resolved { .. } => None,
        }
    }
}

/// Why an event may not be applied. Nothing changes then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Illegal {
    /// The operation is not free to run.
    #[error("the operation is not free to run")]
    NotFree,
    /// No such attempt, or it is no longer open: another write was first.
    #[error("the attempt is fenced off")]
    Fenced,
    /// An earlier attempt may have sent, and this one does not share its provider key.
    #[error("a second attempt may not send without the first one's provider key")]
    SecondSender,
    /// The evidence contradicts what is already established.
    #[error("the evidence contradicts what is established")]
    Contradiction,
    /// More than [`MAX_ATTEMPTS`].
    #[error("the operation has used up its {MAX_ATTEMPTS} attempts")]
    TooManyAttempts,
    /// The event has no meaning in this state.
    #[error("the event is not possible in this state")]
    NotPossible,
}

/// The one transition function: every store and the simulator use it. Total; an event that
/// repeats what is already known changes nothing.
///
/// # Errors
/// [`Illegal`] when the event may not be applied; the status then stays as it is.
pub fn next(status: &Status, event: Event) -> Result<Status, Illegal> {
    match event {
        Event::Admitted { mode } => admitted(status, mode),
        Event::Executed { refused } => executed(status, refused),
        Event::Taken { same_provider_key } => taken(status, same_provider_key),
        Event::Committed { attempt } => committed(status, attempt),
        Event::Succeeded { attempt } => settle(status, attempt, Knowledge::Happened),
        Event::Refused {
            attempt,
            effect_none,
        } => settle(status, attempt, refusal(effect_none)),
        Event::NotApplied { attempt } => settle(status, attempt, Knowledge::NotApplied),
        Event::Lost { attempt } => settle(status, attempt, Knowledge::MaybeSent),
        Event::Asked {
            attempt,
            effect_none,
        } => settle(status, attempt, question(effect_none)),
        Event::Stopped { attempt } => settle(status, attempt, Knowledge::Stopped),
        Event::Abandoned => abandoned(status),
        Event::CancelRequested => cancel_requested(status),
        Event::Resolved { verdict } => resolved(status, verdict),
    }
}

const fn refusal(effect_none: bool) -> Knowledge {
    if effect_none {
        Knowledge::RefusedNone
    } else {
        Knowledge::RefusedUnknown
    }
}

const fn question(effect_none: bool) -> Knowledge {
    if effect_none {
        Knowledge::Asked
    } else {
        Knowledge::AskedUnknown
    }
}

fn with_state(status: &Status, state: State) -> Status {
    Status {
        state,
        ..status.clone()
    }
}

fn push(status: &Status, knowledge: Knowledge, state: State) -> Result<Status, Illegal> {
    if status.attempts.iter().count() >= MAX_ATTEMPTS {
        return Err(Illegal::TooManyAttempts);
    }
    let mut new = with_state(status, state);
    new.attempts.push(knowledge);
    Ok(new)
}

fn admitted(status: &Status, mode: Mode) -> Result<Status, Illegal> {
    match (status.state, mode) {
        (State::Free, Mode::Guarded) => push(status, Knowledge::Open, State::Running),
        (State::Free, Mode::Dispatched) => Ok(with_state(status, State::Accepted)),
        (State::InputRequired, Mode::Guarded) => {
            let mut new = push(status, Knowledge::Open, State::Running)?;
            new.round = status.round.checked_add(1).ok_or(Illegal::NotPossible)?;
            Ok(new)
        }
        (State::Free | State::InputRequired, Mode::Atomic)
        | (State::InputRequired, Mode::Dispatched) => Err(Illegal::NotPossible),
        (
            State::Accepted
            | State::Running
            | State::CancelRequested
            | State::Succeeded
            | State::Failed
            | State::Cancelled
            | State::OutcomeUnknown,
            Mode::Atomic | Mode::Guarded | Mode::Dispatched,
        ) => Err(Illegal::NotFree),
    }
}

fn executed(status: &Status, refused: bool) -> Result<Status, Illegal> {
    match status.state {
        State::Free if refused => push(status, Knowledge::RefusedNone, State::Failed),
        State::Free => push(status, Knowledge::Happened, State::Succeeded),
        State::Accepted
        | State::Running
        | State::CancelRequested
        | State::InputRequired
        | State::Succeeded
        | State::Failed
        | State::Cancelled
        | State::OutcomeUnknown => Err(Illegal::NotFree),
    }
}

fn taken(status: &Status, same_provider_key: bool) -> Result<Status, Illegal> {
    match status.state {
        State::Accepted | State::OutcomeUnknown => {
            if status.committed {
                return Err(Illegal::NotPossible);
            }
            if !same_provider_key && status.may_have_applied() {
                return Err(Illegal::SecondSender);
            }
            push(status, Knowledge::Open, State::Running)
        }
        State::Free
        | State::Running
        | State::CancelRequested
        | State::InputRequired
        | State::Succeeded
        | State::Failed
        | State::Cancelled => Err(Illegal::NotPossible),
    }
}

fn committed(status: &Status, attempt: u32) -> Result<Status, Illegal> {
    // A second mark would be a second write: the handler ran its transaction again.
    if status.committed {
        return Err(Illegal::Fenced);
    }
    match status.state {
        State::Running | State::CancelRequested => {
            if attempt != status.attempts.latest()
                || status.attempts.get(attempt) != Some(Knowledge::Open)
            {
                return Err(Illegal::Fenced);
            }
            let mut new = status.clone();
            new.committed = true;
            Ok(new)
        }
        State::Free
        | State::Accepted
        | State::InputRequired
        | State::Succeeded
        | State::Failed
        | State::Cancelled
        | State::OutcomeUnknown => Err(Illegal::Fenced),
    }
}

/// Evidence about one attempt arrives, in time or late.
fn settle(status: &Status, attempt: u32, learned: Knowledge) -> Result<Status, Illegal> {
    let known = status.attempts.get(attempt).ok_or(Illegal::Fenced)?;
    let latest = attempt == status.attempts.latest();
    let learned = if status.committed && latest {
        after_commit(learned)?
    } else {
        learned
    };
    if says_nothing_new(known, learned) {
        return Ok(status.clone());
    }
    if known.is_settled() {
        return Err(Illegal::Contradiction);
    }
    let mut new = status.clone();
    match status.state {
        State::Running | State::CancelRequested | State::OutcomeUnknown => {
            let asks = matches!(learned, Knowledge::Asked | Knowledge::AskedUnknown);
            if asks && !latest {
                return Err(Illegal::Fenced);
            }
            // Somebody asked for it to stop and it is proven that it did nothing: it stopped.
            let stopped = status.state == State::CancelRequested
                && latest
                && learned == Knowledge::NotApplied;
            let learned = if stopped { Knowledge::Stopped } else { learned };
            new.attempts.set(attempt, learned);
            Ok(join(new))
        }
        // Another attempt succeeded; this one's late evidence is kept and changes no verdict.
        State::Succeeded => {
            new.attempts.set(attempt, learned);
            Ok(new)
        }
        State::Free | State::Accepted | State::InputRequired | State::Failed | State::Cancelled => {
            Err(Illegal::Fenced)
        }
    }
}

/// Evidence repeated, a time-out after a definite answer, or the weaker of two proofs.
fn says_nothing_new(known: Knowledge, learned: Knowledge) -> bool {
    known == learned
        || (known.is_settled() && learned == Knowledge::MaybeSent)
        || (known == Knowledge::Stopped && learned == Knowledge::NotApplied)
}

/// Once the write is committed, whatever answer follows, it happened.
fn after_commit(learned: Knowledge) -> Result<Knowledge, Illegal> {
    match learned {
        Knowledge::Happened
        | Knowledge::MaybeSent
        | Knowledge::RefusedUnknown
        | Knowledge::RefusedNone => Ok(Knowledge::Happened),
        Knowledge::Open
        | Knowledge::NotApplied
        | Knowledge::Asked
        | Knowledge::AskedUnknown
        | Knowledge::Stopped => Err(Illegal::Contradiction),
    }
}

/// The verdict joins all attempts: success of any is success, failure needs every one proven.
fn join(mut status: Status) -> Status {
    let has = |wanted: Knowledge| status.attempts.iter().any(|known| known == wanted);
    let maybe = status.may_have_applied();
    let latest = status.attempts.get(status.attempts.latest());
    status.state = if has(Knowledge::Happened) {
        State::Succeeded
    } else if latest == Some(Knowledge::Open) {
        // The current attempt goes on, whatever was learned of an earlier one.
        status.state
    } else if has(Knowledge::Open) || has(Knowledge::MaybeSent) {
        State::OutcomeUnknown
    } else if has(Knowledge::RefusedUnknown) || has(Knowledge::RefusedNone) {
        State::Failed
    } else if matches!(latest, Some(Knowledge::Asked | Knowledge::AskedUnknown)) {
        State::InputRequired
    } else if has(Knowledge::Stopped) {
        if maybe {
            State::OutcomeUnknown
        } else {
            State::Cancelled
        }
    } else if status.round > 0 {
        // This round's inputs were not sent: its question stands again.
        status.round -= 1;
        State::InputRequired
    } else if maybe {
        State::OutcomeUnknown
    } else {
        State::Free
    };
    status
}

fn abandoned(status: &Status) -> Result<Status, Illegal> {
    match status.state {
        State::InputRequired => {
            let mut new = status.clone();
            new.round = 0;
            new.state = if new.may_have_applied() {
                State::OutcomeUnknown
            } else {
                State::Free
            };
            Ok(new)
        }
        State::Free
        | State::Accepted
        | State::Running
        | State::CancelRequested
        | State::Succeeded
        | State::Failed
        | State::Cancelled
        | State::OutcomeUnknown => Err(Illegal::NotPossible),
    }
}

fn cancel_requested(status: &Status) -> Result<Status, Illegal> {
    match status.state {
        State::Accepted => Ok(with_state(status, State::Cancelled)),
        State::Running => Ok(with_state(status, State::CancelRequested)),
        State::InputRequired => {
            let state = if status.may_have_applied() {
                State::OutcomeUnknown
            } else {
                State::Cancelled
            };
            Ok(with_state(status, state))
        }
        State::CancelRequested
        | State::Succeeded
        | State::Failed
        | State::Cancelled
        | State::OutcomeUnknown => Ok(status.clone()),
        State::Free => Err(Illegal::NotPossible),
    }
}

fn resolved(status: &Status, verdict: Verdict) -> Result<Status, Illegal> {
    match status.state {
        State::OutcomeUnknown => {
            let mut new = status.clone();
            new.state = match verdict {
                Verdict::Happened => State::Succeeded,
                Verdict::NotHappened => State::Failed,
            };
            new.attempts.resolve(verdict);
            Ok(new)
        }
        State::Succeeded | State::Failed | State::Cancelled => match (status.effect(), verdict) {
            (Effect::Happened, Verdict::Happened) | (Effect::None, Verdict::NotHappened) => {
                Ok(status.clone())
            }
            (Effect::Happened, Verdict::NotHappened) | (Effect::None, Verdict::Happened) => {
                Err(Illegal::Contradiction)
            }
            (Effect::Unknown, Verdict::Happened | Verdict::NotHappened) => {
                Err(Illegal::NotPossible)
            }
        },
        State::Free
        | State::Accepted
        | State::Running
        | State::CancelRequested
        | State::InputRequired => Err(Illegal::NotPossible),
    }
}
