use std::time::Duration;

use axum::http::Method;

use crate::fixture::{App, On, Place};

on_both! {
    probes_need_no_credential,
    readiness_ends_with_the_drain_and_life_does_not,
    the_document_is_served,
    figures_are_counted_by_route_and_outcome,
}

async fn probes_need_no_credential(on: On) {
    let app = App::new(on).await;
    for path in ["/healthz", "/readyz", "/metrics", "/openapi.json"] {
        let answer = app.ask(Method::GET, path).send().await;
        assert_eq!(answer.status, 200, "{path}");
    }
}

async fn readiness_ends_with_the_drain_and_life_does_not(on: On) {
    let app = App::new(on).await;
    assert_eq!(app.ask(Method::GET, "/readyz").send().await.status, 200);
    app.application.start_draining();
    let answer = app.ask(Method::GET, "/readyz").send().await;
    answer.problem(503, "unavailable");
    assert_eq!(app.ask(Method::GET, "/healthz").send().await.status, 200);
    // What is already on its way is still answered.
    assert_eq!(app.note("k", "x").await.status, 201);
    assert!(app.application.drain(Duration::from_secs(5)).await);
}

async fn the_document_is_served(on: On) {
    let app = App::new(on).await;
    let document = app.ask(Method::GET, "/openapi.json").send().await.json();
    assert_eq!(document["openapi"], "3.1.0");
    assert!(document["paths"]["/api/v1/notes"]["post"].is_object());
}

async fn figures_are_counted_by_route_and_outcome(on: On) {
    let app = App::new(on).await;
    app.note("k", "x").await;
    app.note("k", "x").await;
    app.note("k", "y").await;
    app.get("/api/v1/notes/secret-path").send().await;
    app.get("/nowhere/secret-path").send().await;
    let answer = app.ask(Method::GET, "/metrics").send().await;
    let text = String::from_utf8(answer.body).unwrap();
    for line in [
        r#"counterfoil_calls_total{outcome="ran"}"#,
        r#"counterfoil_calls_total{outcome="replayed"}"#,
        r#"counterfoil_calls_total{outcome="idempotency_conflict"}"#,
        r#"counterfoil_http_requests_total{method="POST",route="/api/v1/notes",status="201"}"#,
        r#"counterfoil_http_requests_total{method="GET",route="/api/v1/notes/{id}",status="404"}"#,
        r#"counterfoil_http_requests_total{method="GET",route="none",status="404"}"#,
        "counterfoil_store_queue_depth",
        "counterfoil_operations_unresolved",
        "counterfoil_http_in_flight",
        "counterfoil_store_commit_seconds_bucket",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    assert!(!text.contains("secret-path"));
}

#[tokio::test(flavor = "multi_thread")]
async fn i2_field_22_a_database_removed_under_the_server_is_told_and_takes_nothing() {
    let app = App::new(On::Sqlite).await;
    assert_eq!(app.note("k", "x").await.status, 201);
    let Place::Sqlite(folder) = &app.place else {
        panic!("on a file");
    };
    std::fs::remove_file(folder.path().join("test.db")).unwrap();
    let ready = app.ask(Method::GET, "/readyz").send().await;
    ready.problem(503, "unavailable");
    app.note("k2", "x").await.problem(503, "unavailable");
    assert_eq!(app.ask(Method::GET, "/healthz").send().await.status, 200);
}
