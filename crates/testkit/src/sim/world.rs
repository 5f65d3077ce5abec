use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use counterfoil_core::{Event, OperationId, Receipt, State, Timestamp, Verdict};
use counterfoil_engine::{Clock, Monotonic};

use super::History;
use super::caller;
use super::process::Process;
use super::truth::{Truth, gone_at};
use crate::{MemoryStore, Seeded, VirtualClock};

const START: Timestamp = Timestamp::from_millis(1_800_000_000_000);
const MONTH_MS: i64 = 30 * 24 * 3600 * 1000;
pub(super) const PRINCIPALS: usize = 2;

/// The clock of one of two machines that share a store with a clock of its own: nothing may depend
/// on what it shows.
struct Astray {
    clock: Arc<VirtualClock>,
    machine: u8,
    ahead_ms: i64,
}

impl Clock for Astray {
    fn now(&self) -> Timestamp {
        let right = self.clock.now().as_millis();
        Timestamp::from_millis(right.saturating_add(self.ahead_ms))
    }

    fn monotonic(&self) -> Monotonic {
        let mut reading = self.clock.monotonic();
        reading.boot[15] = self.machine;
        reading.millis += u64::from(self.machine) * 1_000_000;
        reading
    }
}

/// Everything a history plays in.
pub(super) struct World {
    clock: Arc<VirtualClock>,
    memory: MemoryStore,
    apart: bool,
    dice: Mutex<Seeded>,
    truth: Mutex<Truth>,
    processes: Mutex<[Option<Process>; 2]>,
    revoked: [AtomicBool; PRINCIPALS],
    healed: AtomicBool,
    auditing: AtomicBool,
    traced: bool,
    effects_seen: AtomicUsize,
}

impl World {
    /// Every other history is one of two machines whose clocks are wrong, on a store with a clock
    /// of its own; the rest are of one machine.
    pub(super) fn new(seed: u64, traced: bool) -> Self {
        let clock = Arc::new(VirtualClock::following_tokio(START));
        let apart = seed % 2 == 1;
        let memory = if apart {
            MemoryStore::with_clock(Arc::clone(&clock) as Arc<dyn Clock>)
        } else {
            MemoryStore::new()
        };
        Self {
            clock,
            memory,
            apart,
            dice: Mutex::new(Seeded::new(seed)),
            truth: Mutex::new(Truth::default()),
            processes: Mutex::new([None, None]),
            revoked: [AtomicBool::new(false), AtomicBool::new(false)],
            healed: AtomicBool::new(false),
            auditing: AtomicBool::new(false),
            traced,
            effects_seen: AtomicUsize::new(0),
        }
    }

    pub(super) fn clock(&self) -> Arc<VirtualClock> {
        Arc::clone(&self.clock)
    }

    /// The clock of the machine that a process runs on.
    pub(super) fn clock_of(&self, name: usize) -> Arc<dyn Clock> {
        let clock = self.clock();
        if !self.apart {
            return clock;
        }
        let machine = u8::try_from(name + 1).unwrap();
        Arc::new(Astray {
            clock,
            machine,
            ahead_ms: [MONTH_MS / 3, -MONTH_MS][name % 2],
        })
    }

    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub(super) const fn memory(&self) -> &MemoryStore {
        &self.memory
    }

    /// A number below `bound`, by this history's seed.
    pub(super) fn roll(&self, bound: u64) -> u64 {
        let mut dice = self.dice.lock().unwrap_or_else(PoisonError::into_inner);
        dice.below(bound)
    }

    pub(super) fn truth<T>(&self, look: impl FnOnce(&mut Truth) -> T) -> T {
        look(&mut self.truth.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn serial(&self) -> u64 {
        self.truth(|truth| {
            truth.serial += 1;
            truth.serial
        })
    }

    pub(super) fn violation(&self, what: String) {
        self.trace(|| format!("VIOLATION {what}"));
        self.truth(|truth| truth.violations.push(what));
    }

    pub(super) fn trace(&self, what: impl FnOnce() -> String) {
        if self.traced {
            let line = format!("{} {}", self.now().as_millis(), what());
            self.truth(|truth| truth.trace.push(line));
        }
    }

    pub(super) fn count_fault(&self) {
        self.truth(|truth| truth.faults += 1);
    }

    pub(super) fn is_healed(&self) -> bool {
        self.healed.load(Ordering::SeqCst)
    }

    pub(super) fn is_auditing(&self) -> bool {
        self.auditing.load(Ordering::SeqCst)
    }

    pub(super) fn is_revoked(&self, principal: usize) -> bool {
        self.revoked[principal].load(Ordering::SeqCst)
    }

    /// The process of this name, started again if it died.
    pub(super) fn process(self: &Arc<Self>, name: usize) -> Process {
        let mut processes = self
            .processes
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        match &processes[name] {
            Some(process) if !process.life.is_dead() => process.clone(),
            Some(_) | None => {
                let process = Process::start(self, name);
                processes[name] = Some(process.clone());
                drop(processes);
                self.trace(|| format!("process {name} starts"));
                process
            }
        }
    }

    /// Effects in the store's own database count like the upstream's, from their commit on.
    pub(super) fn count_marked(&self) {
        let effects = self.memory.effects();
        let seen = self.effects_seen.swap(effects.len(), Ordering::SeqCst);
        for effect in effects.iter().skip(seen) {
            if let Some(counterfoil_store::Value::Text(id)) = effect.parameters.first()
                && let Ok(id) = id.parse::<OperationId>()
            {
                self.truth(|truth| *truth.counted.entry(id).or_default() += 1);
            }
        }
    }

    /// Everything that happens to the processes, the clock and the principals while calls run.
    pub(super) async fn disturb(self: &Arc<Self>) {
        for _ in 0..4 + self.roll(8) {
            let pause = match self.roll(8) {
                0 => 3_700_000,
                1 => 40_000,
                _ => 1 + self.roll(6_000),
            };
            tokio::time::sleep(Duration::from_millis(pause)).await;
            let name = usize::try_from(self.roll(2)).unwrap();
            match self.roll(12) {
                0 => self.jump(MONTH_MS, name).await,
                1 => self.jump(-MONTH_MS, name).await,
                2 => {
                    let by = i64::try_from(self.roll(400_000)).unwrap() - 200_000;
                    self.jump(by, name).await;
                }
                3 => self.jump(3 * 24 * 3600 * 1000, name).await,
                4 | 5 => self.sweep(name).await,
                6 => self.kill(name),
                7 => {
                    self.kill(0);
                    self.kill(1);
                    self.clock.reboot();
                }
                8 => {
                    let revoked = &self.revoked[name];
                    let was = revoked.fetch_xor(true, Ordering::SeqCst);
                    self.trace(|| format!("principal {name} revoked: {}", !was));
                }
                9 => self.cancel_or_resolve().await,
                _ => {
                    let lapsing = self.process(name);
                    let step = lapsing.engine.store().lapse(self.now(), 100);
                    let _ = tokio::time::timeout(Duration::from_secs(60), step).await;
                }
            }
        }
    }

    /// The wall clock jumps. Somebody says that it is right, or the sweeps stand still.
    async fn jump(self: &Arc<Self>, millis: i64, name: usize) {
        self.clock.jump_ms(millis);
        self.trace(|| format!("the clock jumps by {millis} ms"));
        if self.roll(4) > 0 {
            let process = self.process(name);
            let accepted = process.engine.check_clock(true);
            let accepted = tokio::time::timeout(Duration::from_secs(60), accepted).await;
            self.trace(|| format!("process {name} accepts the clock: {accepted:?}"));
        }
    }

    fn kill(self: &Arc<Self>, name: usize) {
        self.process(name).life.kill();
        self.trace(|| format!("process {name} is killed"));
    }

    async fn sweep(self: &Arc<Self>, name: usize) {
        for _ in 0..=self.roll(2) {
            let sweeping = self.process(name);
            self.trace(|| format!("process {name} sweeps"));
            let swept = tokio::time::timeout(Duration::from_secs(120), sweeping.engine.sweep());
            let _ = swept.await;
            tokio::time::sleep(Duration::from_secs(3_601)).await;
        }
    }

    /// A person asks for something to stop, or settles what nobody knew, by what the upstream says.
    async fn cancel_or_resolve(self: &Arc<Self>) {
        let receipts = self.memory.receipts();
        let count = u64::try_from(receipts.len()).unwrap();
        let pick = usize::try_from(self.roll(count)).unwrap();
        let Some(receipt) = receipts.get(pick) else {
            return;
        };
        let id = receipt.operation_id;
        let event = match receipt.status.state {
            State::OutcomeUnknown if self.truth(|truth| truth.effects(id)) > 0 => Event::Resolved {
                verdict: Verdict::Happened,
            },
            State::OutcomeUnknown => return,
            State::Free
            | State::Accepted
            | State::Running
            | State::CancelRequested
            | State::InputRequired
            | State::Succeeded
            | State::Failed
            | State::Cancelled => Event::CancelRequested,
        };
        let process = self.process(0);
        let reason = "a person".to_owned();
        let step = process
            .engine
            .store()
            .record(id, event, self.now(), reason, None);
        let _ = tokio::time::timeout(Duration::from_secs(60), step).await;
    }

    /// Faults end, whatever is on its way arrives, and one lapse pass after the last deadline
    /// nothing is left in between (I6).
    pub(super) async fn settle(self: &Arc<Self>) {
        self.healed.store(true, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_secs(300)).await;
        self.count_marked();
        let latest = |receipt: &Receipt| receipt.hard_deadline.max(receipt.lease_until);
        let receipts = self.memory.receipts();
        let deadline = receipts.iter().filter(|row| is_pending(row)).map(latest);
        if let Some(latest) = deadline.max() {
            self.clock.advance(latest.since(self.now()));
        }
        let process = self.process(0);
        let lapsed = process.engine.store().lapse(self.now(), 1000).await;
        if let Err(error) = lapsed {
            self.violation(format!("I6: the lapse pass failed: {error}"));
        }
        for receipt in self.memory.receipts() {
            if is_pending(&receipt) {
                let id = receipt.operation_id;
                let state = receipt.status.state;
                self.violation(format!("I6: {id} is still {state:?} after its deadline"));
            }
            self.truth(|truth| truth.judge_row(&receipt));
        }
    }

    /// Every acknowledged answer is asked for once more, in both processes.
    pub(super) async fn audit(self: &Arc<Self>) {
        for revoked in &self.revoked {
            revoked.store(false, Ordering::SeqCst);
        }
        self.auditing.store(true, Ordering::SeqCst);
        let answers = self.truth(|truth| truth.answers.clone());
        let answers: BTreeMap<_, _> = answers.into_iter().collect();
        for (id, acknowledged) in answers {
            let now = self.now();
            let ended = self.truth(|truth| truth.ended.get(&id).copied());
            let stands = self.memory.peek(&acknowledged.identity);
            let Some((at, retention)) = ended else {
                self.violation(format!("I2: {id} was acknowledged and has not ended"));
                continue;
            };
            if now >= gone_at(at, retention) {
                continue;
            }
            match stands {
                // Purged or replaced while the clock said so; judged when that happened.
                None => continue,
                Some(receipt) if receipt.operation_id != id => continue,
                Some(_) => {}
            }
            for name in 0..2 {
                caller::ask_again(
                    self,
                    name,
                    id,
                    &acknowledged,
                    now < at.plus(retention.replay_for),
                )
                .await;
            }
        }
        self.judge_effects();
    }

    /// The effects in the store's own database: one for each operation that succeeded, none for a
    /// call that was told so.
    fn judge_effects(&self) {
        let mut counts: HashMap<String, u32> = HashMap::new();
        for effect in self.memory.effects() {
            let text = |index: usize| match effect.parameters.get(index) {
                Some(counterfoil_store::Value::Text(text)) => text.clone(),
                _ => String::new(),
            };
            *counts.entry(text(0)).or_default() += 1;
            let call = text(1).parse().unwrap_or(0);
            if self.truth(|truth| truth.nothing_done.contains(&call)) {
                let id = text(0);
                self.violation(format!(
                    "I3: call {call} was told that nothing was done, and {id} is committed"
                ));
            }
        }
        for (id, count) in &counts {
            if *count > 1 {
                self.violation(format!("I1: {id} has {count} effects in the database"));
            }
        }
        let answers = self.truth(|truth| truth.answers.clone());
        for (id, acknowledged) in answers.iter().filter(|(_, told)| told.atomic) {
            let made = String::from_utf8_lossy(&acknowledged.body).contains("|made|");
            let count = counts.get(&id.to_string()).copied().unwrap_or(0);
            if count != u32::from(made) {
                self.violation(format!(
                    "I2: {id} answered {acknowledged:?}, effects {count}"
                ));
            }
        }
    }

    pub(super) fn report(&self, seed: u64) -> History {
        self.truth(|truth| History {
            seed,
            violations: std::mem::take(&mut truth.violations),
            trace: std::mem::take(&mut truth.trace),
            answers: std::mem::take(&mut truth.answered),
            faults: truth.faults,
        })
    }
}

fn is_pending(receipt: &Receipt) -> bool {
    match receipt.status.state {
        State::Accepted | State::Running | State::CancelRequested | State::InputRequired => true,
        State::Free
        | State::Succeeded
        | State::Failed
        | State::Cancelled
        | State::OutcomeUnknown => false,
    }
}
