use std::time::Duration;

use counterfoil_core::Retention;
use counterfoil_server::{Role, Settings};
use serde_json::json;

use crate::fixture::{App, On};

on_both! {
    i2_a_retry_gets_the_first_answer_byte_for_byte,
    field_05_of_eight_first_calls_at_once_one_runs,
    i5_field_11_without_a_key_a_mutation_runs_each_time,
    field_02_another_body_under_a_used_key_is_a_conflict,
    field_01_over_rest_another_field_order_is_another_body_and_the_rule_is_named,
    an_invalid_request_uses_up_no_key,
    pages_cover_every_note_once_the_newest_first,
    wrong_pages_are_refused,
    i4_another_workspace_sees_nothing,
    past_its_replay_window_a_key_is_refused_while_its_tombstone_lives,
    without_tombstones_a_key_past_its_window_is_a_new_action,
}

async fn i2_a_retry_gets_the_first_answer_byte_for_byte(on: On) {
    let app = App::new(on).await;
    let first = app.note("k", "hello").await;
    assert_eq!(first.status, 201);
    let body = first.json();
    assert_eq!(body["status"], "succeeded");
    let id = body["note_id"].as_str().unwrap();
    assert_eq!(
        first.header("location").unwrap(),
        format!("/api/v1/notes/{id}")
    );
    assert_eq!(first.header("operation-id"), body["operation_id"].as_str());
    assert!(!first.is_replay());
    let again = app.note("k", "hello").await;
    assert!(again.is_replay());
    assert_eq!(again.status, 201);
    assert_eq!(again.body, first.body);
    for name in ["content-type", "location", "operation-id"] {
        assert_eq!(again.header(name), first.header(name), "{name}");
    }
    assert_eq!(app.notes().await, 1);
    let note = app.get(&format!("/api/v1/notes/{id}")).send().await.json();
    assert_eq!(note["body"], "hello");
    assert_eq!(note["note_id"], id);
}

async fn field_05_of_eight_first_calls_at_once_one_runs(on: On) {
    let app = App::new(on).await;
    let calls = (0..8).map(|_| app.note("k", "hello"));
    let mut ids = Vec::new();
    let mut set = Vec::new();
    for call in calls {
        set.push(call);
    }
    for answer in futures(set).await {
        match answer.status.as_u16() {
            201 => ids.push(answer.json()["note_id"].clone()),
            409 => drop(answer.problem(409, "idempotency_in_progress")),
            other => panic!("{other}"),
        }
    }
    ids.dedup();
    assert_eq!(ids.len(), 1);
    assert_eq!(app.notes().await, 1);
}

/// All of them at once.
async fn futures<T>(set: Vec<impl Future<Output = T>>) -> Vec<T> {
    let mut waiting: Vec<_> = set
        .into_iter()
        .map(|future| (Box::pin(future), None))
        .collect();
    std::future::poll_fn(|context| {
        let mut ready = true;
        for (future, output) in &mut waiting {
            if output.is_none() {
                match future.as_mut().poll(context) {
                    std::task::Poll::Ready(value) => *output = Some(value),
                    std::task::Poll::Pending => ready = false,
                }
            }
        }
        if ready {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
    waiting
        .into_iter()
        .map(|(_, output)| output.unwrap())
        .collect()
}

async fn i5_field_11_without_a_key_a_mutation_runs_each_time(on: On) {
    let app = App::new(on).await;
    for _ in 0..2 {
        let answer = app
            .post("/api/v1/notes")
            .bearer(&app.admin)
            .body(r#"{"body":"same"}"#)
            .send()
            .await;
        assert_eq!(answer.status, 201);
        assert_eq!(answer.json()["operation_id"], json!(null));
        assert_eq!(answer.header("operation-id"), None);
    }
    assert_eq!(app.notes().await, 2);
    assert_eq!(app.operations().await, 0);
}

async fn field_02_another_body_under_a_used_key_is_a_conflict(on: On) {
    let app = App::new(on).await;
    let first = app.note("k", "one").await;
    let problem = app
        .note("k", "two")
        .await
        .problem(409, "idempotency_conflict");
    assert_eq!(problem["operation_id"], first.json()["operation_id"]);
    assert_eq!(problem["retryable"], false);
    assert_eq!(app.notes().await, 1);
    assert!(app.note("k", "one").await.is_replay());
}

async fn field_01_over_rest_another_field_order_is_another_body_and_the_rule_is_named(on: On) {
    let app = App::new(on).await;
    let send = |body: &'static str| {
        app.post("/api/v1/agent-keys")
            .bearer(&app.admin)
            .key("k")
            .body(body)
            .send()
    };
    assert_eq!(send(r#"{"name":"a","role":"member"}"#).await.status, 201);
    let answer = send(r#"{"role":"member","name":"a"}"#).await;
    let problem = answer.problem(409, "idempotency_conflict");
    let said = problem["detail"].as_str().unwrap();
    assert!(said.contains("byte"), "{said}");
}

async fn an_invalid_request_uses_up_no_key(on: On) {
    let app = App::new(on).await;
    let long = "x".repeat(10_001);
    for body in ["", long.as_str(), "a\u{0}b"] {
        let problem = app.note("k", body).await.problem(422, "invalid");
        assert_eq!(problem["issues"][0]["field"], "/body");
    }
    let problem = app
        .post("/api/v1/notes")
        .bearer(&app.admin)
        .key("k")
        .body(r#"{"body":"x","workspace":"other"}"#)
        .send()
        .await
        .problem(422, "invalid");
    assert_eq!(problem["issues"][0]["field"], "/workspace");
    assert_eq!(app.operations().await, 0);
    let longest = "ß".repeat(10_000);
    assert_eq!(app.note("k", &longest).await.status, 201);
}

async fn pages_cover_every_note_once_the_newest_first(on: On) {
    let app = App::new(on).await;
    let mut made = Vec::new();
    for n in 0..5 {
        let answer = app.note(&format!("k{n}"), &format!("note {n}")).await;
        made.push(answer.json()["note_id"].as_str().unwrap().to_owned());
    }
    let mut seen = Vec::new();
    let mut path = "/api/v1/notes?limit=2".to_owned();
    loop {
        let page = app.get(&path).send().await.json();
        let notes = page["notes"].as_array().unwrap();
        assert!((1..=2).contains(&notes.len()));
        for note in notes {
            seen.push(note["note_id"].as_str().unwrap().to_owned());
        }
        match page["next_cursor"].as_str() {
            Some(cursor) => path = format!("/api/v1/notes?limit=2&cursor={cursor}"),
            None => break,
        }
    }
    made.sort();
    made.reverse();
    assert_eq!(seen, made);
}

async fn wrong_pages_are_refused(on: On) {
    let app = App::new(on).await;
    for (query, field) in [
        ("limit=0", "/limit"),
        ("limit=101", "/limit"),
        ("limit=x", "/limit"),
        ("limit=-1", "/limit"),
        ("cursor=nonsense", "/cursor"),
        ("cursor=", "/cursor"),
        ("workspace=other", "/query"),
        ("state=running", "/state"),
        ("limit=1&limit=2", "/query"),
    ] {
        let answer = app.get(&format!("/api/v1/notes?{query}")).send().await;
        let problem = answer.problem(422, "invalid");
        assert_eq!(problem["issues"][0]["field"], field, "{query}");
    }
    let operations = app.get("/api/v1/operations?limit=1").send().await.json();
    assert_eq!(operations["next_cursor"], json!(null));
}

async fn i4_another_workspace_sees_nothing(on: On) {
    let app = App::new(on).await;
    let other = app.issue("other", Role::Admin).await;
    let id = app.note("k", "secret").await.json()["note_id"].clone();
    let path = format!("/api/v1/notes/{}", id.as_str().unwrap());
    app.ask(axum::http::Method::GET, &path)
        .bearer(&other)
        .send()
        .await
        .problem(404, "not_found");
    let list = app
        .ask(axum::http::Method::GET, "/api/v1/notes")
        .bearer(&other)
        .send()
        .await;
    assert_eq!(list.json()["notes"], json!([]));
    app.get("/api/v1/notes/note_x")
        .send()
        .await
        .problem(404, "not_found");
}

fn retention(replay_ms: u64, tombstone_ms: u64) -> Settings {
    Settings {
        retention: Retention {
            replay_for: Duration::from_millis(replay_ms),
            tombstone_for: Duration::from_millis(tombstone_ms),
        },
        ..Settings::default()
    }
}

async fn past_its_replay_window_a_key_is_refused_while_its_tombstone_lives(on: On) {
    let app = App::with(on, retention(0, 3_600_000)).await;
    let first = app.note("k", "hello").await;
    let problem = app
        .note("k", "hello")
        .await
        .problem(409, "idempotency_key_expired");
    assert_eq!(problem["operation_id"], first.json()["operation_id"]);
    app.note("k", "other")
        .await
        .problem(409, "idempotency_conflict");
    assert_eq!(app.notes().await, 1);
}

async fn without_tombstones_a_key_past_its_window_is_a_new_action(on: On) {
    let app = App::with(on, retention(0, 0)).await;
    let first = app.note("k", "hello").await;
    let second = app.note("k", "hello").await;
    assert_eq!(second.status, 201);
    assert!(!second.is_replay());
    assert_ne!(first.json()["operation_id"], second.json()["operation_id"]);
    assert_eq!(app.notes().await, 2);
}
