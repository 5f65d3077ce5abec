//! A commit whose answer is lost: what became of it is found out, never guessed.

use std::time::{Duration, Instant};

use counterfoil_core::{Event, State, Verdict};
use counterfoil_postgres::{Options, PostgresStore};
use counterfoil_store::{Atomic, Error, Migration, Store, transact};
use counterfoil_test_postgres::{Applied, Database, Plan, Pooler, Proxy};

use crate::scene::{
    atomic, create_effects, effect, effects, finish, guarded, node_at, now, reply, run, stored,
    write_effect,
};

const HOLD: Duration = Duration::from_millis(700);

/// A store behind a proxy, with its scope known and its statements prepared, so that the commits
/// to come are those of the steps under test.
async fn scene() -> (Database, Proxy, PostgresStore) {
    let database = Database::new();
    create_effects(&database);
    let proxy = Proxy::start(database.address());
    let options = Options {
        lanes: 1,
        ..Options::default()
    };
    let store = node_at(&database.url_at(proxy.address()), options).await;
    let granted = run(&store, guarded("before")).await;
    finish(&store, granted.fence, "done").await;
    (database, proxy, store)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lost {
    AnswerOnly,
    Commit,
    Late,
}

const ALL: [Lost; 3] = [Lost::AnswerOnly, Lost::Commit, Lost::Late];

impl Lost {
    fn set(self, proxy: &Proxy) -> (Applied, Instant) {
        let plan = match self {
            Self::AnswerOnly => Plan::cut_after_commit(),
            Self::Commit => Plan::cut_before_commit(),
            Self::Late => Plan::hold_commit(HOLD),
        };
        (proxy.apply(plan), Instant::now())
    }

    /// It has happened, and was settled before anybody was answered.
    fn over(self, (applied, set): &(Applied, Instant)) {
        assert_eq!(applied.count(), 1, "{self:?}");
        if self == Self::Late {
            assert!(set.elapsed() >= HOLD, "answered before it was settled");
            applied.wait_late(1);
        }
    }

    fn key(self, step: &str) -> String {
        format!("{step} {self:?}")
    }
}

fn rows_of(database: &Database, key: &str) -> String {
    database.psql(&format!(
        "SELECT count(*), max((SELECT count(*) FROM counterfoil_events AS e
           WHERE e.id >> 20 = r.id)) FROM counterfoil_receipts AS r WHERE key = '{key}'"
    ))
}

/// The caller gets its own reservation, by its token: one row, one attempt.
#[tokio::test(flavor = "multi_thread")]
async fn i1_an_admission_in_doubt_finds_its_own_reservation() {
    let (database, proxy, store) = scene().await;
    for lost in ALL {
        let applied = lost.set(&proxy);
        let key = lost.key("admit");
        let admission = guarded(&key);
        let granted = run(&store, admission.clone()).await;
        lost.over(&applied);
        assert_eq!(granted.fence.operation_id, admission.operation_id);
        assert_eq!(granted.fence.attempt, 1, "{lost:?}");
        assert_eq!(rows_of(&database, &key), "1|1", "{lost:?}");
        let receipt = finish(&store, granted.fence, "done").await;
        assert_eq!(receipt.status.state, State::Succeeded);
    }
}

/// The same for many callers in one batch.
#[tokio::test(flavor = "multi_thread")]
async fn i1_every_member_of_a_batch_in_doubt_gets_its_own() {
    let (database, proxy, store) = scene().await;
    for lost in ALL {
        let applied = lost.set(&proxy);
        let callers: Vec<_> = (0..64)
            .map(|number| {
                let (store, admission) = (store.clone(), guarded(&format!("{lost:?} {number}")));
                tokio::spawn(async move { run(&store, admission).await })
            })
            .collect();
        let mut granted = Vec::new();
        for caller in callers {
            granted.push(caller.await.unwrap());
        }
        lost.over(&applied);
        let applied = lost.set(&proxy);
        let completions: Vec<_> = granted
            .iter()
            .map(|granted| {
                let (store, fence) = (store.clone(), granted.fence);
                tokio::spawn(async move { finish(&store, fence, "done").await })
            })
            .collect();
        for completion in completions {
            let receipt = completion.await.unwrap();
            assert_eq!(receipt.status.state, State::Succeeded);
            assert_eq!(receipt.status.attempts.latest(), 1);
        }
        lost.over(&applied);
    }
    let events = "SELECT count(*), min(n), max(n) FROM (SELECT count(*) AS n \
        FROM counterfoil_events GROUP BY id >> 20) AS of_each";
    assert_eq!(database.psql(events), "193|2|2");
}

/// A completion in doubt says the same as the first time: one row more in the log.
#[tokio::test(flavor = "multi_thread")]
async fn i2_a_completion_in_doubt_is_recorded_once() {
    let (database, proxy, store) = scene().await;
    for lost in ALL {
        let key = lost.key("complete");
        let granted = run(&store, guarded(&key)).await;
        let applied = lost.set(&proxy);
        let receipt = finish(&store, granted.fence, "done").await;
        lost.over(&applied);
        assert_eq!(receipt.status.state, State::Succeeded);
        assert_eq!(rows_of(&database, &key), "1|2", "{lost:?}");
        let found = store.get(receipt.operation_id).await.unwrap().unwrap();
        assert_eq!(found.reply, Some(stored("done")));
    }
}

/// So does a resolution, and a renewal.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_recorded_in_doubt_is_recorded_once() {
    let (database, proxy, store) = scene().await;
    for lost in ALL {
        let key = lost.key("record");
        let granted = run(&store, guarded(&key)).await;
        let applied = lost.set(&proxy);
        let lease = Duration::from_secs(60);
        let until = store.renew(granted.fence, now(), lease).await.unwrap();
        lost.over(&applied);
        assert!(until > granted.lease_until);
        let attempt = granted.fence.attempt;
        let maybe = crate::scene::completion(Event::Lost { attempt });
        store.complete(granted.fence, maybe).await.unwrap();
        let applied = lost.set(&proxy);
        let verdict = Verdict::Happened;
        let id = granted.fence.operation_id;
        let resolved = store.record(id, Event::Resolved { verdict }, now(), "seen".into(), None);
        assert_eq!(resolved.await.unwrap().status.state, State::Succeeded);
        lost.over(&applied);
        assert_eq!(rows_of(&database, &key), "1|3", "{lost:?}");
    }
}

/// An atomic handler whose commit is in doubt has run exactly once in the end.
#[tokio::test(flavor = "multi_thread")]
async fn i2_an_atomic_effect_in_doubt_is_there_once() {
    let (database, proxy, store) = scene().await;
    for (number, lost) in ALL.into_iter().enumerate() {
        let applied = lost.set(&proxy);
        let key = lost.key("atomic");
        let done = store.atomically(atomic(&key), effect("e")).await;
        lost.over(&applied);
        match (lost, done) {
            (Lost::AnswerOnly | Lost::Late, Ok(Atomic::Own(found))) => {
                assert_eq!(found.reply, Some(stored("e")));
                assert_eq!(found.receipt.status.state, State::Succeeded);
            }
            (Lost::Commit, Ok(Atomic::Ran(_, answer))) => assert_eq!(answer, reply("e")),
            (_, other) => panic!("{lost:?}: {other:?}"),
        }
        assert_eq!(effects(&database), number + 1, "{lost:?}");
        assert_eq!(rows_of(&database, &key), "1|1", "{lost:?}");
    }
}

/// Application work without a receipt: what became of its transaction is asked of the database.
#[tokio::test(flavor = "multi_thread")]
async fn i2_application_work_in_doubt_takes_effect_once() {
    let (database, proxy, store) = scene().await;
    for (number, lost) in ALL.into_iter().enumerate() {
        let applied = lost.set(&proxy);
        let done = transact(&store, None, |tx| {
            Box::pin(async move { write_effect(tx, "e").await.map(drop) })
        });
        assert_eq!(done.await, Ok(()), "{lost:?}");
        lost.over(&applied);
        assert_eq!(effects(&database), number + 1, "{lost:?}");
    }
}

/// The committed flag lies in such work: at most one run of it sets it.
#[tokio::test(flavor = "multi_thread")]
async fn i3_a_committed_flag_in_doubt_is_set_once() {
    let (database, proxy, store) = scene().await;
    for (number, lost) in ALL.into_iter().enumerate() {
        let granted = run(&store, guarded(&lost.key("flag"))).await;
        let fence = granted.fence;
        let applied = lost.set(&proxy);
        let done = transact(&store, None, move |tx| {
            Box::pin(async move {
                write_effect(tx, "e").await?;
                tx.mark_committed(fence).await
            })
        });
        assert_eq!(done.await, Ok(()), "{lost:?}");
        lost.over(&applied);
        assert_eq!(effects(&database), number + 1, "{lost:?}");
        let found = store.get(fence.operation_id).await.unwrap().unwrap();
        assert!(found.receipt.status.committed);
    }
}

/// Lapsing says that it does not know; asking again is harmless, and the truth is told once.
#[tokio::test(flavor = "multi_thread")]
async fn i6_a_lapse_in_doubt_is_told_as_such() {
    let (database, proxy, store) = scene().await;
    for lost in ALL {
        let key = lost.key("lapse");
        let mut admission = guarded(&key);
        admission.policy.lease = Duration::from_millis(1);
        let granted = run(&store, admission).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        let (applied, _) = lost.set(&proxy);
        assert_eq!(store.lapse(now(), 100).await, Err(Error::CommitUnknown));
        if lost == Lost::Late {
            assert_eq!(store.lapse(now(), 100).await, Ok(0), "its row is held");
            applied.wait_late(1);
        }
        let left = u32::from(lost == Lost::Commit);
        assert_eq!(store.lapse(now(), 100).await, Ok(left), "{lost:?}");
        let id = granted.fence.operation_id;
        let found = store.get(id).await.unwrap().unwrap();
        assert_eq!(found.receipt.status.state, State::OutcomeUnknown);
        assert_eq!(rows_of(&database, &key), "1|2", "{lost:?}");
    }
}

/// A migration is done once, whichever of its answers is lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_migration_in_doubt_is_done_once() {
    let (database, proxy, store) = scene().await;
    for lost in [Lost::AnswerOnly, Lost::Commit] {
        let name = format!("{lost:?}").to_lowercase();
        let sql: &'static str = format!("CREATE TABLE {name}(x int)").leak();
        let steps = [Migration {
            version: 1,
            sqlite: "",
            postgres: sql,
        }];
        let applied = lost.set(&proxy);
        store.migrate(&name, &steps).await.unwrap();
        lost.over(&applied);
        let there = database.psql(&format!("SELECT count(*) FROM {name}"));
        assert_eq!(there, "0");
    }
}

/// The old connection would commit only after the database has ended it: nothing of it is there,
/// and everything is done once, anew.
#[tokio::test(flavor = "multi_thread")]
async fn i1_a_commit_that_comes_too_late_is_none() {
    let database = Database::new();
    create_effects(&database);
    let proxy = Proxy::start(database.address());
    let options = Options {
        lanes: 1,
        database_timeout: Duration::from_secs(1),
        ..Options::default()
    };
    let store = node_at(&database.url_at(proxy.address()), options).await;
    run(&store, guarded("before")).await;
    let hold = || proxy.hold_commit(Duration::from_secs(4));
    let late = hold();
    let granted = run(&store, guarded("k")).await;
    assert_eq!(granted.fence.attempt, 1);
    assert_eq!(rows_of(&database, "k"), "1|1");
    let later = hold();
    match store.atomically(atomic("a"), effect("e")).await {
        Ok(Atomic::Ran(_, answer)) => assert_eq!(answer, reply("e")),
        other => panic!("the first run was rolled back: {other:?}"),
    }
    let latest = hold();
    let done = transact(&store, None, |tx| {
        Box::pin(async move { write_effect(tx, "e").await.map(drop) })
    });
    assert_eq!(done.await, Ok(()));
    for held in [late, later, latest] {
        assert_eq!((held.count(), held.late_commits()), (1, 0));
    }
    assert_eq!(effects(&database), 2);
}

/// The same doubts with a pooler in between, which ends a transaction whose client is gone.
#[tokio::test(flavor = "multi_thread")]
async fn i2_what_is_in_doubt_behind_a_pooler_is_there_once() {
    let database = Database::new();
    create_effects(&database);
    let pooler = Pooler::start(database.address());
    let proxy = Proxy::start(pooler.address());
    let options = Options {
        lanes: 1,
        pooler: true,
        ..Options::default()
    };
    let store = node_at(&database.url_at(proxy.address()), options).await;
    run(&store, guarded("before")).await;
    // A commit cannot be held up on the way into a pooler: it takes its leave with its client.
    for (number, lost) in [Lost::AnswerOnly, Lost::Commit].into_iter().enumerate() {
        let key = lost.key("k");
        let set = lost.set(&proxy);
        let granted = run(&store, guarded(&key)).await;
        lost.over(&set);
        assert_eq!(granted.fence.attempt, 1);
        let set = lost.set(&proxy);
        finish(&store, granted.fence, "done").await;
        lost.over(&set);
        assert_eq!(rows_of(&database, &key), "1|2", "{lost:?}");
        let set = lost.set(&proxy);
        let done = store.atomically(atomic(&lost.key("a")), effect("e")).await;
        assert!(
            matches!(done, Ok(Atomic::Ran(..) | Atomic::Own(_))),
            "{done:?}"
        );
        lost.over(&set);
        let set = lost.set(&proxy);
        let done = transact(&store, None, |tx| {
            Box::pin(async move { write_effect(tx, "e").await.map(drop) })
        });
        assert_eq!(done.await, Ok(()));
        lost.over(&set);
        assert_eq!(effects(&database), 2 * (number + 1), "{lost:?}");
    }
}
