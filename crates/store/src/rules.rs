//! What each step makes of a row. Every store writes what these say, inside its own transaction,
//! so that there is one place to be right.

use counterfoil_core::{
    Decision, Event, EventRecord, Illegal, Kept, Presented, Receipt, State, Status, Timestamp,
    Verdict, decide, next,
};

use crate::{Admission, Completion, Error, Fence, StoredReply};

/// A row as it is to be written, with what is written beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change<'a> {
    /// The state before; [`State::Free`] for a row that does not exist yet.
    pub before: State,
    /// The row.
    pub receipt: Receipt,
    /// The row of its log.
    pub event: EventRecord,
    /// The answer that comes with it.
    pub answer: Answer<'a>,
}

/// An answer to store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer<'a> {
    /// There is none.
    Nothing,
    /// The result of the operation.
    Result(&'a StoredReply),
    /// The question of a round, in the place of it and of all later ones; `None` if it could not
    /// be kept.
    Question(u16, Option<&'a StoredReply>),
}

impl Change<'_> {
    /// How the number of unresolved receipts changes: -1, 0 or 1.
    #[must_use]
    pub fn unresolved(&self) -> i64 {
        i64::from(self.receipt.status.state.is_unresolved())
            - i64::from(self.before.is_unresolved())
    }
}

impl Admission {
    /// What it presents.
    #[must_use]
    pub const fn presented(&self) -> Presented {
        Presented {
            fingerprint: self.fingerprint,
            inputs: self.inputs,
            token: Some(self.token),
        }
    }

    /// Decides on what stands under the identity. If the clock has overtaken the row, the decision
    /// is on what it has become, and that change is to be written, whatever the decision says.
    ///
    /// # Errors
    /// [`Error::Fenced`] never for a row that these rules wrote.
    pub fn judge(
        &self,
        found: Option<&Receipt>,
    ) -> Result<(Decision, Option<Change<'static>>), Error> {
        let presented = self.presented();
        let decision = decide(found, &presented, self.now);
        let overtaken = match decision {
            Decision::Unknown { lapsed, .. } => lapsed,
            Decision::Committed { retry_after } => retry_after.is_none(),
            Decision::Run { .. }
            | Decision::Own
            | Decision::Conflict
            | Decision::Replay
            | Decision::ReplayQuestion { .. }
            | Decision::ResultUnavailable
            | Decision::InProgress { .. }
            | Decision::Expired => false,
        };
        let Some(found) = found.filter(|_| overtaken) else {
            return Ok((decision, None));
        };
        let Some(change) = lapsed(found, self.now)? else {
            return Ok((decision, None));
        };
        let decision = decide(Some(&change.receipt), &presented, self.now);
        Ok((decision, Some(change)))
    }

    /// What the caller is told of a row whose reservation is its own and is no longer open.
    #[must_use]
    pub fn judge_as_another(&self, found: &Receipt) -> Decision {
        let presented = Presented {
            token: None,
            ..self.presented()
        };
        decide(Some(found), &presented, self.now)
    }

    /// The row that it reserves. `standing` is the row that goes on, if there is one; not one that
    /// is replaced.
    ///
    /// # Errors
    /// [`Error::Fenced`] if the row is not free to run.
    pub fn reserve(&self, standing: Option<&Receipt>) -> Result<Change<'static>, Error> {
        let mode = self.policy.mode;
        self.enter(standing, Event::Admitted { mode }, "admitted")
    }

    /// The row of an atomic operation that has run: reserved and finished in one step. `kept` is
    /// the answer as it is stored, or the marker in its place.
    ///
    /// # Errors
    /// As [`Admission::reserve`].
    pub fn execute<'a>(
        &self,
        standing: Option<&Receipt>,
        refused: bool,
        kept: Result<&'a StoredReply, Kept>,
    ) -> Result<Change<'a>, Error> {
        let reason = if refused {
            "refused and rolled back"
        } else {
            "committed with its effect"
        };
        let mut change = self.enter(standing, Event::Executed { refused }, reason)?;
        change.receipt.finished_at = Some(self.now);
        change.receipt.kept = kept.err().unwrap_or(Kept::Stored);
        let answer = kept.map_or(Answer::Nothing, Answer::Result);
        Ok(Change { answer, ..change })
    }

    fn enter(
        &self,
        standing: Option<&Receipt>,
        event: Event,
        reason: &str,
    ) -> Result<Change<'static>, Error> {
        let mut receipt = standing.map_or_else(|| self.fresh(), Receipt::clone);
        let before = receipt.status;
        let after = next(&before, event).map_err(Error::Fenced)?;
        if after.round > before.round
            && let Some(inputs) = self.inputs
        {
            receipt.rounds.push(inputs);
        }
        let policy = &self.policy;
        let event = EventRecord {
            at: self.now,
            attempt: after.attempts.latest(),
            from: standing.map(|_| before.state),
            to: after.state,
            reason: reason.to_owned(),
            evidence: None,
        };
        receipt.status = after;
        receipt.version = self.version;
        receipt.mode = policy.mode;
        receipt.token = self.token;
        receipt.hard_deadline = self.now.plus(policy.attempt_limit);
        receipt.lease_until = self.now.plus(policy.lease).min(receipt.hard_deadline);
        receipt.finished_at = None;
        receipt.retention = policy.retention;
        Ok(Change {
            before: before.state,
            receipt,
            event,
            answer: Answer::Nothing,
        })
    }

    fn fresh(&self) -> Receipt {
        Receipt {
            operation_id: self.operation_id,
            identity: self.identity.clone(),
            fingerprint: self.fingerprint,
            version: self.version,
            mode: self.policy.mode,
            status: Status::new(),
            token: self.token,
            created_at: self.now,
            lease_until: self.now,
            hard_deadline: self.now,
            finished_at: None,
            retention: self.policy.retention,
            kept: Kept::Nothing,
            rounds: Vec::new(),
            provider_window: self.policy.resend_window(),
        }
    }
}

impl Completion {
    /// What it makes of a row; `None` if it says nothing new.
    ///
    /// # Errors
    /// [`Error::Fenced`] if it speaks of another attempt than the fence, or says what is not
    /// possible.
    pub fn apply(&self, fence: Fence, receipt: &Receipt) -> Result<Option<Change<'_>>, Error> {
        if self.event.attempt() != Some(fence.attempt) {
            return Err(Error::Fenced(Illegal::Fenced));
        }
        let with = Circumstances {
            at: self.at,
            reason: self.reason,
            evidence: self.evidence.as_deref(),
            reply: self.reply.as_ref(),
            without_reply: self.kept,
            question_until: self.at.plus(self.question_for),
        };
        learn(receipt, self.event, &with)
    }
}

/// What comes with an event.
struct Circumstances<'a> {
    at: Timestamp,
    reason: &'a str,
    evidence: Option<&'a str>,
    reply: Option<&'a StoredReply>,
    /// What becomes of the result if the event finishes the operation and brings no reply.
    without_reply: Kept,
    /// Until when a question stands, if the event leaves one open.
    question_until: Timestamp,
}

impl<'a> Circumstances<'a> {
    const fn bare(at: Timestamp, reason: &'a str) -> Self {
        Self {
            at,
            reason,
            evidence: None,
            reply: None,
            without_reply: Kept::Nothing,
            question_until: at,
        }
    }
}

/// Applies an event by the one transition function. An event that says nothing new changes
/// nothing and leaves no row in the log.
fn learn<'a>(
    receipt: &Receipt,
    event: Event,
    with: &Circumstances<'a>,
) -> Result<Option<Change<'a>>, Error> {
    let before = receipt.status.state;
    let after = next(&receipt.status, event).map_err(Error::Fenced)?;
    if after == receipt.status {
        return Ok(None);
    }
    let state = after.state;
    let record = EventRecord {
        at: with.at,
        attempt: event.attempt().unwrap_or_default(),
        from: Some(before),
        to: state,
        reason: with.reason.to_owned(),
        evidence: with.evidence.map(ToOwned::to_owned),
    };
    let mut receipt = receipt.clone();
    receipt.rounds.truncate(usize::from(after.round));
    receipt.status = after;
    let mut answer = Answer::Nothing;
    if state == State::InputRequired {
        receipt.lease_until = receipt.lease_until.max(with.question_until);
        if matches!(event, Event::Asked { .. }) {
            answer = Answer::Question(receipt.status.round, with.reply);
        }
    } else if state.is_finished() && !before.is_finished() {
        receipt.finished_at = Some(with.at);
        receipt.kept = match with.reply {
            Some(_) => Kept::Stored,
            None if with.without_reply == Kept::Stored => Kept::Nothing,
            None => with.without_reply,
        };
        answer = with.reply.map_or(Answer::Nothing, Answer::Result);
    } else if state == State::Free {
        receipt.finished_at = Some(with.at);
    }
    Ok(Some(Change {
        before,
        receipt,
        event: record,
        answer,
    }))
}

/// What an event that is not an attempt's makes of a row; `None` if it says nothing new.
///
/// # Errors
/// [`Error::Fenced`] if the event is an attempt's, or is not possible.
pub fn recorded<'a>(
    receipt: &Receipt,
    event: Event,
    at: Timestamp,
    reason: &'a str,
    evidence: Option<&'a str>,
) -> Result<Option<Change<'a>>, Error> {
    let without_reply = match event {
        Event::Resolved {
            verdict: Verdict::Happened,
        } => Kept::AnswerLost,
        Event::Resolved {
            verdict: Verdict::NotHappened,
        }
        | Event::CancelRequested
        | Event::Abandoned => Kept::Nothing,
        Event::Admitted { .. }
        | Event::Executed { .. }
        | Event::Taken { .. }
        | Event::Committed { .. }
        | Event::Succeeded { .. }
        | Event::Refused { .. }
        | Event::NotApplied { .. }
        | Event::Lost { .. }
        | Event::Asked { .. }
        | Event::Stopped { .. } => return Err(Error::Fenced(Illegal::NotPossible)),
    };
    let with = Circumstances {
        evidence,
        without_reply,
        ..Circumstances::bare(at, reason)
    };
    learn(receipt, event, &with)
}

/// What the committed flag makes of a row, in the transaction of the write it speaks of. `at` is
/// the time of the latest row of its log: the application's transaction has no time of its own.
///
/// # Errors
/// [`Error::Fenced`] if it is set already, or the attempt is not the open one.
pub fn marked_committed(
    receipt: &Receipt,
    fence: Fence,
    at: Timestamp,
) -> Result<Option<Change<'static>>, Error> {
    let attempt = fence.attempt;
    let with = Circumstances::bare(at, "write committed");
    learn(receipt, Event::Committed { attempt }, &with)
}

/// What a lapsed lease or an abandoned question makes of a row; `None` if the clock has not
/// overtaken it.
///
/// # Errors
/// [`Error::Fenced`] never for a row that these rules wrote.
pub fn lapsed(receipt: &Receipt, now: Timestamp) -> Result<Option<Change<'static>>, Error> {
    let Some(event) = receipt.overdue(now) else {
        return Ok(None);
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
    learn(receipt, event, &with)
}

/// Until when a renewed lease lasts.
///
/// # Errors
/// [`Error::Fenced`] if the attempt is not the open one.
pub fn renewed(receipt: &Receipt, fence: Fence, until: Timestamp) -> Result<Timestamp, Error> {
    if receipt.status.attempts.latest() != fence.attempt || !receipt.is_open() {
        return Err(Error::Fenced(Illegal::Fenced));
    }
    Ok(receipt.lease_until.max(until).min(receipt.hard_deadline))
}
