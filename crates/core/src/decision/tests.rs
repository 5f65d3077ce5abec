//! Every row of the decision table (contract §4), in its order.

use super::*;
use crate::{Attempts, Event, Identity, Key, PrincipalId, Retention, Status, Target, WorkspaceId};

const START: i64 = 1_000_000_000;
const SECOND: Duration = Duration::from_secs(1);

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(START + seconds * 1000)
}

fn fingerprint(body: &str) -> Fingerprint {
    Fingerprint::raw("", body.as_bytes())
}

fn call() -> Presented {
    Presented {
        fingerprint: fingerprint("first"),
        inputs: None,
        token: None,
    }
}

fn with_inputs(byte: u8) -> Presented {
    Presented {
        inputs: Some([byte; 32]),
        ..call()
    }
}

fn other() -> Presented {
    Presented {
        fingerprint: fingerprint("second"),
        ..call()
    }
}

/// A receipt reserved at 0 s with a lease until 30 s, after `events`.
fn receipt(mode: Mode, events: &[Event]) -> Receipt {
    let mut status = Status::new();
    for event in events {
        status = crate::next(&status, *event).unwrap();
    }
    let finished = status.state.is_finished();
    Receipt {
        operation_id: crate::OperationId::new(at(0), [7; 10]),
        identity: Identity {
            workspace: WorkspaceId::new("w").unwrap(),
            principal: PrincipalId::new("p").unwrap(),
            target: Target::new("POST /api/v1/notes"),
            key: Key::new("k").unwrap(),
        },
        fingerprint: fingerprint("first"),
        version: 1,
        mode,
        status,
        token: Token::new([1; 16]),
        created_at: at(0),
        lease_until: at(30),
        hard_deadline: at(120),
        finished_at: finished.then(|| at(10)),
        retention: Retention {
            replay_for: SECOND * 100,
            tombstone_for: SECOND * 300,
        },
        kept: if finished {
            Kept::Stored
        } else {
            Kept::Nothing
        },
        rounds: Vec::new(),
        provider_window: Duration::ZERO,
    }
}

const ADMITTED: Event = Event::Admitted {
    mode: Mode::Guarded,
};
const DISPATCHED: Event = Event::Admitted {
    mode: Mode::Dispatched,
};
const ASKED: Event = Event::Asked {
    attempt: 1,
    effect_none: true,
};

fn running() -> Receipt {
    receipt(Mode::Guarded, &[ADMITTED])
}

fn guarded(event: Event) -> Receipt {
    receipt(Mode::Guarded, &[ADMITTED, event])
}

fn unknown_now() -> Receipt {
    guarded(Event::Lost { attempt: 1 })
}

/// One receipt of every shape there is.
fn every() -> Vec<Receipt> {
    vec![
        guarded(Event::NotApplied { attempt: 1 }),
        running(),
        guarded(Event::Committed { attempt: 1 }),
        guarded(Event::CancelRequested),
        guarded(ASKED),
        guarded(Event::Succeeded { attempt: 1 }),
        guarded(Event::Refused {
            attempt: 1,
            effect_none: true,
        }),
        guarded(Event::Stopped { attempt: 1 }),
        unknown_now(),
        receipt(Mode::Dispatched, &[DISPATCHED]),
        receipt(Mode::Dispatched, &[DISPATCHED, Event::CancelRequested]),
        receipt(Mode::Atomic, &[Event::Executed { refused: false }]),
        receipt(Mode::Atomic, &[Event::Executed { refused: true }]),
        second_round(),
    ]
}

/// Asked, answered with inputs 5, running again.
fn second_round() -> Receipt {
    let mut receipt = receipt(Mode::Guarded, &[ADMITTED, ASKED, ADMITTED]);
    receipt.rounds = vec![[5; 32]];
    receipt
}

const RUN: Decision = Decision::Run { replaces: false };
const LAPSED: Decision = Decision::Unknown {
    lapsed: true,
    retryable: false,
};
const UNKNOWN: Decision = Decision::Unknown {
    lapsed: false,
    retryable: false,
};

const IN_PROGRESS: Decision = Decision::InProgress {
    retry_after: SECOND,
};

#[test]
fn row_01_none_or_free_runs() {
    assert_eq!(decide(None, &call(), at(0)), RUN);
    let free = guarded(Event::NotApplied { attempt: 1 });
    assert_eq!(decide(Some(&free), &call(), at(0)), RUN);
    // A released key does not turn into a refusal with time.
    assert_eq!(decide(Some(&free), &call(), at(100_000)), RUN);
}

#[test]
fn row_02_field_02_another_request_conflicts_in_every_state() {
    for receipt in every() {
        for seconds in [0, 29, 30, 31, 109] {
            let decision = decide(Some(&receipt), &other(), at(seconds));
            assert_eq!(decision, Decision::Conflict, "{:?}", receipt.status);
        }
        // Tombstones too.
        if receipt.status.state.is_finished() {
            assert_eq!(
                decide(Some(&receipt), &other(), at(110)),
                Decision::Conflict
            );
            assert_eq!(
                decide(Some(&receipt), &other(), at(309)),
                Decision::Conflict
            );
        }
        // Even under the token of its reservation.
        let own = Presented {
            token: Some(receipt.token),
            ..other()
        };
        assert_eq!(decide(Some(&receipt), &own, at(0)), Decision::Conflict);
    }
    // Another rule is another fingerprint, whatever the digest.
    let mut other_rule = call();
    other_rule.fingerprint.rule = crate::Rule::Canonical1;
    assert_eq!(
        decide(Some(&running()), &other_rule, at(0)),
        Decision::Conflict
    );
}

#[test]
fn row_03_finished_with_a_stored_result_replays() {
    for receipt in every() {
        if receipt.status.state.is_finished() {
            for seconds in [10, 29, 30, 109] {
                let decision = decide(Some(&receipt), &call(), at(seconds));
                assert_eq!(decision, Decision::Replay, "{:?}", receipt.status);
            }
        }
    }
}

#[test]
fn row_04_field_06_finished_without_a_result_is_unavailable_and_never_runs() {
    for kept in [Kept::TooLarge, Kept::Withheld, Kept::Nothing] {
        let mut receipt = guarded(Event::Succeeded { attempt: 1 });
        receipt.kept = kept;
        assert_eq!(
            decide(Some(&receipt), &call(), at(11)),
            Decision::ResultUnavailable,
            "{kept:?}"
        );
    }
}

#[test]
fn row_05_field_04_committed_is_checked_before_the_lease() {
    let receipt = guarded(Event::Committed { attempt: 1 });
    for (seconds, retry_after) in [
        (0, Some(SECOND)),
        (29, Some(SECOND)),
        (30, None),
        (999, None),
    ] {
        let decision = decide(Some(&receipt), &call(), at(seconds));
        assert_eq!(decision, Decision::Committed { retry_after }, "{seconds} s");
    }
    // Recorded as finished, its answer lost.
    let mut receipt = receipt;
    receipt.status = crate::next(&receipt.status, receipt.overdue(at(30)).unwrap()).unwrap();
    assert_eq!(receipt.status.state, State::Succeeded);
    receipt.finished_at = Some(at(30));
    receipt.kept = Kept::AnswerLost;
    let committed = Decision::Committed { retry_after: None };
    assert_eq!(decide(Some(&receipt), &call(), at(31)), committed);
}

#[test]
fn row_06_under_way_is_in_progress() {
    let accepted = receipt(Mode::Dispatched, &[DISPATCHED]);
    for receipt in [running(), guarded(Event::CancelRequested), accepted] {
        assert_eq!(decide(Some(&receipt), &call(), at(0)), IN_PROGRESS);
        assert_eq!(decide(Some(&receipt), &call(), at(27)), IN_PROGRESS);
        assert_eq!(decide(Some(&receipt), &call(), at(29)), IN_PROGRESS);
    }
}

#[test]
fn row_07_field_03_a_lapsed_guarded_lease_is_unknown_never_a_run() {
    for receipt in [running(), guarded(Event::CancelRequested)] {
        for seconds in [30, 31, 1_000_000] {
            assert_eq!(decide(Some(&receipt), &call(), at(seconds)), LAPSED);
        }
        let lost = Event::Lost { attempt: 1 };
        assert_eq!(receipt.overdue(at(30)), Some(lost));
        assert_eq!(receipt.overdue(at(29)), None);
    }
}

#[test]
fn row_08_a_lapsed_dispatched_lease_stays_in_progress() {
    let taken = Event::Taken {
        same_provider_key: true,
    };
    let receipt = receipt(Mode::Dispatched, &[DISPATCHED, taken]);
    assert_eq!(decide(Some(&receipt), &call(), at(31)), IN_PROGRESS);
}

#[test]
fn row_09_dispatched_replays_its_handle_in_every_state() {
    let taken = Event::Taken {
        same_provider_key: true,
    };
    for events in [
        &[DISPATCHED][..],
        &[DISPATCHED, taken],
        &[DISPATCHED, taken, Event::Lost { attempt: 1 }],
        &[DISPATCHED, taken, Event::Succeeded { attempt: 1 }],
        &[DISPATCHED, Event::CancelRequested],
    ] {
        let mut receipt = receipt(Mode::Dispatched, events);
        receipt.kept = Kept::Stored;
        for seconds in [0, 31] {
            let decision = decide(Some(&receipt), &call(), at(seconds));
            assert_eq!(decision, Decision::Replay, "{:?}", receipt.status.state);
        }
    }
}

#[test]
fn row_10_input_required_replays_the_question_and_goes_on_with_inputs() {
    let receipt = guarded(ASKED);
    let question = Decision::ReplayQuestion { round: 0 };
    assert_eq!(decide(Some(&receipt), &call(), at(29)), question);
    assert_eq!(decide(Some(&receipt), &with_inputs(5), at(29)), RUN);
    // Past its deadline the row is to be brought up to date first; here that is a release.
    assert_eq!(decide(Some(&receipt), &call(), at(30)), LAPSED);
    assert_eq!(decide(Some(&receipt), &with_inputs(5), at(30)), LAPSED);
    let mut receipt = receipt;
    receipt.status = crate::next(&receipt.status, receipt.overdue(at(30)).unwrap()).unwrap();
    assert_eq!(decide(Some(&receipt), &call(), at(30)), RUN);
}

#[test]
fn row_10_rounds_are_answered_as_before() {
    let running = second_round();
    let question = |round| Decision::ReplayQuestion { round };
    assert_eq!(decide(Some(&running), &with_inputs(5), at(1)), IN_PROGRESS);
    assert_eq!(
        decide(Some(&running), &with_inputs(6), at(1)),
        Decision::Conflict
    );
    assert_eq!(decide(Some(&running), &call(), at(1)), question(0));

    let asked_again = Event::Asked {
        attempt: 2,
        effect_none: true,
    };
    let mut asking = running.clone();
    asking.status = crate::next(&asking.status, asked_again).unwrap();
    assert_eq!(decide(Some(&asking), &with_inputs(5), at(1)), question(1));
    assert_eq!(decide(Some(&asking), &call(), at(1)), question(0));
    assert_eq!(decide(Some(&asking), &with_inputs(6), at(1)), RUN);

    let mut third = asking.clone();
    third.status = crate::next(&third.status, ADMITTED).unwrap();
    third.rounds.push([6; 32]);
    assert_eq!(decide(Some(&third), &with_inputs(5), at(1)), question(1));
    assert_eq!(decide(Some(&third), &with_inputs(6), at(1)), IN_PROGRESS);
    assert_eq!(
        decide(Some(&third), &with_inputs(7), at(1)),
        Decision::Conflict
    );

    let mut done = third.clone();
    done.status = crate::next(&done.status, Event::Succeeded { attempt: 3 }).unwrap();
    (done.finished_at, done.kept) = (Some(at(10)), Kept::Stored);
    for presented in [call(), with_inputs(5), with_inputs(6)] {
        assert_eq!(decide(Some(&done), &presented, at(11)), Decision::Replay);
    }
    assert_eq!(
        decide(Some(&done), &with_inputs(7), at(11)),
        Decision::Conflict
    );
}

#[test]
fn row_10_inputs_that_were_not_sent_leave_the_question_open() {
    let mut receipt = second_round();
    receipt.status = crate::next(&receipt.status, Event::NotApplied { attempt: 2 }).unwrap();
    assert_eq!(
        (receipt.status.state, receipt.status.round),
        (State::InputRequired, 0)
    );
    // Whether or not the store has cut its list back to `status.round`.
    assert_eq!(decide(Some(&receipt), &with_inputs(5), at(1)), RUN);
    assert_eq!(decide(Some(&receipt), &with_inputs(6), at(1)), RUN);
}

#[test]
fn row_10_a_first_call_with_inputs_is_no_answer_to_anything() {
    assert_eq!(decide(None, &with_inputs(5), at(0)), RUN);
    assert_eq!(
        decide(Some(&running()), &with_inputs(5), at(0)),
        IN_PROGRESS
    );
    let done = guarded(Event::Succeeded { attempt: 1 });
    assert_eq!(
        decide(Some(&done), &with_inputs(5), at(11)),
        Decision::Replay
    );
}

#[test]
fn row_11_outcome_unknown_says_so() {
    let mut receipt = unknown_now();
    assert_eq!(decide(Some(&receipt), &call(), at(1)), UNKNOWN);
    assert_eq!(decide(Some(&receipt), &call(), at(10_000_000)), UNKNOWN);
    // Whatever is stored beside it (a question, a 502) is no result.
    receipt.kept = Kept::Stored;
    assert_eq!(decide(Some(&receipt), &call(), at(1)), UNKNOWN);
}

#[test]
fn row_11_retryable_only_inside_the_provider_keys_window() {
    let mut receipt = unknown_now();
    receipt.provider_window = SECOND * 60;
    for (seconds, retryable) in [(1, true), (59, true), (60, false), (61, false)] {
        let lapsed = false;
        let decision = decide(Some(&receipt), &call(), at(seconds));
        assert_eq!(
            decision,
            Decision::Unknown { lapsed, retryable },
            "{seconds} s"
        );
    }
}

#[test]
fn row_11_field_18_no_question_is_shown_again_once_the_outcome_is_unknown() {
    let mut receipt = second_round();
    assert_eq!(decide(Some(&receipt), &call(), at(30)), LAPSED);
    receipt.status = crate::next(&receipt.status, Event::Lost { attempt: 2 }).unwrap();
    assert_eq!(decide(Some(&receipt), &call(), at(1)), UNKNOWN);
    assert_eq!(decide(Some(&receipt), &with_inputs(5), at(1)), UNKNOWN);
    assert_eq!(
        decide(Some(&receipt), &with_inputs(6), at(1)),
        Decision::Conflict
    );
    let mut committed = second_round();
    committed.status = crate::next(&committed.status, Event::Committed { attempt: 2 }).unwrap();
    let retry_after = Some(SECOND);
    assert_eq!(
        decide(Some(&committed), &call(), at(1)),
        Decision::Committed { retry_after }
    );
}

#[test]
fn row_12_a_tombstone_is_expired_and_then_gone() {
    for mut receipt in every() {
        if !receipt.status.state.is_finished() {
            continue;
        }
        for kept in [
            Kept::Stored,
            Kept::Nothing,
            Kept::TooLarge,
            Kept::AnswerLost,
        ] {
            receipt.kept = kept;
            for (seconds, wanted) in [
                (110, Decision::Expired),
                (309, Decision::Expired),
                (310, Decision::Run { replaces: true }),
            ] {
                assert_eq!(decide(Some(&receipt), &call(), at(seconds)), wanted);
            }
        }
        // Gone is gone: another request is no conflict any more.
        let gone = Decision::Run { replaces: true };
        assert_eq!(decide(Some(&receipt), &other(), at(310)), gone);
    }
}

#[test]
fn i6_unresolved_receipts_never_expire() {
    for mut receipt in every() {
        if receipt.status.state.is_finished() || receipt.status.state == State::Free {
            continue;
        }
        // Not even if a store left a time of finishing in the row.
        receipt.finished_at = Some(at(0));
        let decision = decide(Some(&receipt), &call(), at(100_000_000));
        assert!(
            !matches!(decision, Decision::Run { .. } | Decision::Expired),
            "{:?}: {decision:?}",
            receipt.status
        );
        assert_eq!(
            receipt.shown_state(at(100_000_000)),
            receipt.status.state.as_str()
        );
    }
}

#[test]
fn a_released_receipt_is_free_until_it_is_gone() {
    let mut free = guarded(Event::NotApplied { attempt: 1 });
    free.finished_at = Some(at(10));
    assert_eq!(decide(Some(&free), &call(), at(150)), RUN);
    assert_eq!(decide(Some(&free), &other(), at(150)), Decision::Conflict);
    let gone = Decision::Run { replaces: true };
    assert_eq!(decide(Some(&free), &call(), at(310)), gone);
}

#[test]
fn i1_own_only_while_nothing_has_overtaken_the_reservation() {
    let own = Presented {
        token: Some(Token::new([1; 16])),
        ..call()
    };
    for receipt in every() {
        let early = decide(Some(&receipt), &own, at(11)) == Decision::Own;
        let late = decide(Some(&receipt), &own, at(30)) == Decision::Own;
        let status = &receipt.status;
        let wanted = match (receipt.mode, status.state) {
            (Mode::Guarded, State::Running | State::CancelRequested) => (!status.committed, false),
            (Mode::Dispatched, State::Accepted) => (true, true),
            (Mode::Atomic, State::Succeeded | State::Failed) => (true, true),
            _ => (false, false),
        };
        assert_eq!((early, late), wanted, "{:?} {status:?}", receipt.mode);
        let stranger = Presented {
            token: Some(Token::new([2; 16])),
            ..call()
        };
        assert_ne!(decide(Some(&receipt), &stranger, at(0)), Decision::Own);
    }
}

#[test]
fn attempts_survive_the_store() {
    let status = second_round().status;
    let bytes = status.attempts.to_bytes();
    assert_eq!(Attempts::from_bytes(&bytes), Some(status.attempts));
}
