//! Whether what is stored hangs together.

use counterfoil_core::{Kept, Knowledge, Mode, State, Timestamp};

use crate::Whole;

/// Everything there is, counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Receipts in each state that there are any in.
    pub receipts: Vec<(State, u64)>,
    /// Receipts in a state that there is not.
    pub impossible: u64,
    /// Results of no receipt.
    pub stray_results: u64,
    /// Questions of no receipt.
    pub stray_questions: u64,
    /// Rows of the event log of no receipt.
    pub stray_events: u64,
}

impl Census {
    /// Receipts in all.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.impossible + self.receipts.iter().map(|(_, count)| count).sum::<u64>()
    }

    /// Receipts in this state.
    #[must_use]
    pub fn in_state(&self, state: State) -> u64 {
        self.receipts
            .iter()
            .filter(|(found, _)| *found == state)
            .map(|(_, count)| count)
            .sum()
    }
}

/// What a store says of where it is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inspection {
    /// What it is, by name: versions and settings.
    pub facts: Vec<(&'static str, String)>,
    /// What weakens its promises, with what to do.
    pub warnings: Vec<String>,
    /// What is broken, with what to do.
    pub problems: Vec<String>,
}

/// Something in a receipt that no step of ours leaves behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Finding {
    /// There is no event log.
    #[error("its event log is empty")]
    NoLog,
    /// The first row of the log comes from somewhere.
    #[error("its event log has lost its beginning")]
    LogBegins,
    /// A row of the log does not begin where the one before ended.
    #[error("its event log has a gap")]
    LogGap,
    /// The log does not end in the state of the row.
    #[error("its event log does not end in its state")]
    LogEnd,
    /// The result is marked as stored and is not there.
    #[error("its result is marked as stored and is not there")]
    ResultMissing,
    /// There is a result that the row does not know of.
    #[error("it has a stored result although it is marked as having none")]
    ResultUnmarked,
    /// It is finished and does not say when.
    #[error("it is finished and does not say when")]
    NoEnd,
    /// It is not finished and says when it was.
    #[error("it is not finished and says when it was")]
    EarlyEnd,
    /// What is known of its attempts is not what its state says.
    #[error("what is known of its attempts does not fit its state")]
    Attempts,
    /// It does not have the digests of the rounds it went through.
    #[error("its rounds are not as many as it went through")]
    Rounds,
}

impl Whole {
    /// What does not hang together in it; empty for a receipt that these rules wrote.
    #[must_use]
    pub fn findings(&self) -> Vec<Finding> {
        let receipt = &self.receipt;
        let state = receipt.status.state;
        let mut findings = Vec::new();
        self.judge_log(&mut findings);
        match (receipt.kept == Kept::Stored, self.result.is_some()) {
            (true, false) => findings.push(Finding::ResultMissing),
            (false, true) => findings.push(Finding::ResultUnmarked),
            (true, true) | (false, false) => {}
        }
        match receipt.finished_at {
            None if state.is_finished() => findings.push(Finding::NoEnd),
            Some(_) if state.is_unresolved() => findings.push(Finding::EarlyEnd),
            None | Some(_) => {}
        }
        if !self.attempts_fit() {
            findings.push(Finding::Attempts);
        }
        if receipt.rounds.len() != usize::from(receipt.status.round) {
            findings.push(Finding::Rounds);
        }
        findings
    }

    fn judge_log(&self, findings: &mut Vec<Finding>) {
        let Some(first) = self.events.first() else {
            findings.push(Finding::NoLog);
            return;
        };
        if first.from.is_some() {
            findings.push(Finding::LogBegins);
        }
        let mut pairs = self.events.iter().zip(self.events.iter().skip(1));
        if pairs.any(|(before, after)| after.from != Some(before.to)) {
            findings.push(Finding::LogGap);
        }
        let last = self.events.last().map(|event| event.to);
        if last != Some(self.receipt.status.state) {
            findings.push(Finding::LogEnd);
        }
    }

    fn attempts_fit(&self) -> bool {
        let status = &self.receipt.status;
        let attempts = &status.attempts;
        let latest = attempts.get(attempts.latest());
        let happened = attempts.iter().any(|known| known == Knowledge::Happened);
        let is_open = latest == Some(Knowledge::Open);
        let maybe = attempts.iter().any(Knowledge::may_have_applied);
        match status.state {
            State::Free => latest.is_some() && !maybe && !status.committed,
            State::Accepted => self.receipt.mode == Mode::Dispatched && !maybe,
            State::Running | State::CancelRequested => is_open && !happened,
            State::InputRequired => latest.is_some() && !is_open && !happened,
            State::Succeeded => happened,
            State::Failed => latest.is_some() && !is_open && !happened,
            State::Cancelled => !maybe,
            State::OutcomeUnknown => maybe && !is_open && !happened,
        }
    }

    /// The clock has overtaken it and the row does not say so yet: its lease has lapsed, or its
    /// question was abandoned.
    #[must_use]
    pub fn is_overdue(&self, now: Timestamp) -> bool {
        self.receipt.overdue(now).is_some()
    }
}
