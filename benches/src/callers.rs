//! Callers inside this process: a store without any front end.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use counterfoil_core::{
    Event, Fingerprint, Identity, Kept, Key, OperationId, Policy, PrincipalId, Reply, Target,
    Timestamp, Token, WorkspaceId,
};
use counterfoil_engine::{Clock as _, SystemClock};
use counterfoil_sqlite::{Options, SqliteStore};
use counterfoil_store::{
    Admission, Admitted, Atomic, AtomicHandler, BoxFuture, Completion, Failure, Migration, Sql,
    Store, StoredReply, Value,
};
use rusqlite::{Connection, OpenFlags};

use crate::{
    Error,
    drive::drive,
    keys::Series,
    load::{Round, Until, spread},
};

/// Callers at once, as many as a load has connections.
pub(crate) const CALLERS: usize = 64;
/// Callers at once while a database is filled.
const FILLERS: usize = 256;
const PATIENCE: Duration = Duration::from_secs(30);
/// What every call answers, and what a plain table holds.
pub(crate) const BODY: &[u8] = br#"{"note_id":"nt_01932c07-209c-7f2e-8c3d-2f6b1f0a9d11","body":"The counterfoil stays when the ticket is torn.","created_at":"2026-11-03T09:26:53.589Z"}"#;

const NOTES: [Migration; 1] = [Migration {
    version: 1,
    sqlite: "CREATE TABLE bench_notes(id INTEGER PRIMARY KEY, body TEXT NOT NULL)",
    postgres: "CREATE TABLE bench_notes(id BIGSERIAL PRIMARY KEY, body TEXT NOT NULL)",
}];

/// How many durable commits a call has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Commits {
    /// `atomically`: everything in one.
    One,
    /// `admit`, then `complete`.
    Two,
}

impl Commits {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::One => "atomically (one durable commit)",
            Self::Two => "admit + complete (two durable commits)",
        }
    }
}

/// A store with callers.
#[derive(Clone)]
pub(crate) struct Callers {
    store: Arc<dyn Store>,
    series: Series,
    next: Arc<AtomicU64>,
    clock: Arc<SystemClock>,
    /// One for each workspace; the calls take them in turn.
    identities: Arc<[Identity]>,
    handler: Arc<Noting>,
}

impl Callers {
    /// Opens or creates an SQLite database. Needs a runtime.
    pub(crate) async fn open(path: &Path, series: Series) -> Result<Self, Error> {
        let store = Arc::new(SqliteStore::open(path, Options::default())?);
        Self::on(store, series, 1).await
    }

    /// Callers of a store that stands, spread over so many workspaces.
    pub(crate) async fn on(
        store: Arc<dyn Store>,
        series: Series,
        workspaces: usize,
    ) -> Result<Self, Error> {
        store.migrate("bench", &NOTES).await?;
        let identities: Result<Vec<Identity>, Error> = (0..workspaces).map(identity).collect();
        let reply = Reply {
            status: 201,
            content_type: Some("application/json".to_owned()),
            headers: Vec::new(),
            body: Bytes::from_static(BODY),
        };
        Ok(Self {
            store,
            series,
            next: Arc::default(),
            clock: Arc::new(SystemClock::new()),
            identities: identities?.into(),
            handler: Arc::new(Noting {
                reply: StoredReply {
                    reply,
                    sealed: None,
                },
            }),
        })
    }

    /// Makes receipts until there are so many from these callers.
    pub(crate) async fn fill(&self, commits: Commits, receipts: u64) -> Result<Round, Error> {
        self.run(commits, FILLERS, Until::Used(receipts)).await
    }

    /// So many more calls.
    pub(crate) async fn more(&self, commits: Commits, calls: u64) -> Result<Round, Error> {
        let until = self.next.load(Ordering::Relaxed) + calls;
        let round = self.run(commits, CALLERS, Until::Used(until)).await;
        // Callers beyond the last one took numbers too.
        self.next.store(until, Ordering::Relaxed);
        round
    }

    /// How many keys were used.
    pub(crate) fn used(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// First calls, each with a key of its own.
    pub(crate) async fn run(
        &self,
        commits: Commits,
        callers: usize,
        until: Until,
    ) -> Result<Round, Error> {
        let all = self.clone();
        drive(callers, &self.next, until, move |_, index| {
            let callers = all.clone();
            async move { callers.call(commits, index).await }
        })
        .await
    }

    /// Look-ups of finished receipts, all over the first `count` of these callers.
    pub(crate) async fn find(
        &self,
        count: u64,
        callers: usize,
        until: Until,
    ) -> Result<Round, Error> {
        let all = self.clone();
        drive(callers, &Arc::default(), until, move |_, index| {
            let callers = all.clone();
            async move { callers.find_one(spread(index, count)).await }
        })
        .await
    }

    async fn find_one(&self, index: u64) -> Result<(), Error> {
        let (identity, _) = self.identity(index)?;
        let found = self.store.find(&identity).await?;
        let reply = found.and_then(|found| found.reply);
        if reply.is_some_and(|reply| reply.reply.body == BODY) {
            Ok(())
        } else {
            Err(Error::Decided("a receipt without its result".to_owned()))
        }
    }

    async fn call(&self, commits: Commits, index: u64) -> Result<(), Error> {
        let now = self.clock.now();
        let admission = self.admission(index, commits, now)?;
        match commits {
            Commits::One => {
                let handler = Arc::clone(&self.handler);
                match self.store.atomically(admission, handler).await? {
                    Atomic::Ran(..) => Ok(()),
                    other @ (Atomic::Aborted(_)
                    | Atomic::Decided(..)
                    | Atomic::Own(_)
                    | Atomic::Held) => Err(Error::Decided(format!("{other:?}"))),
                }
            }
            Commits::Two => self.admit_and_complete(admission, now).await,
        }
    }

    async fn admit_and_complete(&self, admission: Admission, at: Timestamp) -> Result<(), Error> {
        let granted = match self.store.admit(admission).await? {
            Admitted::Run(granted) => granted,
            Admitted::Decided(decision, _) => return Err(Error::Decided(format!("{decision:?}"))),
            Admitted::Held => return Err(Error::Decided("held".to_owned())),
        };
        let completion = Completion {
            event: Event::Succeeded {
                attempt: granted.fence.attempt,
            },
            reply: Some(self.handler.reply.clone()),
            kept: Kept::Stored,
            at,
            reason: "answered",
            evidence: None,
            question_for: Duration::ZERO,
        };
        self.store.complete(granted.fence, completion).await?;
        drop(granted.slot);
        Ok(())
    }

    fn identity(&self, index: u64) -> Result<(Identity, Fingerprint), Error> {
        let key = self.series.key(index);
        let workspace = usize::try_from(index).unwrap_or(0) % self.identities.len().max(1);
        let identity = self
            .identities
            .get(workspace)
            .ok_or(Error::Form("the number of workspaces"))?;
        let fingerprint = Fingerprint::raw("", key.as_bytes());
        let key = Key::new(&key).map_err(|_| Error::Form("key"))?;
        Ok((
            Identity {
                key,
                ..identity.clone()
            },
            fingerprint,
        ))
    }

    fn admission(&self, index: u64, commits: Commits, now: Timestamp) -> Result<Admission, Error> {
        let (identity, fingerprint) = self.identity(index)?;
        let mut ten = [0; 10];
        ten.copy_from_slice(&self.series.bytes(index, 1)[..10]);
        Ok(Admission {
            identity,
            fingerprint,
            inputs: None,
            version: 1,
            policy: match commits {
                Commits::One => Policy::atomic(),
                Commits::Two => Policy::default(),
            },
            operation_id: OperationId::new(now, ten),
            token: Token::new(self.series.bytes(index, 2)),
            now,
            patience: PATIENCE,
        })
    }
}

fn identity(workspace: usize) -> Result<Identity, Error> {
    let name = format!("bench-{workspace}");
    Ok(Identity {
        workspace: WorkspaceId::new(name).map_err(|_| Error::Form("workspace"))?,
        principal: PrincipalId::new("bench").map_err(|_| Error::Form("principal"))?,
        target: Target::new("POST /api/v1/notes"),
        key: Key::new("none").map_err(|_| Error::Form("key"))?,
    })
}

/// Inserts a note in the receipt's own transaction.
struct Noting {
    reply: StoredReply,
}

impl AtomicHandler for Noting {
    fn call<'t>(
        &'t self,
        _operation_id: OperationId,
        tx: &'t mut dyn Sql,
    ) -> BoxFuture<'t, Result<Reply, Failure>> {
        Box::pin(async move {
            let note = [Value::from(
                "The counterfoil stays when the ticket is torn.",
            )];
            tx.execute("INSERT INTO bench_notes(body) VALUES ($1)", &note)
                .await?;
            Ok(self.reply.reply.clone())
        })
    }

    fn keep(&self, _operation_id: OperationId, _reply: &Reply) -> Result<StoredReply, Kept> {
        Ok(self.reply.clone())
    }
}

/// How many transactions the writers of a database have committed.
pub(crate) fn transactions(path: &Path) -> Result<u64, Error> {
    let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    let sum: i64 = connection.query_row(
        "SELECT coalesce(sum(sequence), 0) FROM counterfoil_writers",
        [],
        |row| row.get(0),
    )?;
    Ok(u64::try_from(sum).unwrap_or(0))
}
