use counterfoil_core::{Decision, EventRecord, Receipt, State};
use counterfoil_store::{Answer, Change, Fence, Found, StoredReply, Whole};

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

impl StoredRow {
    pub(super) fn new(change: Change<'_>) -> Self {
        let mut row = Self {
            receipt: change.receipt.clone(),
            reply: None,
            questions: Vec::new(),
            events: Vec::new(),
        };
        row.write(change);
        row
    }

    /// The row of another store.
    pub(super) fn of_whole(whole: Whole) -> Self {
        let mut questions = Vec::new();
        for (round, question) in whole.questions {
            questions.resize(usize::from(round), None);
            questions.push(Some(question));
        }
        Self {
            receipt: whole.receipt,
            reply: whole.result,
            questions,
            events: whole.events,
        }
    }

    /// The row with everything that hangs on it.
    pub(super) fn whole(&self) -> Whole {
        let questions = (0..).zip(&self.questions);
        let questions = questions.filter_map(|(round, stored)| Some((round, stored.clone()?)));
        Whole {
            receipt: self.receipt.clone(),
            events: self.events.clone(),
            result: self.reply.clone(),
            questions: questions.collect(),
        }
    }

    /// Writes what a step made of it.
    pub(super) fn write(&mut self, change: Change<'_>) {
        self.receipt = change.receipt;
        self.events.push(change.event);
        match change.answer {
            Answer::Nothing => {}
            Answer::Result(reply) => self.reply = Some(reply.clone()),
            Answer::Question(round, reply) => {
                self.questions.resize(usize::from(round), None);
                self.questions.push(reply.cloned());
            }
        }
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
}
