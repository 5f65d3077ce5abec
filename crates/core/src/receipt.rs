use bytes::Bytes;

use crate::{
    Effect, Event, Fingerprint, Identity, Knowledge, Mode, OperationId, Phase, Retention, State,
    Status, Timestamp, Token,
};

/// What became of the result (dispatched: of the handle that was the first answer). Never says
/// anything of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kept {
    /// There is none yet.
    Nothing,
    /// It is stored and replayed.
    Stored,
    /// It was larger than the limit; a marker is left.
    TooLarge,
    /// It happened, and its answer never reached the store.
    AnswerLost,
    /// It could not be stored as the policy demands (nothing to redact in what is no JSON).
    Withheld,
}

impl Kept {
    const ALL: [Self; 5] = [
        Self::Nothing,
        Self::Stored,
        Self::TooLarge,
        Self::AnswerLost,
        Self::Withheld,
    ];

    /// The byte a store keeps.
    #[must_use]
    pub const fn to_byte(self) -> u8 {
        self as u8
    }

    /// From the byte a store kept.
    #[must_use]
    pub fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.get(usize::from(byte)).copied()
    }
}

/// An answer as it is replayed. Hop-by-hop headers and cookies are never in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The HTTP status; 200 for a tool result, whose body says whether it is an error.
    pub status: u16,
    /// The content type, if the answer had one.
    pub content_type: Option<String>,
    /// Further headers that are replayed, such as `Location`. Lower-case names.
    pub headers: Vec<(String, String)>,
    /// The body, byte for byte.
    pub body: Bytes,
}

impl Reply {
    /// A JSON answer.
    #[must_use]
    pub fn json(status: u16, body: &serde_json::Value) -> Self {
        Self {
            status,
            content_type: Some("application/json".to_owned()),
            headers: Vec::new(),
            // A JSON value always serializes; its `Display` takes twice as long.
            body: serde_json::to_vec(body).unwrap_or_default().into(),
        }
    }

    /// A status of 400 or more.
    #[must_use]
    pub const fn is_error(&self) -> bool {
        self.status >= 400
    }
}

/// The durable record of one identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The public handle.
    pub operation_id: OperationId,
    /// Whose it is, whole.
    pub identity: Identity,
    /// What was asked.
    pub fingerprint: Fingerprint,
    /// The version of the operation that answered; recorded, not matched.
    pub version: u32,
    /// How it runs.
    pub mode: Mode,
    /// Where it stands.
    pub status: Status,
    /// The token of the latest admission.
    pub token: Token,
    /// When it was first reserved.
    pub created_at: Timestamp,
    /// Until when the current attempt (or an open question) may stay silent.
    pub lease_until: Timestamp,
    /// When the current attempt ends at the latest.
    pub hard_deadline: Timestamp,
    /// When it finished, or was last released. Counts only in those states.
    pub finished_at: Option<Timestamp>,
    /// How long it is good for.
    pub retention: Retention,
    /// What became of the result.
    pub kept: Kept,
    /// The digests of the inputs of each round so far, `status.round` of them.
    pub rounds: Vec<[u8; 32]>,
    /// How long another attempt under the same provider key is safe, from `created_at`; zero: not at
    /// all. [`crate::Policy::resend_window`] of the first admission.
    pub provider_window: std::time::Duration,
}

impl Receipt {
    /// Where it stands in its windows. Only finished receipts age (contract §7); a released one,
    /// of which it is proven that nothing happened, is free until it is gone.
    #[must_use]
    pub fn phase(&self, now: Timestamp) -> Phase {
        match self.status.state {
            State::Succeeded | State::Failed | State::Cancelled => {
                self.retention.phase(self.finished_at, now)
            }
            State::Free => match self.retention.phase(self.finished_at, now) {
                Phase::Live | Phase::Tombstone => Phase::Live,
                Phase::Gone => Phase::Gone,
            },
            State::Accepted
            | State::Running
            | State::CancelRequested
            | State::InputRequired
            | State::OutcomeUnknown => Phase::Live,
        }
    }

    /// What the clock alone has made so and the row does not say yet: an attempt whose lease has
    /// lapsed is lost (still listening for its late answer), an open question past its deadline is
    /// abandoned. A store applies it with [`crate::next`] before it decides anew; what follows may
    /// be a release as well as an unknown.
    #[must_use]
    pub fn overdue(&self, now: Timestamp) -> Option<Event> {
        if now < self.lease_until || self.mode == Mode::Dispatched {
            return None;
        }
        match self.status.state {
            State::Running | State::CancelRequested => Some(Event::Lost {
                attempt: self.status.attempts.latest(),
            }),
            State::InputRequired => Some(Event::Abandoned),
            State::Free
            | State::Accepted
            | State::Succeeded
            | State::Failed
            | State::Cancelled
            | State::OutcomeUnknown => None,
        }
    }

    /// The latest attempt is under way, or waits for its first one, and nothing is known of it.
    #[must_use]
    pub fn is_open(&self) -> bool {
        let status = &self.status;
        match status.state {
            State::Accepted => true,
            State::Running | State::CancelRequested => {
                status.attempts.get(status.attempts.latest()) == Some(Knowledge::Open)
            }
            State::Free
            | State::InputRequired
            | State::Succeeded
            | State::Failed
            | State::Cancelled
            | State::OutcomeUnknown => false,
        }
    }

    /// The inputs that the latest question followed, or that the current round runs on.
    pub(crate) fn answered_last(&self) -> Option<[u8; 32]> {
        let last = usize::from(self.status.round).checked_sub(1)?;
        self.rounds.get(last).copied()
    }

    /// What is established about the world.
    #[must_use]
    pub fn effect(&self) -> Effect {
        self.status.effect()
    }

    /// The state as it is shown: `expired` once only the tombstone is left.
    #[must_use]
    pub fn shown_state(&self, now: Timestamp) -> &'static str {
        match self.phase(now) {
            Phase::Live => self.status.state.as_str(),
            Phase::Tombstone | Phase::Gone => "expired",
        }
    }
}

/// One row of an operation's append-only log. Never bodies, arguments or credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventRecord {
    /// When.
    pub at: Timestamp,
    /// The attempt it concerns; 0 if none.
    pub attempt: u32,
    /// The state before; `None` for the first row.
    pub from: Option<State>,
    /// The state after.
    pub to: State,
    /// Why, in a few fixed words.
    pub reason: String,
    /// Where the evidence lies, if anywhere.
    pub evidence: Option<String>,
}
