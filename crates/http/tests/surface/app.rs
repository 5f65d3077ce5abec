//! A router with the layer, an engine on the memory store, and a caller named by a header.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::Request,
    middleware::{self, Next},
    response::Response,
};
use bytes::Bytes;
use counterfoil_core::{OnError, Policy, PrincipalId, Timestamp, WorkspaceId};
use counterfoil_engine::{
    Caller, Clock, Engine, Monotonic, Open, Operation, SystemClock, store::Store,
};
use counterfoil_http::IdempotencyLayer;
use counterfoil_testkit::MemoryStore;
use http::{HeaderMap, Method, StatusCode};
use http_body_util::BodyExt as _;
use tower::ServiceExt as _;

/// The machine's clock, moved ahead as a test likes.
pub(crate) struct Ahead {
    base: SystemClock,
    millis: AtomicI64,
}

impl Clock for Ahead {
    fn now(&self) -> Timestamp {
        let millis = self.base.now().as_millis();
        Timestamp::from_millis(millis + self.millis.load(Ordering::SeqCst))
    }

    fn monotonic(&self) -> Monotonic {
        self.base.monotonic()
    }
}

pub(crate) struct App {
    pub(crate) store: Arc<MemoryStore>,
    pub(crate) engine: Engine,
    pub(crate) clock: Arc<Ahead>,
    pub(crate) runs: Arc<AtomicUsize>,
}

impl App {
    pub(crate) fn new() -> Self {
        let store = Arc::new(MemoryStore::new());
        Self::on(Arc::clone(&store) as Arc<dyn Store>, store)
    }

    /// An engine on `outer`, which wraps `store`.
    pub(crate) fn on(outer: Arc<dyn Store>, store: Arc<MemoryStore>) -> Self {
        let clock = Arc::new(Ahead {
            base: SystemClock::new(),
            millis: AtomicI64::new(0),
        });
        let engine = Engine::builder(outer)
            .clock(Arc::clone(&clock) as Arc<dyn Clock>)
            .build();
        Self {
            store,
            engine,
            clock,
            runs: Arc::new(AtomicUsize::new(0)),
        }
    }

    pub(crate) fn layer(&self) -> IdempotencyLayer {
        self.layer_with(Policy::default())
    }

    pub(crate) fn layer_with(&self, policy: Policy) -> IdempotencyLayer {
        IdempotencyLayer::new(self.engine.clone(), Operation::new(1, policy).unwrap())
    }

    pub(crate) fn advance(&self, by: Duration) {
        let millis = i64::try_from(by.as_millis()).unwrap();
        self.clock.millis.fetch_add(millis, Ordering::SeqCst);
    }

    pub(crate) fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }

    /// What a handler calls when it runs: the number of this run, from 1.
    pub(crate) fn counter(&self) -> impl Fn() -> usize + Clone + Send + Sync + 'static {
        let runs = Arc::clone(&self.runs);
        move || runs.fetch_add(1, Ordering::SeqCst) + 1
    }

    pub(crate) fn receipts(&self) -> usize {
        self.store.receipts().len()
    }
}

pub(crate) fn releasing() -> Policy {
    Policy {
        on_error: OnError::ReleaseUnlessCommitted,
        ..Policy::default()
    }
}

/// The application's authentication: the principal is what `x-principal` says, none for `nobody`.
pub(crate) fn authenticated(router: Router) -> Router {
    router.layer(middleware::from_fn(authenticate))
}

async fn authenticate(mut request: Request, next: Next) -> Response {
    let named = request.headers().get("x-principal");
    let named = named.map_or("agent", |value| value.to_str().unwrap());
    if named != "nobody" {
        let caller = Caller {
            workspace: WorkspaceId::new("default").unwrap(),
            principal: PrincipalId::new(named).unwrap(),
            authority: Arc::new(Open),
        };
        request.extensions_mut().insert(caller);
    }
    next.run(request).await
}

#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answered {
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).expect("a JSON body")
    }

    pub(crate) fn code(&self) -> String {
        assert_eq!(
            self.header("content-type"),
            Some("application/problem+json")
        );
        self.json()["code"].as_str().expect("a code").to_owned()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub(crate) fn is_replay(&self) -> bool {
        self.header("idempotent-replayed") == Some("true")
    }

    /// Status and code of a refusal.
    pub(crate) fn refusal(&self) -> (u16, String) {
        (self.status.as_u16(), self.code())
    }
}

pub(crate) async fn send(router: &Router, request: Request) -> Answered {
    let response = router.clone().oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    Answered {
        status: parts.status,
        headers: parts.headers,
        body: body.collect().await.unwrap().to_bytes(),
    }
}

pub(crate) fn request(method: Method, path: &str, headers: &[(&str, &str)], body: &str) -> Request {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Body::from(body.to_owned())).unwrap()
}

pub(crate) async fn post(router: &Router, path: &str, key: &str, body: &str) -> Answered {
    let request = request(Method::POST, path, &[("idempotency-key", key)], body);
    send(router, request).await
}

/// The same call again and again until it gets another answer than *in progress*, bounded.
pub(crate) async fn settled(router: &Router, path: &str, key: &str, body: &str) -> Answered {
    for _ in 0..200 {
        let request = request(
            Method::POST,
            path,
            &[("idempotency-key", key), ("prefer", "wait=5")],
            body,
        );
        let answered = send(router, request).await;
        if !(answered.status == 409 && answered.code() == "idempotency_in_progress") {
            return answered;
        }
        tokio::task::yield_now().await;
    }
    panic!("still in progress");
}
