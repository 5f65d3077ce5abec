//! A batch whose transaction ends in the middle, and a COMMIT that fails: the other members are
//! neither lost nor doubled nor answered wrongly.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use counterfoil_core::{Decision, State};
use counterfoil_sqlite::{Fault, Injected, Options, Point, SqliteStore};
use counterfoil_store::{Atomic, Error, Fence, Store, transact};

use crate::scene::{
    Once, Runs, Scene, atomic, body, decided, granted, guarded, identity, reply, success,
};

const OTHERS: usize = 12;

async fn faulty(fault: &Arc<Once>) -> Scene {
    Scene::with(Options::default(), Arc::clone(fault) as Arc<dyn Fault>).await
}

/// One batch of atomic calls, a guarded admission, a completion and a transaction without a
/// receipt, with `culprit` in the middle; what the culprit got.
async fn batch_with(
    scene: &Scene,
    culprit: Option<Arc<Runs>>,
    arm: impl FnOnce(),
) -> Option<Result<Atomic, Error>> {
    let before = granted(&scene.store, guarded("before")).await;
    let held = scene.hold();
    let mut others = Vec::new();
    let mut culprit_call = None;
    for number in 0..OTHERS {
        if number == OTHERS / 2 {
            culprit_call = culprit.clone().map(|culprit| {
                let store = scene.store.clone();
                tokio::spawn(async move { store.atomically(atomic("culprit"), culprit).await })
            });
            scene
                .queued(if culprit_call.is_some() { 7 } else { 6 })
                .await;
        }
        let store = scene.store.clone();
        let name = format!("note {number:02}");
        others.push(tokio::spawn(async move {
            store.atomically(atomic(&name), Runs::note(&name)).await
        }));
    }
    let guarded_call = {
        let store = scene.store.clone();
        tokio::spawn(async move { granted(&store, guarded("admitted")).await.fence })
    };
    let completion = {
        let store = scene.store.clone();
        let fence = before.fence;
        tokio::spawn(async move { store.complete(fence, success(fence, "done")).await })
    };
    let plain = {
        let store = scene.store.clone();
        tokio::spawn(async move {
            transact(&store, None, |tx| {
                Box::pin(async move { tx.execute("INSERT INTO notes VALUES ('plain')", &[]).await })
            })
            .await
        })
    };
    let all = OTHERS + 3 + usize::from(culprit.is_some());
    scene.queued(u64::try_from(all).unwrap()).await;
    arm();
    held.release();

    for (number, call) in others.into_iter().enumerate() {
        let name = format!("note {number:02}");
        match call.await.unwrap() {
            Ok(Atomic::Ran(receipt, answer)) => {
                assert_eq!(receipt.status.state, State::Succeeded, "{name}");
                assert_eq!(answer, reply(&name));
            }
            other => panic!("{name}: {other:?}"),
        }
    }
    let fence: Fence = guarded_call.await.unwrap();
    let found = scene.store.get(fence.operation_id).await.unwrap().unwrap();
    assert_eq!(found.receipt.status.state, State::Running);
    assert_eq!(found.receipt.status.attempts.latest(), 1);
    let receipt = completion.await.unwrap().unwrap();
    assert_eq!(receipt.status.state, State::Succeeded);
    assert_eq!(plain.await.unwrap(), Ok(1));

    let culprit = match culprit_call {
        Some(call) => Some(call.await.unwrap()),
        None => None,
    };
    everything_is_there_once(scene).await;
    culprit
}

/// Each effect once, each receipt with its answer, each replayed.
async fn everything_is_there_once(scene: &Scene) {
    let mut expected: Vec<_> = (0..OTHERS)
        .map(|number| format!("note {number:02}"))
        .collect();
    expected.push("plain".to_owned());
    assert_eq!(scene.notes().await, expected);
    for number in 0..OTHERS {
        let name = format!("note {number:02}");
        let found = scene.store.find(&identity(&name)).await.unwrap().unwrap();
        assert_eq!(body(&found), name.as_bytes());
        let events = scene
            .store
            .events(found.receipt.operation_id)
            .await
            .unwrap();
        assert_eq!(events.len(), 1, "{name}");
        let again = scene.store.atomically(atomic(&name), Runs::note(&name));
        assert!(matches!(
            again.await.unwrap(),
            Atomic::Decided(Decision::Replay, _)
        ));
    }
    let (decision, found) = decided(&scene.store, guarded("before")).await;
    assert_eq!((decision, body(&found)), (Decision::Replay, &b"done"[..]));
    // "admitted" is the only unresolved one.
    assert_eq!(scene.store.health().await.unwrap().unresolved, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollback_conflict_clause_in_a_batch_harms_its_handler_only() {
    let scene = Scene::new(Options::default()).await;
    let culprit = Runs::statements("x", &["INSERT OR ROLLBACK INTO notes VALUES ('x')"]);
    let got = batch_with(&scene, Some(culprit), || {}).await.unwrap();
    assert!(matches!(got, Err(Error::Statement(_))), "{got:?}");
    assert_eq!(scene.store.find(&identity("culprit")).await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn statements_after_a_swallowed_rollback_are_not_run_on_their_own() {
    let scene = Scene::new(Options::default()).await;
    let culprit = Arc::new(Runs {
        name: "x".to_owned(),
        statements: vec![
            "INSERT OR ROLLBACK INTO notes VALUES ('x')".to_owned(),
            "INSERT INTO notes VALUES ('y')".to_owned(),
        ],
        swallows: true,
    });
    let got = batch_with(&scene, Some(culprit), || {}).await.unwrap();
    // The error it swallowed is what it gets.
    assert!(matches!(got, Err(Error::Statement(_))), "{got:?}");
    assert_eq!(scene.store.find(&identity("culprit")).await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deferred_violation_in_a_batch_harms_its_handler_only() {
    let scene = Scene::new(Options::default()).await;
    let culprit = Runs::statements("x", &["INSERT INTO children(parent) VALUES (77)"]);
    let got = batch_with(&scene, Some(culprit), || {}).await.unwrap();
    assert!(matches!(got, Err(Error::Statement(_))), "{got:?}");
    assert_eq!(scene.store.find(&identity("culprit")).await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_in_the_middle_of_a_batch_harms_nobody_once_there_is_room() {
    let fault = Arc::new(Once::default());
    let scene = faulty(&fault).await;
    batch_with(&scene, None, || fault.arm(Point::Member, 5, Injected::Full)).await;
    assert_eq!(fault.fired(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_failed_before_it_took_effect_is_run_again() {
    for injected in [Injected::Io, Injected::Full] {
        let fault = Arc::new(Once::default());
        let scene = faulty(&fault).await;
        batch_with(&scene, None, || fault.arm(Point::Commit, 0, injected)).await;
        assert_eq!(fault.fired(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_failed_after_it_took_effect_is_not_run_again() {
    let fault = Arc::new(Once::default());
    let scene = faulty(&fault).await;
    batch_with(&scene, None, || {
        fault.arm(Point::Committed, 0, Injected::Io)
    })
    .await;
    assert_eq!(fault.fired(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_nobody_can_look_into_is_unknown_and_never_a_failure() {
    let fault = Arc::new(Once::default());
    let options = Options {
        settle_for: Duration::from_millis(50),
        ..Options::default()
    };
    let scene = Scene::with(options, Arc::clone(&fault) as Arc<dyn Fault>).await;
    fault.reopen_fails.store(true, Ordering::SeqCst);
    fault.arm(Point::Committed, 0, Injected::Io);
    let admission = atomic("k");
    let said = scene.store.atomically(admission.clone(), Runs::note("n"));
    assert_eq!(said.await.unwrap_err(), Error::CommitUnknown);
    // Nothing new is begun without a connection, and that is said as what it is.
    let refused = scene.store.admit(guarded("other")).await.unwrap_err();
    assert!(matches!(refused, Error::Unavailable(_)), "{refused:?}");
    fault.reopen_fails.store(false, Ordering::SeqCst);
    // Asked again under the same admission, it is found to be its own.
    let again = scene.store.atomically(admission, Runs::note("n")).await;
    assert!(matches!(again, Ok(Atomic::Own(_))), "{again:?}");
    assert_eq!(scene.notes().await, ["n"]);
}

struct Full(u32);

impl Fault for Full {
    fn at(&self, _point: Point) -> Option<Injected> {
        None
    }

    fn pages_max(&self) -> Option<u32> {
        Some(self.0)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn on_a_full_disk_receipts_stay_readable_and_calls_say_so() {
    let scene = Scene::new(Options::default()).await;
    let kept = granted(&scene.store, guarded("kept")).await;
    let fence = kept.fence;
    scene
        .store
        .complete(fence, success(fence, "kept"))
        .await
        .unwrap();
    scene.store.close().await;

    let fault = Arc::new(Full(40));
    let store = SqliteStore::open_with_fault(scene.path(), Options::default(), fault).unwrap();
    let mut ran = Vec::new();
    let refused = loop {
        let name = format!("fill {:05}", ran.len());
        match store.atomically(atomic(&name), Runs::note(&name)).await {
            Ok(Atomic::Ran(..)) => ran.push(name),
            Err(error) => break error,
            other => panic!("{other:?}"),
        }
        assert!(ran.len() < 10_000, "the disk never fills");
    };
    let Error::Unavailable(why) = refused else {
        panic!("{refused:?}");
    };
    assert!(
        why.contains("disk full") && why.contains("free some space"),
        "{why}"
    );
    let found = store.find(&identity("kept")).await.unwrap().unwrap();
    assert_eq!(body(&found), b"kept");
    for name in &ran {
        let found = store.find(&identity(name)).await.unwrap().unwrap();
        assert_eq!(body(&found), name.as_bytes());
    }
    // The refused one left nothing: its effect and its receipt are both missing.
    let name = format!("fill {:05}", ran.len());
    assert_eq!(store.find(&identity(&name)).await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn i2_what_was_acknowledged_survives_a_crash() {
    let scene = Scene::new(Options::default()).await;
    for number in 0..50 {
        let name = format!("note {number:02}");
        let ran = scene
            .store
            .atomically(atomic(&name), Runs::note(&name))
            .await;
        assert!(matches!(ran, Ok(Atomic::Ran(..))));
    }
    let running = granted(&scene.store, guarded("running")).await;
    // What a killed process leaves behind: the file and its log, never closed.
    let copy = tempfile::tempdir().unwrap();
    for name in ["receipts.db", "receipts.db-wal"] {
        std::fs::copy(scene.path().with_file_name(name), copy.path().join(name)).unwrap();
    }
    let path = copy.path().join("receipts.db");
    let store = SqliteStore::open(path, Options::default()).unwrap();
    for number in 0..50 {
        let name = format!("note {number:02}");
        let found = store.find(&identity(&name)).await.unwrap().unwrap();
        assert_eq!(body(&found), name.as_bytes());
    }
    let found = store
        .get(running.fence.operation_id)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(found.receipt.status.state, State::Running);
}

#[tokio::test(flavor = "multi_thread")]
async fn health_is_bad_while_nothing_can_be_written_and_good_again_by_itself() {
    let fault = Arc::new(Once::default());
    let scene = faulty(&fault).await;
    assert!(scene.store.health().await.is_ok());
    fault.reopen_fails.store(true, Ordering::SeqCst);
    fault.arm(Point::Begin, 0, Injected::Full);
    let refused = scene.store.atomically(atomic("a"), Runs::note("a")).await;
    assert!(matches!(refused, Err(Error::Unavailable(_))), "{refused:?}");
    let health = scene.store.health().await;
    assert!(matches!(health, Err(Error::Unavailable(_))), "{health:?}");
    fault.reopen_fails.store(false, Ordering::SeqCst);
    // Nobody else writes: asking is what finds out.
    scene.healthy().await;
    assert!(scene.notes().await.is_empty());
}
