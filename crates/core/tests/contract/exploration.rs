//! Exhaustive small scope: two callers, one key, every interleaving and every crash point.
//!
//! The model drives the real [`decide`] and [`next`] over one row in memory. Each step of a caller
//! is a step of its own, so that everything else may happen in between; a caller may die in any
//! state, a lease may lapse at any time, a request on its way may be applied at any time later or
//! never, and every answer, of the store as of the upstream, may be lost. The world counts effects.

mod row;
mod world;

use std::collections::{HashSet, VecDeque};

use counterfoil_core::{Decision, Effect, Mode, Presented, State};

use row::{Kind, OTHER, presented};
use world::World;

impl World {
    fn check(&self) {
        assert!(self.effects <= 1, "I1: it happened twice: {self:#?}");
        let Some(row) = &self.row else {
            assert_eq!(self.effects, 0, "I2: no row, and it happened: {self:#?}");
            return;
        };
        let happened_or_may = self.effects > 0 || self.may_still_happen();
        let status = &row.status;
        match status.state {
            // I3: none of these without proof.
            State::Free | State::Cancelled => assert!(!happened_or_may, "I3: {self:#?}"),
            State::Succeeded => assert_eq!(self.effects, 1, "I3: {self:#?}"),
            State::Accepted => assert!(!happened_or_may, "I3: {self:#?}"),
            State::Failed
            | State::Running
            | State::CancelRequested
            | State::InputRequired
            | State::OutcomeUnknown => {}
        }
        match status.effect() {
            Effect::None => assert!(!happened_or_may, "I3: {self:#?}"),
            Effect::Happened => assert_eq!(self.effects, 1, "I3: {self:#?}"),
            Effect::Unknown => {}
        }
        let other = Presented {
            fingerprint: *OTHER,
            ..presented(None, None)
        };
        assert_eq!(
            self.decide(&other),
            Decision::Conflict,
            "field 2: {self:#?}"
        );
        if let Some(answer) = self.acknowledged {
            let decision = self.decide(&presented(None, None));
            assert_eq!(decision, Decision::Replay, "I2: {self:#?}");
            assert_eq!(row.reply, Some(answer), "I2: {self:#?}");
        }
        // What runs, runs on proof.
        if self.kind.mode() == Mode::Guarded
            && status.state != State::InputRequired
            && matches!(self.decide(&presented(None, None)), Decision::Run { .. })
        {
            assert!(!happened_or_may, "I1: {self:#?}");
        }
    }
}

/// What a walk must have come by, so that it is not about nothing.
#[derive(Debug, Default)]
struct Coverage {
    states: HashSet<State>,
    acknowledged: usize,
    happened: usize,
    attempts: usize,
}

fn walk(kind: Kind, calls: [u8; 2]) -> Coverage {
    let first = World::new(kind, calls);
    let mut coverage = Coverage::default();
    let mut seen = HashSet::from([first.clone()]);
    let mut queue = VecDeque::from([first]);
    while let Some(world) = queue.pop_front() {
        world.check();
        coverage
            .states
            .extend(world.row.as_ref().map(|row| row.status.state));
        coverage.acknowledged += usize::from(world.acknowledged.is_some());
        coverage.happened += usize::from(world.effects > 0);
        coverage.attempts = coverage.attempts.max(world.sent.len());
        for next in world.successors() {
            if !seen.contains(&next) {
                seen.insert(next.clone());
                queue.push_back(next);
            }
        }
    }
    println!("{kind:?}: {} states", seen.len());
    assert!(
        coverage.happened > 0 && coverage.attempts > 1,
        "{coverage:?}"
    );
    coverage
}

fn reaches(coverage: &Coverage, wanted: &[State]) {
    for state in wanted {
        assert!(
            coverage.states.contains(state),
            "{state:?} is never reached: {coverage:?}"
        );
    }
}

const EVERYWHERE: [State; 6] = [
    State::Running,
    State::CancelRequested,
    State::Succeeded,
    State::Failed,
    State::Cancelled,
    State::OutcomeUnknown,
];

#[test]
fn i1_i2_i3_field_03_05_14_guarded_upstream_two_callers() {
    let coverage = walk(Kind::Opaque, [3, 2]);
    assert!(coverage.acknowledged > 0);
    reaches(&coverage, &EVERYWHERE);
    reaches(&coverage, &[State::Free]);
}

#[test]
fn i1_i2_i3_field_04_committed_and_its_answer_lost() {
    let coverage = walk(Kind::OwnTransaction, [3, 2]);
    assert!(coverage.acknowledged > 0);
    reaches(&coverage, &EVERYWHERE);
}

#[test]
fn i1_i3_field_18_questions_and_their_answers() {
    let coverage = walk(Kind::Asking, [2, 2]);
    assert!(coverage.acknowledged > 0);
    reaches(&coverage, &EVERYWHERE);
    reaches(&coverage, &[State::InputRequired]);
}

#[test]
fn i1_i3_field_17_dispatched_under_a_provider_key() {
    let coverage = walk(Kind::ProviderKey, [1, 1]);
    reaches(&coverage, &EVERYWHERE);
    reaches(&coverage, &[State::Accepted]);
}

#[test]
fn i1_i3_field_17_dispatched_without_a_provider_key() {
    let coverage = walk(Kind::NoProviderKey, [3, 2]);
    reaches(&coverage, &EVERYWHERE);
    reaches(&coverage, &[State::Accepted]);
}
