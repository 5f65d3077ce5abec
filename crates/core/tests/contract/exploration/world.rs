//! Everything that may happen next.

use counterfoil_core::{Decision, Event, Kept, Mode, Presented, State, Status, Verdict, decide};

use super::row::{Kind, NOW, Row, presented};

/// What became of an attempt's request on the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Sent {
    No,
    OnItsWay,
    /// It happened; the answer says so.
    Applied,
    /// It happened, and the answer is an error all the same.
    AppliedBadly,
    /// A definite error answer, nothing done.
    Rejected,
    /// It asks something first.
    Asked,
    /// It never arrives.
    Gone,
}

/// A caller of a guarded call, or a worker of a dispatched one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Step {
    Idle,
    /// Its admission may or may not have been answered: it will ask again with the same token.
    Admitting {
        token: u8,
    },
    /// It has the permit and has sent nothing.
    Holding {
        attempt: u32,
    },
    Waiting {
        attempt: u32,
    },
    /// It has evidence and has not recorded it.
    Answered {
        attempt: u32,
        event: Event,
    },
    /// It has told its caller that nobody knows, and still listens.
    Listening {
        attempt: u32,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Caller {
    step: Step,
    /// How many more calls it makes.
    calls: u8,
    /// What it answers a question with, once it has seen one.
    inputs: Option<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct World {
    pub(super) kind: Kind,
    pub(super) row: Option<Row>,
    callers: [Caller; 2],
    /// By attempt.
    pub(super) sent: Vec<Sent>,
    /// The inputs each attempt carries.
    carried: Vec<Option<u8>>,
    pub(super) effects: u8,
    /// The answer some caller was given as the result, by attempt.
    pub(super) acknowledged: Option<u32>,
    /// Another attempt under the provider key is still safe.
    window_open: bool,
}

impl World {
    pub(super) fn new(kind: Kind, calls: [u8; 2]) -> Self {
        let callers = calls.map(|calls| Caller {
            step: Step::Idle,
            calls,
            inputs: None,
        });
        let mut world = Self {
            kind,
            row: None,
            callers,
            sent: Vec::new(),
            carried: Vec::new(),
            effects: 0,
            acknowledged: None,
            window_open: kind == Kind::ProviderKey,
        };
        if kind.mode() == Mode::Dispatched {
            // The call that committed the intent has its handle; what follows is the workers'.
            let mut row = Row {
                status: Status::new(),
                token: 0,
                lapsed: false,
                kept: Kept::Stored,
                rounds: Vec::new(),
                reply: None,
            };
            row.apply(Event::Admitted { mode: kind.mode() }, None)
                .unwrap();
            world.row = Some(row);
        }
        world
    }

    fn sent(&self, attempt: u32) -> Sent {
        self.sent[index(attempt)]
    }

    pub(super) fn decide(&self, presented: &Presented) -> Decision {
        let receipt = self.row.as_ref().map(|row| row.receipt(self.kind));
        decide(receipt.as_ref(), presented, NOW)
    }

    /// A caller may still send under an attempt it holds.
    fn held(&self) -> impl Iterator<Item = u32> + '_ {
        self.callers.iter().filter_map(|caller| match caller.step {
            Step::Holding { attempt } => Some(attempt),
            Step::Idle
            | Step::Admitting { .. }
            | Step::Waiting { .. }
            | Step::Answered { .. }
            | Step::Listening { .. } => None,
        })
    }

    /// The effect may still come, whatever the row says.
    pub(super) fn may_still_happen(&self) -> bool {
        let on_its_way = self.sent.contains(&Sent::OnItsWay);
        // In its own transaction a handler compares the fence before it commits.
        on_its_way || (self.kind != Kind::OwnTransaction && self.held().next().is_some())
    }

    pub(super) fn successors(&self) -> Vec<Self> {
        let mut worlds = Vec::new();
        for who in 0..2 {
            self.caller_steps(who, &mut worlds);
        }
        self.upstream_steps(&mut worlds);
        self.row_steps(&mut worlds);
        worlds
    }

    /// This caller's call is over (it was answered, or its process died); it may call again.
    fn call_over(&self, who: usize) -> Self {
        let mut world = self.clone();
        world.callers[who].step = Step::Idle;
        world.callers[who].calls = world.callers[who].calls.saturating_sub(1);
        world
    }

    fn step(&self, who: usize, step: Step) -> Self {
        let mut world = self.clone();
        world.callers[who].step = step;
        world
    }

    fn caller_steps(&self, who: usize, worlds: &mut Vec<Self>) {
        let step = self.callers[who].step;
        if step != Step::Idle {
            // It dies here.
            worlds.push(self.call_over(who));
        }
        match step {
            Step::Idle => self.begin(who, worlds),
            Step::Admitting { token } => self.admit(who, token, worlds),
            Step::Holding { attempt } => self.run(who, attempt, worlds),
            Step::Waiting { attempt } => {
                let lost = Event::Lost { attempt };
                worlds.push(self.step(
                    who,
                    Step::Answered {
                        attempt,
                        event: lost,
                    },
                ));
                self.receive(who, attempt, worlds);
            }
            Step::Listening { attempt } => self.receive(who, attempt, worlds),
            Step::Answered { attempt, event } => self.record(who, attempt, event, worlds),
        }
    }

    fn begin(&self, who: usize, worlds: &mut Vec<Self>) {
        if self.callers[who].calls == 0 {
            return;
        }
        if self.kind.mode() == Mode::Dispatched {
            self.take(who, worlds);
            return;
        }
        // A look without the writer: whatever is final is answered from it.
        let inputs = self.callers[who].inputs;
        let decision = self.decide(&presented(inputs, None));
        if let Some(world) = self.answered(who, decision) {
            worlds.push(world);
        }
        let token = self.fresh_token();
        worlds.push(self.step(who, Step::Admitting { token }));
    }

    /// One that neither the row nor the other caller knows.
    fn fresh_token(&self) -> u8 {
        let known = |token: u8| {
            let row = self.row.as_ref().is_some_and(|row| row.token == token);
            row || self
                .callers
                .iter()
                .any(|caller| caller.step == Step::Admitting { token })
        };
        (1..).find(|token| !known(*token)).unwrap()
    }

    /// The caller gets a decision that runs nothing.
    fn answered(&self, who: usize, decision: Decision) -> Option<Self> {
        match decision {
            Decision::Run { .. } | Decision::Own => None,
            Decision::Replay => {
                let reply = self.row.as_ref().and_then(|row| row.reply);
                assert!(reply.is_some(), "a replay of nothing: {self:#?}");
                if self.acknowledged.is_some() {
                    assert_eq!(reply, self.acknowledged, "I2: another answer: {self:#?}");
                }
                let mut world = self.call_over(who);
                world.acknowledged = reply;
                Some(world)
            }
            Decision::ReplayQuestion { round } => {
                assert_eq!(round, 0);
                let mut world = self.call_over(who);
                world.callers[who].inputs = Some(u8::try_from(who).unwrap() + 1);
                Some(world)
            }
            Decision::ResultUnavailable | Decision::Committed { .. } => {
                assert_eq!(self.acknowledged, None, "I2: a result is gone: {self:#?}");
                Some(self.call_over(who))
            }
            Decision::Conflict => {
                // Only one who answers a question differently.
                assert_eq!(self.kind, Kind::Asking);
                assert!(self.callers[who].inputs.is_some());
                Some(self.call_over(who))
            }
            Decision::InProgress { .. } | Decision::Unknown { .. } => {
                assert_eq!(self.acknowledged, None, "I2: a result is gone: {self:#?}");
                Some(self.call_over(who))
            }
            Decision::Expired => panic!("nothing ages here: {self:#?}"),
        }
    }

    /// The writer's step: what the clock has made so is recorded, then it is decided.
    fn admit(&self, who: usize, token: u8, worlds: &mut Vec<Self>) {
        let mut world = self.clone();
        world.record_overdue();
        let inputs = world.callers[who].inputs;
        let decision = world.decide(&presented(inputs, Some(token)));
        if decision == Decision::Own {
            let row = world.row.as_ref().unwrap();
            let attempt = row.status.attempts.latest();
            assert_eq!(
                world.sent(attempt),
                Sent::No,
                "I1: it has sent before: {self:#?}"
            );
            worlds.push(world.step(who, Step::Holding { attempt }));
            return;
        }
        if let Some(answered) = world.answered(who, decision) {
            worlds.push(answered);
            return;
        }
        let answers = world
            .row
            .as_ref()
            .is_some_and(|row| row.status.state == State::InputRequired);
        let row = world.row.get_or_insert_with(|| Row {
            status: Status::new(),
            token,
            lapsed: false,
            kept: Kept::Nothing,
            rounds: Vec::new(),
            reply: None,
        });
        row.token = token;
        row.lapsed = false;
        if answers {
            row.rounds.push(inputs.unwrap());
        }
        let mode = world.kind.mode();
        row.apply(Event::Admitted { mode }, None).unwrap();
        let attempt = row.status.attempts.latest();
        world.begin_attempt(attempt, inputs);
        // The answer of the admission arrives, or it is lost and asked for again.
        worlds.push(world.step(who, Step::Holding { attempt }));
        worlds.push(world.step(who, Step::Admitting { token }));
    }

    /// A worker takes the operation up.
    fn take(&self, who: usize, worlds: &mut Vec<Self>) {
        let mut world = self.clone();
        world.record_overdue();
        let same_provider_key = world.window_open;
        let row = world.row.as_mut().unwrap();
        if row.status.state == State::Free {
            // Proven unsent, and the caller has its handle: the intent waits again.
            row.apply(
                Event::Admitted {
                    mode: Mode::Dispatched,
                },
                None,
            )
            .unwrap();
        }
        if row.apply(Event::Taken { same_provider_key }, None).is_ok() {
            row.lapsed = false;
            let attempt = row.status.attempts.latest();
            world.begin_attempt(attempt, None);
            worlds.push(world.step(who, Step::Holding { attempt }));
        }
    }

    fn begin_attempt(&mut self, attempt: u32, inputs: Option<u8>) {
        assert_eq!(
            index(attempt),
            self.sent.len(),
            "I1: attempt numbers increase"
        );
        let rivals = self.held().count() + self.sent.iter().filter(|sent| maybe(**sent)).count();
        let round = !self.row.as_ref().unwrap().rounds.is_empty();
        if rivals > 0 {
            assert!(self.window_open || round, "I1: a second sender: {self:#?}");
        }
        self.sent.push(Sent::No);
        self.carried.push(inputs);
    }

    fn run(&self, who: usize, attempt: u32, worlds: &mut Vec<Self>) {
        // Refused connection, or a handler that fails before it commits: proven not applied.
        let unsent = Event::NotApplied { attempt };
        worlds.push(self.step(
            who,
            Step::Answered {
                attempt,
                event: unsent,
            },
        ));
        let cancelled = self
            .row
            .as_ref()
            .is_some_and(|row| row.status.state == State::CancelRequested);
        if cancelled {
            let stopped = Event::Stopped { attempt };
            worlds.push(self.step(
                who,
                Step::Answered {
                    attempt,
                    event: stopped,
                },
            ));
        }
        if self.kind == Kind::OwnTransaction {
            // Flag and effect are one transaction; refused by the fence, both are rolled back.
            let mut world = self.clone();
            let row = world.row.as_mut().unwrap();
            if row.apply(Event::Committed { attempt }, None).is_ok() {
                world.effects += 1;
                world.sent[index(attempt)] = Sent::Applied;
                worlds.push(world.step(who, Step::Waiting { attempt }));
                // It fails after it has committed, and says so as well as it can.
                worlds.push(world.step(
                    who,
                    Step::Answered {
                        attempt,
                        event: unsent,
                    },
                ));
            }
            return;
        }
        let mut world = self.step(who, Step::Waiting { attempt });
        world.sent[index(attempt)] = Sent::OnItsWay;
        worlds.push(world);
    }

    fn receive(&self, who: usize, attempt: u32, worlds: &mut Vec<Self>) {
        let events: &[Event] = match self.sent(attempt) {
            Sent::No | Sent::OnItsWay | Sent::Gone => &[],
            Sent::Applied => &[Event::Succeeded { attempt }],
            Sent::AppliedBadly => &[Event::Refused {
                attempt,
                effect_none: false,
            }],
            Sent::Rejected => &[
                Event::Refused {
                    attempt,
                    effect_none: false,
                },
                Event::Refused {
                    attempt,
                    effect_none: true,
                },
            ],
            Sent::Asked => &[Event::Asked {
                attempt,
                effect_none: true,
            }],
        };
        for event in events {
            worlds.push(self.step(
                who,
                Step::Answered {
                    attempt,
                    event: *event,
                },
            ));
        }
    }

    fn record(&self, who: usize, attempt: u32, event: Event, worlds: &mut Vec<Self>) {
        let mut world = self.clone();
        let row = world.row.as_mut().unwrap();
        let carries_answer = match event {
            Event::Succeeded { .. } | Event::Refused { .. } => true,
            Event::Admitted { .. }
            | Event::Executed { .. }
            | Event::Taken { .. }
            | Event::Committed { .. }
            | Event::NotApplied { .. }
            | Event::Lost { .. }
            | Event::Asked { .. }
            | Event::Abandoned
            | Event::CancelRequested
            | Event::Stopped { .. }
            | Event::Resolved { .. } => false,
        };
        let was_finished = row.status.state.is_finished();
        let dispatched = world.kind.mode() == Mode::Dispatched;
        let answer = (carries_answer && !dispatched).then_some(attempt);
        let recorded = row.apply(event, answer);
        if recorded.is_err() && event == (Event::NotApplied { attempt }) {
            // It failed after its write was committed.
            let event = Event::Lost { attempt };
            worlds.push(self.step(who, Step::Answered { attempt, event }));
            return;
        }
        // Recorded, and the answer of the store lost: it records again, which must change nothing.
        if recorded.is_ok() {
            let row = world.row.clone();
            let mut again = row.clone().unwrap();
            assert_eq!(
                again.apply(event, answer),
                Ok(()),
                "repeated: {event:?} {self:#?}"
            );
            assert_eq!(Some(again), row, "repeated: {event:?} {self:#?}");
        }
        let row = world.row.as_ref().unwrap();
        let asked =
            matches!(event, Event::Asked { .. }) && row.status.state == State::InputRequired;
        let finished_by_this = !was_finished && row.status.state.is_finished();
        let mut over = world.call_over(who);
        if asked {
            over.callers[who].inputs = Some(u8::try_from(who).unwrap() + 1);
        }
        // The caller of a late answer is gone; a caller in time is given the answer.
        if recorded.is_ok() && finished_by_this && answer.is_some() {
            over.acknowledged = answer;
        }
        worlds.push(over);
        if matches!(event, Event::Lost { .. }) {
            worlds.push(world.step(who, Step::Listening { attempt }));
        }
    }

    fn upstream_steps(&self, worlds: &mut Vec<Self>) {
        for (at, sent) in self.sent.iter().enumerate() {
            if *sent != Sent::OnItsWay {
                continue;
            }
            let mut with = |sent, effects| {
                let mut world = self.clone();
                world.sent[at] = sent;
                world.effects += effects;
                worlds.push(world);
            };
            let asks = self.kind == Kind::Asking && self.carried[at].is_none();
            if asks {
                with(Sent::Asked, 0);
            }
            let done = self.effects > 0 && self.kind == Kind::ProviderKey;
            // Under a provider key the second request finds the first one's work.
            with(Sent::Applied, u8::from(!done));
            with(Sent::Gone, 0);
            if !done {
                with(Sent::Rejected, 0);
            }
            // A question says it all but for this, which the walk without questions has.
            if !done && self.kind != Kind::Asking {
                with(Sent::AppliedBadly, 1);
            }
        }
    }

    fn row_steps(&self, worlds: &mut Vec<Self>) {
        if self.window_open {
            let mut world = self.clone();
            world.window_open = false;
            worlds.push(world);
        }
        let Some(row) = &self.row else {
            return;
        };
        let mut with = |event| {
            let mut world = self.clone();
            if world.row.as_mut().unwrap().apply(event, None).is_ok() {
                worlds.push(world);
            }
        };
        with(Event::CancelRequested);
        // Whoever resolves says what is so, once nothing more can come.
        if self.effects > 0 {
            with(Event::Resolved {
                verdict: Verdict::Happened,
            });
        } else if !self.may_still_happen() && self.held().next().is_none() {
            with(Event::Resolved {
                verdict: Verdict::NotHappened,
            });
        }
        match row.status.state {
            State::Running | State::CancelRequested | State::InputRequired => {
                let mut world = self.clone();
                if row.lapsed {
                    // The sweeper finds it, or its holder renews in time.
                    world.record_overdue();
                    worlds.push(world.clone());
                    world.row.clone_from(&self.row);
                }
                world.row.as_mut().unwrap().lapsed = !row.lapsed;
                worlds.push(world);
            }
            State::Free
            | State::Accepted
            | State::Succeeded
            | State::Failed
            | State::Cancelled
            | State::OutcomeUnknown => {}
        }
    }

    fn record_overdue(&mut self) {
        let kind = self.kind;
        if let Some(row) = &mut self.row
            && let Some(event) = row.receipt(kind).overdue(NOW)
        {
            row.apply(event, None).unwrap();
        }
    }
}

const fn maybe(sent: Sent) -> bool {
    match sent {
        Sent::OnItsWay | Sent::Applied | Sent::AppliedBadly => true,
        Sent::No | Sent::Rejected | Sent::Asked | Sent::Gone => false,
    }
}

fn index(attempt: u32) -> usize {
    usize::try_from(attempt).unwrap() - 1
}
