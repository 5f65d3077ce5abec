use std::sync::Arc;

use counterfoil_engine::{KeyRing, SystemEntropy};
use counterfoil_server::Settings;

use crate::fixture::{App, On};

on_both! {
    field_09_a_sealed_result_is_replayed_and_does_not_lie_open,
    keys_rotate_and_an_unknown_key_id_fails_closed,
    without_keys_a_sealed_operation_is_refused_before_it_runs,
}

fn line(id: u32) -> String {
    KeyRing::generate(id, &SystemEntropy).unwrap()
}

fn sealed(ring: Option<&str>) -> Settings {
    Settings {
        seal_notes: true,
        key_ring: ring.map(|text| Arc::new(KeyRing::parse(text).unwrap())),
        ..Settings::default()
    }
}

fn lies_open(app: &App, text: &str) -> bool {
    app.place.kept_by_the_store().iter().any(|bytes| {
        bytes
            .windows(text.len())
            .any(|part| part == text.as_bytes())
    })
}

async fn field_09_a_sealed_result_is_replayed_and_does_not_lie_open(on: On) {
    const TEXT: &str = "a very private sentence";
    let ring = line(1);
    let app = App::with(on, sealed(Some(&ring))).await;
    let first = app.note("k", TEXT).await;
    assert_eq!(first.status, 201);
    let again = app.note("k", TEXT).await;
    assert!(again.is_replay());
    assert_eq!(again.body, first.body);
    let id = first.json()["operation_id"].as_str().unwrap().to_owned();
    let shown = app
        .get(&format!("/api/v1/operations/{id}"))
        .send()
        .await
        .json();
    assert_eq!(shown["result"]["body"], first.json());
    assert!(!lies_open(&app, TEXT));
    let open = App::new(on).await;
    open.note("k", TEXT).await;
    assert!(lies_open(&open, TEXT), "the check finds what is not sealed");
}

async fn keys_rotate_and_an_unknown_key_id_fails_closed(on: On) {
    let (old, new) = (line(1), line(2));
    let app = App::with(on, sealed(Some(&old))).await;
    let first = app.note("k", "x").await;
    let rotated = app.beside(sealed(Some(&format!("{new}{old}")))).await;
    let again = rotated.note("k", "x").await;
    assert!(again.is_replay());
    assert_eq!(again.body, first.body);
    let without_old = app.beside(sealed(Some(&new))).await;
    let answer = without_old.note("k", "x").await;
    answer.problem(409, "idempotency_result_unavailable");
    assert_eq!(app.notes().await, 1);
}

async fn without_keys_a_sealed_operation_is_refused_before_it_runs(on: On) {
    let app = App::with(on, sealed(None)).await;
    app.note("k", "x").await.problem(503, "unavailable");
    assert_eq!(app.notes().await, 0);
}
