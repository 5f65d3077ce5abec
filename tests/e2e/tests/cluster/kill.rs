//! Three nodes under load with retries to any of them, while nodes are killed and the database is
//! restarted. Atomic calls (notes) go to the real binary; guarded ones, whose effects no database
//! knows of, to the fixture server, of which three more nodes run on the same database.
//!
//! At the end every key has at most one effect, every acknowledged result is replayed byte for
//! byte on every node, nothing is left running, and what is in doubt is told as unknown.
//!
//! `E2E_KEYS` sets the number of keys, `E2E_SEED` the seed.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "test code"
)]

mod calls;
mod fleet;
mod known;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use counterfoil_e2e::{Random, until};
use counterfoil_test_postgres::Mode;

use fleet::Fleet;
use known::Known;

const KEYS: u64 = 10_000;
const CALLERS: u64 = 16;
/// The disturbances go on at least this long.
const LOAD: Duration = Duration::from_secs(60);
/// Longest pause between two kills, in milliseconds.
const PAUSE_MS_MAX: u64 = 1500;
/// One disturbance in so many is a restart of the database.
const RESTART_ONE_IN: u64 = 8;
/// A lease, and more than it.
const LEASE: Duration = Duration::from_secs(60);

#[test]
fn i1_i2_i3_field_05_14_ten_thousand_keys_on_three_nodes_that_die_and_a_database_that_restarts() {
    let seed = Random::seed();
    let keys = std::env::var("E2E_KEYS").map_or(KEYS, |keys| keys.parse().unwrap());
    println!("E2E_SEED={seed} E2E_KEYS={keys}");
    let mut random = Random::new(seed);
    let begun = Instant::now();
    let fleet = Arc::new(Fleet::start());
    let phase = |what: &str| println!("{:>6.1} s  {what}", begun.elapsed().as_secs_f64());
    phase("all are up");
    let known = Arc::new(Known::new(keys));
    let over = Arc::new(AtomicBool::new(false));
    let started = Instant::now();
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let (fleet, known, over) = (Arc::clone(&fleet), Arc::clone(&known), Arc::clone(&over));
            let mut random = Random::new(seed ^ (caller << 32));
            thread::spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    known.step(&fleet, &mut random);
                }
            })
        })
        .collect();

    let (mut kills, mut fast, mut immediate) = (0, 0, 0);
    while started.elapsed() < LOAD || !known.all_begun() {
        // No wait for anything: the moment of the next power cut.
        sleep(Duration::from_millis(100 + random.below(PAUSE_MS_MAX)));
        fleet.tend();
        if random.below(RESTART_ONE_IN) == 0 {
            // Alternately, so that a run has both.
            if fast <= immediate {
                fast += 1;
                fleet.base().server().restart(Mode::Fast);
            } else {
                immediate += 1;
                fleet.base().server().restart(Mode::Immediate);
            }
        } else {
            kills += 1;
            fleet.kill_one(&mut random);
        }
        let dead = callers.iter().any(thread::JoinHandle::is_finished);
        assert!(!dead, "a caller failed: E2E_SEED={seed}");
        assert!(
            started.elapsed() < 4 * LOAD,
            "the load does not get through"
        );
    }
    over.store(true, Ordering::Relaxed);
    for caller in callers {
        caller.join().unwrap_or_else(|_| panic!("E2E_SEED={seed}"));
    }
    let took = started.elapsed();
    phase("the load is over");
    until("every node is back", LEASE, || {
        fleet.tend();
        fleet.all_ready().then_some(())
    });

    phase("every node is back");
    known.check_effects(&fleet);
    let checking = Instant::now();
    known.compare(&fleet);
    phase("every key was called again on every node");
    known.check_effects(&fleet);
    let unknown = known.unknown();
    let running = "SELECT count(*) FROM counterfoil_receipts WHERE state IN (1, 2, 3)";
    until("nothing is left running", LEASE, || {
        (fleet.base().database().psql(running) == "0").then_some(())
    });
    phase("nothing is left running");
    let doubt = "SELECT count(*) FROM counterfoil_receipts WHERE state = 8";
    let doubt: u64 = fleet.base().database().psql(doubt).parse().unwrap();
    assert_eq!(doubt, unknown, "those in doubt are those told as unknown");
    println!(
        "{keys} keys in {:.0} s: {} calls, {} of them retries; {kills} kills, database restarted \
         {fast} times fast and {immediate} times immediately; {}; compared in {:.0} s",
        took.as_secs_f64(),
        known.calls(),
        known.calls().saturating_sub(keys),
        known.figures(),
        checking.elapsed().as_secs_f64(),
    );
    known.assert_disturbed();
    assert!(kills > 10 && fast > 0 && immediate > 0, "E2E_SEED={seed}");
}
