//! A store that cannot say what another caller's open transaction makes of an identity, and stores
//! with a clock of their own or that tell of changes. Paused time.
#![allow(
    clippy::wildcard_enum_match_arm,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "these are tests"
)]

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use counterfoil_core::{
    Fingerprint, Identity, Key, OperationId, Policy, PrincipalId, Reply, State, Target, Timestamp,
    WorkspaceId,
};
use counterfoil_engine::{
    Answer, Attempt, Call, Clock, Engine, Operation, Outcome, Reason, Refusal,
};
use counterfoil_store::{BoxFuture, Failure, Sql, Store};
use counterfoil_testkit::{Fault, FaultyStore, MemoryStore, Step, VirtualClock};
use serde_json::json;
use tokio::{sync::Notify, time::Instant};

const START: Timestamp = Timestamp::from_millis(1_800_000_000_000);

fn engine_on(store: Arc<dyn Store>) -> Engine {
    let clock = Arc::new(VirtualClock::following_tokio(START));
    Engine::builder(store).clock(clock).build()
}

/// An engine on the same rows that is always told that the identity is held.
fn kept_out(memory: &Arc<MemoryStore>) -> Engine {
    let store = FaultyStore::new(Arc::clone(memory), |call| match call.step {
        Step::Admit | Step::Atomically => Fault::Held,
        _ => Fault::None,
    });
    engine_on(Arc::new(store))
}

fn call(wait: Option<Duration>) -> Call {
    let identity = Identity {
        workspace: WorkspaceId::new("w").unwrap(),
        principal: PrincipalId::new("p").unwrap(),
        target: Target::new("pay"),
        key: Key::new("k").unwrap(),
    };
    let operation = Operation::new(1, Policy::default()).unwrap();
    Call {
        wait,
        ..Call::new(identity, Fingerprint::raw("", b"body"), operation)
    }
}

fn done() -> Reply {
    Reply::json(201, &json!({"id": 1}))
}

async fn never(_: Attempt) -> Outcome {
    panic!("it ran");
}

fn never_in(_: Option<OperationId>, _: &mut dyn Sql) -> BoxFuture<'_, Result<Reply, Failure>> {
    panic!("it ran");
}

fn insert(_: Option<OperationId>, tx: &mut dyn Sql) -> BoxFuture<'_, Result<Reply, Failure>> {
    Box::pin(async move {
        tx.execute("INSERT INTO t (a) VALUES (1)", &[]).await?;
        Ok(done())
    })
}

fn is_in_progress(answer: &Answer, operation_id: Option<OperationId>) -> bool {
    *answer
        == Answer::Refused(Refusal {
            reason: Reason::InProgress {
                retry_after: Duration::from_secs(1),
            },
            operation_id,
        })
}

/// One call on each surface; how long they took.
async fn on_both(engine: &Engine, wait: Option<Duration>) -> [(Answer, Duration); 2] {
    let began = Instant::now();
    let guarded = engine.run(call(wait), never).await;
    let between = Instant::now();
    let atomic = engine.atomically(call(wait), never_in).await;
    [(guarded, between - began), (atomic, between.elapsed())]
}

#[tokio::test(start_paused = true)]
async fn i1_a_held_identity_is_in_progress_and_nothing_runs() {
    let memory = Arc::new(MemoryStore::new());
    for (answer, took) in on_both(&kept_out(&memory), None).await {
        assert!(is_in_progress(&answer, None), "{answer:?}");
        assert_eq!(took, Duration::ZERO, "nobody asked to wait");
    }
    assert_eq!(memory.receipts(), []);
    assert_eq!(memory.effects(), []);
}

#[tokio::test(start_paused = true)]
async fn i1_a_wait_at_a_held_identity_ends_and_nothing_runs() {
    let memory = Arc::new(MemoryStore::new());
    let wait = Duration::from_secs(7);
    for (answer, took) in on_both(&kept_out(&memory), Some(wait)).await {
        assert!(is_in_progress(&answer, None), "{answer:?}");
        assert!(
            took >= wait && took < wait + Duration::from_secs(1),
            "{took:?}"
        );
    }
    assert_eq!(memory.receipts(), []);
}

#[tokio::test(start_paused = true)]
async fn i2_who_waits_at_a_held_identity_gets_what_is_committed_under_it() {
    for atomic in [false, true] {
        let memory = Arc::new(MemoryStore::new());
        let other = engine_on(Arc::clone(&memory) as Arc<dyn Store>);
        let waiting = kept_out(&memory);
        let wait = Some(Duration::from_secs(20));
        let began = Instant::now();
        let (first, second) = tokio::join!(
            async {
                tokio::time::sleep(Duration::from_secs(3)).await;
                other.atomically(call(None), insert).await
            },
            async {
                if atomic {
                    waiting.atomically(call(wait), never_in).await
                } else {
                    waiting.run(call(wait), never).await
                }
            },
        );
        let Answer::Ran { operation_id, .. } = first else {
            panic!("{first:?}")
        };
        let replayed = Answer::Replayed {
            reply: done(),
            operation_id,
            stored_failure: false,
        };
        assert_eq!(second, replayed);
        assert!(began.elapsed() < Duration::from_secs(4));
        assert_eq!(memory.effects().len(), 1);
    }
}

/// What becomes visible may be a running attempt; from then on it is waited for as ever.
#[tokio::test(start_paused = true)]
async fn i1_who_waits_at_a_held_identity_waits_on_for_what_runs_under_it() {
    let memory = Arc::new(MemoryStore::new());
    let other = engine_on(Arc::clone(&memory) as Arc<dyn Store>);
    let waiting = kept_out(&memory);
    for (released, wait) in [(true, 20), (false, 20)] {
        let (first, second) = tokio::join!(
            async {
                tokio::time::sleep(Duration::from_secs(1)).await;
                let run = other.run(call(None), move |_| async move {
                    tokio::time::sleep(Duration::from_secs(2)).await;
                    if released {
                        Outcome::NotApplied(done())
                    } else {
                        Outcome::Succeeded(done())
                    }
                });
                run.await
            },
            waiting.run(call(Some(Duration::from_secs(wait))), never),
        );
        if released {
            assert_eq!(first, Answer::Failed { reply: done() });
            let row = memory.receipts().remove(0);
            assert_eq!(row.status.state, State::Free);
            // The first look may have been at a row that was not there yet, never at leave to run.
            assert!(
                is_in_progress(&second, Some(row.operation_id)),
                "{second:?}"
            );
        } else {
            assert!(matches!(first, Answer::Ran { .. }), "{first:?}");
            assert!(matches!(second, Answer::Replayed { .. }), "{second:?}");
        }
    }
}

/// A free row that another transaction is about to run on says nothing of what becomes of it.
#[tokio::test(start_paused = true)]
async fn i1_a_free_row_that_is_held_is_no_leave_to_run() {
    let memory = Arc::new(MemoryStore::new());
    let other = engine_on(Arc::clone(&memory) as Arc<dyn Store>);
    let released = other
        .run(call(None), async |_| Outcome::NotApplied(done()))
        .await;
    assert_eq!(released, Answer::Failed { reply: done() });
    let waiting = kept_out(&memory);
    let (first, second) = tokio::join!(
        async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            other.atomically(call(None), insert).await
        },
        waiting.run(call(Some(Duration::from_secs(20))), never),
    );
    assert!(matches!(first, Answer::Ran { .. }), "{first:?}");
    assert!(matches!(second, Answer::Replayed { .. }), "{second:?}");
}

/// What holds the identity may be the try before, whose commit was in doubt.
#[tokio::test(start_paused = true)]
async fn i1_held_after_a_commit_in_doubt_is_still_in_doubt() {
    for atomic in [false, true] {
        let memory = Arc::new(MemoryStore::new());
        let tries = AtomicU32::new(0);
        let store = FaultyStore::new(Arc::clone(&memory), move |call| match call.step {
            Step::Admit | Step::Atomically => match tries.fetch_add(1, Ordering::SeqCst) {
                0 => Fault::DoneUnknown,
                1 | 2 => Fault::Held,
                _ => Fault::None,
            },
            _ => Fault::None,
        });
        let store = Arc::new(store);
        let engine = engine_on(Arc::clone(&store) as Arc<dyn Store>);
        let answer = if atomic {
            engine.atomically(call(None), insert).await
        } else {
            let run = engine.run(call(None), async |_| Outcome::Succeeded(done()));
            run.await
        };
        assert!(matches!(answer, Answer::Ran { .. }), "{answer:?}");
        assert_eq!(memory.receipts().len(), 1);
        assert_eq!(memory.effects().len(), usize::from(atomic));
        assert_eq!(store.chosen().len(), 3);
    }
}

#[tokio::test(start_paused = true)]
async fn i3_held_to_the_end_after_a_commit_in_doubt_is_not_told_as_another_callers() {
    let doubtful = || {
        let tries = AtomicU32::new(0);
        let store = FaultyStore::new(Arc::new(MemoryStore::new()), move |call| match call.step {
            Step::Admit | Step::Atomically if tries.fetch_add(1, Ordering::SeqCst) == 0 => {
                Fault::NotDoneUnknown
            }
            Step::Admit | Step::Atomically => Fault::Held,
            _ => Fault::None,
        });
        engine_on(Arc::new(store))
    };
    let told = |answer| match answer {
        Answer::Refused(refusal) => refusal.reason,
        other => panic!("{other:?}"),
    };
    let guarded = told(doubtful().run(call(None), never).await);
    assert!(matches!(guarded, Reason::Unavailable(_)), "{guarded:?}");
    let atomic = told(doubtful().atomically(call(None), never_in).await);
    let retryable = matches!(
        atomic,
        Reason::Unknown {
            retryable: true,
            ..
        }
    );
    assert!(retryable, "{atomic:?}");
}

/// Another process's answer wakes a waiter at once if the store tells of it.
#[tokio::test(start_paused = true)]
async fn a_change_that_the_store_tells_wakes_a_waiter_before_its_next_look() {
    for tells in [false, true] {
        let memory = Arc::new(if tells {
            MemoryStore::telling_changes()
        } else {
            MemoryStore::new()
        });
        let (one, two) = (
            engine_on(Arc::clone(&memory) as Arc<dyn Store>),
            engine_on(Arc::clone(&memory) as Arc<dyn Store>),
        );
        let (begun, finish) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let running = tokio::spawn({
            let (begun, finish) = (Arc::clone(&begun), Arc::clone(&finish));
            async move {
                let run = one.run(call(None), move |_| async move {
                    begun.notify_one();
                    finish.notified().await;
                    Outcome::Succeeded(done())
                });
                run.await
            }
        });
        begun.notified().await;
        let waiting = tokio::spawn(async move {
            let answer = two.run(call(Some(Duration::from_secs(20))), never).await;
            (answer, Instant::now())
        });
        // Between two looks, which are half a second apart by now.
        tokio::time::sleep(Duration::from_millis(5_010)).await;
        let finished = Instant::now();
        finish.notify_one();
        let (answer, woken) = waiting.await.unwrap();
        assert!(matches!(answer, Answer::Replayed { .. }), "{answer:?}");
        assert!(matches!(running.await, Ok(Answer::Ran { .. })));
        assert_eq!(woken == finished, tells, "{:?}", woken - finished);
    }
}

/// A machine whose clock is a month ahead neither lapses nor expires what others hold.
#[tokio::test(start_paused = true)]
async fn i2_i6_the_stores_clock_counts_where_it_has_one() {
    let clock = Arc::new(VirtualClock::following_tokio(START));
    let memory = Arc::new(MemoryStore::with_clock(Arc::clone(&clock) as Arc<dyn Clock>));
    let machine = |ahead_ms| {
        let wrong = VirtualClock::following_tokio(START);
        wrong.jump_ms(ahead_ms);
        Engine::builder(Arc::clone(&memory) as Arc<dyn Store>)
            .clock(Arc::new(wrong))
            .build()
    };
    let month = 30 * 24 * 3600 * 1000;
    let (ahead, behind) = (machine(month), machine(-month));
    for engine in [&ahead, &behind] {
        assert_eq!(engine.now(), clock.now());
        assert_eq!(engine.check_clock(false).await, Ok(Ok(())));
    }
    let limit = Policy::default().attempt_limit;
    let (first, second) = tokio::join!(
        behind.run(call(None), move |attempt| async move {
            assert_eq!(attempt.hard_deadline, START.plus(limit));
            tokio::time::sleep(Duration::from_secs(60)).await;
            Outcome::Succeeded(done())
        }),
        async {
            tokio::time::sleep(Duration::from_secs(59)).await;
            ahead.sweep().await.unwrap();
            ahead.run(call(None), never).await
        },
    );
    assert!(matches!(first, Answer::Ran { .. }), "{first:?}");
    let Answer::Refused(refusal) = second else {
        panic!("{second:?}")
    };
    let alive = matches!(refusal.reason, Reason::InProgress { .. });
    assert!(alive, "its lease was renewed: {refusal:?}");
    for engine in [&ahead, &behind] {
        let answer = engine.run(call(None), never).await;
        assert!(matches!(answer, Answer::Replayed { .. }), "{answer:?}");
    }
    let row = memory.receipts().remove(0);
    assert_eq!(row.finished_at, Some(START.plus(Duration::from_secs(60))));
}

/// Two machines on one store, each with a boot of its own: both may purge, by their own readings,
/// and one that comes second within the hour leaves it be.
#[tokio::test(start_paused = true)]
async fn two_machines_sweep_in_turn_and_either_can_do_it_alone() {
    let clock = Arc::new(VirtualClock::following_tokio(START));
    let memory = Arc::new(MemoryStore::with_clock(Arc::clone(&clock) as Arc<dyn Clock>));
    let steps = Arc::new(AtomicU32::new(0));
    let own = [1, 2].map(|boots| {
        let own = VirtualClock::following_tokio(START);
        (0..boots).for_each(|_| own.reboot());
        Arc::new(own)
    });
    let machine = |own: &Arc<VirtualClock>| {
        let steps = Arc::clone(&steps);
        let store = FaultyStore::new(Arc::clone(&memory), move |call| {
            if call.step == Step::Sweep {
                steps.fetch_add(1, Ordering::SeqCst);
            }
            Fault::None
        });
        let own = Arc::clone(own) as Arc<dyn Clock>;
        Engine::builder(Arc::new(store)).clock(own).build()
    };
    let (one, two) = (machine(&own[0]), machine(&own[1]));
    let answer = one
        .run(call(None), async |_| Outcome::Succeeded(done()))
        .await;
    assert!(matches!(answer, Answer::Ran { .. }), "{answer:?}");
    let maintaining = tokio::spawn({
        let one = one.clone();
        async move { one.maintain().await }
    });
    let second = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(1800)).await;
        two.maintain().await;
    });
    let hours = |count: u64| tokio::time::sleep(Duration::from_secs(3601 * count));
    hours(10).await;
    let in_turn = steps.load(Ordering::SeqCst);
    assert!(
        (9..=11).contains(&in_turn),
        "one sweep an hour, not {in_turn}"
    );
    // The other one goes on alone, and what is past its windows goes away.
    maintaining.abort();
    for clock in [&clock].into_iter().chain(&own) {
        clock.advance(Duration::from_secs(40 * 24 * 3600));
    }
    hours(3).await;
    assert_eq!(memory.receipts(), []);
    second.abort();
}
