//! Other processes, full queues, and what goes first.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
        mpsc,
    },
    time::Duration,
};

use counterfoil_core::{Decision, State};
use counterfoil_sqlite::{Fault, Injected, Options, Point, SqliteStore};
use counterfoil_store::{Admission, Admitted, Atomic, Error, Store, Work};

use crate::scene::{
    PATIENCE, Runs, Scene, atomic, body, decided, granted, guarded, identity, success,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_held_past_the_patience_is_busy_and_changes_nothing() {
    let scene = Scene::new(Options::default()).await;
    let held = scene.hold();
    let patience = Duration::from_millis(100);
    let admission = Admission {
        patience,
        ..guarded("k")
    };
    let refused = scene.store.admit(admission.clone()).await.unwrap_err();
    assert!(matches!(refused, Error::Busy { .. }), "{refused:?}");
    let call = Admission {
        patience,
        ..atomic("a")
    };
    let refused = scene.store.atomically(call, Runs::note("a")).await;
    assert!(matches!(refused, Err(Error::Busy { .. })), "{refused:?}");
    held.release();
    assert_eq!(scene.store.find(&identity("k")).await.unwrap(), None);
    assert_eq!(scene.store.health().await.unwrap().slots_booked, 0);
    assert!(scene.notes().await.is_empty());
    assert_eq!(granted(&scene.store, admission).await.fence.attempt, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_completion_waits_for_the_lock_and_is_never_busy() {
    let options = Options {
        lock_patience: Duration::from_millis(50),
        ..Options::default()
    };
    let scene = Scene::new(options).await;
    let fence = granted(&scene.store, guarded("k")).await.fence;
    let held = scene.hold();
    let store = scene.store.clone();
    let completion =
        tokio::spawn(async move { store.complete(fence, success(fence, "done")).await });
    scene.queued(1).await;
    // A renewal sent after it gives up first.
    let renewed = scene
        .store
        .renew(fence, crate::scene::after(1), Duration::from_secs(20))
        .await;
    assert!(matches!(renewed, Err(Error::Busy { .. })), "{renewed:?}");
    assert!(!completion.is_finished());
    held.release();
    let receipt = completion.await.unwrap().unwrap();
    assert_eq!(receipt.status.state, State::Succeeded);
}

/// Holds the second COMMIT back until the completion was answered.
struct Second {
    commits: AtomicU32,
    armed: AtomicBool,
    answered: Mutex<mpsc::Receiver<()>>,
    came: AtomicBool,
}

impl Fault for Second {
    fn at(&self, point: Point) -> Option<Injected> {
        if point == Point::Commit
            && self.armed.load(Ordering::SeqCst)
            && self.commits.fetch_add(1, Ordering::SeqCst) == 1
        {
            let answered = self.answered.lock().unwrap().recv_timeout(PATIENCE);
            self.came.store(answered.is_ok(), Ordering::SeqCst);
        }
        None
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn i6_a_completion_overtakes_a_flood_of_admissions() {
    let (tell, answered) = mpsc::channel();
    let fault = Arc::new(Second {
        commits: AtomicU32::new(0),
        armed: AtomicBool::new(false),
        answered: Mutex::new(answered),
        came: AtomicBool::new(false),
    });
    let options = Options {
        batch_max: 8,
        ..Options::default()
    };
    let scene = Scene::with(options, Arc::clone(&fault) as Arc<dyn Fault>).await;
    let fence = granted(&scene.store, guarded("first")).await.fence;
    let held = scene.hold();
    let flood: Vec<_> = (0..200)
        .map(|number| {
            let store = scene.store.clone();
            tokio::spawn(async move { granted(&store, guarded(&format!("k{number}"))).await })
        })
        .collect();
    scene.queued(200).await;
    let store = scene.store.clone();
    let completion = tokio::spawn(async move {
        let receipt = store.complete(fence, success(fence, "done")).await.unwrap();
        tell.send(()).unwrap();
        receipt
    });
    scene.queued(201).await;
    fault.armed.store(true, Ordering::SeqCst);
    held.release();
    assert_eq!(completion.await.unwrap().status.state, State::Succeeded);
    for admitted in flood {
        admitted.await.unwrap();
    }
    assert!(
        fault.came.load(Ordering::SeqCst),
        "it was not in the first batch"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_is_busy_at_once_and_completions_still_have_room() {
    let options = Options {
        queue_max: 3,
        ..Options::default()
    };
    let scene = Scene::new(options).await;
    let fence = granted(&scene.store, guarded("first")).await.fence;
    let held = scene.hold();
    let waiting: Vec<_> = (0..3)
        .map(|number| {
            let store = scene.store.clone();
            tokio::spawn(async move { granted(&store, guarded(&format!("k{number}"))).await })
        })
        .collect();
    scene.queued(3).await;
    let refused = scene.store.admit(guarded("k")).await.unwrap_err();
    assert!(matches!(refused, Error::Busy { .. }), "{refused:?}");
    let store = scene.store.clone();
    let completion =
        tokio::spawn(async move { store.complete(fence, success(fence, "done")).await });
    scene.queued(4).await;
    held.release();
    completion.await.unwrap().unwrap();
    for admitted in waiting {
        admitted.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_is_booked_from_admission_until_it_is_dropped() {
    let options = Options {
        slots_max: 2,
        ..Options::default()
    };
    let scene = Scene::new(options).await;
    let first = granted(&scene.store, guarded("1")).await;
    let _second = granted(&scene.store, guarded("2")).await;
    let refused = scene.store.admit(guarded("3")).await.unwrap_err();
    assert!(matches!(refused, Error::Busy { .. }), "{refused:?}");
    assert_eq!(scene.store.find(&identity("3")).await.unwrap(), None);
    drop(first);
    let _third = granted(&scene.store, guarded("3")).await;
    assert_eq!(scene.store.health().await.unwrap().slots_booked, 2);
    // What only decides holds no slot.
    drop(_third);
    let (decision, _) = decided(&scene.store, guarded("3")).await;
    assert!(matches!(decision, Decision::InProgress { .. }));
    assert_eq!(scene.store.health().await.unwrap().slots_booked, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_went_away_before_its_turn_reserves_nothing() {
    let scene = Scene::new(Options::default()).await;
    let held = scene.hold();
    let store = scene.store.clone();
    let gone = tokio::spawn(async move { store.admit(guarded("gone")).await });
    scene.queued(1).await;
    gone.abort();
    assert!(gone.await.unwrap_err().is_cancelled());
    held.release();
    granted(&scene.store, guarded("next")).await;
    assert_eq!(scene.store.find(&identity("gone")).await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn field_05_two_stores_on_one_file_and_64_callers_have_one_effect() {
    let scene = Scene::new(Options::default()).await;
    let other = SqliteStore::open(scene.path(), Options::default()).unwrap();
    let calls: Vec<_> = (0..64)
        .map(|number| {
            let store = if number % 2 == 0 {
                scene.store.clone()
            } else {
                other.clone()
            };
            tokio::spawn(async move { store.atomically(atomic("k"), Runs::note("n")).await })
        })
        .collect();
    let mut ran = 0;
    for call in calls {
        match call.await.unwrap().unwrap() {
            Atomic::Ran(..) => ran += 1,
            Atomic::Decided(Decision::Replay, found) => assert_eq!(body(&found), b"n"),
            other @ (Atomic::Decided(..) | Atomic::Aborted(_) | Atomic::Held | Atomic::Own(_)) => {
                panic!("{other:?}")
            }
        }
    }
    assert_eq!(ran, 1);
    assert_eq!(scene.notes().await, ["n"]);
}

struct Insert(String);

impl Work for Insert {
    fn call<'t>(
        &'t self,
        tx: &'t mut dyn counterfoil_store::Sql,
    ) -> counterfoil_store::BoxFuture<'t, Result<(), Error>> {
        Box::pin(async move {
            let name = [self.0.as_str().into()];
            tx.execute("INSERT INTO notes VALUES ($1)", &name).await?;
            Ok(())
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_busy_stores_on_one_file_both_get_their_turn() {
    let scene = Scene::new(Options::default()).await;
    let other = SqliteStore::open(scene.path(), Options::default()).unwrap();
    let mut calls = Vec::new();
    for (which, store) in [scene.store.clone(), other].into_iter().enumerate() {
        for task in 0..8 {
            let store = store.clone();
            calls.push(tokio::spawn(async move {
                for number in 0..25 {
                    let work = Arc::new(Insert(format!("{which} {task} {number}")));
                    store.transact(None, work).await.unwrap();
                }
            }));
        }
    }
    for call in calls {
        call.await.unwrap();
    }
    assert_eq!(scene.notes().await.len(), 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_records_what_waits_and_refuses_what_comes() {
    let scene = Scene::new(Options::default()).await;
    let fence = granted(&scene.store, guarded("k")).await.fence;
    let held = scene.hold();
    let store = scene.store.clone();
    let completion =
        tokio::spawn(async move { store.complete(fence, success(fence, "done")).await });
    scene.queued(1).await;
    let store = scene.store.clone();
    let closing = tokio::spawn(async move { store.close().await });
    held.release();
    closing.await.unwrap();
    completion.await.unwrap().unwrap();
    let refused = scene.store.admit(guarded("late")).await.unwrap_err();
    assert!(matches!(refused, Error::Unavailable(_)), "{refused:?}");
    let refused = scene.store.find(&identity("k")).await.unwrap_err();
    assert!(matches!(refused, Error::Unavailable(_)), "{refused:?}");
    let log = scene.path().with_file_name("receipts.db-wal");
    assert!(!log.exists(), "the log is merged into the file");
    let again = SqliteStore::open(scene.path(), Options::default()).unwrap();
    let admitted = again.admit(guarded("k")).await.unwrap();
    assert!(matches!(admitted, Admitted::Decided(Decision::Replay, _)));
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_under_a_lock_that_stays_is_bounded() {
    let options = Options {
        lock_patience: Duration::from_millis(50),
        ..Options::default()
    };
    let scene = Scene::new(options).await;
    let fence = granted(&scene.store, guarded("k")).await.fence;
    let held = scene.hold();
    let store = scene.store.clone();
    let completion =
        tokio::spawn(async move { store.complete(fence, success(fence, "done")).await });
    scene.queued(1).await;
    tokio::time::timeout(PATIENCE, scene.store.close())
        .await
        .unwrap();
    let refused = completion.await.unwrap().unwrap_err();
    assert!(matches!(refused, Error::Unavailable(_)), "{refused:?}");
    held.release();
}

/// Says that it runs, and waits for a word; or just takes its time.
struct Slow {
    begun: mpsc::Sender<()>,
    word: Option<Arc<Mutex<mpsc::Receiver<()>>>>,
}

impl Work for Slow {
    fn call<'t>(
        &'t self,
        _tx: &'t mut dyn counterfoil_store::Sql,
    ) -> counterfoil_store::BoxFuture<'t, Result<(), Error>> {
        Box::pin(async move {
            let _ = self.begun.send(());
            let Some(word) = &self.word else {
                std::thread::sleep(LONGER_THAN_A_BATCH);
                return Ok(());
            };
            let waited = word.lock().unwrap().recv_timeout(PATIENCE);
            waited.map_err(|_| Error::Handler("the word did not come".to_owned()))
        })
    }
}

/// After it, a batch takes no further member.
const LONGER_THAN_A_BATCH: Duration = Duration::from_millis(40);

#[tokio::test(flavor = "multi_thread")]
async fn i6_a_completion_waits_for_two_slow_handlers_at_most() {
    let scene = Scene::new(Options::default()).await;
    let fence = granted(&scene.store, guarded("k")).await.fence;
    let (begun, begins) = mpsc::channel();
    let (tell_first, first) = mpsc::channel();
    let (tell_others, others) = mpsc::channel();
    let first = Arc::new(Mutex::new(first));
    let others = Arc::new(Mutex::new(others));
    let held = scene.hold();
    let mut slow = Vec::new();
    for number in 0..5 {
        let work = Arc::new(Slow {
            begun: begun.clone(),
            word: match number {
                0 => Some(Arc::clone(&first)),
                1 => None,
                _ => Some(Arc::clone(&others)),
            },
        });
        let store = scene.store.clone();
        slow.push(tokio::spawn(
            async move { store.transact(None, work).await },
        ));
        scene.queued(number + 1).await;
    }
    held.release();
    // The first runs, in one batch with all the others; the completion comes while it does.
    tokio::task::spawn_blocking(move || begins.recv_timeout(PATIENCE))
        .await
        .unwrap()
        .unwrap();
    let store = scene.store.clone();
    let completion =
        tokio::spawn(async move { store.complete(fence, success(fence, "done")).await });
    scene.queued(1).await;
    tokio::time::sleep(LONGER_THAN_A_BATCH).await;
    tell_first.send(()).unwrap();
    // It is in the next batch, which ends after the second; the others are not waited for.
    completion.await.unwrap().unwrap();
    for _ in 0..3 {
        tell_others.send(()).unwrap();
    }
    for call in slow {
        assert_eq!(call.await.unwrap(), Ok(()));
    }
}
