use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use counterfoil_engine::{Engine, Entropy, Limits};
use counterfoil_store::Store;
use tokio::sync::Notify;

use super::observer::Observer;
use super::world::World;
use crate::{Call, Fault, FaultyStore};

/// Whether a process lives. Nothing that belongs to a dead one takes any effect: each of its
/// steps passes a checkpoint, and there it stays for ever.
#[derive(Debug, Default)]
pub(super) struct Life {
    dead: AtomicBool,
    died: Notify,
}

impl Life {
    pub(super) fn kill(&self) {
        self.dead.store(true, Ordering::SeqCst);
        self.died.notify_waiters();
    }

    pub(super) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::SeqCst)
    }

    pub(super) async fn checkpoint(&self) {
        if self.is_dead() {
            pending().await
        }
    }

    /// Ends when the process does: its connections break.
    pub(super) async fn ended(&self) {
        let died = self.died.notified();
        tokio::pin!(died);
        died.as_mut().enable();
        if !self.is_dead() {
            died.await;
        }
    }
}

/// One life of one of the two processes: an engine on the shared store, with faults in between.
#[derive(Clone)]
pub(super) struct Process {
    pub(super) life: Arc<Life>,
    pub(super) engine: Engine,
}

struct Dice(Arc<World>);

impl Entropy for Dice {
    fn fill(&self, buffer: &mut [u8]) -> bool {
        for chunk in buffer.chunks_mut(8) {
            let bytes = self.0.roll(u64::MAX).to_be_bytes();
            chunk.copy_from_slice(&bytes[..chunk.len()]);
        }
        true
    }
}

impl Process {
    pub(super) fn start(world: &Arc<World>, name: usize) -> Self {
        let life = Arc::new(Life::default());
        let observer = Arc::new(Observer::new(Arc::clone(world), Arc::clone(&life)));
        let plan = {
            let (world, life) = (Arc::clone(world), Arc::clone(&life));
            move |call: Call| choose(&world, &life, name, call)
        };
        let store: Arc<dyn Store> = Arc::new(FaultyStore::new(observer, plan));
        let limits = Limits {
            record_for: Duration::from_secs(10),
            listen_for: Duration::from_secs(60),
            ..Limits::default()
        };
        let engine = Engine::builder(store)
            .clock(world.clock_of(name))
            .entropy(Arc::new(Dice(Arc::clone(world))))
            .limits(limits)
            .build();
        Self { life, engine }
    }
}

fn choose(world: &World, life: &Life, name: usize, call: Call) -> Fault {
    if life.is_dead() {
        return Fault::NotDoneSilent;
    }
    if world.is_healed() {
        return Fault::None;
    }
    let short = Duration::from_millis(1 + world.roll(60));
    let long = Duration::from_millis(1 + world.roll(30_000));
    let fault = match world.roll(200) {
        0..=9 => Fault::Busy,
        10..=15 => Fault::Unavailable,
        16..=27 => Fault::DoneUnknown,
        28..=33 => Fault::NotDoneUnknown,
        34..=36 => Fault::DoneSilent,
        37..=39 => Fault::NotDoneSilent,
        40..=47 => Fault::AnsweredLate(short),
        48..=51 => Fault::AnsweredLate(long),
        52..=57 => Fault::Repeated,
        58..=63 => Fault::RepeatedLater(long),
        64..=69 => Fault::UnknownDoneLater(long),
        70..=73 => Fault::Delayed(long),
        74..=113 => Fault::Delayed(short),
        120..=131 => Fault::Held,
        114..=116 => {
            life.kill();
            Fault::NotDoneSilent
        }
        117..=119 => {
            life.kill();
            Fault::DoneSilent
        }
        _ => Fault::None,
    };
    if fault != Fault::None {
        world.count_fault();
        world.trace(|| {
            let dead = if life.is_dead() { ", and it dies" } else { "" };
            format!("process {name} step {:?}: {fault:?}{dead}", call.step)
        });
    }
    fault
}
