//! Handlers inside the receipt's own transaction.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use axum::{
    Extension, Router,
    extract::State,
    http::Method,
    response::Response,
    routing::{any, post as post_to},
};
use counterfoil_core::{Code, Policy, Reply};
use counterfoil_engine::{Engine, Operation};
use counterfoil_http::{ErrorStatus, Issue, Mutation, Problem, Rest, Tx};
use serde::Deserialize;
use serde_json::json;

use crate::app::{App, authenticated, post, request, send};

#[derive(Clone)]
struct Notes {
    engine: Engine,
    create: Arc<Operation>,
    refuses: Arc<AtomicBool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewNote {
    body: String,
}

async fn create(State(notes): State<Notes>, mutation: Mutation) -> Response {
    let validate = |mutation: &Mutation| {
        if notes.refuses.load(Ordering::SeqCst) {
            return Err(Problem::invalid([Issue::new("/body", "no notes today")]));
        }
        mutation.json::<NewNote>()
    };
    mutation
        .atomically(
            &notes.engine,
            &notes.create,
            validate,
            |tx: Tx<'_, NewNote>| {
                Box::pin(async move {
                    let folder = tx.parameters.first().cloned().unwrap_or_default();
                    let workspace = tx.caller.workspace.as_str();
                    let parameters = [
                        workspace.into(),
                        folder.clone().into(),
                        tx.input.body.as_str().into(),
                    ];
                    tx.sql
                        .execute("INSERT INTO notes VALUES ($1, $2, $3)", &parameters)
                        .await?;
                    match tx.input.body.as_str() {
                        "missing" => Err(Problem::new(Code::NotFound).into()),
                        "stale" => Err(Problem::own(
                            ErrorStatus::CONFLICT,
                            "version_conflict",
                            "The document changed",
                        )
                        .with("current_version", 13)
                        .into()),
                        "busy" => Err(Problem::new(Code::Busy).into()),
                        _ => Ok(Reply::json(
                            201,
                            &json!({ "folder": folder, "keyed": tx.operation_id.is_some() }),
                        )),
                    }
                })
            },
        )
        .await
}

fn notes(app: &App) -> (Router, Arc<AtomicBool>) {
    let refuses = Arc::new(AtomicBool::new(false));
    let state = Notes {
        engine: app.engine.clone(),
        create: Operation::new(1, Policy::atomic()).unwrap(),
        refuses: Arc::clone(&refuses),
    };
    let router = Router::new()
        .route("/notes", any(create))
        .route("/folders/{folder}/notes", post_to(create))
        .with_state(state);
    (authenticated(router), refuses)
}

#[tokio::test]
async fn effect_and_receipt_are_one_and_a_retry_replays() {
    let app = App::new();
    let (router, _) = notes(&app);
    let first = post(&router, "/folders/a%20b/notes", "k", r#"{"body":"x"}"#).await;
    assert_eq!(first.status, 201);
    assert_eq!(first.json(), json!({"folder": "a b", "keyed": true}));
    let again = post(&router, "/folders/a%20b/notes", "k", r#"{"body":"x"}"#).await;
    assert!(again.is_replay());
    assert_eq!((again.status, &again.body), (first.status, &first.body));
    assert_eq!(again.header("operation-id"), first.header("operation-id"));
    assert_eq!(app.store.effects().len(), 1);
    let conflict = post(&router, "/folders/a%20b/notes", "k", r#"{"body": "x"}"#).await;
    assert_eq!(conflict.code(), "idempotency_conflict");
}

#[tokio::test]
async fn without_a_key_it_runs_each_time_and_leaves_no_receipt() {
    let app = App::new();
    let (router, _) = notes(&app);
    for _ in 0..2 {
        let answered = send(
            &router,
            request(Method::POST, "/notes", &[], r#"{"body":"x"}"#),
        )
        .await;
        assert_eq!(answered.status, 201);
        assert_eq!(answered.json()["keyed"], false);
        assert_eq!(answered.header("operation-id"), None);
    }
    let refused = send(
        &router,
        request(Method::POST, "/notes", &[], r#"{"body":"missing"}"#),
    )
    .await;
    assert_eq!(refused.refusal(), (404, "not_found".to_owned()));
    assert_eq!((app.store.effects().len(), app.receipts()), (2, 0));
}

#[tokio::test]
async fn a_key_on_a_reading_method_means_nothing() {
    let app = App::new();
    let (router, _) = notes(&app);
    let key = [("idempotency-key", "k")];
    let answered = send(
        &router,
        request(Method::GET, "/notes", &key, r#"{"body":"x"}"#),
    )
    .await;
    assert_eq!(
        (answered.json()["keyed"].as_bool(), app.receipts()),
        (Some(false), 0)
    );
}

#[tokio::test]
async fn invalid_and_malformed_requests_use_up_no_key() {
    let app = App::new();
    let (router, _) = notes(&app);
    let deep = "[".repeat(1000) + &"]".repeat(1000);
    let cases = [
        (r#"{"body":"x","body":"y"}"#, 400, "malformed_request"),
        (r#"{"body":"\ud800"}"#, 400, "malformed_request"),
        (r#"{"body":1e400}"#, 400, "malformed_request"),
        (deep.as_str(), 400, "malformed_request"),
        ("", 400, "malformed_request"),
        (r#"{}"#, 422, "invalid"),
        (r#"{"body":"x","bdy":1}"#, 422, "invalid"),
    ];
    for keyed in [true, false] {
        for (body, status, code) in cases {
            let key = [("idempotency-key", "k")];
            let headers: &[(&str, &str)] = if keyed { &key } else { &[] };
            let answered = send(&router, request(Method::POST, "/notes", headers, body)).await;
            assert_eq!(answered.refusal(), (status, code.to_owned()), "{body}");
            if code == "invalid" {
                assert_eq!(answered.json()["title"], "Invalid request");
                assert!(
                    answered.json()["issues"][0]["field"]
                        .as_str()
                        .unwrap()
                        .starts_with("/b")
                );
            }
        }
    }
    let form = [
        ("idempotency-key", "k"),
        ("content-type", "application/x-www-form-urlencoded"),
    ];
    let answered = send(
        &router,
        request(Method::POST, "/notes", &form, r#"{"body":"x"}"#),
    )
    .await;
    assert_eq!(
        answered.refusal(),
        (415, "unsupported_media_type".to_owned())
    );
    assert_eq!((app.store.effects().len(), app.receipts()), (0, 0));
    // The key is still good.
    for content_type in [
        "application/json; charset=utf-8",
        "application/vnd.note+json",
    ] {
        let headers = [("idempotency-key", "k"), ("content-type", content_type)];
        let answered = send(
            &router,
            request(Method::POST, "/notes", &headers, r#"{"body":"x"}"#),
        )
        .await;
        assert_eq!(answered.status, 201);
    }
}

#[tokio::test]
async fn an_old_retry_is_answered_under_its_old_contract() {
    let app = App::new();
    let (router, refuses) = notes(&app);
    let first = post(&router, "/notes", "k", r#"{"body":"x"}"#).await;
    refuses.store(true, Ordering::SeqCst);
    let again = post(&router, "/notes", "k", r#"{"body":"x"}"#).await;
    assert_eq!((again.status, &again.body), (first.status, &first.body));
    let new = post(&router, "/notes", "k2", r#"{"body":"x"}"#).await;
    assert_eq!(new.refusal(), (422, "invalid".to_owned()));
    assert_eq!(app.receipts(), 1);
}

#[tokio::test]
async fn field_10_a_refusal_is_rolled_back_recorded_and_replayed_as_one() {
    let app = App::new();
    let (router, _) = notes(&app);
    for (body, status, code) in [
        (r#"{"body":"missing"}"#, 404, "not_found"),
        (r#"{"body":"stale"}"#, 409, "version_conflict"),
    ] {
        let first = post(&router, "/notes", code, body).await;
        assert_eq!(first.refusal(), (status, code.to_owned()));
        let again = post(&router, "/notes", code, body).await;
        assert_eq!(again.body, first.body);
        assert_eq!(again.header("idempotent-stored-failure"), Some("true"));
        let problem = again.json();
        let action = problem["next_action"].as_str().unwrap();
        assert!(action.contains("a new attempt needs a new key"), "{action}");
        assert!(!action.contains("not used up"), "{action}");
        assert_eq!(problem["retryable"], false);
    }
    assert_eq!((app.store.effects().len(), app.receipts()), (0, 2));
    let stale = post(&router, "/notes", "version_conflict", r#"{"body":"stale"}"#).await;
    assert_eq!(stale.json()["current_version"], 13);
}

#[tokio::test]
async fn field_16_a_key_in_a_place_that_is_not_taken_is_refused_and_not_ignored() {
    let app = App::new();
    let (router, _) = notes(&app);
    let note = r#"{"body":"x"}"#;
    let header = [("x-idempotency-key", "k")];
    let both = [("idempotency-key", "k"), ("idempotency_key", "k")];
    for (path, headers) in [
        ("/notes", &header[..]),
        ("/notes", &both[..]),
        ("/notes?idempotency_key=k", &[][..]),
        ("/notes?a=b&idempotencyKey=k", &[][..]),
        ("/notes?idempotency%5Fkey=k", &both[..1]),
    ] {
        let answered = send(&router, request(Method::POST, path, headers, note)).await;
        assert_eq!(
            answered.refusal(),
            (422, "invalid_key".to_owned()),
            "{path}"
        );
        let detail = answered.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains("the header Idempotency-Key"), "{detail}");
    }
    assert_eq!((app.store.effects().len(), app.receipts()), (0, 0));
    let reading = request(Method::GET, "/notes?idempotency_key=k", &header, note);
    assert_eq!(send(&router, reading).await.status, 201);
}

#[tokio::test]
async fn a_failure_is_rolled_back_and_not_kept() {
    let app = App::new();
    let (router, _) = notes(&app);
    for _ in 0..2 {
        let answered = post(&router, "/notes", "k", r#"{"body":"busy"}"#).await;
        assert_eq!(answered.refusal(), (503, "busy".to_owned()));
        assert!(!answered.is_replay());
    }
    assert_eq!(app.store.effects().len(), 0);
}

#[tokio::test]
async fn refusals_before_any_work_come_in_their_order() {
    let app = App::new();
    let (router, _) = notes(&app);
    let router = router.layer(Extension(Rest::default().body_bytes_max(20)));
    let large = "x".repeat(21);
    let bad_key = [("idempotency-key", ""), ("x-principal", "nobody")];
    let answered = send(&router, request(Method::POST, "/notes", &bad_key, &large)).await;
    assert_eq!(answered.status, 401);
    let answered = post(&router, "/notes", "", &large).await;
    assert_eq!(answered.refusal(), (422, "invalid_key".to_owned()));
    let answered = post(&router, "/notes", "k", &large).await;
    assert_eq!(answered.refusal(), (413, "too_large".to_owned()));
}

#[tokio::test]
async fn a_handler_behind_no_route_reserves_nothing() {
    let app = App::new();
    let (router, _) = notes(&app);
    let state = Notes {
        engine: app.engine.clone(),
        create: Operation::new(1, Policy::atomic()).unwrap(),
        refuses: Arc::new(AtomicBool::new(false)),
    };
    let fallback = authenticated(Router::new().fallback(create).with_state(state));
    let answered = post(&fallback, "/anything", "k", r#"{"body":"x"}"#).await;
    assert_eq!(answered.refusal(), (500, "internal".to_owned()));
    assert_eq!((app.store.effects().len(), app.receipts()), (0, 0));
    drop(router);
}
