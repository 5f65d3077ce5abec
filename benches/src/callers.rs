//! Callers inside this process: the store without any front end.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
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
use tokio::task::JoinSet;

use crate::{
    Error,
    keys::Series,
    load::{Round, Until},
};

/// Callers at once, as many as a load has connections.
pub(crate) const CALLERS: usize = 64;
/// Callers at once while a database is filled.
const FILLERS: usize = 256;
const PATIENCE: Duration = Duration::from_secs(30);

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
    store: Arc<SqliteStore>,
    series: Series,
    next: Arc<AtomicU64>,
    clock: Arc<SystemClock>,
    identity: Identity,
    reply: StoredReply,
}

impl Callers {
    /// Opens or creates the database. Needs a runtime.
    pub(crate) async fn open(path: &Path, series: Series) -> Result<Self, Error> {
        let store = Arc::new(SqliteStore::open(path, Options::default())?);
        store.migrate("bench", &NOTES).await?;
        let reply = Reply {
            status: 201,
            content_type: Some("application/json".to_owned()),
            headers: Vec::new(),
            body: Bytes::from_static(
                br#"{"note_id":"nt_01932c07-209c-7f2e-8c3d-2f6b1f0a9d11","body":"The counterfoil stays when the ticket is torn.","created_at":"2026-11-03T09:26:53.589Z"}"#,
            ),
        };
        Ok(Self {
            store,
            series,
            next: Arc::default(),
            clock: Arc::new(SystemClock::new()),
            identity: Identity {
                workspace: WorkspaceId::new("bench").map_err(|_| Error::Form("workspace"))?,
                principal: PrincipalId::new("bench").map_err(|_| Error::Form("principal"))?,
                target: Target::new("POST /api/v1/notes"),
                key: Key::new("none").map_err(|_| Error::Form("key"))?,
            },
            reply: StoredReply {
                reply,
                sealed: None,
            },
        })
    }

    /// Makes receipts until there are so many from these callers.
    pub(crate) async fn fill(&self, receipts: u64) -> Result<Round, Error> {
        self.run(Commits::One, FILLERS, Until::Used(receipts)).await
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
        let start = Instant::now();
        let mut tasks = JoinSet::new();
        for _ in 0..callers {
            let callers = self.clone();
            tasks.spawn(async move { callers.caller(commits, start, until).await });
        }
        let mut latencies_us = Vec::new();
        while let Some(ended) = tasks.join_next().await {
            latencies_us.extend(ended.map_err(|_| Error::Task)??);
        }
        let lasted = match until {
            Until::Elapsed { measured, .. } => measured,
            Until::Used(_) => start.elapsed(),
        };
        Round::from_latencies(latencies_us, lasted)
    }

    async fn caller(
        self,
        commits: Commits,
        start: Instant,
        until: Until,
    ) -> Result<Vec<u32>, Error> {
        let handler: Arc<dyn AtomicHandler> = Arc::new(Noting {
            reply: self.reply.clone(),
        });
        let mut latencies_us = Vec::new();
        loop {
            let begun = start.elapsed();
            if matches!(until, Until::Elapsed { warm_up, measured } if begun >= warm_up + measured)
            {
                return Ok(latencies_us);
            }
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            if matches!(until, Until::Used(count) if index >= count) {
                return Ok(latencies_us);
            }
            let now = self.clock.now();
            let admission = self.admission(index, commits, now)?;
            match commits {
                Commits::One => match self
                    .store
                    .atomically(admission, Arc::clone(&handler))
                    .await?
                {
                    Atomic::Ran(..) => {}
                    other @ (Atomic::Aborted(_)
                    | Atomic::Decided(..)
                    | Atomic::Own(_)
                    | Atomic::Held) => {
                        return Err(Error::Decided(format!("{other:?}")));
                    }
                },
                Commits::Two => self.admit_and_complete(admission, now).await?,
            }
            let ended = start.elapsed();
            let counts = match until {
                Until::Elapsed { warm_up, measured } => {
                    begun >= warm_up && ended <= warm_up + measured
                }
                Until::Used(_) => true,
            };
            if counts {
                latencies_us.push(u32::try_from((ended - begun).as_micros()).unwrap_or(u32::MAX));
            }
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
            reply: Some(self.reply.clone()),
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

    fn admission(&self, index: u64, commits: Commits, now: Timestamp) -> Result<Admission, Error> {
        let key = self.series.key(index);
        let fingerprint = Fingerprint::raw("", key.as_bytes());
        let mut ten = [0; 10];
        ten.copy_from_slice(&self.series.bytes(index, 1)[..10]);
        Ok(Admission {
            identity: Identity {
                key: Key::new(&key).map_err(|_| Error::Form("key"))?,
                ..self.identity.clone()
            },
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
