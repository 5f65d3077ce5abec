//! Which requests are one call, and what reserves nothing.

use axum::{
    Router,
    body::Body,
    extract::Path,
    http::{HeaderValue, Method, header},
    response::IntoResponse,
    routing::{any, get, post as post_to},
};
use counterfoil_core::{Pointer, Policy};
use counterfoil_engine::Operation;
use counterfoil_http::{KeyedRoute, Profile, Rest, with_fallbacks};
use tower::{Layer as _, ServiceExt as _};

use crate::app::{Answered, App, authenticated, post, request, send};

/// A router whose routes answer 201 with the number of the run.
fn counting(app: &App, layer: counterfoil_http::IdempotencyLayer) -> Router {
    let run = app.counter();
    let run_on = app.counter();
    let notes = any(move || {
        let n = run();
        async move {
            (
                [
                    (header::CONTENT_TYPE, "application/vnd.note+json"),
                    (header::LOCATION, "/notes/1"),
                ],
                format!("{{\"run\": {n}}}"),
            )
        }
        .map_status()
    });
    let node = any(move |Path(_): Path<String>| {
        let n = run_on();
        async move { n.to_string() }
    });
    let router = Router::new()
        .route("/notes", notes)
        .route("/nodes/{id}/complete", node)
        .route_layer(layer);
    authenticated(with_fallbacks(router, &Rest::default()))
}

/// 201 in front of what a handler answers.
trait MapStatus: Sized {
    fn map_status(self) -> impl Future<Output = axum::response::Response> + Send;
}

impl<F> MapStatus for F
where
    F: Future + Send,
    F::Output: IntoResponse,
{
    async fn map_status(self) -> axum::response::Response {
        let mut response = self.await.into_response();
        *response.status_mut() = axum::http::StatusCode::CREATED;
        response
    }
}

#[tokio::test]
async fn i2_a_replay_is_the_same_status_content_type_and_bytes() {
    let app = App::new();
    let router = counting(&app, app.layer());
    let first = post(&router, "/notes", "k", "{}").await;
    assert_eq!(first.status, 201);
    assert_eq!(
        first.header("content-type"),
        Some("application/vnd.note+json")
    );
    assert_eq!(&first.body[..], b"{\"run\": 1}");
    assert!(!first.is_replay());
    let again = post(&router, "/notes", "k", "{}").await;
    assert_eq!(again.status, 201);
    assert_eq!(again.body, first.body);
    assert!(again.is_replay());
    assert_eq!(again.header("idempotent-stored-failure"), None);
    for same in ["content-type", "location", "operation-id"] {
        assert!(first.header(same).is_some(), "{same}");
        assert_eq!(again.header(same), first.header(same), "{same}");
    }
    assert_eq!(app.runs(), 1);
}

#[tokio::test]
async fn i5_field_11_without_a_key_a_mutation_runs_each_time() {
    let app = App::new();
    let router = counting(&app, app.layer());
    for _ in 0..2 {
        let answered = send(&router, request(Method::POST, "/notes", &[], "{}")).await;
        assert_eq!(answered.status, 201);
        assert_eq!(answered.header("operation-id"), None);
    }
    assert_eq!((app.runs(), app.receipts()), (2, 0));
}

#[tokio::test]
async fn get_and_head_are_never_deduplicated() {
    let app = App::new();
    let router = counting(&app, app.layer());
    for method in [Method::GET, Method::HEAD, Method::OPTIONS] {
        for _ in 0..2 {
            let key = [("idempotency-key", "k")];
            send(&router, request(method.clone(), "/notes", &key, "")).await;
        }
    }
    assert_eq!((app.runs(), app.receipts()), (6, 0));
}

#[tokio::test]
async fn every_mutating_method_is_a_target_of_its_own() {
    let app = App::new();
    let router = counting(&app, app.layer());
    for method in [Method::POST, Method::PATCH, Method::PUT, Method::DELETE] {
        for replay in [false, true] {
            let key = [("idempotency-key", "k")];
            let answered = send(&router, request(method.clone(), "/notes", &key, "")).await;
            assert_eq!(answered.is_replay(), replay, "{method}");
        }
    }
    assert_eq!((app.runs(), app.receipts()), (4, 4));
}

#[tokio::test]
async fn field_08_another_principal_with_the_same_key_executes_for_itself() {
    let app = App::new();
    let router = counting(&app, app.layer());
    for principal in ["agent", "other"] {
        let headers = [("idempotency-key", "k"), ("x-principal", principal)];
        let answered = send(&router, request(Method::POST, "/notes", &headers, "{}")).await;
        assert!(!answered.is_replay());
    }
    assert_eq!(app.runs(), 2);
}

#[tokio::test]
async fn a_keyed_call_without_a_caller_is_refused_before_anything() {
    let app = App::new();
    let router = counting(&app, app.layer());
    let headers = [("idempotency-key", "k"), ("x-principal", "nobody")];
    let answered = send(&router, request(Method::POST, "/notes", &headers, "{}")).await;
    assert_eq!(answered.refusal(), (401, "unauthorized".to_owned()));
    assert_eq!(answered.header("www-authenticate"), Some("Bearer"));
    assert_eq!((app.runs(), app.receipts()), (0, 0));
}

#[tokio::test]
async fn a_path_spelled_another_way_is_one_identity() {
    let app = App::new();
    let router = counting(&app, app.layer());
    let first = post(&router, "/nodes/nd_7Q2/complete", "k", "{}").await;
    let other = post(&router, "/nodes/nd%5F7Q2/complete", "k", "{}").await;
    assert!(!first.is_replay());
    assert!(other.is_replay());
    let another_node = post(&router, "/nodes/nd_A11/complete", "k", "{}").await;
    assert!(!another_node.is_replay());
    // A parameter that holds a slash is not the path it looks like.
    let slash = post(&router, "/nodes/nd_7Q2%2Fcomplete/complete", "k", "{}").await;
    assert!(!slash.is_replay());
    assert_eq!((app.runs(), app.receipts()), (3, 3));
}

#[tokio::test]
async fn what_no_route_matches_reserves_nothing() {
    let app = App::new();
    let router = counting(&app, app.layer());
    for path in [
        "/nowhere",
        "//notes",
        "/notes/",
        "/nodes//complete",
        "/nodes/a/b/complete",
    ] {
        for _ in 0..2 {
            let answered = post(&router, path, "k", "{}").await;
            assert_eq!(answered.refusal(), (404, "not_found".to_owned()), "{path}");
        }
    }
    let not_text = post(&router, "/nodes/%FF/complete", "k", "{}").await;
    assert_eq!(not_text.refusal(), (400, "malformed_request".to_owned()));
    assert_eq!((app.runs(), app.receipts()), (0, 0));
}

#[tokio::test]
async fn nothing_is_reserved_without_a_matched_path() {
    let app = App::new();
    let run = app.counter();
    let inner = Router::new().route(
        "/{id}",
        post_to(move || {
            run();
            async { "done" }
        }),
    );
    // Around a whole router, and around a service that is mounted below a prefix.
    let around = app.layer().layer(inner.clone());
    let mounted = Router::new().nest_service("/mounted", app.layer().layer(inner));
    for id in ["a", "b"] {
        let key = [("idempotency-key", "k")];
        let path = format!("/{id}");
        let response = around
            .clone()
            .oneshot(request(Method::POST, &path, &key, "{}"));
        assert_eq!(response.await.unwrap().status(), 200);
        let path = format!("/mounted/{id}");
        let router = authenticated(mounted.clone());
        let answered = send(&router, request(Method::POST, &path, &key, "{}")).await;
        assert_eq!(answered.status, 200);
    }
    assert_eq!((app.runs(), app.receipts()), (4, 0));
}

#[tokio::test]
async fn the_layer_on_the_outside_of_nested_routers_sees_the_whole_template() {
    let app = App::new();
    let run = app.counter();
    let inner = Router::new().route(
        "/nodes/{id}",
        post_to(move || {
            let n = run();
            async move { n.to_string() }
        }),
    );
    let router = authenticated(
        Router::new()
            .nest("/api/{version}", inner)
            .route_layer(app.layer()),
    );
    for (path, replay) in [
        ("/api/v1/nodes/a", false),
        ("/api/v1/nodes/b", false),
        ("/api/v2/nodes/a", false),
        ("/api/v1/nodes/a", true),
    ] {
        assert_eq!(
            post(&router, path, "k", "").await.is_replay(),
            replay,
            "{path}"
        );
    }
    let targets: Vec<_> = app
        .store
        .receipts()
        .into_iter()
        .map(|r| r.identity.target)
        .collect();
    assert_eq!(targets[0].operation, "POST /api/{version}/nodes/{id}");
    assert_eq!(targets[0].parameters, ["v1", "a"]);
}

async fn with_keys(router: &Router, keys: &[&[u8]]) -> Answered {
    let mut request = request(Method::POST, "/notes", &[], "{}");
    for key in keys {
        let key = HeaderValue::from_bytes(key).unwrap();
        request.headers_mut().append("idempotency-key", key);
    }
    send(router, request).await
}

#[tokio::test]
async fn malformed_keys_are_refused_before_any_work() {
    let app = App::new();
    let router = counting(&app, app.layer());
    let long = "k".repeat(201);
    let bad: [&[&[u8]]; 9] = [
        &[b""],
        &[b"\"\""],
        &[long.as_bytes()],
        &[b"a\tb"],
        &[b"a\xc2\x85b"],
        &[b"\xff"],
        &[b"\"open"],
        &[b"one", b"two"],
        &[b"one", b"\"two\""],
    ];
    for keys in bad {
        let answered = with_keys(&router, keys).await;
        assert_eq!(
            answered.refusal(),
            (422, "invalid_key".to_owned()),
            "{keys:?}"
        );
        assert!(answered.json()["detail"].is_string());
    }
    assert_eq!((app.runs(), app.receipts()), (0, 0));
}

#[tokio::test]
async fn a_malformed_key_is_refused_before_the_body_is_read() {
    let app = App::new();
    let router = counting(&app, app.layer());
    let body = Body::from_stream(futures_util::stream::poll_fn(
        |_| -> std::task::Poll<Option<Result<bytes::Bytes, std::io::Error>>> {
            panic!("the body was read")
        },
    ));
    let request = axum::extract::Request::post("/notes")
        .header("idempotency-key", "")
        .body(body)
        .unwrap();
    assert_eq!(send(&router, request).await.status, 422);
}

#[tokio::test]
async fn two_spellings_of_one_key_are_one_key() {
    let app = App::new();
    let router = counting(&app, app.layer());
    let long = "k".repeat(200);
    assert_eq!(with_keys(&router, &[long.as_bytes()]).await.status, 201);
    assert!(!with_keys(&router, &[b"abc"]).await.is_replay());
    let same: [&[&[u8]]; 4] = [
        &[b"\"abc\""],
        &[b"abc", b"abc"],
        &[b"abc", b"\"abc\""],
        &[b" abc "],
    ];
    for keys in same {
        assert!(with_keys(&router, keys).await.is_replay(), "{keys:?}");
    }
    assert_eq!(app.runs(), 2);
}

#[tokio::test]
async fn field_01_raw_bytes_conflict_and_say_which_rule_applies() {
    let app = App::new();
    let router = counting(&app, app.layer());
    post(&router, "/notes", "k", r#"{"a":1,"b":2}"#).await;
    let other = post(&router, "/notes", "k", r#"{"b":2,"a":1}"#).await;
    assert_eq!(other.refusal(), (409, "idempotency_conflict".to_owned()));
    let problem = other.json();
    assert_eq!(
        problem["title"],
        "Idempotency-Key was reused with different content"
    );
    assert!(
        problem["detail"]
            .as_str()
            .unwrap()
            .contains("byte for byte")
    );
    assert_eq!(app.runs(), 1);
}

#[tokio::test]
async fn field_01_canonical_json_replays_and_leaves_out_what_does_not_count() {
    let app = App::new();
    let operation = Operation::new(1, Policy::default()).unwrap();
    let kept = KeyedRoute::new(operation).canonical_json([Pointer::new("/sent_at").unwrap()]);
    let router = counting(&app, app.layer().route("POST /notes", kept));
    post(&router, "/notes", "k", r#"{"a":1,"b":2,"sent_at":1}"#).await;
    let same = post(&router, "/notes", "k", r#"{"sent_at":2, "b": 2.0, "a":1}"#).await;
    assert!(same.is_replay());
    let other = post(&router, "/notes", "k", r#"{"a":1,"b":3}"#).await;
    assert_eq!(other.refusal(), (409, "idempotency_conflict".to_owned()));
    assert!(
        other.json()["detail"]
            .as_str()
            .unwrap()
            .contains("JSON value")
    );
    for malformed in [
        "{",
        r#"{"a":1,"a":1}"#,
        r#"{"a":"\ud800"}"#,
        r#"{"a":1e400}"#,
    ] {
        let refused = post(&router, "/notes", "k2", malformed).await;
        assert_eq!(
            refused.refusal(),
            (400, "malformed_request".to_owned()),
            "{malformed}"
        );
    }
    assert_eq!((app.runs(), app.receipts()), (1, 1));
}

#[tokio::test]
async fn the_query_counts_and_the_content_type_does_not() {
    let app = App::new();
    let router = counting(&app, app.layer());
    post(&router, "/notes?x=1", "k", "{}").await;
    let other = post(&router, "/notes?x=2", "k", "{}").await;
    assert_eq!(other.code(), "idempotency_conflict");
    let headers = [("idempotency-key", "k"), ("content-type", "text/plain")];
    let same = send(&router, request(Method::POST, "/notes?x=1", &headers, "{}")).await;
    assert!(same.is_replay());
}

#[tokio::test]
async fn a_body_beyond_the_bound_is_refused_and_uses_up_no_key() {
    let app = App::new();
    let router = counting(&app, app.layer().rest(Rest::default().body_bytes_max(10)));
    let announced = post(&router, "/notes", "k", "12345678901").await;
    assert_eq!(announced.refusal(), (413, "too_large".to_owned()));
    let parts = [Ok::<_, std::io::Error>("12345"), Ok("678901")];
    let streamed = axum::extract::Request::post("/notes")
        .header("idempotency-key", "k")
        .body(Body::from_stream(futures_util::stream::iter(parts)))
        .unwrap();
    assert_eq!(send(&router, streamed).await.code(), "too_large");
    assert_eq!(app.receipts(), 0);
    assert_eq!(post(&router, "/notes", "k", "1234567890").await.status, 201);
}

#[tokio::test]
async fn a_body_that_breaks_off_uses_up_no_key() {
    let app = App::new();
    let router = counting(&app, app.layer());
    let parts = [Ok("12345"), Err(std::io::Error::other("reset"))];
    let broken = axum::extract::Request::post("/notes")
        .header("idempotency-key", "k")
        .body(Body::from_stream(futures_util::stream::iter(parts)))
        .unwrap();
    assert_eq!(
        send(&router, broken).await.refusal(),
        (400, "malformed_request".to_owned())
    );
    assert_eq!((app.runs(), app.receipts()), (0, 0));
}

#[tokio::test]
async fn a_route_may_require_a_key() {
    let app = App::new();
    let operation = Operation::new(1, Policy::default()).unwrap();
    let kept = KeyedRoute::new(operation).require_key();
    let router = counting(&app, app.layer().route("POST /notes", kept));
    let without = send(&router, request(Method::POST, "/notes", &[], "{}")).await;
    assert_eq!(
        without.refusal(),
        (400, "idempotency_key_required".to_owned())
    );
    assert_eq!(app.runs(), 0);
    let read = send(&router, request(Method::GET, "/notes", &[], "")).await;
    assert_eq!(read.status, 201);
}

#[tokio::test]
async fn the_ietf_profile_and_quiet_replays_are_settings() {
    let app = App::new();
    let rest = Rest::default()
        .profile(Profile::Ietf)
        .announce_replays(false)
        .docs_base("https://example.test/errors/");
    let router = counting(&app, app.layer().rest(rest));
    let first = post(&router, "/notes", "k", "{}").await;
    let again = post(&router, "/notes", "k", "{}").await;
    assert_eq!(again.body, first.body);
    assert_eq!(again.header("idempotent-replayed"), None);
    let conflict = post(&router, "/notes", "k", "[]").await;
    assert_eq!(conflict.refusal(), (422, "idempotency_conflict".to_owned()));
    assert_eq!(
        conflict.json()["type"],
        "https://example.test/errors/idempotency_conflict"
    );
}

#[tokio::test]
async fn unmatched_methods_are_problems_with_their_allow_header() {
    let router = Router::new().route("/notes", get(|| async { "" }));
    let router = with_fallbacks(router, &Rest::default());
    let answered = send(&router, request(Method::DELETE, "/notes", &[], "")).await;
    assert_eq!(answered.refusal(), (405, "method_not_allowed".to_owned()));
    assert_eq!(answered.header("allow"), Some("GET,HEAD"));
}
