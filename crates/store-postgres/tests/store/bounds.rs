//! What is bounded, what is refused, and that one member of a batch does not harm the others.

use std::time::{Duration, Instant};

use counterfoil_core::{Event, State};
use counterfoil_postgres::{Options, PostgresStore};
use counterfoil_store::{Admission, Admitted, Atomic, Error, Store};
use counterfoil_test_postgres::Database;
use tokio::task::JoinHandle;

use crate::scene::{
    SOON, atomic, completion, create_effects, decided, effect, effects, finish, guarded,
    in_workspace, node, node_at, outsider, reply, run, success, until,
};

fn spawn_admit(store: &PostgresStore, admission: Admission) -> JoinHandle<Result<Admitted, Error>> {
    let store = store.clone();
    tokio::spawn(async move { store.admit(admission).await })
}

/// A workspace holds so many unresolved receipts, and no more; others are not concerned.
#[tokio::test(flavor = "multi_thread")]
async fn i6_unresolved_receipts_are_bounded_for_each_workspace() {
    let database = Database::new();
    // One lane: several decide beside each other, and may go beyond it by a batch each.
    let options = || Options {
        lanes: 1,
        unresolved_max: 5,
        ..Options::default()
    };
    let nodes = [
        node_at(database.url(), options()).await,
        node_at(database.url(), options()).await,
    ];
    let callers: Vec<_> = (0..12)
        .map(|number| spawn_admit(&nodes[0], guarded(&format!("k{number}"))))
        .collect();
    let mut granted = Vec::new();
    for caller in callers {
        match caller.await.unwrap() {
            Ok(Admitted::Run(run)) => granted.push(run),
            Err(error) => assert_eq!(error, Error::Quota { limit: 5 }),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(granted.len(), 5);
    run(&nodes[0], in_workspace("w2", guarded("k"))).await;
    // What is known already is answered all the same.
    let fence = granted[0].fence;
    finish(&nodes[0], fence, "done").await;
    run(&nodes[0], guarded("in its place")).await;
    let refused = nodes[0].admit(guarded("one more")).await;
    assert!(matches!(refused, Err(Error::Quota { .. })), "{refused:?}");
    // The other node has counted within a second or so.
    let asked = Instant::now();
    for number in 0.. {
        match nodes[1].admit(guarded(&format!("there {number}"))).await {
            Err(Error::Quota { limit: 5 }) => break,
            Ok(Admitted::Run(run)) => drop(finish(&nodes[1], run.fence, "done").await),
            other => panic!("{other:?}"),
        }
        assert!(asked.elapsed() < Duration::from_secs(10), "never counted");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(nodes[1].health().await.unwrap().unresolved, 6);
}

/// The lane is stuck behind somebody who locked the table.
async fn stuck(database: &Database) -> tokio_postgres::Client {
    let outside = outsider(database).await;
    outside
        .batch_execute("BEGIN; LOCK TABLE counterfoil_receipts IN ACCESS EXCLUSIVE MODE")
        .await
        .unwrap();
    outside
}

const SOMEBODY_IS_STUCK: &str = "SELECT EXISTS (SELECT 1 FROM pg_locks WHERE NOT granted
    AND relation = 'counterfoil_receipts'::regclass)";

/// Beyond the bound of the queue a caller is told at once; those in it are served.
#[tokio::test(flavor = "multi_thread")]
async fn i6_the_queue_is_bounded() {
    let database = Database::new();
    let options = Options {
        lanes: 1,
        batch_max: 1,
        queue_max: 4,
        ..Options::default()
    };
    let store = node_at(database.url(), options).await;
    run(&store, guarded("before")).await;
    let outside = stuck(&database).await;
    let mut callers = vec![spawn_admit(&store, guarded("k0"))];
    until(&outside, SOMEBODY_IS_STUCK).await;
    callers.extend((1..=4).map(|number| spawn_admit(&store, guarded(&format!("k{number}")))));
    let asked = Instant::now();
    while store.health().await.unwrap().queue_depth < 4 {
        assert!(asked.elapsed() < SOON);
    }
    let asked = Instant::now();
    let refused = store.admit(guarded("one more")).await;
    assert!(matches!(refused, Err(Error::Busy { .. })), "{refused:?}");
    assert!(asked.elapsed() < SOON);
    outside.batch_execute("ROLLBACK").await.unwrap();
    for caller in callers {
        let said = caller.await.unwrap();
        assert!(matches!(said, Ok(Admitted::Run(_))), "{said:?}");
    }
    assert_eq!(store.health().await.unwrap().queue_depth, 0);
}

/// A caller whose patience ends while the lane is stuck is told by then; nothing was reserved for
/// one that was not begun.
#[tokio::test(flavor = "multi_thread")]
async fn i6_a_stuck_lane_keeps_nobody_beyond_their_patience() {
    let database = Database::new();
    let options = Options {
        lanes: 1,
        batch_max: 1,
        ..Options::default()
    };
    let store = node_at(database.url(), options).await;
    run(&store, guarded("before")).await;
    let outside = stuck(&database).await;
    let mut admissions = [guarded("begun"), guarded("waits")];
    for admission in &mut admissions {
        admission.patience = Duration::from_millis(300);
    }
    let asked = Instant::now();
    let [begun, waits] = admissions;
    let begun = spawn_admit(&store, begun);
    until(&outside, SOMEBODY_IS_STUCK).await;
    let waits = spawn_admit(&store, waits);
    for caller in [begun, waits] {
        let said = caller.await.unwrap();
        assert!(
            matches!(said, Err(Error::CommitUnknown | Error::Busy { .. })),
            "{said:?}"
        );
    }
    assert!(asked.elapsed() < SOON * 2, "{:?}", asked.elapsed());
    outside.batch_execute("ROLLBACK").await.unwrap();
    // A caller that was begun holds its reservation; the other one left nothing behind.
    run(&store, guarded("waits")).await;
}

/// Each reservation has the capacity for its completion booked until it is recorded; beyond the
/// bound nothing is reserved, and a completion is never refused.
#[tokio::test(flavor = "multi_thread")]
async fn i6_slots_are_bounded_and_given_back() {
    let database = Database::new();
    let options = Options {
        slots_max: 3,
        ..Options::default()
    };
    let store = node_at(database.url(), options).await;
    let mut granted = Vec::new();
    for number in 0..3 {
        granted.push(run(&store, guarded(&format!("k{number}"))).await);
    }
    let refused = store.admit(guarded("one more")).await;
    assert!(matches!(refused, Err(Error::Busy { .. })), "{refused:?}");
    assert_eq!(store.health().await.unwrap().slots_booked, 3);
    for granted in &granted {
        finish(&store, granted.fence, "done").await;
    }
    drop(granted.pop());
    // What is decided, refused or held keeps none.
    for _ in 0..5 {
        decided(&store, guarded("k0")).await;
    }
    run(&store, guarded("one more")).await;
    drop(granted);
    assert_eq!(store.health().await.unwrap().slots_booked, 0);
}

/// PostgreSQL's text holds no NUL; what is told with one is recorded all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_nul_in_what_is_told_is_replaced() {
    let database = Database::new();
    let store = node(&database).await;
    let granted = run(&store, guarded("k")).await;
    let mut done = success(granted.fence, "a\0body");
    done.evidence = Some("log\0line".to_owned());
    if let Some(stored) = &mut done.reply {
        stored.reply.content_type = Some("text/\0plain".to_owned());
        stored.reply.headers = vec![("x\0y".to_owned(), "a\0b".to_owned())];
    }
    let receipt = store.complete(granted.fence, done).await.unwrap();
    let events = store.events(receipt.operation_id).await.unwrap();
    assert_eq!(events[1].evidence.as_deref(), Some("log\u{fffd}line"));
    let found = store.get(receipt.operation_id).await.unwrap().unwrap();
    let reply = found.reply.unwrap().reply;
    assert_eq!(&reply.body[..], b"a\0body");
    assert_eq!(reply.content_type.as_deref(), Some("text/\u{fffd}plain"));
    assert_eq!(reply.headers, [("x\0y".to_owned(), "a\0b".to_owned())]);
}

/// One member of a batch is refused by the database; the 63 others are served, and so are the
/// completions beside one that is refused.
#[tokio::test(flavor = "multi_thread")]
async fn i6_a_broken_member_does_not_harm_its_batch() {
    let database = Database::new();
    let options = Options {
        lanes: 1,
        ..Options::default()
    };
    let store = node_at(database.url(), options).await;
    database.psql(
        "ALTER TABLE counterfoil_receipts ADD CONSTRAINT broken CHECK (key <> 'k13');
         ALTER TABLE counterfoil_results ADD CONSTRAINT wrong CHECK (body <> 'k7')",
    );
    let callers: Vec<_> = (0..64)
        .map(|number| (number, spawn_admit(&store, guarded(&format!("k{number}")))))
        .collect();
    let mut completions = Vec::new();
    for (number, caller) in callers {
        match caller.await.unwrap() {
            Ok(Admitted::Run(granted)) => {
                assert_ne!(number, 13);
                let store = store.clone();
                completions.push((
                    number,
                    tokio::spawn(async move {
                        let done = success(granted.fence, &format!("k{number}"));
                        store.complete(granted.fence, done).await
                    }),
                ));
            }
            Err(Error::Statement(why)) => {
                assert_eq!(number, 13);
                assert!(why.contains("broken"), "{why}");
            }
            other => panic!("{number}: {other:?}"),
        }
    }
    assert_eq!(completions.len(), 63);
    for (number, completion) in completions {
        match completion.await.unwrap() {
            Ok(receipt) => assert_eq!(receipt.status.state, State::Succeeded),
            Err(Error::Statement(_)) => assert_eq!(number, 7),
            Err(other) => panic!("{number}: {other:?}"),
        }
    }
    assert_eq!(store.health().await.unwrap().slots_booked, 0);
    assert_eq!(
        database.psql("SELECT count(*) FROM counterfoil_results"),
        "62"
    );
}

/// A full disk: nothing is done, it is said, and it is over when there is room again.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_unavailable_and_passes() {
    let database = Database::new();
    create_effects(&database);
    let store = node(&database).await;
    let granted = run(&store, guarded("before")).await;
    database.psql(
        "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
           RAISE EXCEPTION 'could not extend file: No space left' USING ERRCODE = '53100';
         END $$;
         CREATE TRIGGER full_disk BEFORE INSERT OR UPDATE ON counterfoil_receipts
           FOR EACH STATEMENT EXECUTE FUNCTION full_disk()",
    );
    let refused = store.admit(guarded("k")).await;
    assert!(matches!(refused, Err(Error::Unavailable(_))), "{refused:?}");
    let refused = store.atomically(atomic("a"), effect("e")).await;
    assert!(matches!(refused, Err(Error::Unavailable(_))), "{refused:?}");
    assert_eq!(effects(&database), 0);
    // The receipt stays reserved: its caller is told that the answer was not recorded.
    let done = success(granted.fence, "done");
    let lost = store.complete(granted.fence, done).await;
    assert!(matches!(lost, Err(Error::Unavailable(_))), "{lost:?}");
    database.psql("DROP TRIGGER full_disk ON counterfoil_receipts");
    run(&store, guarded("k")).await;
    let done = store.atomically(atomic("a"), effect("e")).await;
    assert!(matches!(done, Ok(Atomic::Ran(..))), "{done:?}");
    finish(&store, granted.fence, "done").await;
}

/// Tables are changed while connections have statements prepared for them.
#[tokio::test(flavor = "multi_thread")]
async fn statements_prepared_for_other_tables_heal() {
    let database = Database::new();
    create_effects(&database);
    let options = Options {
        lanes: 1,
        readers: 1,
        connections_max: 1,
        ..Options::default()
    };
    let store = node_at(database.url(), options).await;
    for (round, change) in [
        "SELECT 1",
        "ALTER TABLE counterfoil_receipts ALTER COLUMN key TYPE varchar(400)",
        "ALTER TABLE counterfoil_receipts ALTER COLUMN key TYPE text,
         ALTER COLUMN parameters TYPE varchar",
        "ALTER TABLE counterfoil_results ALTER COLUMN content_type TYPE varchar",
    ]
    .into_iter()
    .enumerate()
    {
        // Everything that is prepared is run before and after the change.
        for turn in ["before", "after"] {
            if turn == "after" {
                database.psql(change);
            }
            let key = format!("{round} {turn}");
            let granted = run(&store, guarded(&key)).await;
            let id = granted.fence.operation_id;
            let identity = guarded(&key).identity;
            assert!(store.find(&identity).await.unwrap().is_some());
            assert!(store.get(id).await.unwrap().is_some());
            let attempt = granted.fence.attempt;
            let released = completion(Event::NotApplied { attempt });
            store.complete(granted.fence, released).await.unwrap();
            let again = run(&store, guarded(&key)).await;
            finish(&store, again.fence, "done").await;
            let (_, found) = decided(&store, guarded(&key)).await;
            assert_eq!(found.reply.unwrap().reply, reply("done"));
            let done = store.atomically(atomic(&format!("a {key}")), effect("e"));
            let done = done.await;
            assert!(matches!(done, Ok(Atomic::Ran(..))), "{change}: {done:?}");
            store.lapse(crate::scene::now(), 10).await.unwrap();
        }
    }
}

/// So are the application's.
#[tokio::test(flavor = "multi_thread")]
async fn an_applications_changed_tables_heal() {
    let database = Database::new();
    let options = Options {
        connections_max: 1,
        ..Options::default()
    };
    let store = node_at(database.url(), options).await;
    database.psql("CREATE TABLE things(a bigint); INSERT INTO things VALUES (1)");
    for (round, change) in [
        "SELECT 1",
        "ALTER TABLE things ADD COLUMN b text DEFAULT 'b'",
        "DROP TABLE things; CREATE TABLE things(a text); INSERT INTO things VALUES ('x')",
    ]
    .into_iter()
    .enumerate()
    {
        database.psql(change);
        let columns = crate::scene::handler(|tx| {
            Box::pin(async move {
                let rows = tx.query("SELECT * FROM things", &[]).await?;
                Ok(reply(&rows[0].0.len().to_string()))
            })
        });
        let said = store
            .atomically(atomic(&format!("k{round}")), columns)
            .await;
        let expected = if round == 1 { "2" } else { "1" };
        match said {
            Ok(Atomic::Ran(_, answer)) => assert_eq!(answer, reply(expected)),
            other => panic!("{change}: {other:?}"),
        }
        let count = counterfoil_store::read(&store, |sql| {
            Box::pin(async move {
                let rows = sql.query("SELECT * FROM things", &[]).await?;
                Ok(rows[0].0.len())
            })
        });
        assert_eq!(count.await.unwrap().to_string(), expected);
    }
}
