//! The database goes away under load, in every way it can, and comes back.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use counterfoil_core::State;
use counterfoil_postgres::{Options, PostgresStore};
use counterfoil_store::{Admitted, Error, Store};
use counterfoil_test_postgres::{Database, Mode, Proxy, Server};
use tokio::sync::watch;

use crate::scene::{finish, guarded, node, node_at, outsider, run};

const CALLERS: usize = 64;
/// How soon after it is back the store must work again.
const RECOVERY: Duration = Duration::from_secs(3);
/// A caller's patience, what a lane that hangs is given beyond it, and a machine that does much
/// else.
const ANSWER: Duration = Duration::from_millis(5000 + 1000 + 1500);

struct Told {
    acknowledged: Vec<String>,
    longest: Duration,
}

/// One operation after the other, each under a key of its own; repeats an admission under its token
/// until it is known what became of it, as an engine does.
async fn caller(
    store: PostgresStore,
    number: usize,
    stop: watch::Receiver<bool>,
    count: Arc<AtomicUsize>,
) -> Told {
    let mut told = Told {
        acknowledged: Vec::new(),
        longest: Duration::ZERO,
    };
    while !*stop.borrow() {
        let key = format!("{number}-{}", told.acknowledged.len());
        let admission = guarded(&key);
        let granted = loop {
            let asked = Instant::now();
            let said = store.admit(admission.clone()).await;
            told.longest = told.longest.max(asked.elapsed());
            match said {
                Ok(Admitted::Run(granted)) => break granted,
                // Its own old connection.
                Ok(Admitted::Held)
                | Err(Error::Busy { .. } | Error::Unavailable(_) | Error::CommitUnknown) => {}
                other => panic!("{key}: {other:?}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        assert_eq!(granted.fence.operation_id, admission.operation_id);
        assert_eq!(granted.fence.attempt, 1);
        let receipt = finish(&store, granted.fence, &key).await;
        assert_eq!(receipt.status.state, State::Succeeded);
        told.acknowledged.push(key);
        count.fetch_add(1, Ordering::SeqCst);
    }
    told
}

async fn acknowledged(count: &AtomicUsize, more: usize) {
    let wanted = count.load(Ordering::SeqCst) + more;
    let asked = Instant::now();
    while count.load(Ordering::SeqCst) < wanted {
        assert!(
            asked.elapsed() < RECOVERY,
            "nothing is acknowledged any more"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// 64 callers admit and complete, the database goes away and comes back within `outage`; everybody
/// is answered in time, what was acknowledged is there, each key has one attempt. Whether the
/// store's health was seen to be bad meanwhile.
async fn under_load(
    database: &Database,
    store: &PostgresStore,
    outage: impl FnOnce() + Send + 'static,
) -> bool {
    let (stop, stopped) = watch::channel(false);
    let count = Arc::new(AtomicUsize::new(0));
    let callers: Vec<_> = (0..CALLERS)
        .map(|number| {
            tokio::spawn(caller(
                store.clone(),
                number,
                stopped.clone(),
                Arc::clone(&count),
            ))
        })
        .collect();
    acknowledged(&count, CALLERS).await;
    let outage = tokio::task::spawn_blocking(outage);
    let mut seen_ill = false;
    while !outage.is_finished() {
        let looked = Instant::now();
        seen_ill |= store.health().await.is_err();
        assert!(looked.elapsed() < RECOVERY, "{:?}", looked.elapsed());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    outage.await.unwrap();
    let back = Instant::now();
    while let Err(error) = store.admit(guarded("after")).await {
        assert!(back.elapsed() < RECOVERY, "{error:?}");
    }
    while let Err(error) = store.health().await {
        assert!(back.elapsed() < RECOVERY, "{error:?}");
    }
    assert!(back.elapsed() < RECOVERY, "{:?}", back.elapsed());
    acknowledged(&count, CALLERS).await;
    stop.send_replace(true);
    let mut expected = BTreeMap::new();
    for caller in callers {
        let told = caller.await.unwrap();
        assert!(told.longest < ANSWER, "{:?}", told.longest);
        expected.extend(told.acknowledged.into_iter().map(|key| (key.clone(), key)));
    }
    let outside = outsider(database).await;
    let rows = outside
        .query(
            "SELECT r.key, convert_from(a.body, 'UTF8') FROM counterfoil_receipts AS r
             JOIN counterfoil_results AS a ON a.receipt = r.id",
            &[],
        )
        .await
        .unwrap();
    let there: BTreeMap<String, String> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(there, expected);
    // Reserved and succeeded, nothing else; and the one that looked whether it is back.
    let events = database.psql(
        "SELECT n, count(*) FROM (SELECT count(*) AS n FROM counterfoil_events GROUP BY id >> 20)
         AS of_each GROUP BY n ORDER BY n",
    );
    assert_eq!(events, format!("1|1\n2|{}", expected.len()));
    seen_ill
}

async fn restarted(outage: fn(&Server)) {
    let server = Arc::new(Server::start());
    let database = Database::on(&server);
    let store = node(&database).await;
    let restarting = Arc::clone(&server);
    let seen_ill = under_load(&database, &store, move || outage(&restarting)).await;
    assert!(seen_ill, "its health was good all the time");
}

#[tokio::test(flavor = "multi_thread")]
async fn i2_a_fast_restart_loses_nothing() {
    restarted(|server| {
        server.stop(Mode::Fast);
        std::thread::sleep(Duration::from_millis(500));
        server.start_again();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn i2_an_immediate_restart_loses_nothing() {
    restarted(|server| {
        server.stop(Mode::Immediate);
        std::thread::sleep(Duration::from_millis(500));
        server.start_again();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn i2_a_killed_database_loses_nothing() {
    restarted(|server| {
        server.kill();
        std::thread::sleep(Duration::from_millis(500));
        server.start_again();
    })
    .await;
}

/// Connections stay open and nothing answers, for longer than any time-out.
#[tokio::test(flavor = "multi_thread")]
async fn i6_a_frozen_database_keeps_nobody_waiting() {
    restarted(|server| {
        server.pause();
        std::thread::sleep(Duration::from_secs(12));
        server.resume();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn i2_a_database_that_cannot_be_reached_loses_nothing() {
    let database = Database::new();
    let proxy = Arc::new(Proxy::start(database.address()));
    let store = node_at(&database.url_at(proxy.address()), Options::default()).await;
    let refusing = Arc::clone(&proxy);
    let seen_ill = under_load(&database, &store, move || {
        refusing.refuse(true);
        refusing.cut_now();
        std::thread::sleep(Duration::from_secs(2));
        refusing.refuse(false);
    })
    .await;
    assert!(seen_ill, "its health was good all the time");
}

#[tokio::test(flavor = "multi_thread")]
async fn i2_ended_backends_lose_nothing() {
    let database = Arc::new(Database::new());
    let store = node(&database).await;
    let ending = Arc::clone(&database);
    under_load(&database, &store, move || {
        for _ in 0..5 {
            let ended = ending.psql(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                 WHERE datname = current_database() AND pid <> pg_backend_pid()",
            );
            assert_ne!(ended, "0");
            std::thread::sleep(Duration::from_millis(200));
        }
    })
    .await;
}

/// What was answered while the database was away for ten seconds is recorded when it is back.
#[tokio::test(flavor = "multi_thread")]
async fn i2_completions_given_during_an_outage_are_recorded_after_it() {
    let server = Server::start();
    let database = Database::on(&server);
    let store = node(&database).await;
    let mut completions = Vec::new();
    for number in 0..20 {
        let granted = run(&store, guarded(&format!("k{number}"))).await;
        completions.push((store.clone(), granted));
    }
    server.stop(Mode::Fast);
    let completions: Vec<_> = completions
        .into_iter()
        .map(|(store, granted)| {
            tokio::spawn(async move { finish(&store, granted.fence, "done").await })
        })
        .collect();
    assert!(store.health().await.is_err());
    let refused = store.admit(guarded("meanwhile"));
    let refused = tokio::time::timeout(ANSWER, refused).await.unwrap();
    assert!(matches!(refused, Err(Error::Unavailable(_))), "{refused:?}");
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(
        completions
            .iter()
            .all(|completion| !completion.is_finished())
    );
    server.start_again();
    let back = Instant::now();
    for completion in completions {
        assert_eq!(completion.await.unwrap().status.state, State::Succeeded);
    }
    assert!(back.elapsed() < RECOVERY, "{:?}", back.elapsed());
    assert!(store.health().await.is_ok());
    assert_eq!(
        database.psql("SELECT count(*) FROM counterfoil_results"),
        "20"
    );
}

/// A store that is closed still records what waits, held rows included, and says so to whoever
/// comes later.
#[tokio::test(flavor = "multi_thread")]
async fn i2_closing_records_what_waits() {
    let database = Database::new();
    let store = node(&database).await;
    let outside = outsider(&database).await;
    let granted = run(&store, guarded("k")).await;
    outside.batch_execute("BEGIN").await.unwrap();
    let lock = "SELECT id FROM counterfoil_receipts FOR UPDATE";
    outside.query_one(lock, &[]).await.unwrap();
    let (completing, fence) = (store.clone(), granted.fence);
    let completing = tokio::spawn(async move { finish(&completing, fence, "done").await });
    // Long enough to be looked at many times.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let closing = store.clone();
    let closing = tokio::spawn(async move { closing.close().await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    outside.batch_execute("ROLLBACK").await.unwrap();
    let done = tokio::time::timeout(RECOVERY, completing).await;
    assert_eq!(done.unwrap().unwrap().status.state, State::Succeeded);
    let closed = tokio::time::timeout(RECOVERY, closing).await;
    closed.unwrap().unwrap();
    let late = store.admit(guarded("late")).await;
    assert!(matches!(late, Err(Error::Unavailable(_))), "{late:?}");
}
