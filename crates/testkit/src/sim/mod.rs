//! The seeded step simulator: whole engines of two "processes" over one shared store, callers
//! with retries, an upstream that counts what happened, and everything that goes wrong in
//! between. After every history the invariants I1, I2, I3, I4 and I6 are judged against what the
//! upstream knows.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "this is a test"
)]

mod caller;
mod observer;
mod process;
mod truth;
mod upstream;
mod world;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use world::World;

/// What one history did; printed if it went wrong.
#[derive(Debug)]
pub struct History {
    /// Its seed.
    pub seed: u64,
    /// What was broken, in order; empty if all is well.
    pub violations: Vec<String>,
    /// What happened, step by step, if it was asked for.
    pub trace: Vec<String>,
    /// How many calls were answered, by what they were told.
    pub answers: BTreeMap<&'static str, u64>,
    /// How many faults were injected.
    pub faults: u64,
}

/// Runs the history of one seed on a runtime of its own, with paused time.
#[must_use]
pub fn run_history(seed: u64, traced: bool) -> History {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let world = Arc::new(World::new(seed, traced));
        let callers = caller::spawn_all(&world);
        world.disturb().await;
        for one in callers {
            // A caller is bounded by its retries and time-outs; a hang is a finding of its own.
            let ended = tokio::time::timeout(Duration::from_secs(40 * 24 * 3600), one).await;
            if !matches!(ended, Ok(Ok(()))) {
                world.violation(format!("I6: a caller never ended: {ended:?}"));
            }
        }
        world.settle().await;
        world.audit().await;
        world.report(seed)
    })
}

/// Runs `count` histories from `first` on; panics with the seed of the first one that breaks an
/// invariant.
///
/// # Panics
/// If one does.
pub fn run_histories(first: u64, count: u64) {
    let (mut answers, mut faults) = (0, 0);
    for seed in first..first + count {
        let history = run_history(seed, false);
        answers += history.answers.values().sum::<u64>();
        faults += history.faults;
        if !history.violations.is_empty() {
            fail(&history);
        }
    }
    assert!(answers > count, "callers are answered: {answers}");
    assert!(faults > count, "faults are injected: {faults}");
}

/// Panics with everything about a broken history.
fn fail(history: &History) -> ! {
    let again = run_history(history.seed, true);
    for line in &again.trace {
        eprintln!("{line}");
    }
    panic!(
        "seed {} breaks: {:#?}\nrun it again with COUNTERFOIL_SEED={}",
        history.seed, history.violations, history.seed
    );
}
