//! Reading, past the lanes.

use std::{
    panic::AssertUnwindSafe,
    sync::Arc,
    time::{Duration, Instant},
};

use counterfoil_core::{EventRecord, Identity, OperationId, State};
use counterfoil_store::{Cursor, Error, Found, Page, Query, ReadWork, StoredReply, Watched};
use futures_util::FutureExt as _;
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio_postgres::{Row, types::Type};
use uuid::Uuid;

use crate::{
    answers::QUESTION,
    connect::{Session, Text},
    error::{Done, Fault, busy},
    handler::{Scene, bounded},
    queue::{closed, say_busy},
    rows::{
        NAMED_COLUMNS, RECEIPT_COLUMNS, decode, decode_as, decode_event, decode_reply, first_event,
        last_event, locator_of, named_columns, named_tables, receipt_columns, reply_columns,
        uuid_of,
    },
    scopes::Scope,
    shared::Shared,
};

/// Most rows of an operation's log that are shown.
const EVENTS_MAX: i64 = 1000;
/// Most rows one page of a list looks at; a page may be short because of it.
const LOOKED_AT_MAX: i64 = 5000;
/// Most receipts one statement looks up.
const LOOKUPS_MAX: usize = 128;
/// Before a reader that failed begins anew.
const PAUSE: Duration = Duration::from_millis(50);
/// Look-ups that wait for a reader.
const WAITING_MAX: usize = 4096;
/// How long a look-up may take beyond the store's patience.
const SLACK: Duration = Duration::from_secs(1);

static FIND: Text = Text {
    sql: concat!(
        "SELECT ",
        receipt_columns!(),
        ", ",
        reply_columns!(),
        " FROM counterfoil_receipts AS r \
          LEFT JOIN counterfoil_results AS a ON a.receipt = r.id AND r.kept = 1 \
          WHERE r.locator = ANY($1)"
    ),
    types: &[Type::UUID_ARRAY],
};
static GET: Text = Text {
    sql: concat!(
        "SELECT ",
        named_columns!(),
        ", ",
        reply_columns!(),
        named_tables!(),
        "LEFT JOIN counterfoil_results AS a ON a.receipt = r.id AND r.kept = 1 \
         WHERE r.operation_id = $1"
    ),
    types: &[Type::UUID],
};
static QUESTION_OF: Text = Text {
    sql: concat!(
        "SELECT ",
        reply_columns!(),
        " FROM counterfoil_receipts AS r \
          JOIN counterfoil_questions AS a ON a.receipt = r.id AND a.round = $2 \
          WHERE r.operation_id = $1"
    ),
    types: &[Type::UUID, Type::INT4],
};
static ID_OF: Text = Text {
    sql: "SELECT id FROM counterfoil_receipts WHERE operation_id = $1",
    types: &[Type::UUID],
};
static EVENTS: Text = Text {
    sql: "SELECT at, attempt, from_state, to_state, reason, evidence FROM counterfoil_events
          WHERE id BETWEEN $1 AND $2 ORDER BY id LIMIT $3",
    types: &[Type::INT8, Type::INT8, Type::INT8],
};
/// Where a page that looks at no more than so many rows ends.
static FLOOR: Text = Text {
    sql: "SELECT r.id FROM counterfoil_receipts AS r
          JOIN counterfoil_workspaces AS w ON w.id = r.workspace
          WHERE w.name = $1 AND r.id < $2 ORDER BY r.id DESC OFFSET $3 LIMIT 1",
    types: &[Type::TEXT, Type::INT8, Type::INT8],
};
static LIST: Text = Text {
    sql: concat!(
        "SELECT ",
        named_columns!(),
        named_tables!(),
        "WHERE w.name = $1 AND r.id < $2 AND r.id > $3 AND r.state = ANY($4) \
           AND ($5::text IS NULL OR s.principal = $5) \
         ORDER BY r.id DESC LIMIT $6"
    ),
    types: &[
        Type::TEXT,
        Type::INT8,
        Type::INT8,
        Type::INT2_ARRAY,
        Type::TEXT,
        Type::INT8,
    ],
};
/// The same order, from the index over the few rows in doubt.
static LIST_DOUBT: Text = Text {
    sql: concat!(
        "SELECT ",
        named_columns!(),
        named_tables!(),
        "JOIN counterfoil_open AS o ON o.receipt = r.id AND o.workspace = w.id AND o.doubt \
         WHERE w.name = $1 AND o.receipt < $2 AND o.receipt > $3 AND r.state = ANY($4) \
           AND ($5::text IS NULL OR s.principal = $5) \
         ORDER BY o.receipt DESC LIMIT $6"
    ),
    types: &[
        Type::TEXT,
        Type::INT8,
        Type::INT8,
        Type::INT2_ARRAY,
        Type::TEXT,
        Type::INT8,
    ],
};
static NOTE: Text = Text {
    sql: "SELECT value FROM counterfoil_notes WHERE name = $1",
    types: &[Type::TEXT],
};

/// One look-up that waits for a reader.
pub(crate) struct Lookup {
    locator: Uuid,
    reply: oneshot::Sender<Result<Option<Row>, Error>>,
}

/// Where look-ups go: many callers share one statement.
#[derive(Clone)]
pub(crate) struct Lookups(mpsc::Sender<Lookup>);

/// The other end.
pub(crate) type Waiting = Arc<Mutex<mpsc::Receiver<Lookup>>>;

impl Lookups {
    pub(crate) fn new() -> (Self, Waiting) {
        let (send, receive) = mpsc::channel(WAITING_MAX);
        (Self(send), Arc::new(Mutex::new(receive)))
    }

    async fn row(&self, locator: Uuid, patience: Duration) -> Result<Option<Row>, Error> {
        let (reply, answer) = oneshot::channel();
        let lookup = Lookup { locator, reply };
        let deadline = tokio::time::Instant::now() + patience.saturating_add(SLACK);
        tokio::time::timeout_at(deadline, self.0.send(lookup))
            .await
            .map_err(|_| say_busy())?
            .map_err(|_| closed())?;
        // Nothing says so where everything is swallowed.
        tokio::time::timeout_at(deadline, answer)
            .await
            .map_err(|_| Error::Unavailable("the database did not answer in time".to_owned()))?
            .map_err(|_| closed())?
    }
}

/// [`run`], and again after a fault in it.
pub(crate) async fn keep_running(shared: Arc<Shared>, waiting: Waiting, first: Session) {
    let mut session = Some(first);
    loop {
        let running = run(Arc::clone(&shared), Arc::clone(&waiting), session.take());
        if AssertUnwindSafe(running).catch_unwind().await.is_ok() {
            return;
        }
        tracing::error!("a reader of the receipt store failed; it begins anew");
        tokio::time::sleep(PAUSE).await;
    }
}

/// One reader: takes what waits, and looks it up in one statement. A connection that broke is
/// replaced, and the look-ups are done again.
async fn run(shared: Arc<Shared>, waiting: Waiting, mut session: Option<Session>) {
    let mut batch = Vec::with_capacity(LOOKUPS_MAX);
    loop {
        batch.clear();
        if waiting
            .lock()
            .await
            .recv_many(&mut batch, LOOKUPS_MAX)
            .await
            == 0
        {
            return;
        }
        // While the database was away, their callers may have given up.
        batch.retain(|lookup: &Lookup| !lookup.reply.is_closed());
        if batch.is_empty() {
            continue;
        }
        let ids: Vec<Uuid> = batch.iter().map(|lookup| lookup.locator).collect();
        let mut looked = Err(Fault::Stale);
        for _ in 0..2 {
            let open = match session.take().filter(Session::is_clean) {
                Some(open) => Ok(open),
                None => shared.connector.connect().await.map(|(open, _)| open),
            };
            match open {
                Ok(open) => {
                    looked = open.ask(&FIND, &[&ids]).await;
                    session = Some(open);
                }
                Err(fault) => looked = Err(fault),
            }
            match &looked {
                Ok(_) | Err(Fault::Said(_)) => break,
                Err(Fault::Lost(_) | Fault::Stale | Fault::Deadlock | Fault::Locked) => {
                    session = None;
                }
            }
        }
        answer(&mut batch, looked.map_err(Error::from));
    }
}

fn answer(batch: &mut Vec<Lookup>, looked: Result<Vec<Row>, Error>) {
    match looked {
        Ok(rows) => {
            for Lookup { locator, reply } in batch.drain(..) {
                let row = rows.iter().find(|row| locator_of(row) == locator);
                let _ = reply.send(Ok(row.cloned()));
            }
        }
        Err(error) => {
            for Lookup { reply, .. } in batch.drain(..) {
                let _ = reply.send(Err(error.clone()));
            }
        }
    }
}

/// What a look-up found: the row with its answer, or the handle of an operation whose question
/// must be fetched.
pub(crate) enum Looked {
    Nothing,
    Found(Box<Found>),
    Asks(OperationId),
}

pub(crate) async fn find(
    shared: &Shared,
    lookups: &Lookups,
    scope: Scope,
    identity: &Identity,
) -> Result<Looked, Error> {
    let locator = shared.locate(scope, identity);
    let Some(row) = lookups.row(locator.id, shared.options.patience).await? else {
        return Ok(Looked::Nothing);
    };
    if row.get::<_, i64>(1) != scope.id {
        // Another database has taken over, and numbers its scopes otherwise.
        shared.scopes.forget();
        return Err(busy());
    }
    let stored = decode_as(&row, scope.id, identity)?;
    if stored.receipt.status.state == State::InputRequired {
        return Ok(Looked::Asks(stored.receipt.operation_id));
    }
    Ok(Looked::Found(Box::new(Found {
        receipt: stored.receipt,
        reply: decode_reply(&row, RECEIPT_COLUMNS)?,
    })))
}

pub(crate) async fn get(session: &Session, operation_id: OperationId) -> Done<Option<Found>> {
    let rows = session.ask(&GET, &[&uuid_of(operation_id)]).await?;
    let Some(row) = rows.first() else {
        return Ok(None);
    };
    let stored = decode(row)?;
    let mut reply = decode_reply(row, NAMED_COLUMNS)?;
    if stored.receipt.status.state == State::InputRequired {
        let round = i32::from(stored.receipt.status.round);
        let rows = session.ask(&QUESTION, &[&stored.id, &round]).await?;
        reply = match rows.first() {
            Some(row) => decode_reply(row, 0)?,
            None => None,
        };
    }
    Ok(Some(Found {
        receipt: stored.receipt,
        reply,
    }))
}

pub(crate) async fn question(
    session: &Session,
    operation_id: OperationId,
    round: u16,
) -> Done<Option<StoredReply>> {
    let round = i32::from(round);
    let rows = session
        .ask(&QUESTION_OF, &[&uuid_of(operation_id), &round])
        .await?;
    match rows.first() {
        Some(row) => Ok(decode_reply(row, 0)?),
        None => Ok(None),
    }
}

pub(crate) async fn events(session: &Session, operation_id: OperationId) -> Done<Vec<EventRecord>> {
    let rows = session.ask(&ID_OF, &[&uuid_of(operation_id)]).await?;
    let Some(id) = rows.first().map(|row| row.get::<_, i64>(0)) else {
        return Ok(Vec::new());
    };
    let rows = session
        .ask(&EVENTS, &[&first_event(id), &last_event(id), &EVENTS_MAX])
        .await?;
    let events: Result<Vec<_>, _> = rows.iter().map(decode_event).collect();
    Ok(events?)
}

pub(crate) async fn list(session: &Session, query: &Query) -> Done<Page> {
    const IN_DOUBT: [State; 2] = [State::InputRequired, State::OutcomeUnknown];
    let in_doubt =
        !query.states.is_empty() && query.states.iter().all(|state| IN_DOUBT.contains(state));
    let states: Vec<i16> = if query.states.is_empty() {
        State::all()
            .filter(|state| *state != State::Free)
            .map(|state| i16::from(state.to_byte()))
            .collect()
    } else {
        let states = query.states.iter();
        states.map(|state| i16::from(state.to_byte())).collect()
    };
    let workspace = query.workspace.as_str();
    let before = query.cursor.map_or(i64::MAX, |cursor| cursor.0);
    let limit = usize::try_from(query.limit.clamp(1, 500)).unwrap_or(1);
    // One more says whether there is more.
    let wanted = i64::try_from(limit + 1).unwrap_or(i64::MAX);
    let principal = query.principal.as_ref().map(|principal| principal.as_str());
    let floor = if in_doubt {
        None
    } else {
        let rows = session
            .ask(&FLOOR, &[&workspace, &before, &LOOKED_AT_MAX])
            .await?;
        rows.first().map(|row| row.get::<_, i64>(0))
    };
    let text = if in_doubt { &LIST_DOUBT } else { &LIST };
    let above = floor.unwrap_or(0);
    let rows = session
        .ask(
            text,
            &[&workspace, &before, &above, &states, &principal, &wanted],
        )
        .await?;
    let next = match rows.get(limit.wrapping_sub(1)) {
        Some(last) if rows.len() > limit => Some(Cursor(last.get(0))),
        Some(_) | None => floor.map(|floor| Cursor(floor.saturating_add(1))),
    };
    let receipts: Result<Vec<_>, Error> = rows
        .iter()
        .take(limit)
        .map(|row| decode(row).map(|stored| stored.receipt))
        .collect();
    Ok(Page {
        receipts: receipts?,
        next,
    })
}

pub(crate) async fn note(session: &Session, name: &str) -> Done<Option<Vec<u8>>> {
    let rows = session.ask(&NOTE, &[&name]).await?;
    Ok(rows.first().map(|row| row.get(0)))
}

/// Runs an application's queries on one state of the database. What they began is not ended.
pub(crate) async fn work(
    shared: &Shared,
    session: &Session,
    work: &mut (dyn ReadWork + '_),
    deadline: Instant,
) -> Done<()> {
    let limit = shared
        .options
        .handler_limit
        .min(deadline.saturating_duration_since(Instant::now()));
    let mut scene = Scene::reading(session);
    let mut watched = Watched::new(&mut scene);
    let done = bounded(limit, work.call(&mut watched)).await;
    let failed = watched.failed();
    scene.check()?;
    done??;
    match failed {
        Some(error) => Err(error.into()),
        None => Ok(()),
    }
}
