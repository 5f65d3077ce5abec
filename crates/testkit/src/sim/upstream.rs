//! What is called: a guarded upstream that is not ours, a guarded handler of our own that marks
//! its commits, and an atomic handler. Each tells the truth what it did.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use counterfoil_core::{OperationId, Reply};
use counterfoil_engine::{Attempt, Outcome, TxHandler};
use counterfoil_store::{BoxFuture, Error, Failure, Sql, Value, transact};

use super::process::Process;
use super::world::World;

pub(super) const INSERT: &str = "INSERT INTO effects (operation, call) VALUES ($1, $2)";

/// One call as the upstream sees it.
#[derive(Clone)]
pub(super) struct Request {
    pub(super) world: Arc<World>,
    pub(super) process: Process,
    /// The number of this very call.
    pub(super) call: u64,
    /// What every answer to it begins with: whose it is and what was asked.
    pub(super) label: String,
    /// It answers a question.
    pub(super) has_inputs: bool,
    /// The handler of this very call began.
    pub(super) began: Arc<AtomicBool>,
}

impl Request {
    pub(super) fn reply(&self, status: u16, what: &str) -> Reply {
        let serial = self.world.serial();
        Reply {
            status,
            content_type: None,
            headers: Vec::new(),
            body: format!("{}|{what}|{serial}", self.label)
                .into_bytes()
                .into(),
        }
    }

    async fn pause(&self, millis_max: u64) {
        let time = Duration::from_millis(self.world.roll(millis_max));
        tokio::time::sleep(time).await;
        self.process.life.checkpoint().await;
    }

    fn begin(&self, attempt: Attempt) {
        self.began.store(true, Ordering::SeqCst);
        let (id, number) = (attempt.fence.operation_id, attempt.fence.attempt);
        self.world.trace(|| {
            format!(
                "  handler of call {} begins {id} attempt {number}",
                self.call
            )
        });
        let reserved = self.world.truth(|truth| truth.reserved.get(&id).copied());
        if reserved.is_none_or(|latest| latest < number) {
            let what = format!("I1: {id} attempt {number} began without a reservation");
            self.world.violation(what);
        }
        if self.world.is_auditing() {
            let call = self.call;
            self.world
                .violation(format!("I2: {id} ran once more in the audit (call {call})"));
        }
        self.world.truth(|truth| {
            let latest = truth.begun.insert(id, number).unwrap_or(0);
            if number <= latest {
                truth
                    .violations
                    .push(format!("I1: {id} attempt {number} began after {latest}"));
            }
        });
    }

    /// The first byte goes out.
    fn send(&self, attempt: Attempt) {
        let (id, number) = (attempt.fence.operation_id, attempt.fence.attempt);
        self.world.truth(|truth| {
            let sent = truth.sent.entry(id).or_default();
            sent.push(number);
            if sent.len() > 1 {
                let sent = format!("{sent:?}");
                truth
                    .violations
                    .push(format!("I1: {id} was sent by the attempts {sent}"));
            }
        });
    }

    fn effect(&self, id: OperationId) {
        self.world.trace(|| format!("  EFFECT of {id}"));
        self.world.truth(|truth| {
            let count = truth.counted.entry(id).or_default();
            *count += 1;
            let count = *count;
            if count > 1 {
                truth
                    .violations
                    .push(format!("I1: {id} has {count} effects"));
            }
        });
    }

    /// Somebody else's upstream.
    pub(super) async fn guarded(self, attempt: Attempt) -> Outcome {
        self.process.life.checkpoint().await;
        self.begin(attempt);
        let id = attempt.fence.operation_id;
        self.pause(300).await;
        match self.world.roll(20) {
            0..=2 => return Outcome::NotApplied(self.reply(502, "refused connection")),
            3 | 4 if !self.has_inputs => {
                return Outcome::Asked {
                    reply: self.reply(402, "question"),
                    effect_none: true,
                    question_for: Duration::from_secs(60),
                };
            }
            _ => {}
        }
        self.send(attempt);
        // Now and then beyond the hard deadline, and beyond listening.
        let slow = match self.world.roll(12) {
            0 => 100_000,
            1 | 2 => 30_000,
            _ => 800,
        };
        self.pause(slow).await;
        match self.world.roll(10) {
            0 => Outcome::Lost { timed_out: false },
            1 => Outcome::Refused {
                reply: self.reply(422, "refused"),
                effect_none: true,
            },
            2 => {
                if self.world.roll(2) == 0 {
                    self.effect(id);
                }
                Outcome::Refused {
                    reply: self.reply(400, "refused"),
                    effect_none: false,
                }
            }
            3 => {
                self.effect(id);
                self.pause(500).await;
                Outcome::Failed(self.reply(500, "broke"))
            }
            4 => {
                self.effect(id);
                self.pause(500).await;
                Outcome::Lost { timed_out: true }
            }
            _ => {
                self.effect(id);
                self.pause(500).await;
                Outcome::Succeeded(self.reply(201, "made"))
            }
        }
    }

    /// A handler of our own, whose only effect lies in a transaction that sets the flag.
    pub(super) async fn marked(self, attempt: Attempt) -> Outcome {
        self.process.life.checkpoint().await;
        self.begin(attempt);
        self.pause(300).await;
        if self.world.roll(8) == 0 {
            return Outcome::Failed(self.reply(503, "failed before"));
        }
        let fence = attempt.fence;
        let call = self.call;
        let store = Arc::clone(self.process.engine.store());
        let written = transact(&*store, None, move |tx| {
            Box::pin(async move {
                let values = [
                    Value::from(fence.operation_id.to_string()),
                    Value::from(call.to_string()),
                ];
                tx.execute(INSERT, &values).await?;
                tx.mark_committed(fence).await
            })
        })
        .await;
        self.pause(300).await;
        match written {
            Ok(()) if self.world.roll(5) == 0 => Outcome::Failed(self.reply(500, "failed after")),
            Ok(()) => Outcome::Succeeded(self.reply(201, "made")),
            Err(_) => Outcome::Failed(self.reply(500, "was not written")),
        }
    }
}

/// The atomic handler of a request.
pub(super) struct AtomicRequest(pub(super) Request);

impl TxHandler for AtomicRequest {
    fn call<'t>(
        &'t self,
        operation_id: Option<OperationId>,
        tx: &'t mut dyn Sql,
    ) -> BoxFuture<'t, Result<Reply, Failure>> {
        Box::pin(async move {
            let request = &self.0;
            let id = operation_id.unwrap();
            request.began.store(true, Ordering::SeqCst);
            if request.world.is_auditing() {
                let call = request.call;
                request
                    .world
                    .violation(format!("I2: {id} ran once more in the audit (call {call})"));
            }
            let values = [
                Value::from(id.to_string()),
                Value::from(request.call.to_string()),
            ];
            tx.execute(INSERT, &values).await?;
            match request.world.roll(10) {
                0 => Err(Failure::Refused(request.reply(409, "refused"))),
                1 => Err(Failure::Aborted(request.reply(503, "aborted"))),
                2 => Err(Failure::Store(Error::Statement("as planned".to_owned()))),
                _ => Ok(request.reply(201, "made")),
            }
        })
    }
}
