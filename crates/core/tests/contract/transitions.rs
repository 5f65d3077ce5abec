//! Every status reachable with three attempts, and every event on each of them.

use std::collections::{HashSet, VecDeque};

use counterfoil_core::{Effect, Event, Illegal, Knowledge, Mode, State, Status, Verdict, next};
use proptest::prelude::*;

const ATTEMPTS_MAX: u32 = 3;

/// Evidence about one attempt.
fn evidence(attempt: u32) -> Vec<Event> {
    vec![
        Event::Committed { attempt },
        Event::Succeeded { attempt },
        Event::Refused {
            attempt,
            effect_none: true,
        },
        Event::Refused {
            attempt,
            effect_none: false,
        },
        Event::NotApplied { attempt },
        Event::Lost { attempt },
        Event::Asked {
            attempt,
            effect_none: true,
        },
        Event::Asked {
            attempt,
            effect_none: false,
        },
        Event::Stopped { attempt },
    ]
}

fn begins() -> Vec<Event> {
    let mut events = vec![];
    for mode in [Mode::Atomic, Mode::Guarded, Mode::Dispatched] {
        events.push(Event::Admitted { mode });
    }
    for yes in [false, true] {
        events.push(Event::Executed { refused: yes });
        events.push(Event::Taken {
            same_provider_key: yes,
        });
    }
    events
}

fn others() -> Vec<Event> {
    vec![
        Event::Abandoned,
        Event::CancelRequested,
        Event::Resolved {
            verdict: Verdict::Happened,
        },
        Event::Resolved {
            verdict: Verdict::NotHappened,
        },
    ]
}

fn all_events() -> Vec<Event> {
    let mut events: Vec<Event> = (0..=ATTEMPTS_MAX + 1).flat_map(evidence).collect();
    events.extend(begins());
    events.extend(others());
    events
}

/// Everything that can be reached; each transition is handed to `look`.
fn explore(mut look: impl FnMut(&Status, Event, &Result<Status, Illegal>)) -> HashSet<Status> {
    let events = all_events();
    let mut seen = HashSet::from([Status::new()]);
    let mut queue = VecDeque::from([Status::new()]);
    while let Some(status) = queue.pop_front() {
        for event in &events {
            let result = next(&status, *event);
            look(&status, *event, &result);
            if let Ok(new) = result
                && new.attempts.latest() <= ATTEMPTS_MAX
                && seen.insert(new.clone())
            {
                queue.push_back(new);
            }
        }
    }
    seen
}

/// What was known stays known; it may only become more exact.
fn refines(old: Knowledge, new: Knowledge) -> bool {
    match old {
        Knowledge::Open => true,
        Knowledge::MaybeSent => new != Knowledge::Open,
        // The verdict on the whole operation may clear or convict these.
        Knowledge::AskedUnknown => {
            matches!(new, Knowledge::Happened | Knowledge::RefusedNone) || new == old
        }
        Knowledge::RefusedUnknown => new == Knowledge::RefusedNone || new == old,
        Knowledge::NotApplied
        | Knowledge::Asked
        | Knowledge::RefusedNone
        | Knowledge::Stopped
        | Knowledge::Happened => new == old,
    }
}

fn check_transition(old: &Status, event: Event, new: &Status) {
    let context = || format!("{old:?}\n  {event:?}\n  {new:?}");
    // I1: attempt numbers strictly increase, one at a time.
    let (before, after) = (old.attempts.latest(), new.attempts.latest());
    assert!(after == before || after == before + 1, "{}", context());
    if after > before {
        let clear = !old.attempts.iter().any(Knowledge::may_have_applied);
        let same_key = event
            == Event::Taken {
                same_provider_key: true,
            };
        let answers_a_question = old.state == State::InputRequired;
        assert!(clear || same_key || answers_a_question, "{}", context());
        assert!(!old.committed, "{}", context());
        assert!(
            old.attempts.iter().all(|known| known != Knowledge::Open),
            "{}",
            context()
        );
    }
    // I3: knowledge never shrinks.
    for (old, new) in old.attempts.iter().zip(new.attempts.iter()) {
        assert!(refines(old, new), "{}", context());
    }
    assert!(!old.committed || new.committed, "{}", context());
    // Finished is finished.
    if old.state.is_finished() {
        assert_eq!(old.state, new.state, "{}", context());
        assert_eq!(old.effect(), new.effect(), "{}", context());
    }
    // Unknown is left on evidence or under the same provider key only.
    if old.state == State::OutcomeUnknown && new.state != old.state {
        assert!(
            !matches!(event, Event::CancelRequested | Event::Abandoned),
            "{}",
            context()
        );
    }
}

fn check_status(status: &Status) {
    let has = |wanted| status.attempts.iter().any(|known| known == wanted);
    let maybe = status.attempts.iter().any(Knowledge::may_have_applied);
    let unsettled = has(Knowledge::Open) || has(Knowledge::MaybeSent);
    let latest = status.attempts.get(status.attempts.latest());
    match status.state {
        // I3: these imply proof for every attempt.
        State::Free | State::Accepted | State::Cancelled => assert!(!maybe, "{status:?}"),
        State::Running | State::CancelRequested => {
            assert_eq!(latest, Some(Knowledge::Open), "{status:?}");
            assert!(!has(Knowledge::Happened), "{status:?}");
        }
        State::InputRequired => {
            assert!(!unsettled && !has(Knowledge::Happened), "{status:?}");
        }
        State::Succeeded => assert!(has(Knowledge::Happened), "{status:?}"),
        State::Failed => {
            assert!(!unsettled && !has(Knowledge::Happened), "{status:?}");
            assert!(
                has(Knowledge::RefusedNone) || has(Knowledge::RefusedUnknown),
                "{status:?}"
            );
        }
        State::OutcomeUnknown => {
            assert!(maybe && !has(Knowledge::Happened), "{status:?}");
            assert_ne!(latest, Some(Knowledge::Open), "{status:?}");
        }
    }
    match status.effect() {
        Effect::None => assert!(!maybe, "{status:?}"),
        Effect::Happened => assert!(has(Knowledge::Happened) || status.committed, "{status:?}"),
        Effect::Unknown => {}
    }
}

#[test]
fn i1_i3_hold_in_every_reachable_status() {
    let mut transitions = 0_u32;
    let seen = explore(|old, event, result| {
        if let Ok(new) = result {
            transitions += 1;
            check_transition(old, event, new);
        }
    });
    for status in &seen {
        check_status(status);
    }
    println!("{} statuses, {transitions} transitions", seen.len());
    assert!(
        seen.len() > 500,
        "the exploration has become trivial: {}",
        seen.len()
    );
    for state in State::all() {
        assert!(
            seen.iter().any(|status| status.state == state),
            "{state:?} is never reached"
        );
    }
    for known in Knowledge::all() {
        let reached = |status: &Status| status.attempts.iter().any(|seen| seen == known);
        assert!(seen.iter().any(reached), "{known:?} is never reached");
    }
}

#[test]
fn i3_repeated_evidence_changes_nothing() {
    explore(|_, event, result| {
        let is_evidence = match event {
            Event::Admitted { .. } | Event::Executed { .. } | Event::Taken { .. } => false,
            // Abandoned twice: the second time there is no question.
            Event::Abandoned => false,
            // Marked twice is written twice: the second transaction is fenced off.
            Event::Committed { .. } => false,
            Event::Succeeded { .. }
            | Event::Refused { .. }
            | Event::NotApplied { .. }
            | Event::Lost { .. }
            | Event::Asked { .. }
            | Event::CancelRequested
            | Event::Stopped { .. }
            | Event::Resolved { .. } => true,
        };
        if let (true, Ok(new)) = (is_evidence, result) {
            assert_eq!(next(new, event).as_ref(), Ok(new), "{event:?}");
        }
    });
}

#[test]
fn i3_the_verdict_does_not_depend_on_the_order_of_evidence() {
    let seen = explore(|_, _, _| {});
    let mut compared = 0_u32;
    for status in &seen {
        for first in 1..status.attempts.latest() {
            for second in first + 1..=status.attempts.latest() {
                for a in evidence(first) {
                    for b in evidence(second) {
                        // A write may commit only while its attempt is the current one.
                        if matches!(b, Event::Committed { .. }) {
                            continue;
                        }
                        // What is refused changes nothing.
                        let learn = |status: &Status, event| {
                            next(status, event).unwrap_or_else(|_| status.clone())
                        };
                        let ab = learn(&learn(status, a), b);
                        let ba = learn(&learn(status, b), a);
                        compared += 1;
                        assert_eq!(
                            (ab.state, ab.effect(), ab.round),
                            (ba.state, ba.effect(), ba.round),
                            "{status:?}\n  {a:?} {b:?}"
                        );
                    }
                }
            }
        }
    }
    assert!(compared > 1000, "{compared}");
}

#[test]
fn i3_a_success_of_any_attempt_is_success_whatever_came_before() {
    for status in explore(|_, _, _| {}) {
        for attempt in 1..=status.attempts.latest() {
            if status.attempts.get(attempt) == Some(Knowledge::MaybeSent) {
                let state = next(&status, Event::Succeeded { attempt }).unwrap().state;
                assert_eq!(state, State::Succeeded, "{status:?}");
            }
        }
    }
}

#[test]
fn an_illegal_event_says_why() {
    let admitted = Event::Admitted {
        mode: Mode::Guarded,
    };
    let running = next(&Status::new(), admitted).unwrap();
    assert_eq!(next(&running, admitted), Err(Illegal::NotFree));
    for attempt in [0, 2, u32::MAX] {
        assert_eq!(
            next(&running, Event::Succeeded { attempt }),
            Err(Illegal::Fenced)
        );
        assert_eq!(
            next(&running, Event::Committed { attempt }),
            Err(Illegal::Fenced)
        );
    }
    let lost = next(&running, Event::Lost { attempt: 1 }).unwrap();
    let take = |same_provider_key| Event::Taken { same_provider_key };
    assert_eq!(next(&lost, take(false)), Err(Illegal::SecondSender));
    assert_eq!(next(&lost, take(true)).unwrap().state, State::Running);
    let done = next(&running, Event::Succeeded { attempt: 1 }).unwrap();
    assert_eq!(
        next(&done, Event::NotApplied { attempt: 1 }),
        Err(Illegal::Contradiction)
    );
    assert_eq!(next(&done, Event::Abandoned), Err(Illegal::NotPossible));
    let verdict = Verdict::NotHappened;
    assert_eq!(
        next(&done, Event::Resolved { verdict }),
        Err(Illegal::Contradiction)
    );
    // A write that finds the attempt lost must not commit (row 4 of FIELD.md).
    assert_eq!(
        next(&lost, Event::Committed { attempt: 1 }),
        Err(Illegal::Fenced)
    );
}

/// A late answer may be a question too; only the current attempt's counts as one.
#[test]
fn a_late_question_of_the_current_attempt_stands() {
    let admitted = Event::Admitted {
        mode: Mode::Guarded,
    };
    let asked = |attempt| Event::Asked {
        attempt,
        effect_none: true,
    };
    let running = next(&Status::new(), admitted).unwrap();
    let lost = next(&running, Event::Lost { attempt: 1 }).unwrap();
    let asking = next(&lost, asked(1)).unwrap();
    assert_eq!(
        (asking.state, asking.effect()),
        (State::InputRequired, Effect::None)
    );
    let same_provider_key = true;
    let second = next(&lost, Event::Taken { same_provider_key }).unwrap();
    assert_eq!(next(&second, asked(1)), Err(Illegal::Fenced));
}

#[test]
fn attempts_are_bounded() {
    let admitted = Event::Admitted {
        mode: Mode::Guarded,
    };
    let mut status = Status::new();
    for attempt in 1..=u32::try_from(counterfoil_core::MAX_ATTEMPTS).unwrap() {
        status = next(&status, admitted).unwrap();
        status = next(&status, Event::NotApplied { attempt }).unwrap();
    }
    assert_eq!(next(&status, admitted), Err(Illegal::TooManyAttempts));
}

#[test]
fn a_cancelled_attempt_that_did_nothing_is_cancelled_not_released() {
    let events = [
        Event::Admitted {
            mode: Mode::Guarded,
        },
        Event::CancelRequested,
        Event::NotApplied { attempt: 1 },
    ];
    let status = events
        .iter()
        .try_fold(Status::new(), |status, event| next(&status, *event))
        .unwrap();
    assert_eq!(
        (status.state, status.effect()),
        (State::Cancelled, Effect::None)
    );
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Longer histories than the exploration reaches.
    #[test]
    fn i1_i3_hold_on_long_random_histories(picks in prop::collection::vec((any::<prop::sample::Index>(), 0_u32..4), 0..80)) {
        let mut status = Status::new();
        for (pick, back) in picks {
            let latest = status.attempts.latest();
            let mut events = evidence(latest.saturating_sub(back));
            events.extend(begins());
            events.extend(others());
            let event = *pick.get(&events);
            if let Ok(new) = next(&status, event) {
                check_transition(&status, event, &new);
                check_status(&new);
                status = new;
            }
        }
    }
}
