//! Random histories against a reference that knows the truth: what each client received, what can
//! be proven of it, and which processes died.

use std::time::Duration;

use counterfoil_core::{Event, Key, OperationId, Timestamp};
use counterfoil_store::Fence;
use proptest::{prelude::*, test_runner::TestCaseResult};

use super::scene::{Process, Scene, WINDOWS, admit, at, call, complete, succeed};
use crate::{
    keyless::{Channel, Delivery, KeylessCall, Pairing},
    settings::Keyless,
};

const CLIENTS: usize = 3;
const STEP: Duration = Duration::from_secs(10);

/// One thing that happens. Numbers choose among what there is.
#[derive(Clone, Copy, Debug)]
enum Happening {
    /// A client calls without a key.
    Called { client: usize, digest: u8 },
    /// The upstream answers.
    Answered(usize),
    /// The upstream's answer is lost.
    Lost(usize),
    /// It turns out that nothing was sent.
    NotSent(usize),
    /// A finished call's answer is flushed, or that there is none yet.
    Flushed(usize),
    /// A client cancels a call.
    Cancelled(usize),
    /// A client cancels what it waits for, and asks for the same again.
    Retried { client: usize, digest: u8 },
    /// A client's connection ends, and it comes back on another one.
    Reconnected(usize),
    /// A client says something else.
    Said(usize),
    /// Somebody else's write to the same upstream.
    Mutated,
    /// So many milliseconds pass.
    Passed(u32),
    /// What a process knows is written.
    Written(usize),
    /// A process is killed and started again; its clients come back.
    Killed(usize),
}

/// `kills`: processes are killed, too.
fn happening(kills: bool) -> impl Strategy<Value = Happening> {
    let client = 0..CLIENTS;
    let some = 0..64_usize;
    let digest = prop_oneof![3 => Just(1), 1 => Just(2_u8)];
    prop_oneof![
        8 => (client.clone(), digest.clone())
            .prop_map(|(client, digest)| Happening::Called { client, digest }),
        6 => (client.clone(), digest)
            .prop_map(|(client, digest)| Happening::Retried { client, digest }),
        6 => some.clone().prop_map(Happening::Answered),
        1 => some.clone().prop_map(Happening::Lost),
        1 => some.clone().prop_map(Happening::NotSent),
        8 => some.clone().prop_map(Happening::Flushed),
        2 => some.clone().prop_map(Happening::Cancelled),
        2 => client.clone().prop_map(Happening::Reconnected),
        6 => client.prop_map(Happening::Said),
        1 => Just(Happening::Mutated),
        5 => prop_oneof![
            6 => Just(100),
            3 => Just(4_000),
            2 => Just(11_000),
            1 => Just(100_000),
            1 => Just(300_000),
            3 => Just(90_000_000),
        ]
        .prop_map(Happening::Passed),
        2 => some.clone().prop_map(Happening::Written),
        1 => some.prop_map(move |some| match kills {
            true => Happening::Killed(some),
            false => Happening::Written(some),
        }),
    ]
}

/// What is true of one call's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Truth {
    /// Its client waits.
    Waits,
    /// It stopped waiting before anything was written.
    Gone(Timestamp),
    /// It was told that there is no answer yet.
    Notice(Timestamp),
    /// It was flushed.
    Flushed(Timestamp),
    /// It was flushed then, and the client went on talking.
    Received(Timestamp),
    /// Nobody will ever know.
    Unprovable(Timestamp),
}

/// What is true of one execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Running,
    Done(Timestamp),
    Unknown(Timestamp),
    Nothing,
}

/// A call of a client: its own execution, or one it was paired with.
struct Instance {
    of: usize,
    client: usize,
    channel: Channel,
    process: usize,
    started: Timestamp,
    truth: Truth,
    paired: bool,
    delivery: Option<Delivery>,
}

struct Execution {
    digest: u8,
    key: String,
    fence: Fence,
    started: Timestamp,
    lease_until: Timestamp,
    outcome: Outcome,
    /// The call that its answer is for now.
    latest: usize,
    /// The process that runs it, while it lives.
    process: Option<usize>,
}

/// What one earlier execution means for a new call, by the truth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bearing {
    Nothing,
    Attach,
    Ask,
}

struct World {
    scene: Scene,
    processes: Vec<Process>,
    now: Timestamp,
    channels: [Channel; CLIENTS],
    opened: u8,
    instances: Vec<Instance>,
    executions: Vec<Execution>,
    /// What was reserved, in order: an execution, or somebody else's write.
    reserved: Vec<Option<usize>>,
    /// Something may have been forgotten, or be in another process: more is asked than must be.
    is_unsure: bool,
}

impl World {
    async fn new(processes: usize) -> Self {
        let scene = Scene::new();
        let mut all = Vec::new();
        for _ in 0..processes {
            all.push(scene.process().await);
        }
        let mut world = Self {
            scene,
            is_unsure: processes > 1,
            processes: all,
            now: at(0),
            channels: [Channel([0; 16]); CLIENTS],
            opened: 0,
            instances: Vec::new(),
            executions: Vec::new(),
            reserved: Vec::new(),
        };
        for client in 0..CLIENTS {
            world.reconnect(client);
        }
        world
    }

    fn process_of(&self, client: usize) -> usize {
        client % self.processes.len()
    }

    fn reconnect(&mut self, client: usize) {
        self.opened += 1;
        self.channels[client] = Channel([self.opened; 16]);
    }

    async fn happen(&mut self, happening: Happening) -> TestCaseResult {
        match happening {
            Happening::Called { client, digest } => self.called(client, digest).await?,
            Happening::Answered(some) => self.ends(some, Outcome::Done).await,
            Happening::Lost(some) => self.ends(some, Outcome::Unknown).await,
            Happening::NotSent(some) => self.ends(some, |_| Outcome::Nothing).await,
            Happening::Flushed(some) => self.flushed(some).await,
            Happening::Cancelled(some) => self.cancelled(some).await,
            Happening::Retried { client, digest } => {
                self.called(client, digest).await?;
                for place in self.waiting(|instance| instance.client == client) {
                    self.gone(place).await;
                }
                self.passed(Duration::from_millis(100)).await;
                self.called(client, digest).await?;
            }
            Happening::Reconnected(client) => {
                for place in self.waiting(|instance| instance.client == client) {
                    self.gone(place).await;
                }
                let deliveries = &self.processes[self.process_of(client)].deliveries;
                deliveries.closed(self.channels[client]);
                self.reconnect(client);
            }
            Happening::Said(client) => self.said(client),
            Happening::Mutated => {
                let name = format!("m{}", self.reserved.len());
                self.processes[0].mutate(&name, self.now).await;
                self.reserved.push(None);
            }
            Happening::Passed(millis) => self.passed(Duration::from_millis(millis.into())).await,
            Happening::Written(some) => {
                let process = &self.processes[some % self.processes.len()];
                process.deliveries.flush().await.unwrap();
            }
            Happening::Killed(some) => self.killed(some % self.processes.len()).await,
        }
        Ok(())
    }

    fn waiting(&self, of: impl Fn(&Instance) -> bool) -> Vec<usize> {
        let all = self.instances.iter().enumerate();
        all.filter(|(_, instance)| {
            instance.truth == Truth::Waits && instance.delivery.is_some() && of(instance)
        })
        .map(|(place, _)| place)
        .collect()
    }

    async fn gone(&mut self, place: usize) {
        let instance = &mut self.instances[place];
        instance.truth = Truth::Gone(self.now);
        instance.delivery.as_ref().unwrap().undelivered(self.now);
        let (started, process) = (instance.started, instance.process);
        if self.now.since(started) > Duration::from_secs(3_600) {
            self.write_at_once(process).await;
        }
    }

    /// Such news is written at once. Here it is where its loss could be told from older news; that
    /// it may be lost otherwise makes for the harder histories.
    async fn write_at_once(&self, process: usize) {
        self.processes[process].deliveries.flush().await.unwrap();
    }

    fn said(&mut self, client: usize) {
        let channel = self.channels[client];
        let process = self.process_of(client);
        self.processes[process].deliveries.heard(channel, self.now);
        for instance in &mut self.instances {
            if let Truth::Flushed(at) = instance.truth
                && instance.channel == channel
                && at.since(instance.started) <= WINDOWS.client_patience
            {
                instance.truth = Truth::Received(at);
            }
        }
    }

    /// Chooses an execution that runs in a living process, and ends it.
    async fn ends(&mut self, some: usize, how: impl Fn(Timestamp) -> Outcome) {
        let all = self.executions.iter().enumerate();
        let running: Vec<usize> = all
            .filter(|(_, e)| e.outcome == Outcome::Running && e.process.is_some())
            .map(|(place, _)| place)
            .collect();
        let Some(place) = running.get(some % running.len().max(1)) else {
            return;
        };
        self.end(*place, how(self.now)).await;
    }

    async fn end(&mut self, place: usize, outcome: Outcome) {
        let execution = &mut self.executions[place];
        let (fence, attempt) = (execution.fence, execution.fence.attempt);
        execution.outcome = outcome;
        let store = &*self.scene.store;
        match outcome {
            Outcome::Done(now) => succeed(store, fence, now).await,
            Outcome::Unknown(now) => {
                complete(store, fence, Event::Lost { attempt }, "", now).await;
            }
            Outcome::Nothing => {
                complete(store, fence, Event::NotApplied { attempt }, "", self.now).await;
            }
            Outcome::Running => {}
        }
    }

    async fn flushed(&mut self, some: usize) {
        let waiting = self.waiting(|_| true);
        let Some(place) = waiting.get(some % waiting.len().max(1)) else {
            return;
        };
        let now = self.now;
        let instance = &mut self.instances[*place];
        let delivery = instance.delivery.as_ref().unwrap();
        match self.executions[instance.of].outcome {
            Outcome::Done(_) | Outcome::Nothing => {
                delivery.handed(now);
                instance.truth = Truth::Flushed(now);
            }
            Outcome::Unknown(_) => {
                delivery.told(now);
                instance.truth = Truth::Notice(now);
            }
            // Whoever was paired with it is told that it goes on; its own client waits.
            Outcome::Running if instance.paired => {
                delivery.told(now);
                instance.truth = Truth::Notice(now);
            }
            Outcome::Running => {}
        }
        let is_late = now.since(instance.started) > Duration::from_secs(3_600);
        if is_late || matches!(instance.truth, Truth::Notice(_)) {
            let process = instance.process;
            self.write_at_once(process).await;
        }
    }

    async fn cancelled(&mut self, some: usize) {
        let known: Vec<usize> = (0..self.instances.len())
            .filter(|place| self.instances[*place].delivery.is_some())
            .collect();
        let Some(place) = known.get(some % known.len().max(1)) else {
            return;
        };
        let instance = &mut self.instances[*place];
        let process = instance.process;
        let delivery = instance.delivery.clone().unwrap();
        match instance.truth {
            Truth::Waits => self.gone(*place).await,
            Truth::Flushed(at) => {
                delivery.doubted();
                instance.truth = Truth::Unprovable(at);
            }
            Truth::Received(at) => {
                delivery.doubted();
                instance.truth = Truth::Unprovable(at);
                self.write_at_once(process).await;
            }
            Truth::Gone(_) | Truth::Notice(_) | Truth::Unprovable(_) => {}
        }
    }

    /// Time passes; leases of what lives are renewed up to the hard deadline, at which it is lost.
    async fn passed(&mut self, time: Duration) {
        let end = self.now.plus(time);
        while self.now < end {
            let lives = |e: &Execution| e.outcome == Outcome::Running && e.process.is_some();
            let step = if self.executions.iter().any(lives) {
                STEP.min(end.since(self.now))
            } else {
                end.since(self.now)
            };
            self.now = self.now.plus(step);
            for place in 0..self.executions.len() {
                let execution = &mut self.executions[place];
                if !lives(execution) {
                    continue;
                }
                if self.now >= execution.started.plus(Duration::from_secs(120)) {
                    self.end(place, Outcome::Unknown(self.now)).await;
                    continue;
                }
                let lease = Duration::from_secs(30);
                let renewed = self.scene.store.renew(execution.fence, self.now, lease);
                execution.lease_until = renewed.await.unwrap();
            }
        }
        for execution in &mut self.executions {
            let over = self.now >= execution.lease_until;
            if execution.outcome == Outcome::Running && execution.process.is_none() && over {
                execution.outcome = Outcome::Unknown(execution.lease_until);
            }
        }
    }

    async fn killed(&mut self, process: usize) {
        self.is_unsure = true;
        for instance in &mut self.instances {
            if instance.process == process {
                instance.delivery = None;
                // What it said on the way out, nobody knows.
                if instance.truth == Truth::Waits {
                    instance.truth = Truth::Unprovable(instance.started);
                }
            }
        }
        for execution in &mut self.executions {
            if execution.process == Some(process) {
                execution.process = None;
            }
        }
        self.processes[process] = self.scene.process().await;
        for client in 0..CLIENTS {
            if self.process_of(client) == process {
                self.reconnect(client);
            }
        }
    }

    fn call_of(&self, client: usize, digest: u8) -> KeylessCall {
        let mut call = call(digest, 0);
        call.channel = self.channels[client];
        // One tool says what it does, the other does not.
        call.annotated = digest == 1;
        call
    }

    async fn called(&mut self, client: usize, digest: u8) -> TestCaseResult {
        self.now = self.now.plus(Duration::from_millis(1));
        // It is itself a message of this client.
        self.said(client);
        let call = self.call_of(client, digest);
        let process = self.process_of(client);
        let bearings: Vec<(usize, Bearing)> = self
            .executions
            .iter()
            .enumerate()
            .filter(|(_, execution)| execution.digest == digest)
            .map(|(place, _)| (place, self.bearing(place, client, &call)))
            .collect();
        let paired = self.processes[process].pair(&call, self.now).await;
        let mut instance = Instance {
            of: 0,
            client,
            channel: call.channel,
            process,
            started: self.now,
            truth: Truth::Waits,
            paired: false,
            delivery: Some(paired.delivery.clone()),
        };
        match &paired.pairing {
            Pairing::Run(key) => {
                let counted = bearings.iter().find(|(_, b)| *b != Bearing::Nothing);
                prop_assert!(counted.is_none(), "ran in spite of {counted:?}");
                let identity = call.identity(&call.operation, key);
                let store = &*self.scene.store;
                let fence = admit(store, identity, call.fingerprint, self.now).await;
                paired.delivery.started();
                instance.of = self.executions.len();
                self.reserved.push(Some(instance.of));
                self.executions.push(Execution {
                    digest,
                    key: key.as_str().to_owned(),
                    fence,
                    started: self.now,
                    lease_until: self.now.plus(Duration::from_secs(30)),
                    outcome: Outcome::Running,
                    latest: self.instances.len(),
                    process: Some(process),
                });
                self.instances.push(instance);
            }
            Pairing::Attach { key, .. } => {
                let place = self.named(key);
                let first = bearings.iter().find(|(_, b)| *b == Bearing::Attach);
                let proven = bearings.contains(&(place, Bearing::Attach));
                prop_assert!(proven, "attached to {place} of {bearings:?}");
                if !self.is_unsure {
                    prop_assert_eq!(
                        first.map(|(place, _)| *place),
                        Some(place),
                        "first in, first out"
                    );
                }
                instance.of = place;
                instance.paired = true;
                self.executions[place].latest = self.instances.len();
                self.instances.push(instance);
            }
            Pairing::Ask(operation_id) => {
                let about = self.of_operation(*operation_id);
                prop_assert_eq!(self.executions[about].digest, digest);
                if !self.is_unsure {
                    let attach = bearings.iter().any(|(_, b)| *b == Bearing::Attach);
                    let last = bearings.iter().rfind(|(_, b)| *b == Bearing::Ask);
                    prop_assert!(!attach, "asked in spite of {bearings:?}");
                    prop_assert_eq!(last.map(|(place, _)| *place), Some(about));
                }
            }
        }
        Ok(())
    }

    fn named(&self, key: &Key) -> usize {
        let mut all = self.executions.iter();
        all.position(|e| e.key == key.as_str()).unwrap()
    }

    fn of_operation(&self, id: OperationId) -> usize {
        let mut all = self.executions.iter();
        all.position(|e| e.fence.operation_id == id).unwrap()
    }

    /// Somebody's call was reserved after this one.
    fn mutated_since(&self, place: usize) -> bool {
        let own = self.reserved.iter().position(|r| *r == Some(place));
        let since = own.map_or(0, |own| own + 1);
        // What is proven not to have been sent was none.
        self.reserved[since..].iter().any(|reserved| {
            reserved.is_none_or(|place| self.executions[place].outcome != Outcome::Nothing)
        })
    }

    fn bearing(&self, place: usize, client: usize, call: &KeylessCall) -> Bearing {
        let execution = &self.executions[place];
        let latest = &self.instances[execution.latest];
        let ago = |at: Timestamp| self.now.since(at);
        let unknown = match execution.outcome {
            Outcome::Nothing => return Bearing::Nothing,
            Outcome::Unknown(since) => Some(since),
            Outcome::Running | Outcome::Done(_) => None,
        };
        let done = match execution.outcome {
            Outcome::Done(at) => Some(at),
            Outcome::Running | Outcome::Unknown(_) | Outcome::Nothing => None,
        };
        let said = match latest.truth {
            Truth::Received(_) => return Bearing::Nothing,
            Truth::Waits => None,
            Truth::Gone(at) | Truth::Notice(at) | Truth::Flushed(at) | Truth::Unprovable(at) => {
                Some(at)
            }
        };
        let known = [Some(latest.started), said, unknown, done];
        let youngest = known.into_iter().flatten().map(ago).min();
        let written_in_time = unknown.is_none()
            && matches!(latest.truth, Truth::Flushed(at)
                if at.since(latest.started) <= WINDOWS.client_patience);
        let window = if written_in_time {
            WINDOWS.ask_for_written
        } else {
            WINDOWS.ask_for
        };
        if youngest.is_none_or(|youngest| youngest > window) {
            return Bearing::Nothing;
        }
        let proven = match latest.truth {
            Truth::Gone(at) => Some(unknown.map_or(at, |since| since.max(at))),
            Truth::Notice(at) if unknown.is_none() || !latest.paired => {
                Some(unknown.map_or(at, |since| since.max(at)))
            }
            Truth::Notice(_) | Truth::Waits | Truth::Flushed(_) | Truth::Unprovable(_)
                if latest.paired =>
            {
                None
            }
            Truth::Notice(_) | Truth::Waits | Truth::Flushed(_) | Truth::Unprovable(_) => unknown,
            Truth::Received(_) => None,
        };
        let Some(proven) = proven else {
            let parallel = latest.truth == Truth::Waits
                && !latest.paired
                && latest.process == self.process_of(client)
                && latest.delivery.is_some()
                && ago(latest.started) < WINDOWS.parallel_within;
            return if parallel {
                Bearing::Nothing
            } else {
                Bearing::Ask
            };
        };
        let stale =
            !call.annotated && done.is_some_and(|at| ago(at) > WINDOWS.unannotated_fresh_for);
        if ago(proven) > WINDOWS.attach_for || stale || self.mutated_since(place) {
            return Bearing::Ask;
        }
        assert_eq!(call.keyless, Keyless::Attach);
        Bearing::Attach
    }
}

fn play(processes: usize, happenings: &[Happening]) -> TestCaseResult {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut world = World::new(processes).await;
        for happening in happenings {
            world.happen(*happening).await?;
        }
        Ok(())
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// In one process a call gets exactly what the truth says.
    #[test]
    fn i5_random_histories_of_one_process(
        happenings in prop::collection::vec(happening(false), 1..50)
    ) {
        play(1, &happenings)?;
    }

    /// A process that was killed may ask more, and never runs or attaches what it may not.
    #[test]
    fn i5_random_histories_with_kills(
        happenings in prop::collection::vec(happening(true), 1..50)
    ) {
        play(1, &happenings)?;
    }

    /// The same goes for two processes on one store.
    #[test]
    fn i5_random_histories_of_two_processes(
        happenings in prop::collection::vec(happening(true), 1..50)
    ) {
        play(2, &happenings)?;
    }
}
