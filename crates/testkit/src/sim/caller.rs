use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use counterfoil_core::{
    Fingerprint, Identity, Key, OnError, OperationId, Policy, PrincipalId, Retention, Target,
    Timestamp, WorkspaceId,
};
use counterfoil_engine::{Answer, Authority, Call, Denied, Operation, Reason};
use counterfoil_store::BoxFuture;
use tokio::task::JoinHandle;

use super::truth::Acknowledged;
use super::upstream::{AtomicRequest, Request};
use super::world::{PRINCIPALS, World};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Which kind of operation is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Guarded,
    Marked,
    Atomic,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Guarded, Self::Marked, Self::Atomic];

    const fn name(self) -> &'static str {
        match self {
            Self::Guarded => "guarded",
            Self::Marked => "marked",
            Self::Atomic => "atomic",
        }
    }

    fn operation(self, forgets: bool) -> Arc<Operation> {
        let policy = Policy {
            lease: Duration::from_secs(5),
            attempt_limit: Duration::from_secs(20),
            wait_max: Duration::from_secs(30),
            on_error: match self {
                Self::Guarded | Self::Atomic => OnError::Unknown,
                Self::Marked => OnError::ReleaseUnlessCommitted,
            },
            retention: Retention {
                replay_for: 2 * DAY,
                tombstone_for: if forgets { Duration::ZERO } else { 29 * DAY },
            },
            ..Policy::default()
        };
        Operation::new(1, policy).unwrap()
    }
}

/// What a caller wants done. The key is chosen once, with it.
#[derive(Clone, Debug)]
struct Intention {
    kind: Kind,
    forgets: bool,
    principal: usize,
    key: u64,
    payload: u8,
}

impl Intention {
    fn roll(world: &World) -> Self {
        let kind = *[Kind::Guarded, Kind::Guarded, Kind::Marked, Kind::Atomic]
            .get(usize::try_from(world.roll(4)).unwrap())
            .unwrap();
        Self {
            kind,
            forgets: world.roll(3) == 0,
            principal: usize::try_from(world.roll(10) / 8).unwrap(),
            key: world.roll(2),
            payload: u8::from(world.roll(8) == 0),
        }
    }

    fn target(&self) -> String {
        let forgets = if self.forgets { " forgetful" } else { "" };
        format!("{}{forgets}", self.kind.name())
    }

    fn identity(&self) -> Identity {
        Identity {
            workspace: WorkspaceId::new("w").unwrap(),
            principal: PrincipalId::new(format!("p{}", self.principal)).unwrap(),
            target: Target::new(self.target()),
            key: Key::new(format!("k{}", self.key)).unwrap(),
        }
    }

    /// What every answer to it begins with.
    fn label(&self) -> String {
        format!(
            "p{}|{}|k{}|b{}",
            self.principal,
            self.target(),
            self.key,
            self.payload
        )
    }
}

struct Present {
    world: Arc<World>,
    principal: usize,
}

impl Authority for Present {
    fn check(&self) -> BoxFuture<'_, Result<(), Denied>> {
        let revoked = self.world.is_revoked(self.principal);
        Box::pin(std::future::ready(if revoked {
            Err(Denied::Withdrawn)
        } else {
            Ok(())
        }))
    }
}

pub(super) fn spawn_all(world: &Arc<World>) -> Vec<JoinHandle<()>> {
    (0..2 + world.roll(4))
        .map(|_| {
            let world = Arc::clone(world);
            tokio::spawn(async move {
                for _ in 0..=world.roll(3) {
                    pursue(&world, &Intention::roll(&world)).await;
                }
            })
        })
        .collect()
}

/// Tries until there is an answer that is final, or patience is at its end. Every retry has the
/// same key and the same payload.
async fn pursue(world: &Arc<World>, intention: &Intention) {
    pause(world, 3000).await;
    let mut inputs = None;
    for _ in 0..2 + world.roll(5) {
        if world.is_revoked(intention.principal) {
            // The surface turns it away before anything is looked up.
            pause(world, 5000).await;
            continue;
        }
        let name = usize::try_from(world.roll(2)).unwrap();
        if world.roll(6) == 0 {
            // The message arrives twice, once much later.
            let (world, intention) = (Arc::clone(world), intention.clone());
            tokio::spawn(async move {
                pause(&world, 60_000).await;
                if !world.is_revoked(intention.principal) && !world.is_healed() {
                    let other = usize::try_from(world.roll(2)).unwrap();
                    Box::pin(send(&world, &intention, other, inputs)).await;
                }
            });
        }
        let patience = match world.roll(4) {
            0 => world.roll(500),
            1 => world.roll(5000),
            _ => 200_000,
        };
        let call = Box::pin(send(world, intention, name, inputs));
        let answered = tokio::time::timeout(Duration::from_millis(patience), call).await;
        match answered {
            Ok(Some(Answer::Asked { .. })) => inputs = Some([1; 32]),
            Ok(Some(Answer::Ran { .. } | Answer::Replayed { .. })) if world.roll(2) == 0 => return,
            Ok(
                Some(
                    Answer::Ran { .. }
                    | Answer::Replayed { .. }
                    | Answer::Failed { .. }
                    | Answer::NotRecorded { .. }
                    | Answer::Refused(_),
                )
                | None,
            )
            | Err(_) => {}
        }
        let between = if world.roll(8) == 0 { 90_000 } else { 4000 };
        pause(world, between).await;
    }
}

async fn pause(world: &World, millis_max: u64) {
    tokio::time::sleep(Duration::from_millis(world.roll(millis_max))).await;
}

/// Sends one call; `None` if the process died under it.
async fn send(
    world: &Arc<World>,
    intention: &Intention,
    name: usize,
    inputs: Option<[u8; 32]>,
) -> Option<Answer> {
    let process = world.process(name);
    let began = Arc::new(AtomicBool::new(false));
    let request = Request {
        world: Arc::clone(world),
        process: process.clone(),
        call: world.serial(),
        label: intention.label(),
        has_inputs: inputs.is_some(),
        began: Arc::clone(&began),
    };
    let number = request.call;
    world.trace(|| format!("call {number} to process {name}: {intention:?} {inputs:?}"));
    let identity = intention.identity();
    world.truth(|truth| {
        let payloads = truth.payloads.entry(identity.clone()).or_default();
        payloads.insert(intention.payload);
    });
    let call = Call {
        fingerprint: Fingerprint::raw("", &[intention.payload]),
        authority: Arc::new(Present {
            world: Arc::clone(world),
            principal: intention.principal,
        }),
        wait: (world.roll(2) == 0).then(|| Duration::from_millis(world.roll(20_000))),
        inputs,
        ..Call::new(
            identity,
            Fingerprint::raw("", &[]),
            intention.kind.operation(intention.forgets),
        )
    };
    let life = Arc::clone(&process.life);
    let engine = process.engine.clone();
    let answering = async {
        match intention.kind {
            Kind::Guarded => engine.run(call, |attempt| request.guarded(attempt)).await,
            Kind::Marked => engine.run(call, |attempt| request.marked(attempt)).await,
            Kind::Atomic => engine.atomically(call, AtomicRequest(request)).await,
        }
    };
    let sent_at = world.now();
    let jumps = world.clock().jumps();
    let answer = tokio::select! {
        biased;
        () = life.ended() => None,
        answer = Box::pin(answering) => Some(answer),
    };
    world.count_marked();
    if let Some(answer) = &answer {
        let judged = Judged {
            world,
            intention,
            number,
            began: began.load(Ordering::SeqCst),
            sent_at,
            jumps,
        };
        judged.answer(answer);
    } else {
        world.trace(|| format!("call {number}: the connection broke"));
    }
    answer
}

/// An answered call.
struct Judged<'a> {
    world: &'a World,
    intention: &'a Intention,
    number: u64,
    began: bool,
    sent_at: Timestamp,
    jumps: u64,
}

impl Judged<'_> {
    fn violation(&self, what: &str, answer: &Answer) {
        let number = self.number;
        self.world
            .violation(format!("{what}: call {number} got {answer:?}"));
    }

    fn answer(&self, answer: &Answer) {
        let number = self.number;
        self.world.trace(|| format!("call {number}: {answer:?}"));
        let kind = kind(answer);
        self.world
            .truth(|truth| *truth.answered.entry(kind).or_default() += 1);
        match answer {
            Answer::Ran {
                reply,
                operation_id,
            } => {
                self.result(&reply.body, answer);
                self.acknowledged(*operation_id, &reply.body, answer);
            }
            Answer::Replayed {
                reply,
                operation_id,
                ..
            } => {
                self.result(&reply.body, answer);
                self.acknowledged(*operation_id, &reply.body, answer);
                self.in_window(*operation_id, answer);
                if self.began && self.intention.kind != Kind::Atomic {
                    self.violation("I2: a replay after a run", answer);
                }
            }
            Answer::Asked { reply, .. }
            | Answer::Failed { reply }
            | Answer::NotRecorded { reply, .. } => self.result(&reply.body, answer),
            Answer::Refused(refusal) => self.refused(&refusal.reason, answer),
        }
    }

    /// I4: to its own principal, who is authorized now, and to this very request.
    fn result(&self, body: &Bytes, answer: &Answer) {
        if self.world.is_revoked(self.intention.principal) {
            self.violation("I4: a result after the authorization was withdrawn", answer);
        }
        let label = self.intention.label();
        if !body.starts_with(format!("{label}|").as_bytes()) {
            self.violation("I4: somebody else's result", answer);
        }
    }

    /// I2: the same bytes, whoever asks and whenever.
    fn acknowledged(&self, id: OperationId, body: &Bytes, answer: &Answer) {
        let told = Acknowledged {
            identity: self.intention.identity(),
            payload: self.intention.payload,
            body: body.clone(),
            atomic: self.intention.kind == Kind::Atomic,
        };
        let first = self
            .world
            .truth(|truth| truth.answers.entry(id).or_insert(told).clone());
        if first.body != *body {
            self.violation("I2: another answer than the first one", answer);
        }
        let ended = self.world.truth(|truth| truth.ended.contains_key(&id));
        if !ended {
            self.violation("I2: visible before it was durable", answer);
        }
    }

    /// A replay only inside the window, by some reading of the clock during the call.
    fn in_window(&self, id: OperationId, answer: &Answer) {
        let Some((at, retention)) = self.world.truth(|truth| truth.ended.get(&id).copied()) else {
            return;
        };
        let earliest = self.sent_at.min(self.world.now());
        if earliest >= at.plus(retention.replay_for) && !self.clock_jumped() {
            self.violation("I2: a replay after its window", answer);
        }
    }

    /// The wall clock jumped during the call.
    fn clock_jumped(&self) -> bool {
        self.jumps != self.world.clock().jumps()
    }

    fn refused(&self, reason: &Reason, answer: &Answer) {
        match reason {
            Reason::Busy { .. } | Reason::Unavailable(_) | Reason::Quota { .. } => {
                if self.intention.kind == Kind::Atomic {
                    self.world
                        .truth(|truth| truth.nothing_done.insert(self.number));
                } else {
                    self.nothing_began(answer);
                }
            }
            Reason::Conflict => {
                let identity = self.intention.identity();
                let payloads = self.world.truth(|truth| truth.payloads[&identity].len());
                if payloads < 2 {
                    self.violation("a conflict without another payload", answer);
                }
                self.nothing_began(answer);
            }
            Reason::InProgress { .. }
            | Reason::ResultUnavailable
            | Reason::NotHappened
            | Reason::Expired => {
                self.nothing_began(answer);
            }
            Reason::Committed { .. } | Reason::Unknown { .. } | Reason::Denied => {}
            Reason::Internal(_) => {
                // The planned failures of the atomic handler.
                if self.intention.kind != Kind::Atomic {
                    self.violation("a fault of our own", answer);
                }
            }
        }
    }

    fn nothing_began(&self, answer: &Answer) {
        if self.began && self.intention.kind != Kind::Atomic {
            self.violation("I3: its handler ran all the same", answer);
        }
    }
}

/// What an answer says, in a word.
const fn kind(answer: &Answer) -> &'static str {
    match answer {
        Answer::Ran { .. } => "ran",
        Answer::Replayed { .. } => "replayed",
        Answer::Asked { .. } => "asked",
        Answer::Failed { .. } => "failed",
        Answer::NotRecorded { .. } => "not_recorded",
        Answer::Refused(refusal) => refusal.reason.code().as_str(),
    }
}

/// The audit: an acknowledged answer, asked for once more.
pub(super) async fn ask_again(
    world: &Arc<World>,
    name: usize,
    id: OperationId,
    told: &Acknowledged,
    replays: bool,
) {
    let operation = &told.identity.target.operation;
    let forgets = operation.ends_with("forgetful");
    let kind = Kind::ALL
        .into_iter()
        .find(|kind| operation.starts_with(kind.name()))
        .unwrap();
    let number = |text: &str| text[1..].parse().unwrap();
    let intention = Intention {
        kind,
        forgets,
        principal: (0..PRINCIPALS)
            .find(|number| told.identity.principal.as_str() == format!("p{number}"))
            .unwrap(),
        key: number(told.identity.key.as_str()),
        payload: told.payload,
    };
    let answer = send(world, &intention, name, None).await;
    let right = match &answer {
        Some(Answer::Replayed {
            reply,
            operation_id,
            ..
        }) => replays && *operation_id == id && reply.body == told.body,
        Some(Answer::Refused(refusal)) => match refusal.reason {
            Reason::Expired => !replays,
            // Swept while the clock stood further on.
            Reason::NotHappened | Reason::ResultUnavailable => !world.memory().is_stored(id),
            Reason::Conflict
            | Reason::InProgress { .. }
            | Reason::Committed { .. }
            | Reason::Unknown { .. }
            | Reason::Busy { .. }
            | Reason::Unavailable(_)
            | Reason::Quota { .. }
            | Reason::Denied
            | Reason::Internal(_) => false,
        },
        Some(
            Answer::Ran { .. }
            | Answer::Asked { .. }
            | Answer::Failed { .. }
            | Answer::NotRecorded { .. },
        )
        | None => false,
    };
    if !right {
        world.violation(format!(
            "I2: {id} was acknowledged with {told:?} (replays: {replays}), and now {answer:?}"
        ));
    }
}
