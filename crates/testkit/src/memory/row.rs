use counterfoil_core::{
    Decision, Event, EventRecord, Kept, Knowledge, Receipt, State, Timestamp, next,
};
use counterfoil_store::{Error, Fence, Found, StoredReply};

/// A receipt with everything that hangs on it.
#[derive(Clone, Debug)]
pub(super) struct StoredRow {
    pub(super) receipt: Receipt,
    /// The answer of the finished operation.
    pub(super) reply: Option<StoredReply>,
    /// The question of each round so far, the first one first.
    pub(super) questions: Vec<Option<StoredReply>>,
    pub(super) events: Vec<EventRecord>,
}

/// What comes with an event.
#[derive(Debug)]
pub(super) struct Circumstances {
    pub(super) at: Timestamp,
    pub(super) reason: String,
    pub(super) evidence: Option<String>,
    pub(super) reply: Option<StoredReply>,
    /// What becomes of the result if the event finishes the operation and brings no reply.
    pub(super) without_reply: Kept,
    /// Until when a question stands, if the event leaves one open.
    pub(super) question_until: Timestamp,
}

impl Circumstances {
    pub(super) fn bare(at: Timestamp, reason: impl Into<String>) -> Self {
        Self {
            at,
            reason: reason.into(),
            evidence: None,
            reply: None,
            without_reply: Kept::Nothing,
            question_until: at,
        }
    }
}

impl StoredRow {
    /// Applies an event by the one transition function. An event that says nothing new changes
    /// nothing and leaves no row in the log.
    pub(super) fn learn(&mut self, event: Event, with: Circumstances) -> Result<(), Error> {
        let before = self.receipt.status.clone();
        let after = next(&before, event).map_err(Error::Fenced)?;
        if after == before {
            return Ok(());
        }
        self.log(
            with.at,
            attempt_of(event),
            Some(before.state),
            after.state,
            with.reason,
            with.evidence,
        );
        self.receipt.status = after;
        let round = usize::from(self.receipt.status.round);
        self.receipt.rounds.truncate(round);
        let state = self.receipt.status.state;
        if state == State::InputRequired {
            if matches!(event, Event::Asked { .. }) {
                self.questions.truncate(round);
                self.questions.push(with.reply);
            }
            self.receipt.lease_until = self.receipt.lease_until.max(with.question_until);
        } else if state.is_finished() && !before.state.is_finished() {
            self.receipt.finished_at = Some(with.at);
            self.receipt.kept = match with.reply {
                Some(_) => Kept::Stored,
                None if with.without_reply == Kept::Stored => Kept::Nothing,
                None => with.without_reply,
            };
            self.reply = with.reply;
        } else if state == State::Free {
            self.receipt.finished_at = Some(with.at);
        }
        Ok(())
    }

    /// Records a lapsed lease or an abandoned question as what it is; whether there was one.
    pub(super) fn lapse(&mut self, now: Timestamp) -> Result<bool, Error> {
        let Some(event) = self.receipt.overdue(now) else {
            return Ok(false);
        };
        let reason = if event == Event::Abandoned {
            "question abandoned"
        } else {
            "lease lapsed"
        };
        let with = Circumstances {
            without_reply: Kept::AnswerLost,
            ..Circumstances::bare(now, reason)
        };
        self.learn(event, with)?;
        Ok(true)
    }

    pub(super) fn log(
        &mut self,
        at: Timestamp,
        attempt: u32,
        from: Option<State>,
        to: State,
        reason: String,
        evidence: Option<String>,
    ) {
        self.events.push(EventRecord {
            at,
            attempt,
            from,
            to,
            reason,
            evidence,
        });
    }

    /// The row as a reader sees it.
    pub(super) fn found(&self) -> Found {
        let reply = if self.receipt.status.state == State::InputRequired {
            self.question(self.receipt.status.round)
        } else {
            self.reply.clone()
        };
        Found {
            receipt: self.receipt.clone(),
            reply,
        }
    }

    /// The row with the answer that belongs to a decision.
    pub(super) fn found_for(&self, decision: Decision) -> Found {
        let mut found = self.found();
        if let Decision::ReplayQuestion { round } = decision {
            found.reply = self.question(round);
        }
        found
    }

    pub(super) fn question(&self, round: u16) -> Option<StoredReply> {
        self.questions.get(usize::from(round)).cloned().flatten()
    }

    pub(super) fn fence(&self) -> Fence {
        Fence {
            operation_id: self.receipt.operation_id,
            attempt: self.receipt.status.attempts.latest(),
        }
    }

    /// The latest attempt is under way and nothing is known of it.
    pub(super) fn is_open(&self) -> bool {
        let status = &self.receipt.status;
        match status.state {
            State::Running | State::CancelRequested => {
                status.attempts.get(status.attempts.latest()) == Some(Knowledge::Open)
            }
            State::Accepted => true,
            State::Free
            | State::InputRequired
            | State::Succeeded
            | State::Failed
            | State::Cancelled
            | State::OutcomeUnknown => false,
        }
    }

    pub(super) fn is_unresolved(&self) -> bool {
        let state = self.receipt.status.state;
        state != State::Free && !state.is_finished()
    }
}

/// The attempt an event speaks of; 0 if of none.
pub(super) fn attempt_of(event: Event) -> u32 {
    match event {
        Event::Committed { attempt }
        | Event::Succeeded { attempt }
        | Event::Refused { attempt, .. }
        | Event::NotApplied { attempt }
        | Event::Lost { attempt }
        | Event::Asked { attempt, .. }
        | Event::Stopped { attempt } => attempt,
        Event::Admitted { .. }
        | Event::Executed { .. }
        | Event::Taken { .. }
        | Event::Abandoned
        | Event::CancelRequested
        | Event::Resolved { .. } => 0,
    }
}
