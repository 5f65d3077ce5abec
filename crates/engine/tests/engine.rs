//! The engine on the model store, with paused time.
#![allow(
    clippy::wildcard_enum_match_arm,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs
)]

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use counterfoil_core::{
    Effect, Fingerprint, Identity, Kept, Key, OnError, Pointer, Policy, PrincipalId, Reply, State,
    Target, Timestamp, WorkspaceId,
};
use counterfoil_engine::{
    Answer, Attempt, Authority, Call, Clock, Denied, Engine, KeyRing, Limits, Lookup, Monotonic,
    Operation, Outcome, Reason, Refusal, SystemEntropy,
};
use counterfoil_store::{BoxFuture, Error, Store};
use counterfoil_testkit::{Fault, FaultyStore, MemoryStore, Step};
use serde_json::json;
use tokio::sync::Notify;

/// A clock that follows tokio's paused time.
struct PausedClock(tokio::time::Instant);

impl Clock for PausedClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(1_800_000_000_000).plus(self.0.elapsed())
    }

    fn monotonic(&self) -> Monotonic {
        Monotonic {
            boot: [1; 16],
            millis: u64::try_from(self.0.elapsed().as_millis()).unwrap(),
        }
    }
}

struct Revocable(AtomicBool);

impl Authority for Revocable {
    fn check(&self) -> BoxFuture<'_, Result<(), Denied>> {
        let revoked = self.0.load(Ordering::SeqCst);
        Box::pin(async move {
            if revoked {
                Err(Denied::Withdrawn)
            } else {
                Ok(())
            }
        })
    }
}

fn engine_on(store: Arc<dyn Store>) -> Engine {
    Engine::builder(store)
        .clock(Arc::new(PausedClock(tokio::time::Instant::now())))
        .limits(Limits {
            waiters_per_receipt_max: 2,
            ..Limits::default()
        })
        .build()
}

fn scene() -> (Arc<MemoryStore>, Engine) {
    let store = Arc::new(MemoryStore::new());
    let engine = engine_on(Arc::clone(&store) as Arc<dyn Store>);
    (store, engine)
}

fn call_with(key: &str, body: &str, policy: Policy) -> Call {
    Call::new(
        Identity {
            workspace: WorkspaceId::new("w").unwrap(),
            principal: PrincipalId::new("p").unwrap(),
            target: Target::new("pay"),
            key: Key::new(key).unwrap(),
        },
        Fingerprint::raw("", body.as_bytes()),
        Operation::new(1, policy).unwrap(),
    )
}

fn call(key: &str) -> Call {
    call_with(key, "body", Policy::default())
}

fn done() -> Reply {
    Reply::json(201, &json!({"id": 1, "secret": "s3cret"}))
}

fn reason(answer: Answer) -> Reason {
    match answer {
        Answer::Refused(Refusal { reason, .. }) => reason,
        other => panic!("not refused: {other:?}"),
    }
}

async fn never(_: Attempt) -> Outcome {
    panic!("it ran again");
}

#[tokio::test(start_paused = true)]
async fn a_retry_gets_the_first_answer_and_runs_nothing() {
    let (_, engine) = scene();
    let first = engine
        .run(call("k"), async |_| Outcome::Succeeded(done()))
        .await;
    let Answer::Ran {
        reply,
        operation_id,
    } = first
    else {
        panic!("{first:?}")
    };
    for _ in 0..3 {
        assert_eq!(
            engine.run(call("k"), never).await,
            Answer::Replayed {
                reply: reply.clone(),
                operation_id,
                stored_failure: false
            }
        );
    }
    let other = call_with("k", "another body", Policy::default());
    assert_eq!(reason(engine.run(other, never).await), Reason::Conflict);
}

#[tokio::test(start_paused = true)]
async fn i2_the_caller_going_away_stops_nothing() {
    let (_, engine) = scene();
    let (begun, finish) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let running = {
        let (begun, finish) = (Arc::clone(&begun), Arc::clone(&finish));
        engine.run(call("k"), move |_| async move {
            begun.notify_one();
            finish.notified().await;
            Outcome::Succeeded(done())
        })
    };
    tokio::select! {
        answer = running => panic!("{answer:?}"),
        () = begun.notified() => {} // the caller leaves here
    }
    let waiting = Call {
        wait: Some(Duration::from_secs(30)),
        ..call("k")
    };
    assert!(matches!(
        reason(engine.run(call("k"), never).await),
        Reason::InProgress { .. }
    ));
    finish.notify_one();
    assert!(matches!(
        engine.run(waiting, never).await,
        Answer::Replayed { .. }
    ));
    assert!(engine.drain(Duration::from_secs(1)).await);
}

#[tokio::test(start_paused = true)]
async fn i3_a_panic_and_a_hang_are_unknown_and_a_late_answer_settles() {
    let (store, engine) = scene();
    let panicked = engine.run(call("p"), async |_| panic!("boom")).await;
    assert_eq!(
        reason(panicked),
        Reason::Unknown {
            first: true,
            timed_out: false,
            retryable: false
        }
    );
    assert_eq!(
        reason(engine.run(call("p"), never).await),
        Reason::Unknown {
            first: false,
            timed_out: false,
            retryable: false
        }
    );

    let late = Arc::new(Notify::new());
    let hang = {
        let late = Arc::clone(&late);
        engine.run(call("h"), move |_| async move {
            late.notified().await;
            Outcome::Succeeded(done())
        })
    };
    assert_eq!(
        reason(hang.await),
        Reason::Unknown {
            first: true,
            timed_out: true,
            retryable: false
        }
    );
    let row = |store: &MemoryStore| {
        store
            .receipts()
            .into_iter()
            .find(|r| r.identity.key.as_str() == "h")
            .unwrap()
    };
    assert_eq!(row(&store).status.state, State::OutcomeUnknown);
    late.notify_one();
    assert!(engine.drain(Duration::from_secs(1)).await);
    assert_eq!(row(&store).effect(), Effect::Happened);
    assert!(matches!(
        engine.run(call("h"), never).await,
        Answer::Replayed { .. }
    ));
}

#[tokio::test(start_paused = true)]
async fn a_live_attempt_keeps_its_lease_beyond_the_first() {
    let (_, engine) = scene();
    let policy = Policy {
        lease: Duration::from_secs(3),
        ..Policy::default()
    };
    let slow = engine.run(call_with("k", "b", policy.clone()), async |_| {
        tokio::time::sleep(Duration::from_secs(60)).await;
        Outcome::Succeeded(done())
    });
    let looks = async {
        for _ in 0..19 {
            tokio::time::sleep(Duration::from_secs(3)).await;
            let again = engine.run(call_with("k", "b", policy.clone()), never).await;
            assert!(matches!(reason(again), Reason::InProgress { .. }));
        }
    };
    let (answer, ()) = tokio::join!(slow, looks);
    assert!(matches!(answer, Answer::Ran { .. }));
}

#[tokio::test(start_paused = true)]
async fn a_waiter_never_becomes_a_runner_after_a_release() {
    let (_, engine) = scene();
    let finish = Arc::new(Notify::new());
    let first = {
        let finish = Arc::clone(&finish);
        engine.run(call("k"), move |_| async move {
            finish.notified().await;
            Outcome::NotApplied(Reply::json(503, &json!({})))
        })
    };
    let waiter = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let waiting = Call {
            wait: Some(Duration::from_secs(30)),
            ..call("k")
        };
        let answer = tokio::join!(engine.run(waiting, never), async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            finish.notify_one();
        });
        answer.0
    };
    let (first, waiter) = tokio::join!(first, waiter);
    assert!(matches!(first, Answer::Failed { .. }));
    assert!(matches!(reason(waiter), Reason::InProgress { .. }));
    let again = engine.run(call("k"), async |attempt: Attempt| {
        assert_eq!(
            attempt.fence.attempt, 2,
            "the counter is kept over a release"
        );
        Outcome::Succeeded(done())
    });
    assert!(matches!(again.await, Answer::Ran { .. }));
}

#[tokio::test(start_paused = true)]
async fn waiters_of_one_receipt_are_bounded() {
    let (_, engine) = scene();
    let slow = engine.run(call("k"), async |_| {
        tokio::time::sleep(Duration::from_secs(20)).await;
        Outcome::Succeeded(done())
    });
    let waiters = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let wait = || {
            engine.run(
                Call {
                    wait: Some(Duration::from_secs(40)),
                    ..call("k")
                },
                never,
            )
        };
        tokio::join!(wait(), wait(), wait())
    };
    let (_, (a, b, c)) = tokio::join!(slow, waiters);
    let replays = [&a, &b, &c]
        .into_iter()
        .filter(|answer| matches!(answer, Answer::Replayed { .. }))
        .count();
    assert_eq!(replays, 2, "{a:?} {b:?} {c:?}");
}

#[tokio::test(start_paused = true)]
async fn i4_a_result_is_not_handed_over_once_authority_is_withdrawn() {
    let (store, engine) = scene();
    let authority = Arc::new(Revocable(AtomicBool::new(false)));
    let mine = |wait| Call {
        authority: Arc::clone(&authority) as Arc<dyn Authority>,
        wait,
        ..call("k")
    };
    let first = engine.run(mine(None), async |_| {
        tokio::time::sleep(Duration::from_secs(5)).await;
        Outcome::Succeeded(done())
    });
    let waiter = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        engine.run(mine(Some(Duration::from_secs(30))), never).await
    };
    let revoke = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        authority.0.store(true, Ordering::SeqCst);
    };
    let (first, waiter, ()) = tokio::join!(first, waiter, revoke);
    assert_eq!(reason(first), Reason::Denied);
    assert_eq!(reason(waiter), Reason::Denied);
    assert_eq!(
        store.receipts()[0].status.state,
        State::Succeeded,
        "what happened is recorded"
    );
}

#[tokio::test(start_paused = true)]
async fn five_hundreds_release_only_what_did_not_commit() {
    let (store, engine) = scene();
    let policy = Policy {
        on_error: OnError::ReleaseUnlessCommitted,
        ..Policy::default()
    };
    let rolled_back = call_with("r", "b", policy.clone());
    let failed = engine.run(rolled_back.clone(), async |_| {
        Outcome::Failed(Reply::json(500, &json!({})))
    });
    assert!(matches!(failed.await, Answer::Failed { .. }));
    assert!(matches!(
        engine
            .run(rolled_back, async |_| Outcome::Succeeded(done()))
            .await,
        Answer::Ran { .. }
    ));

    let committing = {
        let store = Arc::clone(&store);
        move |attempt: Attempt| async move {
            counterfoil_store::transact(store.as_ref(), None, move |tx| {
                tx.mark_committed_boxed(attempt)
            })
            .await
            .unwrap();
            Outcome::Failed(Reply::json(500, &json!({})))
        }
    };
    let committed = call_with("c", "b", policy);
    assert!(matches!(
        engine.run(committed.clone(), committing).await,
        Answer::Failed { .. }
    ));
    assert_eq!(
        reason(engine.run(committed, never).await),
        Reason::Committed { retry_after: None }
    );

    // Without that promise, a 500 proves nothing.
    let opaque = engine.run(call("o"), async |_| {
        Outcome::Failed(Reply::json(500, &json!({})))
    });
    assert!(matches!(
        reason(opaque.await),
        Reason::Unknown { first: true, .. }
    ));
    assert!(matches!(
        reason(engine.run(call("o"), never).await),
        Reason::Unknown { .. }
    ));
}

trait MarkCommitted {
    fn mark_committed_boxed(&mut self, attempt: Attempt) -> BoxFuture<'_, Result<(), Error>>;
}

impl MarkCommitted for dyn counterfoil_store::Sql + '_ {
    fn mark_committed_boxed(&mut self, attempt: Attempt) -> BoxFuture<'_, Result<(), Error>> {
        self.mark_committed(attempt.fence)
    }
}

#[tokio::test(start_paused = true)]
async fn i3_busy_at_completion_is_no_release() {
    let inner = Arc::new(MemoryStore::new());
    let busy = Arc::new(AtomicU32::new(0));
    let plan = {
        let busy = Arc::clone(&busy);
        move |chosen: counterfoil_testkit::Call| {
            let fails = chosen.step == Step::Complete && busy.fetch_add(1, Ordering::SeqCst) < 3;
            if fails { Fault::Busy } else { Fault::None }
        }
    };
    let engine = engine_on(Arc::new(FaultyStore::new(Arc::clone(&inner), plan)));
    let answer = engine
        .run(call("k"), async |_| Outcome::Succeeded(done()))
        .await;
    assert!(matches!(answer, Answer::Ran { .. }), "{answer:?}");
    assert_eq!(busy.load(Ordering::SeqCst), 4, "the faults were met");
    assert_eq!(inner.receipts()[0].status.state, State::Succeeded);
}

#[tokio::test(start_paused = true)]
async fn i2_an_answer_that_cannot_be_recorded_says_so_and_its_key_never_runs_again() {
    let inner = Arc::new(MemoryStore::new());
    let plan = |chosen: counterfoil_testkit::Call| match chosen.step {
        Step::Complete => Fault::Unavailable,
        _ => Fault::None,
    };
    let engine = engine_on(Arc::new(FaultyStore::new(Arc::clone(&inner), plan)));
    let answer = engine
        .run(call("k"), async |_| Outcome::Succeeded(done()))
        .await;
    assert!(matches!(answer, Answer::NotRecorded { .. }), "{answer:?}");
    tokio::time::sleep(Duration::from_secs(200)).await;
    assert!(matches!(
        reason(engine.run(call("k"), never).await),
        Reason::Unknown { .. }
    ));
}

#[tokio::test(start_paused = true)]
async fn i1_an_admission_whose_commit_is_unknown_finds_its_own_reservation() {
    let inner = Arc::new(MemoryStore::new());
    let faulty = FaultyStore::once(Arc::clone(&inner), Step::Admit, 0, Fault::DoneUnknown);
    let engine = engine_on(Arc::new(faulty));
    let runs = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&runs);
    let answer = engine.run(call("k"), move |_| async move {
        counted.fetch_add(1, Ordering::SeqCst);
        Outcome::Succeeded(done())
    });
    assert!(matches!(answer.await, Answer::Ran { .. }));
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    assert_eq!(inner.receipts()[0].status.attempts.latest(), 1);
}

#[tokio::test(start_paused = true)]
async fn stored_answers_are_redacted_and_sealed_and_the_first_one_is_whole() {
    let store = Arc::new(MemoryStore::new());
    let ring = KeyRing::parse(&KeyRing::generate(1, &SystemEntropy).unwrap()).unwrap();
    let engine = Engine::builder(Arc::clone(&store) as Arc<dyn Store>)
        .clock(Arc::new(PausedClock(tokio::time::Instant::now())))
        .key_ring(Arc::new(ring))
        .build();
    let policy = Policy {
        seal: true,
        redact: vec![Pointer::new("/secret").unwrap()],
        ..Policy::default()
    };
    let sealed = call_with("k", "b", policy);
    let first = engine
        .run(sealed.clone(), async |_| Outcome::Succeeded(done()))
        .await;
    let Answer::Ran {
        reply,
        operation_id,
    } = first
    else {
        panic!("{first:?}")
    };
    assert!(String::from_utf8_lossy(&reply.body).contains("s3cret"));
    let stored = store
        .get(operation_id)
        .await
        .unwrap()
        .unwrap()
        .reply
        .unwrap();
    assert_eq!(stored.sealed, Some(1));
    let Answer::Replayed { reply, .. } = engine.run(sealed.clone(), never).await else {
        panic!()
    };
    assert_eq!(reply.body, r#"{"id":1,"secret":null}"#);

    // Another process without the key: it ran, and nothing runs again.
    let elsewhere = engine_on(Arc::clone(&store) as Arc<dyn Store>);
    assert_eq!(
        reason(elsewhere.run(sealed, never).await),
        Reason::ResultUnavailable
    );
    let fresh = call_with(
        "new",
        "b",
        Policy {
            seal: true,
            ..Policy::default()
        },
    );
    assert!(matches!(
        reason(elsewhere.run(fresh, never).await),
        Reason::Unavailable(_)
    ));
    assert_eq!(
        store.receipts().len(),
        1,
        "refused before anything was reserved"
    );
}

#[tokio::test(start_paused = true)]
async fn field_06_a_result_too_large_leaves_a_marker_and_nothing_runs_again() {
    let (store, engine) = scene();
    let policy = Policy {
        result_bytes_max: 100,
        ..Policy::default()
    };
    let large = call_with("k", "b", policy);
    let body = json!({"text": "x".repeat(200)});
    let answer = engine.run(large.clone(), move |_| async move {
        Outcome::Succeeded(Reply::json(200, &body))
    });
    assert!(matches!(answer.await, Answer::Ran { .. }));
    assert_eq!(store.receipts()[0].kept, Kept::TooLarge);
    assert_eq!(
        reason(engine.run(large, never).await),
        Reason::ResultUnavailable
    );
}

#[tokio::test(start_paused = true)]
async fn field_10_a_kept_failure_says_that_it_is_one() {
    let (_, engine) = scene();
    let refusing = async |_| Outcome::Refused {
        reply: Reply::json(409, &json!({})),
        effect_none: true,
    };
    assert!(matches!(
        engine.run(call("k"), refusing).await,
        Answer::Ran { .. }
    ));
    let again = engine.run(call("k"), never).await;
    assert!(
        matches!(
            again,
            Answer::Replayed {
                stored_failure: true,
                ..
            }
        ),
        "{again:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_question_is_replayed_and_the_same_key_goes_on_with_its_inputs() {
    let (_, engine) = scene();
    let question = Reply::json(402, &json!({"pay": 1}));
    let asks = {
        let reply = question.clone();
        move |_| async move {
            Outcome::Asked {
                reply,
                effect_none: true,
                question_for: Duration::from_secs(60),
            }
        }
    };
    assert!(matches!(
        engine.run(call("k"), asks).await,
        Answer::Asked {
            replayed: false,
            ..
        }
    ));
    let again = engine.run(call("k"), never).await;
    assert!(matches!(again, Answer::Asked { replayed: true, ref reply, .. } if *reply == question));
    let paid = Call {
        inputs: Some([7; 32]),
        ..call("k")
    };
    let rounds = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&rounds);
    let answer = engine.run(paid.clone(), move |attempt| async move {
        seen.lock().unwrap().push(attempt.round);
        Outcome::Succeeded(done())
    });
    assert!(matches!(answer.await, Answer::Ran { .. }));
    assert_eq!(*rounds.lock().unwrap(), [1]);
    assert!(matches!(
        engine.run(paid, never).await,
        Answer::Replayed { .. }
    ));
    let other = Call {
        inputs: Some([8; 32]),
        ..call("k")
    };
    assert_eq!(reason(engine.run(other, never).await), Reason::Conflict);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_before_it_runs_uses_up_no_key() {
    let (store, engine) = scene();
    let Lookup::Ready(ready) = engine.look_up(call("k")).await else {
        panic!()
    };
    drop(ready);
    assert!(store.receipts().is_empty());
}

/// A clock of the same machine that stands elsewhere.
struct Ahead(PausedClock, Duration);

impl Clock for Ahead {
    fn now(&self) -> Timestamp {
        self.0.now().plus(self.1)
    }

    fn monotonic(&self) -> Monotonic {
        self.0.monotonic()
    }
}

#[tokio::test(start_paused = true)]
async fn i2_a_process_whose_clock_disagrees_does_not_start_unless_somebody_says_so() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let start = tokio::time::Instant::now();
    let with = |ahead| {
        Engine::builder(Arc::clone(&store))
            .clock(Arc::new(Ahead(PausedClock(start), ahead)))
            .build()
    };
    let month = Duration::from_secs(30 * 86_400);
    assert_eq!(with(Duration::ZERO).check_clock(false).await, Ok(Ok(())));
    assert_eq!(
        with(Duration::from_secs(60)).check_clock(false).await,
        Ok(Ok(()))
    );
    let moved = with(month).check_clock(false).await.unwrap().unwrap_err();
    assert!(
        moved.ahead && moved.by >= month - Duration::from_secs(60),
        "{moved}"
    );
    let still = with(month).check_clock(false).await.unwrap();
    assert!(still.is_err(), "a refused clock leaves nothing behind");
    assert_eq!(with(month).check_clock(true).await, Ok(Ok(())));
    let back = with(Duration::ZERO)
        .check_clock(false)
        .await
        .unwrap()
        .unwrap_err();
    assert!(!back.ahead, "{back}");
}
