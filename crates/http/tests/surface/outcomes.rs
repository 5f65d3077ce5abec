//! What becomes of a call: concurrent duplicates, failures, time-outs, large results.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
    },
    time::Duration,
};

use axum::{
    Extension, Router,
    body::Body,
    http::{Method, StatusCode},
    response::IntoResponse as _,
    routing::post as post_to,
};
use counterfoil_core::{Code, Policy};
use counterfoil_engine::{
    Attempt,
    store::{self, Store},
};
use counterfoil_http::{IdempotencyLayer, Issue, Problem};
use counterfoil_testkit::{Fault, FaultyStore, MemoryStore, Step};
use tokio::sync::{Notify, Semaphore};

use crate::app::{App, authenticated, post, releasing, request, send, settled};

/// A handler that says when it has started and goes on when it is let.
struct Gate {
    started: Arc<Notify>,
    open: Arc<Semaphore>,
}

fn gated(app: &App, layer: IdempotencyLayer) -> (Router, Gate) {
    let gate = Gate {
        started: Arc::new(Notify::new()),
        open: Arc::new(Semaphore::new(0)),
    };
    let (started, open, run) = (
        Arc::clone(&gate.started),
        Arc::clone(&gate.open),
        app.counter(),
    );
    let handler = move || {
        let (started, open, n) = (Arc::clone(&started), Arc::clone(&open), run());
        async move {
            started.notify_one();
            open.acquire().await.unwrap().forget();
            (StatusCode::CREATED, n.to_string())
        }
    };
    let router = Router::new()
        .route("/t", post_to(handler))
        .route_layer(layer);
    (authenticated(router), gate)
}

/// A router whose handler answers the status that is set.
fn answering(app: &App, layer: IdempotencyLayer, status: u16) -> (Router, Arc<AtomicU16>) {
    let set = Arc::new(AtomicU16::new(status));
    let (status, run) = (Arc::clone(&set), app.counter());
    let handler = move || {
        let (status, n) = (status.load(Ordering::SeqCst), run());
        async move { (StatusCode::from_u16(status).unwrap(), format!("run {n}")) }
    };
    let router = Router::new()
        .route("/t", post_to(handler))
        .route_layer(layer);
    (authenticated(router), set)
}

#[tokio::test]
async fn field_10_a_problem_of_an_opaque_handler_is_kept_with_words_that_stay_true() {
    let app = App::new();
    let handler = || async {
        let problem = Problem::invalid([Issue::new("/a", "is wrong")]).with("limit", 3);
        ([("x-of-the-handler", "stays")], problem)
    };
    let unsettled = || async { Problem::new(Code::Forbidden) };
    let router = Router::new()
        .route("/t", post_to(handler))
        .route("/u", post_to(unsettled))
        .route_layer(app.layer());
    let router = authenticated(router);
    let first = post(&router, "/t", "k", "{}").await;
    let again = post(&router, "/t", "k", "{}").await;
    for answered in [&first, &again] {
        assert_eq!(answered.refusal(), (422, "invalid".to_owned()));
        assert_eq!(answered.header("x-of-the-handler"), Some("stays"));
        let problem = answered.json();
        let action = problem["next_action"].as_str().unwrap();
        assert!(action.contains("a new attempt needs a new key"), "{action}");
        assert_eq!(problem["limit"], 3);
    }
    assert_eq!(first.body, again.body);
    assert_eq!(again.header("idempotent-stored-failure"), Some("true"));
    // Without a key nothing is kept, and the words are the code's own.
    let plain = send(&router, request(Method::POST, "/t", &[], "{}")).await;
    let action = plain.json()["next_action"].as_str().unwrap().to_owned();
    assert!(action.contains("the key is not used up"), "{action}");
    let refused = post(&router, "/u", "k", "{}").await;
    assert_eq!(
        refused.json()["next_action"],
        "Use a credential that allows it"
    );
}

#[tokio::test]
async fn field_16_the_layer_refuses_a_key_in_a_place_that_is_not_taken() {
    let app = App::new();
    let (router, _) = answering(&app, app.layer(), 201);
    let header = [("x-idempotency-key", "k")];
    for (path, headers) in [("/t", &header[..]), ("/t?idempotencyKey=k", &[][..])] {
        let answered = send(&router, request(Method::POST, path, headers, "{}")).await;
        assert_eq!(
            answered.refusal(),
            (422, "invalid_key".to_owned()),
            "{path}"
        );
    }
    assert_eq!((app.runs(), app.receipts()), (0, 0));
}

#[tokio::test]
async fn field_05_of_many_first_calls_exactly_one_runs() {
    let app = App::new();
    let (router, gate) = gated(&app, app.layer());
    let calls: Vec<_> = (0..8)
        .map(|_| {
            let router = router.clone();
            tokio::spawn(async move { post(&router, "/t", "k", "{}").await })
        })
        .collect();
    gate.started.notified().await;
    let mut told = 0;
    // Seven are told at once; the eighth is the one that runs.
    let mut runner = None;
    let mut pending = calls;
    while pending.len() > 1 {
        let (done, _, rest) = futures_util::future::select_all(pending).await;
        let answered = done.unwrap();
        assert_eq!(
            answered.refusal(),
            (409, "idempotency_in_progress".to_owned())
        );
        assert_eq!(
            answered.json()["title"],
            "This operation has already started"
        );
        assert_eq!(answered.json()["retryable"], true);
        let seconds: u64 = answered.header("retry-after").unwrap().parse().unwrap();
        assert!(seconds >= 1);
        told += 1;
        pending = rest;
    }
    runner.replace(pending.pop().unwrap());
    gate.open.add_permits(1);
    let first = runner.unwrap().await.unwrap();
    assert_eq!((first.status.as_u16(), told), (201, 7));
    assert!(!first.is_replay());
    assert_eq!(app.runs(), 1);
}

#[tokio::test]
async fn a_duplicate_that_prefers_to_wait_gets_the_first_answer() {
    let app = App::new();
    let (router, gate) = gated(&app, app.layer());
    let first = tokio::spawn({
        let router = router.clone();
        async move { post(&router, "/t", "k", "{}").await }
    });
    gate.started.notified().await;
    let waiting = {
        let router = router.clone();
        let headers = [("idempotency-key", "k"), ("prefer", "wait=600")];
        let duplicate = request(Method::POST, "/t", &headers, "{}");
        tokio::spawn(async move { send(&router, duplicate).await })
    };
    tokio::task::yield_now().await;
    gate.open.add_permits(1);
    let first = first.await.unwrap();
    let waited = waiting.await.unwrap();
    assert!(waited.is_replay());
    assert_eq!((waited.status, &waited.body), (first.status, &first.body));
    // The policy allows a minute.
    assert_eq!(waited.header("preference-applied"), Some("wait=60"));
    assert_eq!(first.header("preference-applied"), None);
    assert_eq!(app.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_wait_is_bounded_by_what_was_asked() {
    let app = App::new();
    let (router, gate) = gated(&app, app.layer());
    let first = tokio::spawn({
        let router = router.clone();
        async move { post(&router, "/t", "k", "{}").await }
    });
    gate.started.notified().await;
    let headers = [("idempotency-key", "k"), ("prefer", "wait=3")];
    let begun = tokio::time::Instant::now();
    let answered = send(&router, request(Method::POST, "/t", &headers, "{}")).await;
    assert_eq!(answered.code(), "idempotency_in_progress");
    assert_eq!(answered.header("preference-applied"), Some("wait=3"));
    let waited = begun.elapsed();
    assert!((3..4).contains(&waited.as_secs()), "{waited:?}");
    gate.open.add_permits(1);
    first.await.unwrap();
}

#[tokio::test]
async fn field_02_a_conflict_is_found_in_every_state() {
    let conflict = (409, "idempotency_conflict".to_owned());
    // Running.
    let app = App::new();
    let (router, gate) = gated(&app, app.layer());
    let first = tokio::spawn({
        let router = router.clone();
        async move { post(&router, "/t", "k", "one").await }
    });
    gate.started.notified().await;
    assert_eq!(post(&router, "/t", "k", "two").await.refusal(), conflict);
    gate.open.add_permits(1);
    first.await.unwrap();
    // Finished, and after the replay window.
    assert_eq!(post(&router, "/t", "k", "two").await.refusal(), conflict);
    app.advance(Duration::from_secs(49 * 3600));
    assert_eq!(post(&router, "/t", "k", "two").await.refusal(), conflict);
    let expired = post(&router, "/t", "k", "one").await;
    assert_eq!(
        expired.refusal(),
        (409, "idempotency_key_expired".to_owned())
    );
    assert_eq!(app.runs(), 1);
    // A kept failure, an unknown outcome, a released key.
    for (policy, status) in [
        (Policy::default(), 404),
        (Policy::default(), 500),
        (releasing(), 500),
    ] {
        let app = App::new();
        let (router, _) = answering(&app, app.layer_with(policy), status);
        post(&router, "/t", "k", "one").await;
        assert_eq!(
            post(&router, "/t", "k", "two").await.refusal(),
            conflict,
            "{status}"
        );
        assert_eq!(app.runs(), 1);
    }
}

#[tokio::test]
async fn field_10_a_stored_failure_says_so_on_replay() {
    for status in [400, 404, 409, 410, 412, 413, 415, 422] {
        let app = App::new();
        let (router, set) = answering(&app, app.layer(), status);
        let first = post(&router, "/t", "k", "{}").await;
        assert_eq!(first.status, status);
        assert_eq!(first.header("idempotent-stored-failure"), None);
        set.store(200, Ordering::SeqCst);
        let again = post(&router, "/t", "k", "{}").await;
        assert_eq!(again.status, status);
        assert_eq!(again.body, first.body);
        assert!(again.is_replay());
        assert_eq!(again.header("idempotent-stored-failure"), Some("true"));
        assert_eq!(app.runs(), 1);
    }
}

#[tokio::test]
async fn redirects_are_kept() {
    let app = App::new();
    let (router, _) = answering(&app, app.layer(), 303);
    post(&router, "/t", "k", "{}").await;
    let again = post(&router, "/t", "k", "{}").await;
    assert_eq!((again.status.as_u16(), again.is_replay()), (303, true));
}

#[tokio::test]
async fn a_handler_that_does_not_let_the_caller_in_uses_up_no_key() {
    for status in [401, 402, 403] {
        let app = App::new();
        let (router, set) = answering(&app, app.layer(), status);
        assert_eq!(post(&router, "/t", "k", "{}").await.status, status);
        set.store(201, Ordering::SeqCst);
        let again = post(&router, "/t", "k", "{}").await;
        assert_eq!(again.status, 201);
        assert!(!again.is_replay());
        assert_eq!(app.runs(), 2);
    }
}

#[tokio::test]
async fn i3_a_failure_of_an_opaque_handler_proves_nothing() {
    for status in [408, 429, 500, 502, 503] {
        let app = App::new();
        let (router, set) = answering(&app, app.layer(), status);
        let first = post(&router, "/t", "k", "{}").await;
        assert_eq!(
            first.refusal(),
            (502, "outcome_unknown".to_owned()),
            "{status}"
        );
        set.store(201, Ordering::SeqCst);
        let again = post(&router, "/t", "k", "{}").await;
        assert_eq!(again.refusal(), (409, "outcome_unknown".to_owned()));
        assert_eq!(again.json()["operation_id"], first.json()["operation_id"]);
        assert_eq!(
            again.header("operation-id"),
            again.json()["operation_id"].as_str()
        );
        assert_eq!(app.runs(), 1);
    }
}

#[tokio::test]
async fn with_transactions_a_failure_that_did_not_commit_releases_the_key() {
    for status in [429, 500, 503] {
        let app = App::new();
        let (router, set) = answering(&app, app.layer_with(releasing()), status);
        let first = post(&router, "/t", "k", "{}").await;
        assert_eq!(first.status, status);
        assert_eq!(&first.body[..], b"run 1");
        set.store(201, Ordering::SeqCst);
        let again = post(&router, "/t", "k", "{}").await;
        assert_eq!(
            (again.status.as_u16(), &again.body[..]),
            (201, &b"run 2"[..])
        );
        assert!(post(&router, "/t", "k", "{}").await.is_replay());
        assert_eq!((app.runs(), app.receipts()), (2, 1));
    }
}

#[tokio::test]
async fn field_04_a_failure_after_the_commit_releases_nothing() {
    let app = App::new();
    let (run, store) = (app.counter(), Arc::clone(&app.store));
    let handler = move |Extension(attempt): Extension<Attempt>| {
        run();
        let store = Arc::clone(&store);
        async move {
            store::transact(store.as_ref(), None, move |tx| {
                Box::pin(async move {
                    tx.execute("INSERT INTO notes VALUES ($1)", &[1.into()])
                        .await?;
                    tx.mark_committed(attempt.fence).await
                })
            })
            .await
            .unwrap();
            StatusCode::INTERNAL_SERVER_ERROR
        }
    };
    let router = Router::new()
        .route("/t", post_to(handler))
        .route_layer(app.layer_with(releasing()));
    let router = authenticated(router);
    let first = post(&router, "/t", "k", "{}").await;
    assert_eq!(first.status, 500);
    for _ in 0..2 {
        let again = post(&router, "/t", "k", "{}").await;
        assert_eq!(again.refusal(), (409, "idempotency_committed".to_owned()));
        assert!(
            again.json()["title"]
                .as_str()
                .unwrap()
                .starts_with("This operation has already started")
        );
        assert_eq!(again.header("retry-after"), None);
    }
    assert_eq!((app.runs(), app.store.effects().len()), (1, 1));
}

#[tokio::test]
async fn a_panic_of_the_handler_is_an_unknown_outcome() {
    let app = App::new();
    let run = app.counter();
    let handler = move || {
        run();
        async {
            if app_is_sound() {
                panic!("as planned");
            }
        }
    };
    let router = Router::new()
        .route("/t", post_to(handler))
        .route_layer(app.layer_with(releasing()));
    let router = authenticated(router);
    let first = post(&router, "/t", "k", "{}").await;
    assert_eq!(first.refusal(), (502, "outcome_unknown".to_owned()));
    let again = post(&router, "/t", "k", "{}").await;
    assert_eq!(again.refusal(), (409, "outcome_unknown".to_owned()));
    assert_eq!(again.json()["retryable"], false);
    assert_eq!(app.runs(), 1);
}

fn app_is_sound() -> bool {
    true
}

#[tokio::test(start_paused = true)]
async fn field_03_a_handler_past_its_deadline_is_unknown_and_its_late_answer_still_counts() {
    let app = App::new();
    let policy = Policy {
        lease: Duration::from_secs(1),
        attempt_limit: Duration::from_secs(2),
        ..Policy::default()
    };
    let (router, gate) = gated(&app, app.layer_with(policy));
    let first = post(&router, "/t", "k", "{}").await;
    assert_eq!(first.refusal(), (504, "outcome_unknown".to_owned()));
    let again = post(&router, "/t", "k", "{}").await;
    assert_eq!(again.refusal(), (409, "outcome_unknown".to_owned()));
    gate.open.add_permits(1);
    let late = async {
        loop {
            let again = post(&router, "/t", "k", "{}").await;
            if again.status == 201 {
                return again;
            }
            tokio::task::yield_now().await;
        }
    };
    let late = tokio::time::timeout(Duration::from_secs(60), late)
        .await
        .unwrap();
    assert!(late.is_replay());
    assert_eq!(app.runs(), 1);
}

#[tokio::test]
async fn field_06_a_result_too_large_to_store_leaves_a_marker_and_nothing_runs_again() {
    let app = App::new();
    let run = app.counter();
    let handler = move || {
        run();
        async { "x".repeat(3000) }
    };
    let policy = Policy {
        result_bytes_max: 1000,
        ..Policy::default()
    };
    // The first answer is handed over whole; beyond the layer's own bound not even that.
    for (bytes_max, first_status) in [(1 << 20, 200), (2000, 409)] {
        let app_layer = app.layer_with(policy.clone()).response_bytes_max(bytes_max);
        let router = Router::new()
            .route("/t", post_to(handler.clone()))
            .route_layer(app_layer);
        let router = authenticated(router);
        let key = format!("k{bytes_max}");
        let first = post(&router, "/t", &key, "{}").await;
        assert_eq!(first.status, first_status);
        if first_status == 200 {
            assert_eq!(first.body.len(), 3000);
        }
        assert!(first.header("operation-id").is_some());
        for _ in 0..2 {
            let again = post(&router, "/t", &key, "{}").await;
            let refusal = (409, "idempotency_result_unavailable".to_owned());
            assert_eq!(again.refusal(), refusal);
            assert_eq!(again.header("operation-id"), first.header("operation-id"));
        }
    }
    assert_eq!(app.runs(), 2);
}

#[tokio::test]
async fn a_response_that_breaks_off_is_an_unknown_outcome() {
    let app = App::new();
    let run = app.counter();
    let handler = move || {
        run();
        let parts = [Ok("begun"), Err(std::io::Error::other("reset"))];
        async { Body::from_stream(futures_util::stream::iter(parts)).into_response() }
    };
    let router = authenticated(
        Router::new()
            .route("/t", post_to(handler))
            .route_layer(app.layer()),
    );
    let first = post(&router, "/t", "k", "{}").await;
    assert_eq!(first.refusal(), (502, "outcome_unknown".to_owned()));
    assert_eq!(post(&router, "/t", "k", "{}").await.status, 409);
    assert_eq!(app.runs(), 1);
}

#[tokio::test]
async fn field_07_cookies_reach_the_first_caller_only() {
    let app = App::new();
    let handler = || async {
        let headers = [
            ("set-cookie", "session=secret"),
            ("connection", "close"),
            ("content-length", "4"),
            ("etag", "\"1\""),
        ];
        (headers, "done")
    };
    let router = authenticated(
        Router::new()
            .route("/t", post_to(handler))
            .route_layer(app.layer()),
    );
    let first = post(&router, "/t", "k", "{}").await;
    assert_eq!(first.header("set-cookie"), Some("session=secret"));
    let again = post(&router, "/t", "k", "{}").await;
    assert!(again.is_replay());
    assert_eq!(again.header("set-cookie"), None);
    assert_eq!(again.header("connection"), None);
    assert_eq!(again.header("etag"), Some("\"1\""));
    for answered in [first, again] {
        // Whoever writes it, it fits the body.
        let length = answered.header("content-length").unwrap_or("4");
        assert_eq!(length, answered.body.len().to_string());
    }
}

#[tokio::test]
async fn field_22_a_store_that_fails_is_never_passed_through_and_says_no_more_than_it_should() {
    for (fault, code) in [(Fault::Unavailable, "unavailable"), (Fault::Busy, "busy")] {
        let memory = Arc::new(MemoryStore::new());
        let faulty = FaultyStore::new(Arc::clone(&memory), move |call| {
            if call.step == Step::Admit {
                fault
            } else {
                Fault::None
            }
        });
        let app = App::on(Arc::new(faulty) as Arc<dyn Store>, memory);
        let (router, _) = answering(&app, app.layer(), 200);
        let answered = post(&router, "/t", "k", "{}").await;
        assert_eq!(answered.refusal(), (503, code.to_owned()));
        assert!(answered.header("retry-after").is_some());
        assert_eq!(answered.json()["retryable"], true);
        assert_eq!(app.runs(), 0);
    }
}

#[tokio::test]
async fn an_answer_that_cannot_be_recorded_is_handed_over_and_says_so() {
    let memory = Arc::new(MemoryStore::new());
    let faulty = FaultyStore::new(Arc::clone(&memory), |call| {
        if call.step == Step::Complete {
            Fault::Unavailable
        } else {
            Fault::None
        }
    });
    tokio::time::pause();
    let app = App::on(Arc::new(faulty) as Arc<dyn Store>, memory);
    let (router, _) = answering(&app, app.layer(), 201);
    let first = post(&router, "/t", "k", "{}").await;
    assert_eq!(first.status, 201);
    assert_eq!(first.header("idempotent-not-recorded"), Some("true"));
    let again = post(&router, "/t", "k", "{}").await;
    assert_eq!(again.status, 409);
    assert_eq!(app.runs(), 1);
}

#[tokio::test]
async fn field_12_a_caller_that_goes_away_stops_nothing() {
    let app = App::new();
    let (router, gate) = gated(&app, app.layer());
    let call = tokio::spawn({
        let router = router.clone();
        async move { post(&router, "/t", "k", "{}").await }
    });
    gate.started.notified().await;
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    gate.open.add_permits(1);
    let again = settled(&router, "/t", "k", "{}").await;
    assert_eq!((again.status.as_u16(), &again.body[..]), (201, &b"1"[..]));
    assert!(again.is_replay());
    assert_eq!(app.runs(), 1);
}
