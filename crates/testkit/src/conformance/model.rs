//! Seeded histories of steps, on the store under test and on the memory store beside it: both
//! say the same at every step.

use std::sync::Arc;
use std::time::Duration;

use counterfoil_core::{
    Decision, Event, EventRecord, Kept, OperationId, Receipt, Retention, Timestamp, Verdict,
};
use counterfoil_store::{
    Admission, Admitted, Atomic, Completion, Error, Fence, Found, Query, Store, StoredReply,
    SweepPlan,
};

use super::Subject;
use super::scene::{
    End, Note, START, atomic, create_table, effects, guarded, note, stored, with_body, with_inputs,
};
use crate::{MemoryStore, Seeded};

const HISTORIES: u64 = 60;
const STEPS: u64 = 60;

pub async fn seeded_histories_agree_with_the_model(subject: Subject) {
    let tested = subject.open().await;
    let model: Arc<dyn Store> = Arc::new(MemoryStore::new());
    create_table(&*tested).await;
    create_table(&*model).await;
    run_histories([&tested, &model], HISTORIES).await;
    assert_eq!(effects(&*tested, "n").await, effects(&*model, "n").await);
}

/// Runs seeded histories on two stores, which must agree at every step.
pub(super) async fn run_histories(pair: [&Arc<dyn Store>; 2], histories: u64) {
    for seed in 0..histories {
        let mut history = History {
            pair: pair.map(Arc::clone),
            seed,
            dice: Seeded::new(seed),
            now: START,
            fences: Vec::new(),
            admissions: Vec::new(),
        };
        for step in 0..STEPS {
            history.step(step).await;
        }
    }
}

struct History {
    pair: [Arc<dyn Store>; 2],
    seed: u64,
    dice: Seeded,
    now: Timestamp,
    fences: Vec<Fence>,
    admissions: Vec<(Admission, Option<Note>)>,
}

/// What a step said, in a form that can be compared.
#[derive(Debug, PartialEq)]
enum Said {
    Run(Fence, u16, Timestamp, Timestamp),
    Decided(Decision, Box<Found>),
    Ran(Box<Receipt>, Vec<u8>),
    Aborted(Vec<u8>),
    Own(Box<Found>),
    Held,
    Receipt(Box<Receipt>),
    Until(Timestamp),
    Count(u64, u64),
    List(Vec<OperationId>),
}

/// Whether a lapsed lease was recorded a moment ago or this moment is the same to a caller.
fn seen(decision: Decision) -> Decision {
    if let Decision::Unknown { retryable, .. } = decision {
        Decision::Unknown {
            lapsed: false,
            retryable,
        }
    } else {
        decision
    }
}

fn of_admitted(admitted: Admitted) -> Said {
    match admitted {
        Admitted::Run(granted) => Said::Run(
            granted.fence,
            granted.round,
            granted.lease_until,
            granted.hard_deadline,
        ),
        Admitted::Decided(decision, found) => of_decision(decision, found),
        Admitted::Held => Said::Held,
    }
}

/// The question of an earlier round has a method of its own to be had by.
fn of_decision(decision: Decision, mut found: Box<Found>) -> Said {
    if matches!(decision, Decision::ReplayQuestion { round } if round != found.receipt.status.round)
    {
        found.reply = None;
    }
    Said::Decided(seen(decision), found)
}

fn of_atomic(atomic: Atomic) -> Said {
    match atomic {
        Atomic::Ran(receipt, reply) => Said::Ran(receipt, reply.body.to_vec()),
        Atomic::Aborted(reply) => Said::Aborted(reply.body.to_vec()),
        Atomic::Decided(decision, found) => of_decision(decision, found),
        Atomic::Own(found) => Said::Own(found),
        Atomic::Held => Said::Held,
    }
}

/// Errors are compared by their kind; their words are the store's own.
fn kind(error: &Error) -> String {
    match error {
        Error::Busy { .. } => "busy".to_owned(),
        Error::Unavailable(_) => "unavailable".to_owned(),
        Error::Corrupt(_) => "corrupt".to_owned(),
        Error::Handler(_) => "handler".to_owned(),
        Error::Statement(_) => "statement".to_owned(),
        Error::Fenced(illegal) => format!("fenced: {illegal}"),
        Error::NotFound | Error::CommitUnknown | Error::RolledBack | Error::Quota { .. } => {
            error.to_string()
        }
    }
}

impl History {
    fn later(&mut self) {
        let seconds = match self.dice.below(12) {
            0 => 35,
            1 => 130,
            2 => 700,
            3 => 3 * 24 * 3600,
            4 => 31 * 24 * 3600,
            _ => self.dice.below(4),
        };
        self.now = self.now.plus(Duration::from_secs(seconds));
        if self.dice.chance(4) {
            let back = i64::try_from(self.dice.below(3_000_000_000)).unwrap();
            self.now = Timestamp::from_millis(self.now.as_millis() - back);
        }
    }

    async fn step(&mut self, step: u64) {
        self.later();
        let (what, said) = match self.dice.below(20) {
            0..=6 => self.admit().await,
            7..=9 => self.run_atomically().await,
            10..=14 => self.complete().await,
            15 => self.renew().await,
            16 => self.lapse().await,
            17 => self.record().await,
            18 => self.sweep().await,
            _ => self.list().await,
        };
        let [tested, model] = said.map(|said| said.map_err(|error| kind(&error)));
        let place = format!("seed {} step {step}: {what}", self.seed);
        assert_eq!(tested, model, "{place}");
        self.compare_rows(&place).await;
    }

    /// The row and the log of every operation this history knows of.
    async fn compare_rows(&self, place: &str) {
        let mut ids: Vec<_> = self.fences.iter().map(|fence| fence.operation_id).collect();
        ids.sort_unstable();
        ids.dedup();
        let recent = ids.split_off(ids.len().saturating_sub(3));
        for id in recent {
            let [tested, model] = [&self.pair[0], &self.pair[1]];
            let rows = (tested.get(id).await, model.get(id).await);
            assert_eq!(rows.0, rows.1, "{place}: {id}");
            let logs = (tested.events(id).await, model.events(id).await);
            assert_eq!(told(logs.0), told(logs.1), "{place}: the log of {id}");
        }
    }

    fn base(&mut self, mode: fn(&str, Timestamp) -> Admission) -> Admission {
        let key = format!("m{}-{}", self.seed, self.dice.below(3));
        let mut admission = mode(&key, self.now);
        admission.policy.retention = if self.dice.chance(50) {
            Retention::default()
        } else {
            Retention {
                replay_for: Duration::from_secs(2 * 24 * 3600),
                tombstone_for: Duration::ZERO,
            }
        };
        if self.dice.chance(10) {
            admission = with_body("another", admission);
        }
        if self.dice.chance(25) {
            let inputs = u8::try_from(self.dice.below(3)).unwrap();
            admission = with_inputs(inputs, admission);
        }
        admission
    }

    /// An admission sent earlier, now and then.
    fn repeated(&mut self) -> Option<(Admission, Option<Note>)> {
        if !self.dice.chance(20) {
            return None;
        }
        let mut earlier = self.dice.pick(&self.admissions).cloned()?;
        earlier.0.now = self.now;
        Some(earlier)
    }

    async fn admit(&mut self) -> (String, [Result<Said, Error>; 2]) {
        let admission = match self.repeated() {
            Some((admission, None)) => admission,
            Some((_, Some(_))) | None => self.base(guarded),
        };
        self.admissions.push((admission.clone(), None));
        let said = [
            self.pair[0].admit(admission.clone()).await.map(of_admitted),
            self.pair[1].admit(admission.clone()).await.map(of_admitted),
        ];
        self.remember(&said[1]);
        (format!("admit {admission:?}"), said)
    }

    async fn run_atomically(&mut self) -> (String, [Result<Said, Error>; 2]) {
        let (admission, handler) = match self.repeated() {
            Some((admission, Some(handler))) => (admission, handler),
            Some((_, None)) | None => {
                let mut admission = self.base(atomic);
                admission.inputs = None;
                let end = match self.dice.below(7) {
                    0 => End::Refusal,
                    1 => End::Abort,
                    2 => End::StoreError,
                    3 => End::TooLarge,
                    4 => End::Redacted,
                    _ => End::Success,
                };
                (admission, note("n", end))
            }
        };
        self.admissions
            .push((admission.clone(), Some(handler.clone())));
        let mut said = Vec::new();
        for store in &self.pair {
            let handler = Arc::new(handler.clone());
            said.push(
                store
                    .atomically(admission.clone(), handler)
                    .await
                    .map(of_atomic),
            );
        }
        let said: [Result<Said, Error>; 2] = said.try_into().unwrap();
        self.remember(&said[1]);
        (format!("atomically {admission:?} {handler:?}"), said)
    }

    fn remember(&mut self, said: &Result<Said, Error>) {
        let fence = match said {
            Ok(Said::Run(fence, ..)) => *fence,
            Ok(Said::Decided(_, found) | Said::Own(found)) => of_receipt(&found.receipt),
            Ok(Said::Ran(receipt, _) | Said::Receipt(receipt)) => of_receipt(receipt),
            Ok(
                Said::Aborted(_) | Said::Held | Said::Until(_) | Said::Count(..) | Said::List(_),
            )
            | Err(_) => return,
        };
        self.fences.push(fence);
    }

    fn fence(&mut self) -> Fence {
        let recent = self.fences.len().saturating_sub(6);
        let known = self.dice.pick(&self.fences[recent..]).copied();
        let unknown = Fence {
            operation_id: super::scene::operation_id(self.now),
            attempt: 1,
        };
        let mut fence = known.unwrap_or(unknown);
        if self.dice.chance(10) {
            fence.attempt = fence.attempt.wrapping_add(1);
        }
        fence
    }

    async fn complete(&mut self) -> (String, [Result<Said, Error>; 2]) {
        let fence = self.fence();
        let attempt = fence.attempt;
        let effect_none = self.dice.chance(50);
        let event = match self.dice.below(9) {
            0 => Event::NotApplied { attempt },
            1 => Event::Lost { attempt },
            2 => Event::Refused {
                attempt,
                effect_none,
            },
            3 | 4 => Event::Asked {
                attempt,
                effect_none,
            },
            5 => Event::Stopped { attempt },
            _ => Event::Succeeded { attempt },
        };
        let completion = Completion {
            reply: self.reply(event),
            event,
            kept: *self.dice.pick(&[Kept::TooLarge, Kept::AnswerLost]).unwrap(),
            at: self.now,
            reason: "as told by the history",
            evidence: None,
            question_for: Duration::from_secs(600),
        };
        let said = [
            self.pair[0].complete(fence, completion.clone()).await,
            self.pair[1].complete(fence, completion.clone()).await,
        ];
        let said = said.map(|said| said.map(|receipt| Said::Receipt(Box::new(receipt))));
        (format!("complete {fence:?} {completion:?}"), said)
    }

    fn reply(&mut self, event: Event) -> Option<StoredReply> {
        let body = format!("{}", self.dice.below(100));
        match event {
            Event::Asked { .. } => Some(stored(&body)),
            Event::Succeeded { .. } | Event::Refused { .. } => {
                self.dice.chance(80).then(|| stored(&body))
            }
            Event::NotApplied { .. }
            | Event::Lost { .. }
            | Event::Stopped { .. }
            | Event::Admitted { .. }
            | Event::Executed { .. }
            | Event::Taken { .. }
            | Event::Committed { .. }
            | Event::Abandoned
            | Event::CancelRequested
            | Event::Resolved { .. } => None,
        }
    }

    async fn renew(&mut self) -> (String, [Result<Said, Error>; 2]) {
        let fence = self.fence();
        let lease = Duration::from_secs(self.dice.below(200));
        let now = self.now;
        let said = [
            self.pair[0].renew(fence, now, lease).await.map(Said::Until),
            self.pair[1].renew(fence, now, lease).await.map(Said::Until),
        ];
        (format!("renew {fence:?} {now:?} {lease:?}"), said)
    }

    async fn lapse(&mut self) -> (String, [Result<Said, Error>; 2]) {
        // Everything at once: which ones a bounded step takes first is the store's own affair.
        let count = |count: u32| Said::Count(u64::from(count), 0);
        let said = [
            self.pair[0].lapse(self.now, 10_000).await.map(count),
            self.pair[1].lapse(self.now, 10_000).await.map(count),
        ];
        (format!("lapse {:?}", self.now), said)
    }

    async fn record(&mut self) -> (String, [Result<Said, Error>; 2]) {
        let id = self.fence().operation_id;
        let event = match self.dice.below(4) {
            0 => Event::Resolved {
                verdict: Verdict::Happened,
            },
            1 => Event::Resolved {
                verdict: Verdict::NotHappened,
            },
            _ => Event::CancelRequested,
        };
        let mut said = Vec::new();
        for store in &self.pair {
            let reason = "a person".to_owned();
            let recorded = store.record(id, event, self.now, reason, None).await;
            said.push(recorded.map(|receipt| Said::Receipt(Box::new(receipt))));
        }
        (format!("record {id} {event:?}"), said.try_into().unwrap())
    }

    async fn sweep(&mut self) -> (String, [Result<Said, Error>; 2]) {
        let plan = SweepPlan {
            horizon: self.now,
            limit: 100_000,
            after: 0,
        };
        let mut said = Vec::new();
        for store in &self.pair {
            let swept = store.sweep(plan).await;
            said.push(swept.map(|swept| Said::Count(swept.results, swept.receipts)));
        }
        (format!("sweep {plan:?}"), said.try_into().unwrap())
    }

    async fn list(&mut self) -> (String, [Result<Said, Error>; 2]) {
        let query = Query {
            workspace: super::scene::identity("k").workspace,
            principal: None,
            states: Vec::new(),
            cursor: None,
            limit: 20,
        };
        let mut said = Vec::new();
        for store in &self.pair {
            let page = store.list(&query).await;
            said.push(page.map(|page| {
                Said::List(page.receipts.iter().map(|row| row.operation_id).collect())
            }));
        }
        ("list".to_owned(), said.try_into().unwrap())
    }
}

fn of_receipt(receipt: &Receipt) -> Fence {
    Fence {
        operation_id: receipt.operation_id,
        attempt: receipt.status.attempts.latest(),
    }
}

type Told = (
    Timestamp,
    u32,
    Option<counterfoil_core::State>,
    counterfoil_core::State,
);

fn told(log: Result<Vec<EventRecord>, Error>) -> Vec<Told> {
    let log = log.unwrap();
    log.iter()
        .map(|event| (event.at, event.attempt, event.from, event.to))
        .collect()
}
