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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use counterfoil_core::{
        Event, Fingerprint, Identity, Kept, Key, OperationId, Policy, PrincipalId, Reply, Target,
        Token, WorkspaceId,
    };

    use super::{Finding, State, Timestamp, Whole};
    use crate::{Admission, StoredReply, recorded};

    const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

    fn admission(policy: Policy) -> Admission {
        Admission {
            identity: Identity {
                workspace: WorkspaceId::new("w").unwrap(),
                principal: PrincipalId::new("p").unwrap(),
                target: Target::new("o"),
                key: Key::new("k").unwrap(),
            },
            fingerprint: Fingerprint::raw("", b""),
            inputs: None,
            version: 1,
            policy,
            operation_id: OperationId::new(NOW, [1; 10]),
            token: Token::new([1; 16]),
            now: NOW,
            patience: Duration::ZERO,
        }
    }

    fn done() -> Whole {
        let reply = StoredReply {
            reply: Reply {
                status: 200,
                content_type: None,
                headers: Vec::new(),
                body: bytes::Bytes::from_static(b"done"),
            },
            sealed: None,
        };
        let admission = admission(Policy::atomic());
        let change = admission.execute(None, false, Ok(&reply)).unwrap();
        Whole {
            receipt: change.receipt,
            events: vec![change.event],
            result: Some(reply),
            questions: Vec::new(),
        }
    }

    fn running() -> Whole {
        let change = admission(Policy::default()).reserve(None).unwrap();
        let mut whole = Whole {
            receipt: change.receipt,
            events: vec![change.event],
            result: None,
            questions: Vec::new(),
        };
        let event = Event::CancelRequested;
        let change = recorded(&whole.receipt, event, NOW, "asked", None).unwrap();
        let change = change.unwrap();
        whole.events.push(change.event.clone());
        whole.receipt = change.receipt.clone();
        whole
    }

    #[test]
    fn what_these_rules_write_hangs_together() {
        assert_eq!(done().findings(), []);
        assert_eq!(running().findings(), []);
        assert!(!running().is_overdue(NOW));
        assert!(running().is_overdue(NOW.plus(Duration::from_secs(86_400))));
    }

    #[test]
    fn each_damage_is_found_and_nothing_else() {
        type Damage = (fn() -> Whole, fn(&mut Whole), &'static [Finding]);
        let damages: [Damage; 9] = [
            (done, |w| w.events.clear(), &[Finding::NoLog]),
            (
                done,
                |w| w.events[0].from = Some(State::Free),
                &[Finding::LogBegins],
            ),
            (running, |w| drop(w.events.remove(0)), &[Finding::LogBegins]),
            (
                running,
                |w| w.events[1].from = Some(State::Accepted),
                &[Finding::LogGap],
            ),
            (running, |w| drop(w.events.pop()), &[Finding::LogEnd]),
            (done, |w| w.result = None, &[Finding::ResultMissing]),
            (
                done,
                |w| w.receipt.kept = Kept::Nothing,
                &[Finding::ResultUnmarked],
            ),
            (done, |w| w.receipt.finished_at = None, &[Finding::NoEnd]),
            (
                running,
                |w| w.receipt.finished_at = Some(NOW),
                &[Finding::EarlyEnd],
            ),
        ];
        for (begin, damage, found) in damages {
            let mut whole = begin();
            damage(&mut whole);
            assert_eq!(whole.findings(), found);
            assert_ne!(whole.digest(), begin().digest());
        }
        let mut whole = done();
        whole.receipt.rounds.push([0; 32]);
        assert_eq!(whole.findings(), [Finding::Rounds]);
        let mut whole = done();
        whole.receipt.status.state = State::OutcomeUnknown;
        whole.events[0].to = State::OutcomeUnknown;
        whole.receipt.finished_at = None;
        assert_eq!(whole.findings(), [Finding::Attempts]);
    }
}
