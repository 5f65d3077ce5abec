//! What the tests are told with.

use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use counterfoil_core::{
    Decision, Event, Fingerprint, Identity, Kept, Key, OperationId, Policy, PrincipalId, Reply,
    Target, Timestamp, Token, WorkspaceId,
};
use counterfoil_sqlite::{Fault, Injected, Options, Point, SqliteStore};
use counterfoil_store::{
    Admission, Admitted, AtomicHandler, BoxFuture, Completion, Error, Failure, Fence, Found,
    Granted, Migration, Sql, Store, StoredReply, Value, read,
};

pub(crate) const START: Timestamp = Timestamp::from_millis(1_800_000_000_000);
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn after(seconds: u64) -> Timestamp {
    START.plus(Duration::from_secs(seconds))
}

static SERIAL: AtomicU64 = AtomicU64::new(1);

/// A folder with a database and the tables the handlers write to.
pub(crate) struct Scene {
    folder: tempfile::TempDir,
    pub(crate) store: SqliteStore,
}

const TABLES: &[Migration] = &[Migration {
    version: 1,
    sqlite: "CREATE TABLE notes(name TEXT PRIMARY KEY);
             CREATE TABLE parents(id INTEGER PRIMARY KEY);
             CREATE TABLE children(
                 parent INTEGER REFERENCES parents(id) DEFERRABLE INITIALLY DEFERRED
             );",
    postgres: "",
}];

impl Scene {
    pub(crate) async fn new(options: Options) -> Self {
        Self::with(options, Arc::new(NoFault)).await
    }

    pub(crate) async fn with(options: Options, fault: Arc<dyn Fault>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("receipts.db");
        let store = SqliteStore::open_with_fault(path, options, fault).unwrap();
        store.migrate("scene", TABLES).await.unwrap();
        Self { folder, store }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("receipts.db")
    }

    /// Another process with the write lock, until dropped.
    pub(crate) fn hold(&self) -> Held {
        let other = rusqlite::Connection::open(self.path()).unwrap();
        other.busy_timeout(Duration::from_secs(10)).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        Held(other)
    }

    /// Waits until the store says of itself that it works.
    pub(crate) async fn healthy(&self) {
        let recovered = async {
            while self.store.health().await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, recovered).await.unwrap();
    }

    /// Waits until that many callers wait for the writer.
    pub(crate) async fn queued(&self, callers: u64) {
        let waited = async {
            while self.store.health().await.unwrap().queue_depth < callers {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(PATIENCE, waited).await.unwrap();
    }

    pub(crate) async fn notes(&self) -> Vec<String> {
        let names = read(&self.store, |sql| {
            Box::pin(async move {
                let rows = sql
                    .query("SELECT name FROM notes ORDER BY name", &[])
                    .await?;
                rows.iter()
                    .map(|row| row.text(0).map(ToOwned::to_owned))
                    .collect::<Result<Vec<_>, _>>()
            })
        });
        names.await.unwrap()
    }
}

pub(crate) struct Held(rusqlite::Connection);

impl Held {
    pub(crate) fn release(self) {
        self.0.execute_batch("ROLLBACK").unwrap();
    }
}

pub(crate) fn identity(key: &str) -> Identity {
    Identity {
        workspace: WorkspaceId::new("w1").unwrap(),
        principal: PrincipalId::new("ada").unwrap(),
        target: Target::new("POST /api/v1/notes"),
        key: Key::new(key).unwrap(),
    }
}

pub(crate) fn guarded(key: &str) -> Admission {
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    let mut token = [7; 16];
    token[..8].copy_from_slice(&serial.to_be_bytes());
    let mut random = [9; 10];
    random[..8].copy_from_slice(&serial.to_be_bytes());
    Admission {
        identity: identity(key),
        fingerprint: Fingerprint::raw("", b"one"),
        inputs: None,
        version: 1,
        policy: Policy::default(),
        operation_id: OperationId::new(START, random),
        token: Token::new(token),
        now: START,
        patience: PATIENCE,
    }
}

pub(crate) fn atomic(key: &str) -> Admission {
    Admission {
        policy: Policy::atomic(),
        ..guarded(key)
    }
}

pub(crate) fn reply(body: &str) -> Reply {
    Reply {
        status: 201,
        content_type: Some("text/plain".to_owned()),
        headers: Vec::new(),
        body: body.as_bytes().to_vec().into(),
    }
}

pub(crate) fn success(fence: Fence, body: &str) -> Completion {
    Completion {
        event: Event::Succeeded {
            attempt: fence.attempt,
        },
        reply: Some(StoredReply {
            reply: reply(body),
            sealed: None,
        }),
        kept: Kept::Stored,
        at: after(1),
        reason: "answered",
        evidence: None,
        question_for: Duration::ZERO,
    }
}

pub(crate) async fn granted(store: &SqliteStore, admission: Admission) -> Granted {
    match store.admit(admission).await.unwrap() {
        Admitted::Run(granted) => granted,
        Admitted::Decided(decision, _) => panic!("not run but {decision:?}"),
        Admitted::Held => panic!("one writer holds nothing back"),
    }
}

pub(crate) async fn decided(store: &SqliteStore, admission: Admission) -> (Decision, Found) {
    match store.admit(admission).await.unwrap() {
        Admitted::Run(_) => panic!("it ran"),
        Admitted::Held => panic!("one writer holds nothing back"),
        Admitted::Decided(decision, found) => (decision, *found),
    }
}

pub(crate) fn body(found: &Found) -> &[u8] {
    &found.reply.as_ref().expect("a stored reply").reply.body
}

/// A handler that runs its statements and answers with its name.
pub(crate) struct Runs {
    pub(crate) name: String,
    pub(crate) statements: Vec<String>,
    /// Goes on after a statement failed, as if nothing had happened.
    pub(crate) swallows: bool,
}

impl Runs {
    /// Inserts a note of that name.
    pub(crate) fn note(name: &str) -> Arc<Self> {
        Self::statements(name, &[])
    }

    /// Inserts a note of that name, then runs these.
    pub(crate) fn statements(name: &str, statements: &[&str]) -> Arc<Self> {
        Arc::new(Self {
            name: name.to_owned(),
            statements: statements.iter().map(|sql| (*sql).to_owned()).collect(),
            swallows: false,
        })
    }

    async fn run(&self, tx: &mut dyn Sql) -> Result<Reply, Error> {
        let name = [Value::from(self.name.as_str())];
        tx.execute("INSERT INTO notes(name) VALUES ($1)", &name)
            .await?;
        for sql in &self.statements {
            let ran = tx.execute(sql, &[]).await;
            if !self.swallows {
                ran?;
            }
        }
        Ok(reply(&self.name))
    }
}

impl AtomicHandler for Runs {
    fn call<'t>(
        &'t self,
        _operation_id: OperationId,
        tx: &'t mut dyn Sql,
    ) -> BoxFuture<'t, Result<Reply, Failure>> {
        Box::pin(async move { Ok(self.run(tx).await?) })
    }

    fn keep(&self, _operation_id: OperationId, reply: &Reply) -> Result<StoredReply, Kept> {
        Ok(StoredReply {
            reply: reply.clone(),
            sealed: None,
        })
    }
}

struct NoFault;

impl Fault for NoFault {
    fn at(&self, _point: Point) -> Option<Injected> {
        None
    }
}

/// Injects one fault the first time a point is passed after it was armed.
#[derive(Default)]
pub(crate) struct Once {
    armed: Mutex<Option<(Point, u32, Injected)>>,
    pub(crate) reopen_fails: std::sync::atomic::AtomicBool,
    fired: AtomicU64,
}

impl Once {
    /// After the point was passed `skip` times more.
    pub(crate) fn arm(&self, point: Point, skip: u32, injected: Injected) {
        *self.armed.lock().unwrap() = Some((point, skip, injected));
    }

    /// How many faults were injected.
    pub(crate) fn fired(&self) -> u64 {
        self.fired.load(Ordering::SeqCst)
    }
}

impl Fault for Once {
    fn at(&self, point: Point) -> Option<Injected> {
        if point == Point::Reopen && self.reopen_fails.load(Ordering::SeqCst) {
            return Some(Injected::Io);
        }
        let mut armed = self.armed.lock().unwrap();
        let (at, skip, injected) = (*armed)?;
        if at != point {
            return None;
        }
        if skip > 0 {
            *armed = Some((at, skip - 1, injected));
            return None;
        }
        *armed = None;
        self.fired.fetch_add(1, Ordering::SeqCst);
        Some(injected)
    }
}
