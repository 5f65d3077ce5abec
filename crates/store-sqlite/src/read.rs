//! Reading, past the writer.

use std::sync::{Mutex, PoisonError};

use counterfoil_core::{EventRecord, Identity, OperationId, State, Timestamp};
use counterfoil_store::{Cursor, Error, Found, Page, Query, ReadWork, StoredReply};
use rusqlite::{Connection, OptionalExtension as _};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::{
    connection::{Guarded, Place},
    error::map,
    handler::Reading,
    rows::{self, RECEIPT_COLUMNS, Unreadable, receipt_columns, receipt_tables},
    schema, scopes,
    tx::{Shared, of_operation},
};

/// Most rows of an operation's log that are shown.
const EVENTS_MAX: i64 = 1000;
/// Most rows one page of a list looks at; a page may be short because of it.
const LOOKED_AT_MAX: u32 = 5000;

/// The reading connections. They are used where the caller runs: a lookup takes some ten
/// microseconds, less than the way to another thread.
#[derive(Debug)]
pub(crate) struct Readers {
    place: Place,
    idle: Mutex<Vec<Guarded>>,
    permits: Semaphore,
}

impl Readers {
    pub(crate) fn new(place: Place, max: usize) -> Self {
        Self {
            place,
            idle: Mutex::default(),
            permits: Semaphore::new(max.clamp(1, Semaphore::MAX_PERMITS)),
        }
    }

    /// A connection of one's own, opened if none is idle.
    pub(crate) async fn take(&self, shared: &Shared) -> Result<Reader<'_>, Error> {
        let permit = self
            .permits
            .acquire()
            .await
            .map_err(|_| Error::Unavailable("the store is closed".to_owned()))?;
        shared
            .presence
            .look_sometimes()
            .map_err(|error| map(&error))?;
        let idle = self
            .idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop();
        let guarded = match idle {
            Some(guarded) => guarded,
            None => self
                .place
                .reader(&shared.options)
                .map_err(|error| map(&error))?,
        };
        Ok(Reader {
            pool: self,
            guarded: Some(guarded),
            _permit: permit,
        })
    }

    /// No reads from now on.
    pub(crate) fn close(&self) {
        self.permits.close();
        self.idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }
}

/// A reading connection, given back when dropped.
#[derive(Debug)]
pub(crate) struct Reader<'p> {
    pool: &'p Readers,
    guarded: Option<Guarded>,
    _permit: SemaphorePermit<'p>,
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        let Some(guarded) = self.guarded.take() else {
            return;
        };
        // A read that was given up in the middle leaves its transaction open.
        let clean = guarded.sqlite.is_autocommit() || run(&guarded.sqlite, "ROLLBACK").is_ok();
        if clean && !self.pool.permits.is_closed() {
            self.pool
                .idle
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(guarded);
        }
    }
}

impl Reader<'_> {
    /// Runs `look`; a connection that failed is not used again.
    pub(crate) fn look<T>(
        &mut self,
        look: impl FnOnce(&Connection) -> Result<T, Unreadable>,
    ) -> Result<T, Error> {
        let looked = match &self.guarded {
            Some(guarded) => look(&guarded.sqlite).map_err(Error::from),
            None => Err(Error::Unavailable(
                "the reading connection failed".to_owned(),
            )),
        };
        if looked.is_err() {
            self.guarded = None;
        }
        looked
    }

    /// Runs `look` on one state of the database.
    pub(crate) fn snapshot<T>(
        &mut self,
        look: impl FnOnce(&Connection) -> Result<T, Unreadable>,
    ) -> Result<T, Error> {
        self.look(|connection| {
            run(connection, "BEGIN")?;
            let looked = look(connection)?;
            run(connection, "COMMIT")?;
            Ok(looked)
        })
    }

    pub(crate) fn find(
        &mut self,
        shared: &Shared,
        identity: &Identity,
    ) -> Result<Option<Found>, Error> {
        let found = self.look(|connection| find(connection, shared, identity))?;
        match found {
            Some(found) if found.receipt.status.state == State::InputRequired => {
                self.snapshot(|connection| {
                    match of_operation(connection, found.receipt.operation_id)? {
                        Some(stored) => rows::found(connection, stored, None).map(Some),
                        None => Ok(None),
                    }
                })
            }
            other => Ok(other),
        }
    }

    pub(crate) fn get(&mut self, operation_id: OperationId) -> Result<Option<Found>, Error> {
        self.snapshot(|connection| match of_operation(connection, operation_id)? {
            Some(stored) => rows::found(connection, stored, None).map(Some),
            None => Ok(None),
        })
    }

    pub(crate) fn question(
        &mut self,
        operation_id: OperationId,
        round: u16,
    ) -> Result<Option<StoredReply>, Error> {
        self.snapshot(|connection| match of_operation(connection, operation_id)? {
            Some(stored) => rows::question(connection, stored.id, round),
            None => Ok(None),
        })
    }

    pub(crate) fn events(&mut self, operation_id: OperationId) -> Result<Vec<EventRecord>, Error> {
        self.snapshot(|connection| match of_operation(connection, operation_id)? {
            Some(stored) => rows::events(connection, stored.id, EVENTS_MAX),
            None => Ok(Vec::new()),
        })
    }

    pub(crate) fn list(&mut self, query: &Query) -> Result<Page, Error> {
        self.look(|connection| list(connection, query))
    }

    pub(crate) fn note(&mut self, name: &str) -> Result<Option<Vec<u8>>, Error> {
        self.look(|connection| {
            Ok(connection
                .prepare_cached("SELECT value FROM counterfoil_notes WHERE name = ?1")?
                .query_row([name], |row| row.get(0))
                .optional()?)
        })
    }

    pub(crate) fn component(&mut self, name: &str) -> Result<i64, Error> {
        self.look(|connection| Ok(schema::component(connection, name)?))
    }

    pub(crate) fn unresolved(&mut self) -> Result<u64, Error> {
        self.look(|connection| {
            let sum: i64 = connection
                .prepare_cached("SELECT coalesce(sum(unresolved), 0) FROM counterfoil_workspaces")?
                .query_row([], |row| row.get(0))?;
            Ok(u64::try_from(sum).unwrap_or_default())
        })
    }

    /// Whether a lease has lapsed that no row says so of yet.
    pub(crate) fn any_lapsed(&mut self, now: Timestamp) -> Result<bool, Error> {
        self.look(|connection| {
            let mut statement = connection.prepare_cached(
                "SELECT EXISTS (SELECT 1 FROM counterfoil_receipts
                 WHERE state BETWEEN 2 AND 4 AND mode <> 2 AND lease_until <= ?1)",
            )?;
            Ok(statement.query_row([now.as_millis()], |row| row.get(0))?)
        })
    }

    /// Runs an application's queries on one state of the database.
    pub(crate) async fn run(
        &mut self,
        shared: &Shared,
        work: &mut dyn ReadWork,
    ) -> Result<(), Error> {
        let Some(guarded) = &mut self.guarded else {
            return Err(Error::Unavailable(
                "the reading connection failed".to_owned(),
            ));
        };
        run(&guarded.sqlite, "BEGIN").map_err(|error| map(&error))?;
        let mut session = Reading {
            connection: guarded,
            limit: shared.options.handler_limit,
        };
        // The transaction is ended when the connection is given back, whatever the work says.
        work.call(&mut session).await
    }
}

/// Runs a statement without parameters or rows, compiled once.
fn run(connection: &Connection, sql: &str) -> Result<(), rusqlite::Error> {
    connection.prepare_cached(sql)?.execute([]).map(|_| ())
}

/// One statement, so that receipt and result are of one state of the database.
fn find(
    connection: &Connection,
    shared: &Shared,
    identity: &Identity,
) -> Result<Option<Found>, Unreadable> {
    let name = scopes::name(identity);
    let scope = match shared.scopes.get(&name) {
        Some(scope) => scope,
        None => match scopes::find(connection, identity)? {
            Some(scope) => {
                // A reader sees committed rows only.
                shared.scopes.put(name, scope);
                scope
            }
            None => return Ok(None),
        },
    };
    let parameters = rows::parameters_of(identity);
    let key = identity.key.as_str();
    let locator = shared.locator(scope.id, parameters.as_deref(), key);
    let mut statement = connection.prepare_cached(concat!(
        "SELECT ",
        receipt_columns!(),
        ", a.status, a.sealed, a.content_type, a.headers, a.body",
        receipt_tables!(),
        "LEFT JOIN counterfoil_results AS a ON a.receipt = r.id AND r.kept = 1
         WHERE r.locator = ?1 AND r.scope = ?2 AND r.key = ?3 AND r.parameters IS ?4 LIMIT 1"
    ))?;
    let mut found = statement.query((locator, scope.id, key, parameters.as_deref()))?;
    match found.next()? {
        Some(row) => Ok(Some(Found {
            receipt: rows::decode(row)?.receipt,
            reply: rows::decode_reply(row, RECEIPT_COLUMNS)?,
        })),
        None => Ok(None),
    }
}

fn list(connection: &Connection, query: &Query) -> Result<Page, Unreadable> {
    const IN_DOUBT: [State; 2] = [State::InputRequired, State::OutcomeUnknown];
    let everything = concat!(
        "SELECT ",
        receipt_columns!(),
        receipt_tables!(),
        "WHERE w.name = ?1 AND r.workspace = w.id AND r.id < ?2 ORDER BY r.id DESC"
    );
    // The same order, from the index over the few rows in doubt.
    let doubt = concat!(
        "SELECT ",
        receipt_columns!(),
        " FROM counterfoil_workspaces AS w
          JOIN counterfoil_receipts AS r INDEXED BY counterfoil_doubt ON r.workspace = w.id
          JOIN counterfoil_scopes AS s ON s.id = r.scope
          WHERE w.name = ?1 AND (r.state = 4 OR r.state = 8) AND r.id < ?2 ORDER BY r.id DESC"
    );
    let in_doubt =
        !query.states.is_empty() && query.states.iter().all(|state| IN_DOUBT.contains(state));
    let mut statement = connection.prepare_cached(if in_doubt { doubt } else { everything })?;
    let before = query.cursor.map_or(i64::MAX, |cursor| cursor.0);
    let limit = usize::try_from(query.limit.clamp(1, 500)).unwrap_or(1);
    let mut found = statement.query((query.workspace.as_str(), before))?;
    let mut page = Page {
        receipts: Vec::new(),
        next: None,
    };
    let mut last = None;
    let mut looked_at = 0;
    while let Some(row) = found.next()? {
        let wanted = is_wanted(row, query)?;
        if (wanted && page.receipts.len() == limit) || looked_at == LOOKED_AT_MAX {
            page.next = last;
            break;
        }
        looked_at += 1;
        last = Some(Cursor(row.get(0)?));
        if wanted {
            page.receipts.push(rows::decode(row)?.receipt);
        }
    }
    Ok(page)
}

/// By the two columns it takes, before the whole row is decoded.
fn is_wanted(row: &rusqlite::Row<'_>, query: &Query) -> Result<bool, Unreadable> {
    let state: u8 = row.get(7)?;
    let state_wanted = if query.states.is_empty() {
        state != State::Free.to_byte()
    } else {
        query.states.iter().any(|wanted| wanted.to_byte() == state)
    };
    let principal_wanted = match &query.principal {
        Some(principal) => {
            let found = row.get_ref(25)?.as_str().map_err(rusqlite::Error::from)?;
            found == principal.as_str()
        }
        None => true,
    };
    Ok(state_wanted && principal_wanted)
}
