//! Atomic operations: admission, effect, result and event are one transaction.

use std::sync::Arc;

use counterfoil_core::{Decision, Effect, Event, Kept, State};
use counterfoil_store::{Atomic, Dialect, Error, Store};

use super::Subject;
use super::scene::{
    End, START, after, atomic, completion, create_table, effects, guarded, not_run, note, ran,
    reply, run, stored, with_body,
};

async fn open(subject: &Subject) -> Arc<dyn Store> {
    let store = subject.open().await;
    create_table(&*store).await;
    store
}

pub async fn an_effect_and_its_receipt_are_one(subject: Subject) {
    let store = open(&subject).await;
    let admission = atomic("k", START);
    let (receipt, answer) = ran(&*store, admission.clone(), note("n", End::Success)).await;
    assert_eq!(answer, reply("n"));
    assert_eq!(receipt.operation_id, admission.operation_id);
    assert_eq!(receipt.status.state, State::Succeeded);
    assert_eq!(receipt.effect(), Effect::Happened);
    assert_eq!(receipt.status.attempts.latest(), 1);
    assert_eq!(receipt.finished_at, Some(START));
    assert_eq!(receipt.kept, Kept::Stored);
    let again = subject.open().await;
    assert_eq!(effects(&*again, "n").await, 1);
    let found = again.find(&admission.identity).await.unwrap().unwrap();
    assert_eq!(found.receipt, receipt);
    assert_eq!(found.reply, Some(stored("n")));
    let events = again.events(receipt.operation_id).await.unwrap();
    assert_eq!(events.len(), 1);
    assert_eq!((events[0].from, events[0].to), (None, State::Succeeded));
}

pub async fn i2_an_atomic_answer_is_replayed(subject: Subject) {
    let store = open(&subject).await;
    ran(&*store, atomic("k", START), note("n", End::Success)).await;
    let again = subject.open().await;
    for store in [&store, &again] {
        let admission = atomic("k", after(1));
        let (decision, found) = not_run(&**store, admission, note("n", End::Success)).await;
        assert_eq!(decision, Decision::Replay);
        assert_eq!(found.reply, Some(stored("n")));
    }
    assert_eq!(effects(&*store, "n").await, 1);
}

pub async fn a_refusal_rolls_back_and_is_kept(subject: Subject) {
    let store = open(&subject).await;
    let (receipt, answer) = ran(&*store, atomic("k", START), note("n", End::Refusal)).await;
    assert_eq!(answer.status, 422);
    assert_eq!(receipt.status.state, State::Failed);
    assert_eq!(receipt.effect(), Effect::None);
    assert_eq!(receipt.finished_at, Some(START));
    assert_eq!(effects(&*store, "n").await, 0);
    let admission = atomic("k", after(1));
    let (decision, found) = not_run(&*store, admission, note("n", End::Success)).await;
    assert_eq!(decision, Decision::Replay);
    assert_eq!(found.reply.unwrap().reply, answer);
    assert_eq!(effects(&*store, "n").await, 0);
}

pub async fn an_abort_keeps_nothing(subject: Subject) {
    let store = open(&subject).await;
    let admission = atomic("k", START);
    let identity = admission.identity.clone();
    let handler = Arc::new(note("n", End::Abort));
    match store.atomically(admission, handler).await.unwrap() {
        Atomic::Aborted(answer) => assert_eq!(answer.status, 503),
        other @ (Atomic::Ran(..) | Atomic::Decided(..) | Atomic::Own(_) | Atomic::Held) => {
            panic!("expected an abort, got {other:?}")
        }
    }
    assert_eq!(effects(&*store, "n").await, 0);
    let found = store.find(&identity).await.unwrap();
    assert!(found.is_none_or(|found| found.receipt.status.state == State::Free));
    ran(&*store, atomic("k", after(1)), note("n", End::Success)).await;
    assert_eq!(effects(&*store, "n").await, 1);
}

async fn leaves_neither(subject: Subject, end: End, is_right: fn(&Error) -> bool) {
    let store = open(&subject).await;
    let admission = atomic("k", START);
    let identity = admission.identity.clone();
    let failed = store.atomically(admission, Arc::new(note("n", end))).await;
    let error = failed.expect_err("the handler failed");
    assert!(is_right(&error), "{error:?}");
    assert_eq!(effects(&*store, "n").await, 0);
    assert_eq!(store.find(&identity).await.unwrap(), None);
    let (_, answer) = ran(&*store, atomic("k", after(1)), note("n", End::Success)).await;
    assert_eq!(answer, reply("n"));
    assert_eq!(effects(&*store, "n").await, 1);
}

pub async fn a_failure_between_effect_and_receipt_leaves_neither(subject: Subject) {
    leaves_neither(subject, End::StoreError, |error| {
        *error == Error::Statement("injected after the effect".to_owned())
    })
    .await;
}

pub async fn a_panic_leaves_neither(subject: Subject) {
    leaves_neither(subject, End::Panic, |error| {
        matches!(error, Error::Handler(_))
    })
    .await;
}

pub async fn a_panic_while_keeping_leaves_neither(subject: Subject) {
    leaves_neither(subject, End::PanicInKeep, |error| {
        matches!(error, Error::Handler(_))
    })
    .await;
}

pub async fn a_failed_statement_leaves_neither(subject: Subject) {
    leaves_neither(subject, End::WrongStatement, |error| {
        matches!(error, Error::Statement(_))
    })
    .await;
}

pub async fn an_atomic_result_too_large_leaves_a_marker(subject: Subject) {
    let store = open(&subject).await;
    let (receipt, answer) = ran(&*store, atomic("k", START), note("n", End::TooLarge)).await;
    assert_eq!(answer, reply("n"), "the first caller gets its answer");
    assert_eq!(receipt.kept, Kept::TooLarge);
    let admission = atomic("k", after(1));
    let (decision, found) = not_run(&*store, admission, note("n", End::Success)).await;
    assert_eq!(decision, Decision::ResultUnavailable);
    assert_eq!(found.reply, None);
    assert_eq!(effects(&*store, "n").await, 1);
}

pub async fn a_repeated_atomic_admission_is_its_own(subject: Subject) {
    let store = open(&subject).await;
    let admission = atomic("k", START);
    let (receipt, _) = ran(&*store, admission.clone(), note("n", End::Success)).await;
    let handler = Arc::new(note("n", End::Success));
    match store.atomically(admission, handler).await.unwrap() {
        Atomic::Own(found) => {
            assert_eq!(found.receipt, receipt);
            assert_eq!(found.reply, Some(stored("n")));
        }
        other @ (Atomic::Ran(..) | Atomic::Decided(..) | Atomic::Aborted(_) | Atomic::Held) => {
            panic!("expected its own, got {other:?}")
        }
    }
    assert_eq!(effects(&*store, "n").await, 1);
}

pub async fn an_atomic_conflict_runs_nothing(subject: Subject) {
    let store = open(&subject).await;
    ran(&*store, atomic("k", START), note("n", End::Success)).await;
    let other = with_body("another", atomic("k", after(1)));
    let (decision, _) = not_run(&*store, other, note("n", End::Success)).await;
    assert_eq!(decision, Decision::Conflict);
    assert_eq!(effects(&*store, "n").await, 1);
}

pub async fn a_handler_may_not_control_transactions(subject: Subject) {
    let store = open(&subject).await;
    // What only PostgreSQL has a statement for is no statement elsewhere.
    let of_dialect: &[_] = match store.dialect() {
        Dialect::Postgres => &[
            "START TRANSACTION",
            "abort",
            "PREPARE TRANSACTION 'p'",
            "/* a word */ commit",
            "-- a word\ncommit",
        ],
        Dialect::Sqlite => &["/* a word */ commit", "-- a word\ncommit"],
        Dialect::Memory => &[],
    };
    let of_all = [
        "COMMIT",
        "ROLLBACK",
        "BEGIN",
        "SAVEPOINT s",
        "RELEASE s",
        "end",
    ];
    for sql in of_all.iter().chain(of_dialect) {
        let admission = atomic("k", START);
        let identity = admission.identity.clone();
        let handler = Arc::new(note("n", End::Transaction(sql)));
        let refused = store.atomically(admission, handler).await;
        assert!(
            matches!(refused, Err(Error::Handler(_))),
            "{sql}: {refused:?}"
        );
        assert_eq!(effects(&*store, "n").await, 0, "{sql}");
        assert_eq!(store.find(&identity).await.unwrap(), None, "{sql}");
    }
    ran(&*store, atomic("k", START), note("n", End::Success)).await;
}

pub async fn a_released_key_may_run_atomically(subject: Subject) {
    let store = open(&subject).await;
    let granted = run(&*store, guarded("k", START)).await;
    let attempt = granted.fence.attempt;
    let told = completion(Event::NotApplied { attempt }, after(1));
    store.complete(granted.fence, told).await.unwrap();
    let (receipt, _) = ran(&*store, atomic("k", after(2)), note("n", End::Success)).await;
    assert_eq!(receipt.operation_id, granted.fence.operation_id);
    assert_eq!(receipt.status.attempts.latest(), 2);
}

pub async fn an_atomic_tombstone_runs_nothing(subject: Subject) {
    let store = open(&subject).await;
    let (first, _) = ran(&*store, atomic("k", START), note("n", End::Success)).await;
    let day = 24 * 3600;
    let admission = atomic("k", after(3 * day));
    let (decision, _) = not_run(&*store, admission, note("n", End::Success)).await;
    assert_eq!(decision, Decision::Expired);
    assert_eq!(effects(&*store, "n").await, 1);
    // A failure in the place of what is gone leaves what is gone.
    let admission = atomic("k", after(31 * day));
    let failed = store
        .atomically(admission, Arc::new(note("n", End::StoreError)))
        .await;
    assert!(failed.is_err());
    assert!(store.get(first.operation_id).await.unwrap().is_some());
    let (second, _) = ran(
        &*store,
        atomic("k", after(31 * day)),
        note("n", End::Success),
    )
    .await;
    assert_ne!(second.operation_id, first.operation_id);
    assert_eq!(effects(&*store, "n").await, 2);
}

pub async fn what_is_kept_may_differ_from_what_is_answered(subject: Subject) {
    let store = open(&subject).await;
    let (_, answer) = ran(&*store, atomic("k", START), note("n", End::Redacted)).await;
    assert_eq!(answer, reply("n"));
    let admission = atomic("k", after(1));
    let (decision, found) = not_run(&*store, admission, note("n", End::Success)).await;
    assert_eq!(decision, Decision::Replay);
    assert_eq!(found.reply, Some(stored("redacted")));
}
