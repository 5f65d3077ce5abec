//! The rows of the bad-input table, at REST.

use axum::http::Method;
use serde_json::json;

use crate::fixture::{App, On};

on_both! {
    malformed_keys_are_refused_before_any_work,
    a_repeated_header_is_one_key_if_it_is_the_same_in_either_form,
    a_path_spelled_another_way_is_the_same_target_or_none,
    what_is_no_json_stores_nothing,
    other_content_types_and_larger_bodies_are_refused,
    field_22_a_locked_database_is_busy_and_nothing_is_invented,
    wrong_methods_and_paths_are_problems,
    field_16_a_key_in_a_place_that_is_not_taken_is_refused,
    a_key_on_a_read_is_no_key,
}

const BODY: &str = r#"{"body":"x"}"#;

async fn malformed_keys_are_refused_before_any_work(on: On) {
    let app = App::new(on).await;
    let long = "k".repeat(201);
    let keys: [&[u8]; 6] = [
        b"",
        long.as_bytes(),
        b"a\tb",
        b"\"open",
        b"\"a\" b",
        b"\xff\xfe",
    ];
    for key in keys {
        let answer = app
            .post("/api/v1/notes")
            .bearer(&app.admin)
            .header("idempotency-key", key)
            // Not even JSON: the key is judged first.
            .body("{")
            .send()
            .await;
        answer.problem(422, "invalid_key");
    }
    assert_eq!(app.notes().await, 0);
    let longest = "k".repeat(200);
    assert_eq!(app.note(&longest, "x").await.status, 201);
}

async fn a_repeated_header_is_one_key_if_it_is_the_same_in_either_form(on: On) {
    let app = App::new(on).await;
    let send = |keys: Vec<&'static str>| {
        let mut asking = app.post("/api/v1/notes").bearer(&app.admin).body(BODY);
        for key in keys {
            asking = asking.header("idempotency-key", key);
        }
        asking.send()
    };
    assert_eq!(send(vec!["k", "\"k\""]).await.status, 201);
    for keys in [vec!["k"], vec!["\"k\""], vec!["k", "k"]] {
        assert!(send(keys).await.is_replay());
    }
    send(vec!["k", "l"]).await.problem(422, "invalid_key");
    assert_eq!(app.notes().await, 1);
}

async fn a_path_spelled_another_way_is_the_same_target_or_none(on: On) {
    let app = App::new(on).await;
    let key = app.issue("default", counterfoil_server::Role::Member).await;
    let id = crate::fixture::id_of(&key);
    let encoded = id.replace('_', "%5F");
    let rotate = |id: &str| {
        app.post(&format!("/api/v1/agent-keys/{id}/rotate"))
            .bearer(&app.admin)
            .key("k")
            .send()
    };
    let first = rotate(&id).await;
    assert_eq!(first.status, 200);
    let second = rotate(&encoded).await;
    assert!(second.is_replay());
    assert_eq!(second.json()["operation_id"], first.json()["operation_id"]);
    for path in [
        "/api/v1//notes",
        "/api/v1/notes/",
        "/api/v1/nothing",
        "/api//v1/notes",
    ] {
        let answer = app
            .post(path)
            .bearer(&app.admin)
            .key("k2")
            .body(BODY)
            .send()
            .await;
        answer.problem(404, "not_found");
    }
    assert_eq!(app.operations().await, 1);
}

async fn what_is_no_json_stores_nothing(on: On) {
    let app = App::new(on).await;
    let deep = format!(r#"{{"body":{}{}}}"#, "[".repeat(5000), "]".repeat(5000));
    let bodies: [&[u8]; 8] = [
        b"",
        b"{",
        br#"{"body":"a","body":"b"}"#,
        deep.as_bytes(),
        br#"{"body":"\ud800"}"#,
        br#"{"body":"x","n":1e400}"#,
        b"{\"body\":\"\xff\"}",
        br#"{"body":"x"} {"body":"y"}"#,
    ];
    for body in bodies {
        for keyed in [true, false] {
            let mut asking = app.post("/api/v1/notes").bearer(&app.admin).body(body);
            if keyed {
                asking = asking.key("k");
            }
            asking.send().await.problem(400, "malformed_request");
        }
    }
    assert_eq!(app.operations().await, 0);
    assert_eq!(app.notes().await, 0);
}

async fn other_content_types_and_larger_bodies_are_refused(on: On) {
    let app = App::new(on).await;
    let form = app
        .ask(Method::POST, "/api/v1/notes")
        .header("content-type", "application/x-www-form-urlencoded")
        .bearer(&app.admin)
        .key("k")
        .body("body=x")
        .send()
        .await;
    form.problem(415, "unsupported_media_type");
    let large = app
        .post("/api/v1/notes")
        .bearer(&app.admin)
        .key("k")
        .body(vec![b' '; 1024 * 1024 + 1])
        .send()
        .await;
    large.problem(413, "too_large");
    assert_eq!(app.operations().await, 0);
}

async fn field_22_a_locked_database_is_busy_and_nothing_is_invented(on: On) {
    let app = App::with(
        on,
        counterfoil_server::Settings {
            limits: counterfoil_engine::Limits {
                patience: std::time::Duration::from_millis(200),
                ..counterfoil_engine::Limits::default()
            },
            ..counterfoil_server::Settings::default()
        },
    )
    .await;
    let first = app.note("before", "x").await;
    let rival = app.place.lock().await;
    let answer = app.note("k", "x").await;
    let problem = answer.problem(503, "busy");
    assert_eq!(problem["retryable"], true);
    assert!(answer.header("retry-after").is_some());
    // What is there stays readable.
    let replay = app.note("before", "x").await;
    assert!(replay.is_replay());
    assert_eq!(replay.body, first.body);
    rival.let_go().await;
    assert_eq!(app.note("k", "x").await.status, 201);
    assert_eq!(app.notes().await, 2);
}

async fn wrong_methods_and_paths_are_problems(on: On) {
    let app = App::new(on).await;
    let answer = app
        .ask(Method::PUT, "/api/v1/notes")
        .bearer(&app.admin)
        .send()
        .await;
    answer.problem(405, "method_not_allowed");
    let allow = answer.header("allow").unwrap();
    assert!(allow.contains("GET") && allow.contains("POST"), "{allow}");
    let problem = app.get("/nowhere").send().await.problem(404, "not_found");
    assert_eq!(problem["retryable"], json!(false));
    for path in ["/api/v1/notes/x%ff", "/api/v1/operations/%80"] {
        app.get(path).send().await.problem(400, "malformed_request");
    }
    let answer = app
        .post("/api/v1/agent-keys/%ff/rotate")
        .bearer(&app.admin)
        .key("k")
        .send()
        .await;
    answer.problem(400, "malformed_request");
}

async fn field_16_a_key_in_a_place_that_is_not_taken_is_refused(on: On) {
    let app = App::new(on).await;
    let post = |path: &str| app.post(path).bearer(&app.admin);
    let in_query = post("/api/v1/notes?idempotency_key=k")
        .body(BODY)
        .send()
        .await;
    in_query.problem(422, "invalid_key");
    let in_body = post("/api/v1/notes")
        .body(r#"{"body":"x","idempotency_key":"k"}"#)
        .send()
        .await;
    in_body.problem(422, "invalid");
    let other_name = post("/api/v1/notes")
        .header("x-idempotency-key", "k")
        .body(BODY)
        .send()
        .await;
    other_name.problem(422, "invalid_key");
    assert_eq!(app.notes().await, 0);
}

async fn a_key_on_a_read_is_no_key(on: On) {
    let app = App::new(on).await;
    for body in ["a", "b"] {
        app.note(body, body).await;
        let list = app.get("/api/v1/notes").key("k").send().await;
        assert!(!list.is_replay());
    }
    let list = app.get("/api/v1/notes").key("k").send().await;
    assert_eq!(list.json()["notes"].as_array().unwrap().len(), 2);
}
