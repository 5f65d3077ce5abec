//! Every step fails and repeats in every way, one at a time: with one caller and its retries, and
//! with a second process that takes over from one that died. That the *chosen* step failed is
//! asserted, so that no case passes by missing its fault.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use counterfoil_core::{
    Fingerprint, Identity, Key, OperationId, Policy, PrincipalId, Reply, Target, Timestamp,
    WorkspaceId,
};
use counterfoil_engine::{Answer, Call, Engine, Operation, Outcome, Reason};
use counterfoil_store::{BoxFuture, Failure, Sql, Store, Value};
use counterfoil_testkit::{Chosen, Fault, FaultyStore, MemoryStore, Step, VirtualClock};

const SHORT: Duration = Duration::from_millis(40);

/// Faults after which the process goes on.
const SURVIVED: [Fault; 10] = [
    Fault::Busy,
    Fault::Unavailable,
    Fault::DoneUnknown,
    Fault::NotDoneUnknown,
    Fault::Delayed(SHORT),
    Fault::AnsweredLate(SHORT),
    Fault::Repeated,
    Fault::RepeatedLater(SHORT),
    Fault::UnknownDoneLater(SHORT),
    Fault::Held,
];
/// Faults in which it dies: before the step, and after it.
const DEADLY: [Fault; 2] = [Fault::NotDoneSilent, Fault::DoneSilent];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Guarded,
    Atomic,
}

struct Scene {
    memory: Arc<MemoryStore>,
    clock: Arc<VirtualClock>,
    sent: Arc<AtomicU32>,
    way: Way,
}

impl Scene {
    fn new(way: Way) -> Self {
        Self {
            memory: Arc::new(MemoryStore::new()),
            clock: Arc::new(VirtualClock::following_tokio(Timestamp::from_millis(
                1_800_000_000_000,
            ))),
            sent: Arc::new(AtomicU32::new(0)),
            way,
        }
    }

    fn engine(&self, store: Arc<dyn Store>) -> Engine {
        let clock = Arc::clone(&self.clock);
        Engine::builder(store).clock(clock).build()
    }

    fn effects(&self) -> usize {
        let sent = usize::try_from(self.sent.load(Ordering::SeqCst)).unwrap();
        sent + self.memory.effects().len()
    }

    async fn call(&self, engine: &Engine) -> Answer {
        let identity = Identity {
            workspace: WorkspaceId::new("w").unwrap(),
            principal: PrincipalId::new("p").unwrap(),
            target: Target::new("op"),
            key: Key::new("k").unwrap(),
        };
        let policy = Policy::default();
        let call = Call::new(
            identity,
            Fingerprint::raw("", b"body"),
            Operation::new(1, policy).unwrap(),
        );
        match self.way {
            Way::Guarded => {
                let sent = Arc::clone(&self.sent);
                let run = engine.run(call, move |_| async move {
                    sent.fetch_add(1, Ordering::SeqCst);
                    Outcome::Succeeded(reply())
                });
                run.await
            }
            Way::Atomic => engine.atomically(call, insert).await,
        }
    }
}

fn insert(_: Option<OperationId>, tx: &mut dyn Sql) -> BoxFuture<'_, Result<Reply, Failure>> {
    Box::pin(async move {
        tx.execute("INSERT INTO t (a) VALUES ($1)", &[Value::Int(1)])
            .await?;
        Ok(reply())
    })
}

fn reply() -> Reply {
    Reply {
        status: 201,
        content_type: None,
        headers: Vec::new(),
        body: b"made".as_slice().into(),
    }
}

fn carries(answer: &Answer) -> bool {
    match answer {
        Answer::Ran { reply: told, .. } | Answer::Replayed { reply: told, .. } => *told == reply(),
        Answer::Asked { .. }
        | Answer::Failed { .. }
        | Answer::NotRecorded { .. }
        | Answer::Refused(_) => false,
    }
}

fn says_that_nothing_was_done(answer: &Answer) -> bool {
    let Answer::Refused(refusal) = answer else {
        return false;
    };
    matches!(
        refusal.reason,
        Reason::Busy { .. } | Reason::Unavailable(_) | Reason::Quota { .. }
    )
}

fn steps(way: Way) -> Vec<Step> {
    match way {
        Way::Guarded => vec![Step::Find, Step::Admit, Step::Complete],
        Way::Atomic => vec![Step::Find, Step::Atomically],
    }
}

fn applies(step: Step, fault: Fault) -> bool {
    match fault {
        Fault::Busy
        | Fault::Unavailable
        | Fault::Delayed(_)
        | Fault::AnsweredLate(_)
        | Fault::NotDoneSilent => true,
        Fault::DoneUnknown
        | Fault::NotDoneUnknown
        | Fault::DoneSilent
        | Fault::UnknownDoneLater(_) => step.writes(),
        Fault::Repeated | Fault::RepeatedLater(_) => step.may_be_repeated(),
        Fault::Held => matches!(step, Step::Admit | Step::Atomically),
        Fault::None => false,
    }
}

fn assert_chosen(chosen: &[Chosen], step: Step, fault: Fault) {
    let told: Vec<_> = chosen
        .iter()
        .map(|chosen| (chosen.call.step, chosen.fault))
        .collect();
    assert_eq!(told, [(step, fault)], "the chosen step failed, and only it");
}

/// One fault, then retries of the same call: one effect, and the caller gets its answer.
#[tokio::test(start_paused = true)]
async fn i1_i2_one_fault_anywhere_and_a_retry_make_one_effect() {
    let mut cases = 0;
    for way in [Way::Guarded, Way::Atomic] {
        for step in steps(way) {
            for fault in SURVIVED.into_iter().filter(|fault| applies(step, *fault)) {
                let scene = Scene::new(way);
                let store = FaultyStore::once(Arc::clone(&scene.memory), step, 0, fault);
                let store = Arc::new(store);
                let engine = scene.engine(Arc::clone(&store) as Arc<dyn Store>);
                let mut answers = Vec::new();
                for _ in 0..3 {
                    let answer = scene.call(&engine).await;
                    if says_that_nothing_was_done(&answer) {
                        assert_eq!(scene.effects(), 0, "{way:?} {step:?} {fault:?}");
                    }
                    answers.push(answer);
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
                assert_chosen(&store.chosen(), step, fault);
                let case = format!("{way:?} {step:?} {fault:?}: {answers:?}");
                assert!(carries(answers.last().unwrap()), "{case}");
                assert_eq!(scene.effects(), 1, "{case}");
                cases += 1;
            }
        }
    }
    assert_eq!(cases, 37);
}

/// A process dies before or after any step; another one on the same store takes over.
#[tokio::test(start_paused = true)]
async fn i1_i3_i6_a_process_that_dies_at_any_step_leaves_one_effect_or_none() {
    let mut cases = 0;
    for way in [Way::Guarded, Way::Atomic] {
        for step in steps(way) {
            for fault in DEADLY.into_iter().filter(|fault| applies(step, *fault)) {
                let scene = Scene::new(way);
                let store = FaultyStore::once(Arc::clone(&scene.memory), step, 0, fault);
                let store = Arc::new(store);
                let dying = scene.engine(Arc::clone(&store) as Arc<dyn Store>);
                let first = tokio::time::timeout(Duration::from_secs(1), scene.call(&dying)).await;
                assert!(first.is_err(), "a dead process answers nothing: {first:?}");
                assert_chosen(&store.chosen(), step, fault);

                let other = scene.engine(Arc::clone(&scene.memory) as Arc<dyn Store>);
                let at_once = scene.call(&other).await;
                // Past the hard deadline, whatever the dead one held is settled.
                tokio::time::sleep(Duration::from_secs(200)).await;
                let later = scene.call(&other).await;
                let case = format!("{way:?} {step:?} {fault:?}: {at_once:?}, {later:?}");
                let reserved = way == Way::Guarded
                    && (step == Step::Complete && fault == Fault::NotDoneSilent
                        || step == Step::Admit && fault == Fault::DoneSilent);
                if reserved {
                    assert_eq!(refused_as(&at_once), "in progress", "{case}");
                    assert_eq!(refused_as(&later), "unknown", "{case}");
                    let sent = usize::from(step == Step::Complete);
                    assert_eq!(scene.effects(), sent, "{case}");
                } else {
                    assert!(carries(&at_once) && carries(&later), "{case}");
                    assert_eq!(scene.effects(), 1, "{case}");
                }
                cases += 1;
            }
        }
    }
    assert_eq!(cases, 8);
}

fn refused_as(answer: &Answer) -> &'static str {
    let Answer::Refused(refusal) = answer else {
        return "not refused";
    };
    match refusal.reason {
        Reason::InProgress { .. } => "in progress",
        Reason::Unknown { .. } => "unknown",
        Reason::Conflict
        | Reason::Committed { .. }
        | Reason::ResultUnavailable
        | Reason::NotHappened
        | Reason::Expired
        | Reason::Busy { .. }
        | Reason::Unavailable(_)
        | Reason::Quota { .. }
        | Reason::Denied
        | Reason::Internal(_) => "otherwise",
    }
}

/// Two callers with one key in two processes, and one of the two dies at any step.
#[tokio::test(start_paused = true)]
async fn i1_two_callers_with_one_key_make_one_effect_whoever_dies() {
    for way in [Way::Guarded, Way::Atomic] {
        for step in steps(way) {
            for fault in SURVIVED
                .into_iter()
                .chain(DEADLY)
                .filter(|fault| applies(step, *fault))
            {
                let scene = Scene::new(way);
                let store = FaultyStore::once(Arc::clone(&scene.memory), step, 0, fault);
                let store = Arc::new(store);
                let faulty = scene.engine(Arc::clone(&store) as Arc<dyn Store>);
                let sound = scene.engine(Arc::clone(&scene.memory) as Arc<dyn Store>);
                let bound = Duration::from_secs(30);
                let (first, second) = tokio::join!(
                    tokio::time::timeout(bound, scene.call(&faulty)),
                    tokio::time::timeout(bound, scene.call(&sound)),
                );
                let case = format!("{way:?} {step:?} {fault:?}: {first:?}, {second:?}");
                assert!(scene.effects() <= 1, "{case}");
                let told = [first, second.map_err(|_| panic!("the sound one answers"))];
                for answer in told.iter().flatten().filter(|answer| carries(answer)) {
                    assert_eq!(scene.effects(), 1, "{case}: {answer:?}");
                }
                // Whatever happened, one more call after everything has lapsed does not add to it.
                tokio::time::sleep(Duration::from_secs(200)).await;
                let last = scene.call(&sound).await;
                assert!(scene.effects() <= 1, "{case}, {last:?}");
                if carries(&last) {
                    assert_eq!(scene.effects(), 1, "{case}, {last:?}");
                }
            }
        }
    }
}
