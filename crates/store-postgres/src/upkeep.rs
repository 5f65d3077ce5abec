//! What a store does of its own accord: lapsed leases, sweeps, small facts, and a look at the
//! database every second.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
    time::{Duration, Instant},
};

use counterfoil_core::{Kept, Phase, Timestamp};
use counterfoil_store::{Error, SweepPlan, Swept, lapsed};
use tokio_postgres::{Row, types::Type};

use crate::{
    TimeSource,
    connect::{Parameter, Session, Text},
    error::{Done, Fault},
    rows::{Stored, decode, named_columns, named_tables},
    shared::{Shared, read_clock},
    write::{Sent, Writes},
};

/// How often the database's clock is read and unresolved receipts are counted.
const PULSE: Duration = Duration::from_secs(1);
/// Most rows one transaction of a sweep deletes.
const ROWS_PER_STEP: usize = 100;
/// Strange rows that are told of, and pages of nothing else that one step looks at.
const STRANGE_MAX: usize = 1024;
const STRANGE_PAGES_MAX: usize = 16;
/// Counting takes at most one part in so many of the time.
const COUNT_REST: u32 = 10;
/// How long a count that failed is not tried again.
const COUNT_PAUSE: Duration = Duration::from_secs(30);
/// The note that is written to see whether writing works again.
const PROBE: &str = "counterfoil.health";

static ANY_LAPSED: Text = Text {
    sql: "SELECT EXISTS (SELECT 1 FROM counterfoil_open WHERE lapse_at <= $1)",
    types: &[Type::INT8],
};
/// A row that is locked is alive, whatever its lease says: its transaction is open.
static LAPSED: Text = Text {
    sql: concat!(
        "SELECT ",
        named_columns!(),
        named_tables!(),
        "JOIN counterfoil_open AS o ON o.receipt = r.id \
         WHERE o.lapse_at <= $1 AND r.id <> ALL($3) \
         ORDER BY o.lapse_at LIMIT $2 FOR NO KEY UPDATE OF r SKIP LOCKED"
    ),
    types: &[Type::INT8, Type::INT8, Type::INT8_ARRAY],
};
static PAGE: Text = Text {
    sql: concat!(
        "SELECT ",
        named_columns!(),
        ", EXISTS (SELECT 1 FROM counterfoil_questions AS q WHERE q.receipt = r.id)",
        named_tables!(),
        "WHERE r.id > $1 ORDER BY r.id LIMIT $2"
    ),
    types: &[Type::INT8, Type::INT8],
};
static MORE: Text = Text {
    sql: "SELECT EXISTS (SELECT 1 FROM counterfoil_receipts WHERE id > $1)",
    types: &[Type::INT8],
};
static LOCK_IDS: Text = Text {
    sql: concat!(
        "SELECT ",
        named_columns!(),
        named_tables!(),
        "WHERE r.id = ANY($1) ORDER BY r.id FOR UPDATE OF r SKIP LOCKED"
    ),
    types: &[Type::INT8_ARRAY],
};
static SET_NOTE: Text = Text {
    sql: "INSERT INTO counterfoil_notes(name, value) VALUES ($1, $2)
          ON CONFLICT (name) DO UPDATE SET value = excluded.value",
    types: &[Type::TEXT, Type::BYTEA],
};
static WRITABLE: Text = Text {
    sql: "SELECT pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean",
    types: &[],
};

/// Records lapsed leases and abandoned questions; how many. Nothing is written to find out that
/// there are none.
pub(crate) async fn lapse(
    shared: &Shared,
    session: &Session,
    brought: Timestamp,
    limit: u32,
) -> Done<u32> {
    let now = match shared.options.time {
        TimeSource::Database => read_clock(session, &shared.clock).await?,
        TimeSource::Caller => brought,
    };
    let any = session.ask(&ANY_LAPSED, &[&now.as_millis()]).await?;
    if !any.first().is_some_and(|row| row.get(0)) {
        return Ok(0);
    }
    session.begin().await?;
    let done = lapse_locked(shared, session, now, limit).await;
    if done.is_err() {
        session.rollback().await;
    }
    done
}

async fn lapse_locked(shared: &Shared, session: &Session, now: Timestamp, limit: u32) -> Done<u32> {
    let mut writes = Writes::default();
    let mut count = 0;
    let mut strange = Vec::new();
    for _ in 0..STRANGE_PAGES_MAX {
        let rows = session
            .ask(&LAPSED, &[&now.as_millis(), &i64::from(limit), &strange])
            .await?;
        let known = strange.len();
        for row in &rows {
            let judged = decode(row)
                .and_then(|stored| lapsed(&stored.receipt, now).map(|change| (stored, change)));
            match judged {
                Ok((mut stored, Some(change))) => {
                    writes.update(&mut stored, &change);
                    let wanted = shared.watchers.wanted(stored.receipt.operation_id);
                    writes.notify.extend(wanted);
                    count += 1;
                }
                Ok((_, None)) => {}
                Err(error) => strange.push(shared.strange.skip(row, &error)),
            }
        }
        // A page of nothing else must not hide what lies behind it.
        if rows.is_empty() || strange.len() - known < rows.len() {
            break;
        }
    }
    end(shared, session, &writes).await?;
    Ok(count)
}

/// Rows that cannot be understood. Each is told of once, and stands in nobody else's way.
#[derive(Default)]
pub(crate) struct Strange(Mutex<BTreeSet<i64>>);

impl Strange {
    /// The row's id.
    fn skip(&self, row: &Row, error: &Error) -> i64 {
        let receipt = row.get(0);
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() < STRANGE_MAX && told.insert(receipt) {
            tracing::error!(receipt, %error, "a row of counterfoil_receipts is left alone");
        }
        receipt
    }
}

/// Writes and commits. Steps that may simply be repeated.
async fn end(shared: &Shared, session: &Session, writes: &Writes) -> Done<()> {
    let flight = writes.ready(session).await?;
    match flight.send(session, "", true).await {
        Sent::Done => {
            shared.tally.add(&writes.unresolved);
            shared.note_success();
            Ok(())
        }
        Sent::Refused(fault) => {
            note_refusal(shared, &fault);
            Err(fault)
        }
        Sent::InDoubt(_) => Err(Fault::Said(Error::CommitUnknown)),
    }
}

/// One step of a sweep: looks at a page of receipts, and deletes what is past its time.
pub(crate) async fn sweep(shared: &Shared, session: &Session, plan: SweepPlan) -> Done<Swept> {
    let limit = i64::from(plan.limit.max(1));
    let rows = session.ask(&PAGE, &[&plan.after, &limit]).await?;
    let mut due = Vec::new();
    let mut last = plan.after;
    let mut any_old = false;
    for row in &rows {
        last = row.get(0);
        let stored = match decode(row) {
            Ok(stored) => stored,
            Err(error) => {
                shared.strange.skip(row, &error);
                any_old = true;
                continue;
            }
        };
        // Not the first young row ends the sweep but a whole step of them: a clock that jumped
        // may have left some among old ones.
        any_old |= stored.receipt.created_at <= plan.horizon;
        let wanted = match stored.receipt.phase(plan.horizon) {
            Phase::Live => false,
            Phase::Tombstone => stored.receipt.kept == Kept::Stored || row.get(29),
            Phase::Gone => true,
        };
        if wanted {
            due.push(stored.id);
        }
    }
    let mut swept = Swept::default();
    for ids in due.chunks(ROWS_PER_STEP) {
        session.begin().await?;
        let done = delete(shared, session, ids, plan.horizon, &mut swept).await;
        if done.is_err() {
            session.rollback().await;
        }
        done?;
    }
    let full = i64::try_from(rows.len()).is_ok_and(|count| count == limit);
    if full && any_old {
        let more = session.ask(&MORE, &[&last]).await?;
        swept.next = more.first().is_some_and(|row| row.get(0)).then_some(last);
    }
    Ok(swept)
}

/// Judges each row again under its lock.
async fn delete(
    shared: &Shared,
    session: &Session,
    ids: &[i64],
    horizon: Timestamp,
    swept: &mut Swept,
) -> Done<()> {
    let rows = session.ask(&LOCK_IDS, &[&ids]).await?;
    let mut writes = Writes::default();
    let (mut results, mut receipts) = (0, 0);
    for row in &rows {
        let mut stored: Stored = match decode(row) {
            Ok(stored) => stored,
            Err(error) => {
                shared.strange.skip(row, &error);
                continue;
            }
        };
        match stored.receipt.phase(horizon) {
            Phase::Live => {}
            Phase::Tombstone => {
                results += u64::from(stored.receipt.kept == Kept::Stored);
                writes.forget(&mut stored);
            }
            // Only finished and released receipts age, so the tally of unresolved ones stays.
            Phase::Gone => {
                receipts += 1;
                writes.delete(stored.id);
            }
        }
    }
    end(shared, session, &writes).await?;
    swept.results += results;
    swept.receipts += receipts;
    Ok(())
}

pub(crate) async fn set_note(
    shared: &Shared,
    session: &Session,
    name: &str,
    value: &[u8],
) -> Done<()> {
    let parameters: [Parameter<'_>; 2] = [&name, &value];
    let set = if session.is_pooled() {
        in_transaction(session, &parameters).await
    } else {
        session.tell(&SET_NOTE, &parameters).await.map(drop)
    };
    match &set {
        Ok(()) => shared.note_success(),
        Err(fault) => note_refusal(shared, fault),
    }
    set
}

/// With the settings that a session of its own would have, above all that it waits for the disk.
async fn in_transaction(session: &Session, parameters: &[Parameter<'_>]) -> Done<()> {
    session.begin().await?;
    let set = match session.tell(&SET_NOTE, parameters).await {
        Ok(_) => session.commit().await,
        Err(fault) => Err(fault),
    };
    if set.is_err() && !session.is_closed() {
        session.rollback().await;
    }
    set
}

fn note_refusal(shared: &Shared, fault: &Fault) {
    if let Fault::Said(error) = fault {
        shared.note_failure(error);
    }
}

/// An error if the database cannot be written to. It is not tried unless a write was refused.
pub(crate) async fn check_writable(shared: &Shared, session: &Session) -> Done<()> {
    let rows = session.ask(&WRITABLE, &[]).await?;
    if rows.first().is_some_and(|row| row.get(0)) {
        return Err(Fault::Said(Error::Unavailable(
            "the database is read-only (a standby?)".to_owned(),
        )));
    }
    if shared.failing.load(Ordering::Acquire) {
        set_note(shared, session, PROBE, &[]).await?;
    }
    Ok(())
}

/// Looks at the database every second, until the task is ended.
pub(crate) async fn pulse(shared: Arc<Shared>) {
    let mut session = None;
    let mut count_at = Instant::now();
    loop {
        tokio::time::sleep(PULSE).await;
        let open = match session.take() {
            Some(open) => Ok(open),
            None => shared.connector.connect().await.map(|(open, _)| open),
        };
        let Ok(open) = open else {
            continue;
        };
        if read_clock(&open, &shared.clock).await.is_err() {
            continue;
        }
        let began = Instant::now();
        if began >= count_at {
            if shared.tally.count(&open).await.is_err() {
                count_at = began + COUNT_PAUSE;
                continue;
            }
            count_at = began + began.elapsed() * COUNT_REST;
        }
        session = Some(open);
    }
}
