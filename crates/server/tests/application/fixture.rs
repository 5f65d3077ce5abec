use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    http::{HeaderMap, Method, Request, StatusCode},
};
use counterfoil_core::WorkspaceId;
use counterfoil_postgres::PostgresStore;
use counterfoil_server::{Application, NewAgentKey, Role, Settings};
use counterfoil_sqlite::SqliteStore;
use counterfoil_store::Store;
use counterfoil_test_postgres::Database;
use http_body_util::BodyExt as _;
use serde_json::Value;
use tempfile::TempDir;
use tower::ServiceExt as _;

/// Which store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum On {
    Sqlite,
    Postgres,
}

/// Where the rows are. Gone with the last application on it.
#[derive(Clone)]
pub(crate) enum Place {
    Sqlite(Arc<TempDir>),
    Postgres(Arc<Database>),
}

impl Place {
    pub(crate) fn new(on: On) -> Self {
        match on {
            On::Sqlite => Self::Sqlite(Arc::new(tempfile::tempdir().unwrap())),
            On::Postgres => Self::Postgres(Arc::new(Database::new())),
        }
    }

    #[allow(
        clippy::field_reassign_with_default,
        reason = "the options have a private field"
    )]
    pub(crate) async fn open(&self) -> Arc<dyn Store> {
        match self {
            Self::Sqlite(folder) => {
                let mut options = counterfoil_sqlite::Options::default();
                options.lock_patience = Duration::from_millis(300);
                Arc::new(SqliteStore::open(file(folder), options).unwrap())
            }
            Self::Postgres(database) => Arc::new(postgres(database.url()).await),
        }
    }

    /// Everything that is kept: the files of a folder, the values of a database.
    pub(crate) fn kept(&self) -> Vec<Vec<u8>> {
        match self {
            Self::Sqlite(folder) => {
                let files = std::fs::read_dir(folder.path()).unwrap();
                files
                    .map(|file| std::fs::read(file.unwrap().path()).unwrap())
                    .collect()
            }
            Self::Postgres(database) => values(database, ""),
        }
    }

    /// The values in the store's own tables.
    pub(crate) fn kept_by_the_store(&self) -> Vec<Vec<u8>> {
        match self {
            Self::Sqlite(folder) => sqlite_values(&file(folder), "counterfoil_"),
            Self::Postgres(database) => values(database, "counterfoil_"),
        }
    }

    /// Holds everything that a call would write, as another process may.
    pub(crate) async fn lock(&self) -> Rival {
        match self {
            Self::Sqlite(folder) => {
                let rival = rusqlite::Connection::open(file(folder)).unwrap();
                rival.execute_batch("BEGIN IMMEDIATE").unwrap();
                Rival::Sqlite(rival)
            }
            Self::Postgres(database) => {
                let (client, connection) =
                    tokio_postgres::connect(database.url(), tokio_postgres::NoTls)
                        .await
                        .unwrap();
                tokio::spawn(connection);
                client
                    .batch_execute("BEGIN; LOCK TABLE counterfoil_receipts IN EXCLUSIVE MODE")
                    .await
                    .unwrap();
                Rival::Postgres(client)
            }
        }
    }
}

/// The store on a database.
pub(crate) async fn postgres(url: &str) -> PostgresStore {
    let options = counterfoil_postgres::Options {
        connections_max: 8,
        ..counterfoil_postgres::Options::default()
    };
    PostgresStore::open(url, options).await.unwrap()
}

fn file(folder: &TempDir) -> PathBuf {
    folder.path().join("test.db")
}

/// The texts and bytes in the tables whose names begin so.
fn values(database: &Database, prefix: &str) -> Vec<Vec<u8>> {
    let columns = database.psql(&format!(
        "SELECT table_name, column_name, data_type FROM information_schema.columns \
         WHERE table_schema = 'public' AND data_type IN ('text', 'bytea') \
           AND starts_with(table_name, '{prefix}')"
    ));
    let parts: Vec<String> = columns
        .lines()
        .map(|line| {
            let [table, column, kind] = line.split('|').collect::<Vec<_>>()[..] else {
                panic!("{line}");
            };
            let bytes = match kind {
                "bytea" => column.to_owned(),
                _ => format!("convert_to({column}, 'UTF8')"),
            };
            format!("SELECT encode({bytes}, 'hex') FROM {table} WHERE {column} IS NOT NULL")
        })
        .collect();
    let rows = database.psql(&parts.join(" UNION ALL "));
    rows.lines().map(from_hex).collect()
}

fn sqlite_values(file: &Path, prefix: &str) -> Vec<Vec<u8>> {
    use rusqlite::types::ValueRef;
    let database = rusqlite::Connection::open(file).unwrap();
    let mut tables = database
        .prepare("SELECT name FROM sqlite_schema WHERE type = 'table' AND name LIKE ?1 || '%'")
        .unwrap();
    let names: Vec<String> = tables
        .query_map([prefix], |row| row.get(0))
        .unwrap()
        .map(Result::unwrap)
        .collect();
    let mut values = Vec::new();
    for name in names {
        let mut rows = database.prepare(&format!("SELECT * FROM {name}")).unwrap();
        let columns = rows.column_count();
        let mut rows = rows.query([]).unwrap();
        while let Some(row) = rows.next().unwrap() {
            for column in 0..columns {
                match row.get_ref(column).unwrap() {
                    ValueRef::Text(bytes) | ValueRef::Blob(bytes) => values.push(bytes.to_vec()),
                    ValueRef::Null | ValueRef::Integer(_) | ValueRef::Real(_) => {}
                }
            }
        }
    }
    values
}

fn from_hex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks_exact(2);
    digits
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

/// Somebody else who holds what is written.
pub(crate) enum Rival {
    Sqlite(rusqlite::Connection),
    Postgres(tokio_postgres::Client),
}

impl Rival {
    pub(crate) async fn let_go(self) {
        match self {
            Self::Sqlite(rival) => rival.execute_batch("ROLLBACK").unwrap(),
            Self::Postgres(rival) => rival.batch_execute("ROLLBACK").await.unwrap(),
        }
    }
}

/// An application with an admin key of workspace `default`.
pub(crate) struct App {
    pub(crate) application: Application,
    pub(crate) router: Router,
    pub(crate) admin: String,
    pub(crate) place: Place,
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
    pub(crate) async fn new(on: On) -> Self {
        Self::with(on, Settings::default()).await
    }

    pub(crate) async fn with(on: On, settings: Settings) -> Self {
        let place = Place::new(on);
        let mut app = Self::on(place.open().await, place, settings).await;
        app.admin = app.issue("default", Role::Admin).await;
        app
    }

    /// Another process, as it were, on the same store.
    pub(crate) async fn beside(&self, settings: Settings) -> Self {
        let place = self.place.clone();
        let mut app = Self::on(place.open().await, place, settings).await;
        app.admin.clone_from(&self.admin);
        app
    }

    /// On a store that was opened before.
    pub(crate) async fn on(store: Arc<dyn Store>, place: Place, settings: Settings) -> Self {
        let application = Application::start(store, settings).await.unwrap();
        Self {
            router: application.router(),
            application,
            admin: String::new(),
            place,
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
