use std::sync::Arc;

use counterfoil_engine::{KeyRing, SystemEntropy};
use counterfoil_server::Settings;

use crate::fixture::App;

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

/// The stored results, as they lie in the database.
fn stored(app: &App) -> Vec<Vec<u8>> {
    let database = rusqlite::Connection::open(app.database()).unwrap();
    let mut tables = database
        .prepare(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name LIKE 'counterfoil_%'",
        )
        .unwrap();
    let names: Vec<String> = tables
        .query_map([], |row| row.get(0))
        .unwrap()
        .map(Result::unwrap)
        .collect();
    let mut blobs = Vec::new();
    for name in names {
        let mut rows = database.prepare(&format!("SELECT * FROM {name}")).unwrap();
        let columns = rows.column_count();
        let mut rows = rows.query([]).unwrap();
        while let Some(row) = rows.next().unwrap() {
            for column in 0..columns {
                match row.get_ref(column).unwrap() {
                    rusqlite::types::ValueRef::Text(bytes)
                    | rusqlite::types::ValueRef::Blob(bytes) => {
                        blobs.push(bytes.to_vec());
                    }
                    rusqlite::types::ValueRef::Null
                    | rusqlite::types::ValueRef::Integer(_)
                    | rusqlite::types::ValueRef::Real(_) => {}
                }
            }
        }
    }
    blobs
}

fn lies_open(app: &App, text: &str) -> bool {
    stored(app).iter().any(|bytes| {
        bytes
            .windows(text.len())
            .any(|part| part == text.as_bytes())
    })
}

#[tokio::test]
async fn field_09_a_sealed_result_is_replayed_and_does_not_lie_open() {
    const TEXT: &str = "a very private sentence";
    let ring = line(1);
    let app = App::with(sealed(Some(&ring))).await;
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
    let open = App::new().await;
    open.note("k", TEXT).await;
    assert!(lies_open(&open, TEXT), "the check finds what is not sealed");
}

#[tokio::test]
async fn keys_rotate_and_an_unknown_key_id_fails_closed() {
    let (old, new) = (line(1), line(2));
    let app = App::with(sealed(Some(&old))).await;
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

#[tokio::test]
async fn without_keys_a_sealed_operation_is_refused_before_it_runs() {
    let app = App::with(sealed(None)).await;
    app.note("k", "x").await.problem(503, "unavailable");
    assert_eq!(app.notes().await, 0);
}
