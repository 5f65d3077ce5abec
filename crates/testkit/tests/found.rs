//! What the simulator found, each as a case of its own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use counterfoil_core::{
    Fingerprint, Identity, Key, OperationId, Policy, PrincipalId, Reply, Retention, Target,
    Timestamp, WorkspaceId,
};
use counterfoil_engine::{Answer, Authority, Call, Denied, Engine, Operation, Outcome, Reason};
use counterfoil_store::{BoxFuture, Failure, Sql, Store, Value, transact};
use counterfoil_testkit::{Fault, FaultyStore, MemoryStore, Step, VirtualClock};

const DAY_MS: i64 = 24 * 3600 * 1000;

#[derive(Default)]
struct Credential {
    revoked: AtomicBool,
}

impl Authority for Credential {
    fn check(&self) -> BoxFuture<'_, Result<(), Denied>> {
        let revoked = self.revoked.load(Ordering::SeqCst);
        Box::pin(std::future::ready(if revoked {
            Err(Denied::Withdrawn)
        } else {
            Ok(())
        }))
    }
}

fn clock() -> Arc<VirtualClock> {
    let start = Timestamp::from_millis(1_800_000_000_000);
    Arc::new(VirtualClock::following_tokio(start))
}

fn engine(store: Arc<dyn Store>, clock: &Arc<VirtualClock>) -> Engine {
    let clock = Arc::clone(clock);
    Engine::builder(store).clock(clock).build()
}

fn call(policy: Policy) -> Call {
    let identity = Identity {
        workspace: WorkspaceId::new("w").unwrap(),
        principal: PrincipalId::new("p").unwrap(),
        target: Target::new("op"),
        key: Key::new("k").unwrap(),
    };
    let operation = Operation::new(1, policy).unwrap();
    Call::new(identity, Fingerprint::raw("", b"body"), operation)
}

fn reply(body: &str) -> Reply {
    Reply {
        status: 201,
        content_type: None,
        headers: Vec::new(),
        body: body.as_bytes().to_vec().into(),
    }
}

fn insert(_: Option<OperationId>, tx: &mut dyn Sql) -> BoxFuture<'_, Result<Reply, Failure>> {
    Box::pin(async move {
        tx.execute("INSERT INTO t (a) VALUES ($1)", &[Value::Int(1)])
            .await?;
        Ok(reply("made"))
    })
}

fn reason(answer: &Answer) -> &Reason {
    match answer {
        Answer::Refused(refusal) => &refusal.reason,
        Answer::Ran { .. }
        | Answer::Replayed { .. }
        | Answer::Asked { .. }
        | Answer::Failed { .. }
        | Answer::NotRecorded { .. } => panic!("expected a refusal, got {answer:?}"),
    }
}

/// After a commit whose answer was lost, `Busy` says nothing about it.
#[tokio::test(start_paused = true)]
async fn i3_busy_after_a_lost_commit_is_not_told_as_nothing_done() {
    let memory = Arc::new(MemoryStore::new());
    let tries = AtomicU64::new(0);
    let store = FaultyStore::new(Arc::clone(&memory), move |seen| {
        if seen.step != Step::Atomically {
            return Fault::None;
        }
        match tries.fetch_add(1, Ordering::SeqCst) {
            0 => Fault::DoneUnknown,
            1 => Fault::Busy,
            2 => Fault::Unavailable,
            _ => Fault::None,
        }
    });
    let store = Arc::new(store);
    let engine = engine(Arc::clone(&store) as Arc<dyn Store>, &clock());
    let answer = engine.atomically(call(Policy::atomic()), insert).await;
    assert_eq!(memory.effects().len(), 1);
    match answer {
        Answer::Ran { reply: told, .. } | Answer::Replayed { reply: told, .. } => {
            assert_eq!(told, reply("made"));
        }
        Answer::Refused(refusal) => {
            assert!(
                matches!(refusal.reason, Reason::Unknown { .. }),
                "{refusal:?}"
            );
        }
        Answer::Asked { .. } | Answer::Failed { .. } | Answer::NotRecorded { .. } => {
            panic!("{answer:?}")
        }
    }
}

/// Runs one call, then asks again while `step` takes a second, in which the authorization is
/// withdrawn.
async fn withdrawn_during(step: Step, nth: u64) {
    let memory = Arc::new(MemoryStore::new());
    let clock = clock();
    let delay = Fault::Delayed(Duration::from_secs(1));
    let store = FaultyStore::once(Arc::clone(&memory), step, nth, delay);
    let store = Arc::new(store);
    let slow = engine(Arc::clone(&store) as Arc<dyn Store>, &clock);
    let credential = Arc::new(Credential::default());
    let asked = Call {
        authority: Arc::clone(&credential) as Arc<dyn Authority>,
        ..call(Policy::atomic())
    };
    let sound = engine(memory, &clock);
    let asking = slow.atomically(asked, insert);
    let meanwhile = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let first = sound.atomically(call(Policy::atomic()), insert).await;
        assert!(matches!(first, Answer::Ran { .. }), "{first:?}");
        credential.revoked.store(true, Ordering::SeqCst);
    };
    let (answer, ()) = tokio::join!(asking, meanwhile);
    assert_eq!(store.chosen().len(), 1, "the chosen step was slow");
    assert_eq!(*reason(&answer), Reason::Denied);
}

/// Contract §8: a revoked principal gets no replay, also if it was revoked while the look-up ran.
#[tokio::test(start_paused = true)]
async fn i4_a_replay_by_a_slow_look_up_is_authorized_again() {
    withdrawn_during(Step::Find, 0).await;
}

/// The same where the writer says so.
#[tokio::test(start_paused = true)]
async fn i4_a_replay_by_the_writer_is_authorized_again() {
    withdrawn_during(Step::Atomically, 0).await;
}

/// A process that remembers an answer does not replay it over the one that another process gave
/// after it, when the clock had run on and came back.
#[tokio::test(start_paused = true)]
async fn i2_the_latest_acknowledged_answer_is_replayed_by_every_process() {
    let memory = Arc::new(MemoryStore::new());
    let clock = clock();
    let processes = [
        engine(Arc::clone(&memory) as Arc<dyn Store>, &clock),
        engine(memory, &clock),
    ];
    let serial = Arc::new(AtomicU64::new(0));
    let ask = async |process: usize| {
        let policy = Policy {
            retention: Retention {
                replay_for: Duration::from_secs(2 * 24 * 3600),
                tombstone_for: Duration::ZERO,
            },
            ..Policy::default()
        };
        let serial = Arc::clone(&serial);
        let answer = processes[process].run(call(policy), move |_| async move {
            let number = serial.fetch_add(1, Ordering::SeqCst);
            Outcome::Succeeded(reply(&format!("answer {number}")))
        });
        match answer.await {
            Answer::Ran { reply, .. } | Answer::Replayed { reply, .. } => reply,
            other @ (Answer::Asked { .. }
            | Answer::Failed { .. }
            | Answer::NotRecorded { .. }
            | Answer::Refused(_)) => panic!("{other:?}"),
        }
    };
    assert_eq!(ask(0).await, reply("answer 0"));
    assert_eq!(ask(0).await, reply("answer 0"));
    clock.jump_ms(3 * DAY_MS);
    assert_eq!(ask(1).await, reply("answer 1"));
    clock.jump_ms(-3 * DAY_MS);
    assert_eq!(ask(1).await, reply("answer 1"));
    assert_eq!(ask(0).await, reply("answer 1"));
}

/// A row that was settled without its answer (the lease lapsed after the commit) has no place for
/// the answer that comes then: whoever gets it is told that it is not recorded.
#[tokio::test(start_paused = true)]
async fn i2_an_answer_that_found_its_row_settled_is_told_as_not_recorded() {
    let memory = Arc::new(MemoryStore::new());
    let clock = clock();
    let engine = engine(Arc::clone(&memory) as Arc<dyn Store>, &clock);
    let ask = || {
        let (memory, clock) = (Arc::clone(&memory), Arc::clone(&clock));
        engine.run(call(Policy::default()), move |attempt| async move {
            let fence = attempt.fence;
            transact(&*memory, None, move |tx| {
                Box::pin(async move { tx.mark_committed(fence).await })
            })
            .await
            .unwrap();
            clock.jump_ms(60_000);
            let now = counterfoil_engine::Clock::now(&*clock);
            assert_eq!(memory.lapse(now, 10).await, Ok(1));
            Outcome::Succeeded(reply("made"))
        })
    };
    let first = ask().await;
    let second = ask().await;
    match first {
        Answer::NotRecorded { reply: told, .. } => {
            assert_eq!(told, reply("made"));
            assert_eq!(*reason(&second), Reason::Committed { retry_after: None });
        }
        // Or the row takes it in: then it is replayed.
        Answer::Ran { reply: told, .. } => match second {
            Answer::Replayed { reply: again, .. } => assert_eq!(told, again),
            Answer::Ran { .. }
            | Answer::Asked { .. }
            | Answer::Failed { .. }
            | Answer::NotRecorded { .. }
            | Answer::Refused(_) => panic!("acknowledged and not replayed: {second:?}"),
        },
        Answer::Replayed { .. }
        | Answer::Asked { .. }
        | Answer::Failed { .. }
        | Answer::Refused(_) => panic!("{first:?}"),
    }
}
