//! The same table and claims on PostgreSQL, whose clock is its own.

use std::{sync::Arc, time::Duration};

use counterfoil_core::Timestamp;
use counterfoil_postgres::{Options, PostgresStore};
use counterfoil_test_postgres::Database;

use super::scene::{Process, call, channel};
use crate::keyless::Pairing;

async fn process(database: &Database) -> Process {
    let store = PostgresStore::open(database.url(), Options::default()).await;
    Process::on(Arc::new(store.unwrap())).await
}

fn now(process: &Process) -> Timestamp {
    process.store.now().expect("a clock of its own")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i5_on_postgres_exactly_one_is_paired_and_delivered_calls_run() {
    let database = Database::new();
    let (ours, theirs) = (process(&database).await, process(&database).await);
    let first = ours.finish(&call(1, 1), now(&ours)).await;
    ours.pair(&call(1, 2), now(&ours)).await.must_run(2);
    theirs
        .pair(&call(1, 2), now(&theirs))
        .await
        .must_ask(&first);
    first.delivery.undelivered(now(&ours));
    ours.deliveries.flush().await.unwrap();
    let (ours, theirs) = (Arc::new(ours), Arc::new(theirs));
    let tasks: Vec<_> = (0..16_u8)
        .map(|number| {
            let process = Arc::clone(if number % 2 == 0 { &ours } else { &theirs });
            tokio::spawn(async move {
                let now = now(&process);
                (process.pair(&call(1, number), now).await, number)
            })
        })
        .collect();
    let mut attached = Vec::new();
    let mut asked = Vec::new();
    for task in tasks {
        let (paired, number) = task.await.unwrap();
        match paired.pairing {
            Pairing::Attach { .. } => attached.push((paired, number)),
            Pairing::Ask(_) => asked.push(paired),
            Pairing::Run(_) => panic!("it ran again"),
        }
    }
    assert_eq!((attached.len(), asked.len()), (1, 15));
    let (paired, number) = attached.pop().unwrap();
    let process = if number % 2 == 0 { &ours } else { &theirs };
    paired.delivery.handed(now(process));
    process.deliveries.heard(channel(number), now(process));
    process.deliveries.flush().await.unwrap();
    for process in [&ours, &theirs] {
        let paired = process.pair(&call(1, 1), now(process)).await;
        paired.must_run(2);
    }
}

#[tokio::test]
async fn i5_on_postgres_rows_are_written_over_and_pruned() {
    let database = Database::new();
    let process = process(&database).await;
    for _ in 0..2 {
        let ran = process.finish(&call(1, 1), now(&process)).await;
        process.deliveries.flush().await.unwrap();
        ran.delivery.handed(now(&process));
        process.deliveries.flush().await.unwrap();
        process.deliveries.heard(channel(1), now(&process));
        process.deliveries.flush().await.unwrap();
    }
    let key = crate::keyless::key(call(1, 1).digest, 2).unwrap();
    let digest = call(1, 1).digest;
    let again = process
        .deliveries
        .begin(digest, "MCP write", &key, channel(2), now(&process));
    again.undelivered(now(&process));
    process.deliveries.flush().await.unwrap();
    let generations =
        database.psql("SELECT string_agg(generation || ' ' || delivery, ',' ORDER BY serial) FROM proxy_deliveries");
    assert_eq!(generations.trim(), "1 4,2 1");
    let later = now(&process).plus(Duration::from_secs(26 * 3600));
    assert_eq!(process.deliveries.prune(later).await.unwrap(), 1);
    assert_eq!(process.deliveries.prune(later).await.unwrap(), 0);
    let answered = call(1, 1);
    let found = process
        .deliveries
        .open_question(&answered, None, now(&process));
    assert_eq!(found.await.unwrap(), None);
}
