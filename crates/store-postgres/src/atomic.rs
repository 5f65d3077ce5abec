//! Handlers that run inside the transaction of their receipt, and application work of its own.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::{Duration, Instant},
};

use counterfoil_core::{Decision, Kept, Timestamp, WorkspaceId};
use counterfoil_store::{
    Admission, Atomic, AtomicHandler, Error, Failure, StoredReply, Watched, Work,
};
use futures_util::future::join3;
use sha2::{Digest as _, Sha256};
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::{
    answers::found_for,
    connect::{Parameter, Session, Text},
    error::{Done, Fault},
    handler::{Scene, bounded},
    lane::{LOCK, LOCK_ROWS, LOOK},
    pool::Pool,
    rows::decode_as,
    schema::LOCKS,
    shared::Shared,
    write::{Sent, Writes},
};

/// Pauses between two tries.
const PAUSE: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(200);
/// How long it is tried to find out what became of a commit, beyond the caller's patience: longer
/// than the database keeps an old connection's transaction open.
const SETTLE_FOR: Duration = Duration::from_secs(12);
const UNDO: &str = "ROLLBACK TO SAVEPOINT handler; RELEASE SAVEPOINT handler";
/// Violations that were put off come to light here, not at the COMMIT.
const KEEP: &str = "SET CONSTRAINTS ALL IMMEDIATE; RELEASE SAVEPOINT handler";

static HOLD: Text = Text {
    sql: "SELECT pg_advisory_xact_lock($1)",
    types: &[Type::INT8],
};
static MARK: Text = Text {
    sql: "INSERT INTO counterfoil_marks(id) VALUES ($1)",
    types: &[Type::UUID],
};
static MARKED: Text = Text {
    sql: "SELECT EXISTS (SELECT 1 FROM counterfoil_marks WHERE id = $1)",
    types: &[Type::UUID],
};
/// Nobody asks for a mark of yesterday.
static FORGET_MARKS: Text = Text {
    sql: "DELETE FROM counterfoil_marks WHERE id IN (
            SELECT id FROM counterfoil_marks WHERE at < clock_timestamp() - interval '1 day'
            LIMIT 1000 FOR UPDATE SKIP LOCKED)",
    types: &[],
};

/// Serializes the mutations of a workspace. Two workspaces that share a number take turns.
fn workspace_lock(workspace: &WorkspaceId, patience: Duration) -> String {
    let digest: [u8; 32] = Sha256::digest(workspace.as_str()).into();
    let number = i32::from_be_bytes([digest[0] & 0x7f, digest[1], digest[2], digest[3]]);
    let millis = patience.as_millis().max(1);
    format!("SET LOCAL lock_timeout = {millis}; SELECT pg_advisory_xact_lock({LOCKS}, {number}); ")
}

/// A try that came to nothing, and whether its commit may have taken effect.
struct Broken {
    fault: Fault,
    in_doubt: bool,
}

impl<F: Into<Fault>> From<F> for Broken {
    fn from(fault: F) -> Self {
        Self {
            fault: fault.into(),
            in_doubt: false,
        }
    }
}

/// Admission, effect, result and event in one. Tried again after a deadlock or a lost connection,
/// as long as the caller's patience lasts: nothing was acknowledged.
pub(crate) async fn atomically(
    shared: Arc<Shared>,
    pool: Pool,
    admission: Admission,
    handler: Arc<dyn AtomicHandler>,
) -> Result<Atomic, Error> {
    let deadline = Instant::now() + admission.patience;
    let mut in_doubt = false;
    let mut pause = PAUSE;
    loop {
        let tried = Try {
            shared: &shared,
            pool: &pool,
            admission: &admission,
            handler: &*handler,
            deadline,
        };
        let because = match tried.run(&mut in_doubt).await {
            // Whoever holds it may be the old connection, about to commit.
            Ok(Atomic::Held) if in_doubt => Error::CommitUnknown,
            Ok(said) => return Ok(said),
            Err(Broken {
                fault: Fault::Said(error),
                ..
            }) => {
                return Err(if in_doubt {
                    Error::CommitUnknown
                } else {
                    error
                });
            }
            Err(broken) => {
                in_doubt |= broken.in_doubt;
                broken.fault.into()
            }
        };
        let until = if in_doubt {
            deadline + SETTLE_FOR
        } else {
            deadline
        };
        if Instant::now() + pause >= until {
            return Err(if in_doubt {
                Error::CommitUnknown
            } else {
                because
            });
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

struct Try<'a> {
    shared: &'a Shared,
    pool: &'a Pool,
    admission: &'a Admission,
    handler: &'a dyn AtomicHandler,
    deadline: Instant,
}

impl Try<'_> {
    async fn run(&self, in_doubt: &mut bool) -> Result<Atomic, Broken> {
        let settle_by = self.deadline + SETTLE_FOR;
        let wait_until = if *in_doubt { settle_by } else { self.deadline };
        let workspace = &self.admission.identity.workspace;
        let session = self.pool.lend_for(Some(workspace), wait_until).await?;
        let done = self.on(&session, in_doubt).await;
        let clean = matches!(done, Ok(Ended::Committed(_)));
        if !clean && !session.is_closed() {
            session.rollback().await;
        }
        done.map(|ended| match ended {
            Ended::Committed(said) | Ended::Open(said) => said,
        })
    }

    async fn on(&self, session: &Session, in_doubt: &mut bool) -> Result<Ended, Broken> {
        let identity = &self.admission.identity;
        let scopes = self.shared.scopes.all(session, &[identity]).await?;
        let scope = *scopes
            .first()
            .ok_or(Fault::Said(crate::error::corrupt("scope")))?;
        let locator = self.shared.locate(scope, identity);
        let lock = session.ready(&LOCK).await?;
        let look = session.ready(&LOOK).await?;
        let (locks, ids) = (vec![locator.lock], vec![locator.id]);
        let (scope_ids, scope_names) = (vec![scope.id], vec![scope.name]);
        let sent = Instant::now();
        let (begun, locked, rows) = join3(
            session.begin(),
            session.query(&lock, &[&locks, &scope_ids, &scope_names]),
            session.query(&look, &[&ids]),
        )
        .await;
        begun?;
        let (locked, rows) = (locked?, rows?);
        self.shared.check_scopes(&locked, 1)?;
        let said = Timestamp::from_millis(locked.first().map_or(0, |row| row.get(0)));
        self.shared.clock.read(said, sent);
        let granted: Vec<bool> = locked.first().map_or_else(Vec::new, |row| row.get(1));
        let new_ids: Vec<i64> = locked.first().map_or_else(Vec::new, |row| row.get(2));
        let ([true], [new_id]) = (granted.as_slice(), new_ids.as_slice()) else {
            return Ok(Ended::Open(Atomic::Held));
        };
        let new_id = *new_id;
        // The old connection held this lock until its transaction ended: what is seen now is how.
        *in_doubt = false;
        let admission = Admission {
            now: self.shared.time(said, self.admission.now),
            ..self.admission.clone()
        };
        let decode = |row| decode_as(row, scope.id, identity);
        let mut stored = rows.first().map(decode).transpose()?;
        let (mut decision, mut lapse) = admission.judge(stored.as_ref().map(|s| &s.receipt))?;
        let changes = lapse.is_some() || matches!(decision, Decision::Run { .. });
        if stored.is_some() && changes {
            let rows = session.ask(&LOCK_ROWS, &[&ids]).await?;
            let Some(row) = rows.first() else {
                return Ok(Ended::Open(Atomic::Held));
            };
            stored = Some(decode(row)?);
            (decision, lapse) = admission.judge(stored.as_ref().map(|s| &s.receipt))?;
        }
        let mut writes = Writes::default();
        if let (Some(stored), Some(lapse)) = (&mut stored, &lapse) {
            writes.update(stored, lapse);
        }
        let Decision::Run { replaces } = decision else {
            let stored = stored.ok_or(Fault::Said(crate::error::corrupt("decision")))?;
            let found = Box::new(found_for(session, &stored, decision).await?);
            let said = if decision == Decision::Own {
                Atomic::Own(found)
            } else {
                Atomic::Decided(decision, found)
            };
            if writes.is_empty() {
                return Ok(Ended::Open(said));
            }
            self.end(session, &writes, "").await?;
            return Ok(Ended::Committed(said));
        };
        let standing = stored.as_ref().filter(|_| !replaces);
        let operation_id = standing.map_or(admission.operation_id, |s| s.receipt.operation_id);
        let left = self.deadline.saturating_duration_since(Instant::now());
        // After a statement of the handler has failed, none can be prepared any more.
        crate::write::prepare(session).await?;
        let enter = workspace_lock(&identity.workspace, left) + "SAVEPOINT handler";
        session.run(&enter).await?;
        let limit = self.shared.options.handler_limit;
        let mut scene = Scene::new(session);
        let mut watched = Watched::new(&mut scene);
        let outcome = bounded(limit, self.handler.call(operation_id, &mut watched)).await;
        let failed = watched.failed();
        scene.check()?;
        let (outcome, failed) = match outcome {
            Ok(outcome) => (outcome, failed),
            Err(Fault::Said(error)) => (Err(Failure::Store(error)), None),
            Err(fault) => return Err(fault.into()),
        };
        let (reply, refused) = match (outcome, failed) {
            (Ok(_), Some(error)) | (Err(Failure::Store(error)), _) => {
                // What the clock made of the row stays true.
                if !writes.is_empty() {
                    self.end(session, &writes, UNDO).await?;
                }
                return Err(error.into());
            }
            (Ok(reply), None) => (reply, false),
            (Err(Failure::Refused(reply)), _) => (reply, true),
            (Err(Failure::Aborted(reply)), _) => {
                if writes.is_empty() {
                    return Ok(Ended::Open(Atomic::Aborted(reply)));
                }
                self.end(session, &writes, UNDO).await?;
                return Ok(Ended::Committed(Atomic::Aborted(reply)));
            }
        };
        let kept = self.keep(operation_id, &reply)?;
        let kept = kept.as_ref().map_err(|marker| *marker);
        let admission = Admission {
            // It ends now; its turn and the handler took their time.
            now: self
                .shared
                .time(said.plus(sent.elapsed()), self.admission.now),
            ..admission
        };
        let change = admission.execute(standing.map(|s| &s.receipt), refused, kept)?;
        match &mut stored {
            Some(stored) if !replaces => writes.update(stored, &change),
            replaced => writes.insert(new_id, scope, locator, replaced.as_ref(), &change),
        }
        writes
            .notify
            .extend(self.shared.watchers.wanted(operation_id));
        self.end(session, &writes, if refused { UNDO } else { KEEP })
            .await?;
        Ok(Ended::Committed(Atomic::Ran(
            Box::new(change.receipt.clone()),
            reply,
        )))
    }

    fn keep(
        &self,
        operation_id: counterfoil_core::OperationId,
        reply: &counterfoil_core::Reply,
    ) -> Result<Result<StoredReply, Kept>, Error> {
        catch_unwind(AssertUnwindSafe(|| self.handler.keep(operation_id, reply)))
            .map_err(|_| Error::Handler("it panicked while its answer was prepared".to_owned()))
    }

    async fn end(&self, session: &Session, writes: &Writes, first: &str) -> Result<(), Broken> {
        let flight = writes.ready(session).await?;
        match flight.send(session, first, true).await {
            Sent::Done => {
                self.shared.note_success();
                self.shared.tally.add(&writes.unresolved);
                Ok(())
            }
            Sent::Refused(fault) => Err(fault.into()),
            Sent::InDoubt(why) => Err(Broken {
                fault: Fault::Lost(why),
                in_doubt: true,
            }),
        }
    }
}

/// Whether a try ended its transaction.
enum Ended {
    /// By a COMMIT.
    Committed(Atomic),
    /// Not yet: there is nothing to be kept of it.
    Open(Atomic),
}

/// An application's statements without a receipt. At most one run of them is committed.
pub(crate) async fn transact(
    shared: Arc<Shared>,
    pool: Pool,
    workspace: Option<WorkspaceId>,
    work: Arc<dyn Work>,
) -> Result<(), Error> {
    let deadline = Instant::now() + shared.options.patience;
    let mut pause = PAUSE;
    loop {
        let session = pool.lend_for(workspace.as_ref(), deadline).await?;
        let mark = Mark::new()?;
        let fault = match on(
            &shared,
            &session,
            workspace.as_ref(),
            &*work,
            mark,
            deadline,
        )
        .await
        {
            Ok(true) => {
                shared.note_success();
                if mark.is_one_in_many() {
                    // The next one does it if this one cannot.
                    let _ = session.tell(&FORGET_MARKS, &[]).await;
                }
                return Ok(());
            }
            Ok(false) => {
                drop(session);
                if settle(&pool, mark).await? {
                    return Ok(());
                }
                Fault::Lost("the connection broke before the commit".to_owned())
            }
            Err(fault) => {
                if !session.is_closed() {
                    session.rollback().await;
                }
                fault
            }
        };
        match fault {
            Fault::Said(error) => {
                shared.note_failure(&error);
                return Err(error);
            }
            fault if Instant::now() + pause >= deadline => return Err(fault.into()),
            Fault::Lost(_) | Fault::Deadlock | Fault::Locked | Fault::Stale => {}
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// A row that a transaction leaves behind, and the advisory lock that it holds until it has ended.
/// The number of the transaction itself would not do: after a crash it may be given again.
#[derive(Clone, Copy)]
struct Mark(Uuid);

impl Mark {
    fn new() -> Result<Self, Error> {
        let mut random = [0; 16];
        getrandom::fill(&mut random)
            .map_err(|error| Error::Unavailable(format!("there is no randomness: {error}")))?;
        Ok(Self(Uuid::from_bytes(random)))
    }

    fn lock(self) -> i64 {
        let (high, _) = self.0.as_u64_pair();
        high.cast_signed()
    }

    fn is_one_in_many(self) -> bool {
        self.0.as_bytes()[15] < 8
    }
}

/// Runs the work and commits. `false`: the commit is in doubt.
async fn on(
    shared: &Shared,
    session: &Session,
    workspace: Option<&WorkspaceId>,
    work: &dyn Work,
    mark: Mark,
    deadline: Instant,
) -> Done<bool> {
    let hold = session.ready(&HOLD).await?;
    let leave = session.ready(&MARK).await?;
    let lock: [Parameter<'_>; 1] = [&mark.lock()];
    let (begun, held, marked) = join3(
        session.begin(),
        session.query(&hold, &lock),
        session.execute(&leave, &[&mark.0]),
    )
    .await;
    begun?;
    held?;
    marked?;
    if let Some(workspace) = workspace {
        let left = deadline.saturating_duration_since(Instant::now());
        session.run(&workspace_lock(workspace, left)).await?;
    }
    let limit = shared.options.handler_limit;
    let mut scene = Scene::new(session);
    let mut watched = Watched::new(&mut scene);
    let done = bounded(limit, work.call(&mut watched)).await;
    let failed = watched.failed();
    scene.check()?;
    done??;
    if let Some(error) = failed {
        return Err(error.into());
    }
    session.run("SET CONSTRAINTS ALL IMMEDIATE").await?;
    match session.commit().await {
        Ok(()) => Ok(true),
        Err(Fault::Lost(_)) => Ok(false),
        Err(fault) => Err(fault),
    }
}

/// Whether a transaction took effect: once its lock can be had it has ended, and either its mark is
/// there or it never will be.
///
/// # Errors
/// [`Error::CommitUnknown`] if it cannot be found out.
async fn settle(pool: &Pool, mark: Mark) -> Result<bool, Error> {
    let deadline = Instant::now() + SETTLE_FOR;
    let mut pause = PAUSE;
    while Instant::now() + pause < deadline {
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
        let Ok(session) = pool.lend(deadline).await else {
            continue;
        };
        let found = find_mark(&session, mark).await;
        session.rollback().await;
        if let Ok(found) = found {
            return Ok(found);
        }
    }
    Err(Error::CommitUnknown)
}

async fn find_mark(session: &Session, mark: Mark) -> Done<bool> {
    session.begin().await?;
    session.ask(&HOLD, &[&mark.lock()]).await?;
    // A statement of its own: it must see what the lock was waited for.
    let rows = session.ask(&MARKED, &[&mark.0]).await?;
    Ok(rows.first().is_some_and(|row| row.get(0)))
}
