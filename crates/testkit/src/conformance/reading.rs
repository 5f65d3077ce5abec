//! Looking things up, application transactions, and the application's tables.

use std::sync::Arc;

use counterfoil_core::{Event, PrincipalId, State, WorkspaceId};
use counterfoil_store::{Admission, Error, Migration, Query, Store, Value, read, transact};

use super::Subject;
use super::scene::{
    INSERT, START, TABLE, after, completion, create_table, effects, guarded, identity,
    operation_id, run, stored, success,
};

fn query(limit: u32) -> Query {
    Query {
        workspace: WorkspaceId::new("w1").unwrap(),
        principal: None,
        states: Vec::new(),
        cursor: None,
        limit,
    }
}

pub async fn find_and_get_agree(subject: Subject) {
    let store = subject.open().await;
    assert_eq!(store.find(&identity("k")).await.unwrap(), None);
    assert_eq!(store.get(operation_id(START)).await.unwrap(), None);
    let granted = run(&*store, guarded("k", START)).await;
    let id = granted.fence.operation_id;
    let found = store.find(&identity("k")).await.unwrap();
    assert!(found.is_some());
    assert_eq!(found, store.get(id).await.unwrap());
    store
        .complete(granted.fence, success(granted.fence, "x", after(1)))
        .await
        .unwrap();
    let found = store.find(&identity("k")).await.unwrap();
    assert_eq!(found, store.get(id).await.unwrap());
    assert_eq!(found.unwrap().reply, Some(stored("x")));
}

pub async fn lists_are_newest_first_filtered_and_paged(subject: Subject) {
    let store = subject.open().await;
    let mut all = Vec::new();
    for number in 0..5 {
        let mut admission = guarded(&format!("k{number}"), after(number));
        if number == 3 {
            admission.identity.principal = PrincipalId::new("bob").unwrap();
        }
        all.push(run(&*store, admission).await.fence);
    }
    let elsewhere = Admission {
        identity: counterfoil_core::Identity {
            workspace: WorkspaceId::new("w2").unwrap(),
            ..identity("k0")
        },
        ..guarded("k0", START)
    };
    run(&*store, elsewhere).await;
    store
        .complete(all[1], success(all[1], "x", after(9)))
        .await
        .unwrap();

    let mut seen = Vec::new();
    let mut wanted = query(2);
    loop {
        let page = store.list(&wanted).await.unwrap();
        assert!(page.receipts.len() <= 2);
        seen.extend(page.receipts.iter().map(|receipt| receipt.operation_id));
        assert!(seen.len() <= 5, "another workspace's operation");
        match page.next {
            Some(next) => wanted.cursor = Some(next),
            None => break,
        }
    }
    let newest_first: Vec<_> = all.iter().rev().map(|fence| fence.operation_id).collect();
    assert_eq!(seen, newest_first);

    let mut of_bob = query(10);
    of_bob.principal = Some(PrincipalId::new("bob").unwrap());
    let page = store.list(&of_bob).await.unwrap();
    assert_eq!(page.receipts.len(), 1);
    assert_eq!(page.receipts[0].operation_id, all[3].operation_id);
    assert_eq!(page.next, None);

    let mut finished = query(10);
    finished.states = vec![State::Succeeded, State::Failed];
    let page = store.list(&finished).await.unwrap();
    assert_eq!(page.receipts.len(), 1);
    assert_eq!(page.receipts[0].operation_id, all[1].operation_id);
}

pub async fn a_free_row_is_listed_only_when_asked_for(subject: Subject) {
    let store = subject.open().await;
    let granted = run(&*store, guarded("k", START)).await;
    let attempt = granted.fence.attempt;
    let told = completion(Event::NotApplied { attempt }, after(1));
    store.complete(granted.fence, told).await.unwrap();
    assert!(store.list(&query(10)).await.unwrap().receipts.is_empty());
    let mut free = query(10);
    free.states = vec![State::Free];
    assert_eq!(store.list(&free).await.unwrap().receipts.len(), 1);
}

pub async fn the_event_log_tells_every_transition_once(subject: Subject) {
    let store = subject.open().await;
    let first = run(&*store, guarded("k", START)).await;
    let told = completion(Event::NotApplied { attempt: 1 }, after(1));
    store.complete(first.fence, told).await.unwrap();
    let second = run(&*store, guarded("k", after(2))).await;
    let mut answer = success(second.fence, "x", after(3));
    answer.evidence = Some("trace 5".to_owned());
    store.complete(second.fence, answer.clone()).await.unwrap();
    store.complete(second.fence, answer).await.unwrap();
    let events = store.events(first.fence.operation_id).await.unwrap();
    let told: Vec<_> = events
        .iter()
        .map(|event| (event.at, event.attempt, event.from, event.to))
        .collect();
    assert_eq!(
        told,
        [
            (START, 1, None, State::Running),
            (after(1), 1, Some(State::Running), State::Free),
            (after(2), 2, Some(State::Free), State::Running),
            (after(3), 2, Some(State::Running), State::Succeeded),
        ]
    );
    assert_eq!(events[3].reason, "as told by the case");
    assert_eq!(events[3].evidence.as_deref(), Some("trace 5"));
    assert!(events.iter().all(|event| !event.reason.is_empty()));
    assert!(store.events(operation_id(START)).await.unwrap().is_empty());
}

pub async fn health_counts_unresolved_receipts(subject: Subject) {
    let store = subject.open().await;
    assert_eq!(store.health().await.unwrap().unresolved, 0);
    let granted = run(&*store, guarded("k", START)).await;
    run(&*store, guarded("k2", START)).await;
    assert_eq!(store.health().await.unwrap().unresolved, 2);
    store
        .complete(granted.fence, success(granted.fence, "x", after(1)))
        .await
        .unwrap();
    assert_eq!(store.health().await.unwrap().unresolved, 1);
    drop(granted);
}

pub async fn a_reader_cannot_write(subject: Subject) {
    let store = subject.open().await;
    create_table(&*store).await;
    let written = read(&*store, |sql| {
        Box::pin(async move { sql.execute(INSERT, &[Value::from("read")]).await })
    })
    .await;
    assert!(written.is_err(), "{written:?}");
    assert_eq!(effects(&*store, "read").await, 0);
}

pub async fn a_transaction_commits_whole(subject: Subject) {
    let store = subject.open().await;
    create_table(&*store).await;
    let seen = transact(&*store, None, |tx| {
        Box::pin(async move {
            assert_eq!(tx.execute(INSERT, &[Value::from("a")]).await?, 1);
            tx.execute(INSERT, &[Value::from("b")]).await?;
            let rows = tx
                .query("SELECT label FROM conformance_effects LIMIT 10", &[])
                .await?;
            Ok(rows.len())
        })
    })
    .await
    .unwrap();
    assert_eq!(seen, 2, "a transaction sees its own writes");
    let again = subject.open().await;
    assert_eq!(effects(&*again, "a").await, 1);
    assert_eq!(effects(&*again, "b").await, 1);
}

pub async fn a_transaction_rolls_back_whole(subject: Subject) {
    let store = subject.open().await;
    create_table(&*store).await;
    for error in [Error::RolledBack, Error::Statement("mine".to_owned())] {
        let told = error.clone();
        let failed = transact(&*store, None, move |tx| {
            let told = told.clone();
            Box::pin(async move {
                tx.execute(INSERT, &[Value::from("a")]).await?;
                Err::<(), _>(told)
            })
        })
        .await;
        assert_eq!(failed, Err(error));
        assert_eq!(effects(&*store, "a").await, 0);
    }
    // The store goes on after it.
    let store: Arc<dyn Store> = store;
    run(&*store, guarded("k", START)).await;
}

/// Every kind of value comes back as it went in, from its own transaction and to a reader.
pub async fn values_survive_a_table(subject: Subject) {
    const INSERT: &str =
        "INSERT INTO conformance_values (number, words, bytes) VALUES ($1, $2, $3)";
    const ALL: &str = "SELECT number, words, bytes FROM conformance_values LIMIT 10";
    let store = subject.open().await;
    let table = [Migration {
        version: 1,
        sqlite: "CREATE TABLE conformance_values (number INTEGER, words TEXT, bytes BLOB);",
        postgres: "CREATE TABLE conformance_values (number BIGINT, words TEXT, bytes BYTEA);",
    }];
    store.migrate("conformance_values", &table).await.unwrap();
    let rows = [
        vec![
            i64::MIN.into(),
            "it's \u{e9}\u{1f600} \\ $1".into(),
            vec![0, 255].into(),
        ],
        vec![i64::MAX.into(), "".into(), Vec::new().into()],
        vec![Value::Null, Value::Null, Value::Null],
    ];
    let sent = rows.clone();
    let seen = transact(&*store, None, move |tx| {
        let sent = sent.clone();
        Box::pin(async move {
            for row in &sent {
                assert_eq!(tx.execute(INSERT, row).await?, 1);
            }
            tx.query(ALL, &[]).await
        })
    })
    .await
    .unwrap();
    let later = read(&*store, |sql| Box::pin(sql.query(ALL, &[])))
        .await
        .unwrap();
    for told in [seen, later] {
        assert_eq!(told.len(), rows.len());
        for row in &rows {
            assert!(told.iter().any(|told| told.0 == *row), "{row:?}: {told:?}");
        }
    }
}

pub async fn migrations_are_idempotent(subject: Subject) {
    let store = subject.open().await;
    create_table(&*store).await;
    transact(&*store, None, |tx| {
        Box::pin(async move { tx.execute(INSERT, &[Value::from("kept")]).await })
    })
    .await
    .unwrap();
    create_table(&*store).await;
    let again = subject.open().await;
    create_table(&*again).await;
    let more = [
        TABLE[0],
        Migration {
            version: 2,
            sqlite: "CREATE TABLE conformance_more (label TEXT NOT NULL);",
            postgres: "CREATE TABLE conformance_more (label TEXT NOT NULL);",
        },
    ];
    again.migrate("conformance", &more).await.unwrap();
    assert_eq!(effects(&*again, "kept").await, 1);
    let rows = read(&*again, |sql| {
        Box::pin(async move {
            sql.query("SELECT label FROM conformance_more LIMIT 1", &[])
                .await
        })
    })
    .await
    .unwrap();
    assert!(rows.is_empty());
}

pub async fn a_newer_schema_is_refused(subject: Subject) {
    let store = subject.open().await;
    create_table(&*store).await;
    let refused = store.migrate("conformance", &[]).await;
    assert!(matches!(refused, Err(Error::Unavailable(_))), "{refused:?}");
    // Another component has its own versions.
    store.migrate("other", &[]).await.unwrap();
    create_table(&*store).await;
}

pub async fn a_note_is_durable(subject: Subject) {
    let store = subject.open().await;
    assert_eq!(store.note("first").await.unwrap(), None);
    store.set_note("first", vec![0, 255]).await.unwrap();
    store.set_note("second", Vec::new()).await.unwrap();
    store.set_note("first", vec![1, 2, 3]).await.unwrap();
    let again = subject.open().await;
    assert_eq!(again.note("first").await.unwrap(), Some(vec![1, 2, 3]));
    assert_eq!(again.note("second").await.unwrap(), Some(Vec::new()));
    let long = store.set_note(&"n".repeat(65), Vec::new()).await;
    assert!(matches!(long, Err(Error::Statement(_))), "{long:?}");
    let empty = store.set_note("", Vec::new()).await;
    assert!(matches!(empty, Err(Error::Statement(_))), "{empty:?}");
    let nul = store.set_note("a\0b", Vec::new()).await;
    assert!(matches!(nul, Err(Error::Statement(_))), "{nul:?}");
    let large = store.set_note("first", vec![0; 4097]).await;
    assert!(matches!(large, Err(Error::Statement(_))), "{large:?}");
    store
        .set_note(&"n".repeat(64), vec![0; 4096])
        .await
        .unwrap();
    assert_eq!(again.note("first").await.unwrap(), Some(vec![1, 2, 3]));
}
