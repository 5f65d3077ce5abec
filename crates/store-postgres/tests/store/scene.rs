//! What the tests are told with.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use counterfoil_core::{
    Decision, Event, Fingerprint, Identity, Kept, Key, OperationId, Policy, PrincipalId, Receipt,
    Reply, Target, Timestamp, Token, WorkspaceId,
};
use counterfoil_postgres::{Options, PostgresStore};
use counterfoil_store::{
    Admission, Admitted, AtomicHandler, BoxFuture, Completion, Failure, Fence, Found, Granted, Sql,
    Store, StoredReply, Value,
};
use counterfoil_test_postgres::Database;
use tokio::sync::watch;

/// A bound for what must happen soon, on a machine that does much else.
pub(crate) const SOON: Duration = Duration::from_secs(2);

static SERIAL: AtomicU64 = AtomicU64::new(1);

fn serial() -> [u8; 8] {
    SERIAL.fetch_add(1, Ordering::Relaxed).to_be_bytes()
}

/// This machine's clock, which is also the server's.
pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    Timestamp::from_millis(i64::try_from(since.unwrap().as_millis()).unwrap())
}

/// A node: a store of its own on this database, with what it is told to differ in.
pub(crate) async fn node(database: &Database) -> PostgresStore {
    node_at(database.url(), Options::default()).await
}

pub(crate) async fn node_at(url: &str, options: Options) -> PostgresStore {
    PostgresStore::open(url, options).await.unwrap()
}

/// A connection that has nothing to do with the store.
pub(crate) async fn outsider(database: &Database) -> tokio_postgres::Client {
    let connecting = tokio_postgres::connect(database.url(), tokio_postgres::NoTls);
    let (client, connection) = connecting.await.unwrap();
    tokio::spawn(connection);
    client
}

/// Waits until what an outsider asks is true; fails after ten seconds.
pub(crate) async fn until(outside: &tokio_postgres::Client, sql: &str) {
    let started = Instant::now();
    while !outside.query_one(sql, &[]).await.unwrap().get::<_, bool>(0) {
        assert!(
            started.elapsed() < Duration::from_secs(10),
            "never true: {sql}"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Somebody waits for an advisory lock.
pub(crate) const SOMEBODY_WAITS: &str = "SELECT EXISTS (SELECT 1 FROM pg_locks AS l \
    JOIN pg_database AS d ON d.oid = l.database AND d.datname = current_database() \
    WHERE l.locktype = 'advisory' AND NOT l.granted)";

pub(crate) fn identity(key: &str) -> Identity {
    Identity {
        workspace: WorkspaceId::new("w1").unwrap(),
        principal: PrincipalId::new("ada").unwrap(),
        target: Target::new("POST /api/v1/notes"),
        key: Key::new(key).unwrap(),
    }
}

pub(crate) fn token() -> Token {
    let mut random = [7; 16];
    random[..8].copy_from_slice(&serial());
    Token::new(random)
}

pub(crate) fn guarded(key: &str) -> Admission {
    let mut random = [9; 10];
    random[..8].copy_from_slice(&serial());
    Admission {
        identity: identity(key),
        fingerprint: Fingerprint::raw("", b"one"),
        inputs: None,
        version: 1,
        policy: Policy::default(),
        operation_id: OperationId::new(now(), random),
        token: token(),
        now: now(),
        patience: Duration::from_secs(5),
    }
}

pub(crate) fn atomic(key: &str) -> Admission {
    Admission {
        policy: Policy::atomic(),
        ..guarded(key)
    }
}

pub(crate) fn in_workspace(name: &str, mut admission: Admission) -> Admission {
    admission.identity.workspace = WorkspaceId::new(name).unwrap();
    admission
}

pub(crate) fn reply(body: &str) -> Reply {
    Reply {
        status: 201,
        content_type: Some("text/plain".to_owned()),
        headers: Vec::new(),
        body: body.as_bytes().to_vec().into(),
    }
}

pub(crate) fn stored(body: &str) -> StoredReply {
    StoredReply {
        reply: reply(body),
        sealed: None,
    }
}

pub(crate) fn completion(event: Event) -> Completion {
    Completion {
        event,
        reply: None,
        kept: Kept::Stored,
        at: now(),
        reason: "as told by the test",
        evidence: None,
        question_for: Duration::from_secs(600),
    }
}

pub(crate) fn success(fence: Fence, body: &str) -> Completion {
    let attempt = fence.attempt;
    Completion {
        reply: Some(stored(body)),
        ..completion(Event::Succeeded { attempt })
    }
}

/// Admits and expects a reservation.
pub(crate) async fn run(store: &PostgresStore, admission: Admission) -> Granted {
    match store.admit(admission).await {
        Ok(Admitted::Run(granted)) => granted,
        other => panic!("expected a run, got {other:?}"),
    }
}

/// Admits and expects a decision.
pub(crate) async fn decided(store: &PostgresStore, admission: Admission) -> (Decision, Found) {
    match store.admit(admission).await {
        Ok(Admitted::Decided(decision, found)) => (decision, *found),
        other => panic!("expected a decision, got {other:?}"),
    }
}

pub(crate) fn in_progress(decision: Decision) -> bool {
    matches!(decision, Decision::InProgress { .. })
}

/// Completes with a success and expects that it is recorded.
pub(crate) async fn finish(store: &PostgresStore, fence: Fence, body: &str) -> Receipt {
    store.complete(fence, success(fence, body)).await.unwrap()
}

/// The application's table: one row is one effect.
pub(crate) fn create_effects(database: &Database) {
    database.psql("CREATE TABLE effects(label text NOT NULL)");
}

pub(crate) const EFFECT: &str = "INSERT INTO effects(label) VALUES ($1)";

pub(crate) fn effects(database: &Database) -> usize {
    let count = database.psql("SELECT count(*) FROM effects");
    count.parse().unwrap()
}

/// Writes one effect.
pub(crate) async fn write_effect(
    tx: &mut dyn Sql,
    label: &str,
) -> Result<u64, counterfoil_store::Error> {
    tx.execute(EFFECT, &[Value::from(label)]).await
}

type Body = dyn for<'t> Fn(&'t mut dyn Sql) -> BoxFuture<'t, Result<Reply, Failure>> + Send + Sync;

/// An atomic handler from a closure; its answer is kept as it is.
pub(crate) struct Handler(Box<Body>);

pub(crate) fn handler<F>(body: F) -> Arc<Handler>
where
    F: for<'t> Fn(&'t mut dyn Sql) -> BoxFuture<'t, Result<Reply, Failure>> + Send + Sync + 'static,
{
    Arc::new(Handler(Box::new(body)))
}

impl AtomicHandler for Handler {
    fn call<'t>(
        &'t self,
        _operation_id: OperationId,
        tx: &'t mut dyn Sql,
    ) -> BoxFuture<'t, Result<Reply, Failure>> {
        (self.0)(tx)
    }

    fn keep(&self, _operation_id: OperationId, reply: &Reply) -> Result<StoredReply, Kept> {
        Ok(StoredReply {
            reply: reply.clone(),
            sealed: None,
        })
    }
}

/// Writes one effect and answers with its label.
pub(crate) fn effect(label: &'static str) -> Arc<Handler> {
    handler(move |tx| {
        Box::pin(async move {
            write_effect(tx, label).await?;
            Ok(reply(label))
        })
    })
}

/// A place in a handler or in work where it stands until it is told to go on.
#[derive(Clone)]
pub(crate) struct Gate {
    arrived: watch::Sender<usize>,
    open: watch::Sender<bool>,
}

impl Gate {
    pub(crate) fn new() -> Self {
        Self {
            arrived: watch::Sender::new(0),
            open: watch::Sender::new(false),
        }
    }

    /// Stands here until the gate is open.
    pub(crate) async fn pass(&self) {
        self.arrived.send_modify(|count| *count += 1);
        let mut open = self.open.subscribe();
        open.wait_for(|open| *open).await.unwrap();
    }

    /// Waits until somebody stands here, or has.
    pub(crate) async fn reached(&self) {
        let mut arrived = self.arrived.subscribe();
        let reached = arrived.wait_for(|count| *count > 0);
        let reached = tokio::time::timeout(Duration::from_secs(10), reached).await;
        assert!(reached.is_ok(), "nobody came to the gate");
    }

    pub(crate) fn has_been_reached(&self) -> bool {
        *self.arrived.borrow() > 0
    }

    pub(crate) fn open(&self) {
        self.open.send_replace(true);
    }
}

/// Writes one effect, then stands at the gate, then answers.
pub(crate) fn standing(gate: &Gate, label: &'static str) -> Arc<Handler> {
    let gate = gate.clone();
    handler(move |tx| {
        let gate = gate.clone();
        Box::pin(async move {
            write_effect(tx, label).await?;
            gate.pass().await;
            Ok(reply(label))
        })
    })
}
