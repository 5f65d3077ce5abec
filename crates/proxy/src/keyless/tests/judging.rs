//! The pure judgement, case by case.

use std::time::Duration;

use counterfoil_core::Timestamp;

use super::scene::{WINDOWS, at};
use crate::keyless::{
    Channel,
    judge::{Earlier, Handing, New, Standing, Verdict, judge},
};

const HERE: Channel = Channel([1; 16]);
const ELSEWHERE: Channel = Channel([2; 16]);
const NOW: Timestamp = at(1_000_000);

fn ago(millis: i64) -> Timestamp {
    Timestamp::from_millis(NOW.as_millis() - millis)
}

/// Started twenty seconds ago elsewhere, finished, and nothing is known of its answer.
fn earlier(handing: Handing) -> Earlier {
    Earlier {
        handing,
        channel: ELSEWHERE,
        started_at: ago(20_000),
        live: false,
        paired: false,
        standing: Standing::Finished { at: ago(15_000) },
        mutated_since: Some(false),
    }
}

const NEW: New = New {
    channel: HERE,
    now: NOW,
    annotated: true,
    may_attach: true,
};

fn verdict(call: Earlier) -> Verdict {
    judge(&[call], &NEW, &WINDOWS)
}

fn undelivered() -> Earlier {
    earlier(Handing::Undelivered { since: ago(1_000) })
}

#[test]
fn i5_with_no_earlier_call_it_runs() {
    assert_eq!(judge(&[], &NEW, &WINDOWS), Verdict::Run);
}

#[test]
fn i5_what_happened_to_nobody_does_not_count() {
    let call = Earlier {
        standing: Standing::Nothing,
        ..undelivered()
    };
    assert_eq!(verdict(call), Verdict::Run);
}

#[test]
fn i5_a_proven_answer_runs_and_an_unproven_one_asks() {
    let flushed = Handing::Presumed { at: ago(15_000) };
    let same_channel = Earlier {
        channel: HERE,
        ..earlier(flushed)
    };
    let late = Earlier {
        started_at: ago(15_000 + 10_001),
        ..same_channel
    };
    for (call, wanted) in [
        (
            earlier(Handing::Confirmed { at: ago(15_000) }),
            Verdict::Run,
        ),
        (same_channel, Verdict::Run),
        (late, Verdict::Ask(0)),
        (earlier(flushed), Verdict::Ask(0)),
        (
            earlier(Handing::Doubted { at: ago(15_000) }),
            Verdict::Ask(0),
        ),
        (earlier(Handing::Open), Verdict::Ask(0)),
    ] {
        assert_eq!(verdict(call), wanted, "{call:?}");
    }
}

#[test]
fn i5_two_parallel_calls_run_only_while_the_first_ones_client_surely_waits() {
    let parallel = Earlier {
        live: true,
        started_at: ago(999),
        standing: Standing::Running,
        ..earlier(Handing::Open)
    };
    let written_now = Earlier {
        standing: Standing::Finished { at: ago(1) },
        ..parallel
    };
    let long = Earlier {
        started_at: ago(1_000),
        ..parallel
    };
    let of_a_dead_process = Earlier {
        live: false,
        ..parallel
    };
    let being_paired = Earlier {
        paired: true,
        ..parallel
    };
    for (call, wanted) in [
        (parallel, Verdict::Run),
        (written_now, Verdict::Run),
        (long, Verdict::Ask(0)),
        (of_a_dead_process, Verdict::Ask(0)),
        (being_paired, Verdict::Ask(0)),
    ] {
        assert_eq!(verdict(call), wanted, "{call:?}");
    }
}

#[test]
fn i5_attaching_needs_every_condition() {
    let call = undelivered();
    assert_eq!(verdict(call), Verdict::Attach(0));
    let not_looked = Earlier {
        mutated_since: None,
        ..call
    };
    assert_eq!(verdict(not_looked), Verdict::Look(0));
    let mutated = Earlier {
        mutated_since: Some(true),
        ..call
    };
    let long_ago = Earlier {
        handing: Handing::Undelivered {
            since: ago(120_001),
        },
        ..call
    };
    for refused in [mutated, long_ago] {
        assert_eq!(verdict(refused), Verdict::Ask(0), "{refused:?}");
    }
    let ask_only = New {
        may_attach: false,
        ..NEW
    };
    assert_eq!(judge(&[not_looked], &ask_only, &WINDOWS), Verdict::Ask(0));
}

#[test]
fn i5_a_tool_that_says_nothing_of_itself_gives_no_old_result() {
    let silent = New {
        annotated: false,
        ..NEW
    };
    for (standing, wanted) in [
        (Standing::Finished { at: ago(5_000) }, Verdict::Attach(0)),
        (Standing::Finished { at: ago(5_001) }, Verdict::Ask(0)),
        (Standing::Running, Verdict::Attach(0)),
        (Standing::Unknown { since: ago(20_000) }, Verdict::Attach(0)),
    ] {
        let call = Earlier {
            standing,
            ..undelivered()
        };
        assert_eq!(judge(&[call], &silent, &WINDOWS), wanted, "{standing:?}");
    }
}

#[test]
fn i5_an_unknown_outcome_is_evidence_once() {
    let unknown = Earlier {
        standing: Standing::Unknown { since: ago(60_000) },
        ..earlier(Handing::Open)
    };
    let told = Earlier {
        handing: Handing::Told { at: ago(60_000) },
        ..unknown
    };
    let told_to_a_pair = Earlier {
        paired: true,
        ..told
    };
    let lost_by_a_pair = Earlier {
        paired: true,
        standing: unknown.standing,
        ..undelivered()
    };
    let old = Earlier {
        standing: Standing::Unknown {
            since: ago(120_001),
        },
        ..unknown
    };
    for (call, wanted) in [
        (unknown, Verdict::Attach(0)),
        (told, Verdict::Attach(0)),
        (told_to_a_pair, Verdict::Ask(0)),
        (lost_by_a_pair, Verdict::Attach(0)),
        (old, Verdict::Ask(0)),
    ] {
        assert_eq!(verdict(call), wanted, "{call:?}");
    }
}

#[test]
fn i5_who_was_told_to_wait_gets_the_answer_afterwards() {
    for standing in [Standing::Running, Standing::Finished { at: ago(500) }] {
        let call = Earlier {
            standing,
            paired: true,
            ..earlier(Handing::Told { at: ago(3_000) })
        };
        assert_eq!(verdict(call), Verdict::Attach(0), "{standing:?}");
    }
}

#[test]
fn i5_the_first_that_can_be_paired_is_and_the_last_is_asked_about() {
    let unproven = earlier(Handing::Open);
    let delivered = earlier(Handing::Confirmed { at: ago(15_000) });
    let all = [unproven, undelivered(), undelivered(), unproven];
    assert_eq!(judge(&all, &NEW, &WINDOWS), Verdict::Attach(1));
    let asked = [unproven, delivered, unproven, delivered];
    assert_eq!(judge(&asked, &NEW, &WINDOWS), Verdict::Ask(2));
}

#[test]
fn i5_after_ask_for_nobody_asks() {
    let day = 24 * 3_600_000;
    let call = |millis| Earlier {
        started_at: ago(millis + 10),
        standing: Standing::Finished {
            at: ago(millis + 10),
        },
        ..earlier(Handing::Undelivered { since: ago(millis) })
    };
    assert_eq!(verdict(call(day)), Verdict::Ask(0));
    assert_eq!(verdict(call(day + 1)), Verdict::Run);
}

#[test]
fn i5_what_was_written_in_time_is_asked_about_for_a_while() {
    let minutes = 15 * 60_000;
    let call = |took, millis| Earlier {
        started_at: ago(millis + took),
        standing: Standing::Finished {
            at: ago(millis + 1),
        },
        channel: Channel([9; 16]),
        ..earlier(Handing::Presumed { at: ago(millis) })
    };
    assert_eq!(verdict(call(5, minutes)), Verdict::Ask(0));
    assert_eq!(verdict(call(5, minutes + 1)), Verdict::Run);
    // Late, it may have been thrown away.
    assert_eq!(verdict(call(10_001, minutes + 1)), Verdict::Ask(0));
    let unknown = Earlier {
        standing: Standing::Unknown {
            since: ago(minutes + 1),
        },
        ..call(5, minutes + 1)
    };
    assert_eq!(verdict(unknown), Verdict::Ask(0));
}

#[test]
fn times_in_the_future_count_as_now() {
    let ahead = NOW.plus(Duration::from_secs(60));
    let call = Earlier {
        started_at: ahead,
        ..earlier(Handing::Undelivered { since: ahead })
    };
    assert_eq!(verdict(call), Verdict::Attach(0));
}
