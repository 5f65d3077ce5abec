use std::{path::PathBuf, sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    http::{HeaderMap, Method, Request, StatusCode},
};
use counterfoil_core::WorkspaceId;
use counterfoil_server::{Application, NewAgentKey, Role, Settings};
use counterfoil_sqlite::{Options, SqliteStore};
use http_body_util::BodyExt as _;
use serde_json::Value;
use tempfile::TempDir;
use tower::ServiceExt as _;

/// An application with an admin key of workspace `default`.
pub(crate) struct App {
    pub(crate) application: Application,
    pub(crate) router: Router,
    pub(crate) admin: String,
    pub(crate) folder: Arc<TempDir>,
}

/// An answer, read whole.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|_| panic!("no JSON: {:?}", String::from_utf8_lossy(&self.body)))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub(crate) fn is_replay(&self) -> bool {
        self.header("idempotent-replayed") == Some("true")
    }

    /// Asserts a problem of this status and code, and gives it.
    #[track_caller]
    pub(crate) fn problem(&self, status: u16, code: &str) -> Value {
        let problem = self.json();
        assert_eq!(
            (self.status.as_u16(), problem["code"].as_str()),
            (status, Some(code)),
            "{problem}"
        );
        assert_eq!(
            self.header("content-type"),
            Some("application/problem+json")
        );
        assert_eq!(problem["type"], format!("/docs/errors/{code}"));
        problem
    }
}

/// A request being put together.
pub(crate) struct Asking<'a> {
    app: &'a App,
    method: Method,
    path: String,
    headers: Vec<(String, Vec<u8>)>,
    body: Vec<u8>,
}

impl Asking<'_> {
    pub(crate) fn bearer(self, credential: &str) -> Self {
        self.header("authorization", format!("Bearer {credential}"))
    }

    pub(crate) fn key(self, key: &str) -> Self {
        self.header("idempotency-key", key)
    }

    pub(crate) fn header(mut self, name: &str, value: impl Into<Vec<u8>>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    pub(crate) fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    pub(crate) async fn send(self) -> Answer {
        let mut request = Request::builder().method(self.method).uri(self.path);
        for (name, value) in self.headers {
            request = request.header(name, value);
        }
        let request = request.body(Body::from(self.body)).unwrap();
        let response = self.app.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        Answer {
            status: parts.status,
            headers: parts.headers,
            body: body.collect().await.unwrap().to_bytes().to_vec(),
        }
    }
}

pub(crate) fn workspace(name: &str) -> WorkspaceId {
    WorkspaceId::new(name).unwrap()
}

impl App {
    pub(crate) async fn new() -> Self {
        Self::with(Settings::default()).await
    }

    pub(crate) async fn with(settings: Settings) -> Self {
        let folder = Arc::new(tempfile::tempdir().unwrap());
        let mut app = Self::on(folder, settings).await;
        app.admin = app.issue("default", Role::Admin).await;
        app
    }

    /// Another process, as it were, on the same folder.
    pub(crate) async fn beside(&self, settings: Settings) -> Self {
        let mut app = Self::on(Arc::clone(&self.folder), settings).await;
        app.admin.clone_from(&self.admin);
        app
    }

    #[allow(
        clippy::field_reassign_with_default,
        reason = "the options have a private field"
    )]
    async fn on(folder: Arc<TempDir>, settings: Settings) -> Self {
        let mut options = Options::default();
        options.lock_patience = Duration::from_millis(300);
        let store = SqliteStore::open(folder.path().join("test.db"), options).unwrap();
        let application = Application::start(Arc::new(store), settings).await.unwrap();
        Self {
            router: application.router(),
            application,
            admin: String::new(),
            folder,
        }
    }

    /// A new key of a workspace.
    pub(crate) async fn issue(&self, name: &str, role: Role) -> String {
        let new = NewAgentKey {
            workspace: workspace(name),
            name: "test".to_owned(),
            role,
        };
        let issued = self.application.agent_keys().issue(new).await.unwrap();
        issued.credential.reveal().to_string()
    }

    pub(crate) fn database(&self) -> PathBuf {
        self.folder.path().join("test.db")
    }

    /// A request without a credential.
    pub(crate) fn ask(&self, method: Method, path: &str) -> Asking<'_> {
        Asking {
            app: self,
            method,
            path: path.to_owned(),
            headers: Vec::new(),
            body: Vec::new(),
        }
    }

    pub(crate) fn get(&self, path: &str) -> Asking<'_> {
        self.ask(Method::GET, path).bearer(&self.admin)
    }

    pub(crate) fn post(&self, path: &str) -> Asking<'_> {
        self.ask(Method::POST, path)
            .header("content-type", "application/json")
    }

    /// Creates a note as the admin.
    pub(crate) async fn note(&self, key: &str, body: &str) -> Answer {
        self.post("/api/v1/notes")
            .bearer(&self.admin)
            .key(key)
            .body(serde_json::json!({ "body": body }).to_string())
            .send()
            .await
    }

    /// How many notes the admin's workspace has.
    pub(crate) async fn notes(&self) -> usize {
        let answer = self.get("/api/v1/notes?limit=100").send().await;
        answer.json()["notes"].as_array().unwrap().len()
    }

    /// How many operations the admin's workspace has.
    pub(crate) async fn operations(&self) -> usize {
        let answer = self.get("/api/v1/operations?limit=100").send().await;
        answer.json()["operations"].as_array().unwrap().len()
    }
}

/// The id in a credential.
pub(crate) fn id_of(credential: &str) -> String {
    format!("ak_{}", credential.split('_').nth(1).unwrap())
}
