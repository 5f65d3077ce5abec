//! Seeded histories of whole engines. `COUNTERFOIL_SEED=n` runs one history and prints it,
//! `COUNTERFOIL_HISTORIES=n` runs that many.
#![allow(clippy::disallowed_methods, reason = "a seed comes from outside")]
#![allow(clippy::expect_used, reason = "this is a test")]

use counterfoil_testkit::sim::{run_histories, run_history};

const HISTORIES: u64 = 10_000;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().expect("a number"))
}

/// Each half runs on a thread of its own.
fn half(which: u64) {
    if number("COUNTERFOIL_SEED").is_some() {
        return;
    }
    let half = number("COUNTERFOIL_HISTORIES")
        .unwrap_or(HISTORIES)
        .div_ceil(2);
    run_histories(which * half, half);
}

#[test]
fn i1_i2_i3_i4_i6_hold_in_the_first_half_of_all_histories() {
    half(0);
}

#[test]
fn i1_i2_i3_i4_i6_hold_in_the_second_half_of_all_histories() {
    half(1);
}

#[test]
fn the_history_that_was_asked_for_holds() {
    let Some(seed) = number("COUNTERFOIL_SEED") else {
        return;
    };
    let history = run_history(seed, true);
    for line in &history.trace {
        eprintln!("{line}");
    }
    assert!(history.violations.is_empty(), "{:#?}", history.violations);
}

/// The same seed is the same history, or a seed that fails would be worth nothing.
#[test]
fn a_seed_is_one_history() {
    for seed in [1, 77, 4096] {
        assert_eq!(run_history(seed, true).trace, run_history(seed, true).trace);
    }
}

/// A simulator that never gets somewhere guards nothing there.
#[test]
fn histories_reach_every_kind_of_answer() {
    let mut seen = std::collections::BTreeMap::new();
    for seed in 0..1500 {
        for (kind, count) in run_history(seed, false).answers {
            *seen.entry(kind).or_insert(0) += count;
        }
    }
    for kind in [
        "ran",
        "replayed",
        "asked",
        "failed",
        "not_recorded",
        "idempotency_conflict",
        "idempotency_in_progress",
        "idempotency_committed",
        "idempotency_key_expired",
        "outcome_unknown",
        "busy",
        "unavailable",
        "unauthorized",
    ] {
        assert!(seen.contains_key(kind), "{kind} was never told: {seen:?}");
    }
}
