use std::collections::HashMap;

use counterfoil_core::{Identity, OperationId};
use counterfoil_store::Error;
use rusqlite::{Connection, Error as Sqlite};

use crate::{
    Options,
    connection::Guarded,
    error::map,
    fault::Seam,
    guard::Guard,
    locator::locate,
    presence::Presence,
    rows::{self, Stored, Unreadable, receipt_columns, receipt_tables},
    scopes::{self, Scope, Scopes},
    writing::Writing,
};

/// What the writer and the readers of one store share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) options: Options,
    pub(crate) scopes: Scopes,
    pub(crate) secret: [u8; 32],
    pub(crate) seam: Seam,
    pub(crate) presence: Presence,
    pub(crate) writing: Writing,
}

impl Shared {
    pub(crate) fn locator(&self, scope: i64, parameters: Option<&str>, key: &str) -> i64 {
        let locator = locate(&self.secret, scope, parameters, key);
        self.seam.locator(locator)
    }
}

/// Why a step stopped.
#[derive(Debug)]
pub(crate) enum Halt {
    /// With an answer of its own; what it has written up to then may stay.
    Said(Error),
    /// The database failed under it: the transaction is not to be committed. The error is what
    /// the caller is told if the step fails alone too.
    Broke(Error),
}

pub(crate) type Stepped<T> = Result<T, Halt>;

impl From<Sqlite> for Halt {
    fn from(error: Sqlite) -> Self {
        Self::Broke(map(&error))
    }
}

impl From<Unreadable> for Halt {
    fn from(error: Unreadable) -> Self {
        match error {
            Unreadable::Sqlite(error) => error.into(),
            Unreadable::Corrupt(error) => Self::Said(error),
        }
    }
}

/// The unresolved receipts of a workspace.
#[derive(Debug, Default)]
struct Tally {
    /// As committed; read when first asked for.
    stored: Option<i64>,
    /// What this transaction adds.
    delta: i64,
}

/// The writer's open transaction, with what is written once at its end.
#[derive(Debug)]
pub(crate) struct Tx<'c> {
    connection: &'c mut Guarded,
    pub(crate) shared: &'c Shared,
    created: HashMap<String, Scope>,
    workspaces: HashMap<i64, Tally>,
}

impl<'c> Tx<'c> {
    /// The caller has begun the transaction.
    pub(crate) fn new(connection: &'c mut Guarded, shared: &'c Shared) -> Self {
        Self {
            connection,
            shared,
            created: HashMap::new(),
            workspaces: HashMap::new(),
        }
    }

    pub(crate) fn sqlite(&self) -> &Connection {
        &self.connection.sqlite
    }

    pub(crate) fn guard(&self) -> &Guard {
        &self.connection.guard
    }

    /// The transaction was ended under us: by a ROLLBACK conflict clause, a full disk, an I/O error.
    pub(crate) fn has_ended(&self) -> bool {
        self.sqlite().is_autocommit()
    }

    /// The scope of an identity, if it has one.
    pub(crate) fn scope(&self, identity: &Identity) -> Stepped<Option<Scope>> {
        let name = scopes::name(identity);
        if let Some(scope) = self.shared.scopes.get(&name) {
            return Ok(Some(scope));
        }
        if let Some(scope) = self.created.get(&name) {
            return Ok(Some(*scope));
        }
        let found = scopes::find(self.sqlite(), identity)?;
        if let Some(scope) = found {
            self.shared.scopes.put(name, scope);
        }
        Ok(found)
    }

    /// The scope of an identity, created if it has none.
    pub(crate) fn scope_or_create(&mut self, identity: &Identity) -> Stepped<Scope> {
        if let Some(scope) = self.scope(identity)? {
            return Ok(scope);
        }
        let scope = scopes::create(self.sqlite(), identity)?;
        self.created.insert(scopes::name(identity), scope);
        Ok(scope)
    }

    /// The receipt of an identity. Only here may "none" be said.
    pub(crate) fn of_identity(&self, identity: &Identity) -> Stepped<Option<Stored>> {
        match self.scope(identity)? {
            Some(scope) => Ok(of_identity(self.sqlite(), self.shared, scope, identity)?),
            None => Ok(None),
        }
    }

    /// The receipt of an operation.
    pub(crate) fn of_operation(&self, operation_id: OperationId) -> Stepped<Stored> {
        of_operation(self.sqlite(), operation_id)?.ok_or(Halt::Said(Error::NotFound))
    }

    /// Unresolved receipts of a workspace, this transaction's included.
    pub(crate) fn unresolved(&mut self, workspace: i64) -> Stepped<u64> {
        let tally = self.workspaces.entry(workspace).or_default();
        let stored = match tally.stored {
            Some(stored) => stored,
            None => {
                let stored = self
                    .connection
                    .sqlite
                    .prepare_cached("SELECT unresolved FROM counterfoil_workspaces WHERE id = ?1")?
                    .query_row([workspace], |row| row.get(0))?;
                tally.stored = Some(stored);
                stored
            }
        };
        Ok(u64::try_from(stored + tally.delta).unwrap_or_default())
    }

    /// Counts unresolved receipts that were added or, below zero, settled.
    pub(crate) fn count(&mut self, workspace: i64, unresolved: i64) {
        if unresolved != 0 {
            self.workspaces.entry(workspace).or_default().delta += unresolved;
        }
    }

    /// Writes what is written once a transaction: the tallies, and the number by which it will be
    /// known whether the transaction took effect.
    pub(crate) fn seal(&mut self, writer_id: i64, sequence: i64) -> Result<(), Sqlite> {
        let sqlite = &self.connection.sqlite;
        for (workspace, tally) in &self.workspaces {
            if tally.delta != 0 {
                sqlite
                    .prepare_cached(
                        "UPDATE counterfoil_workspaces SET unresolved = unresolved + ?2
                         WHERE id = ?1",
                    )?
                    .execute([*workspace, tally.delta])?;
            }
        }
        sqlite
            .prepare_cached(
                "INSERT INTO counterfoil_writers(id, sequence, seen_at)
                 VALUES (?1, ?2, unixepoch())
                 ON CONFLICT (id) DO UPDATE
                 SET sequence = excluded.sequence, seen_at = excluded.seen_at",
            )?
            .execute([writer_id, sequence])
            .map(drop)
    }

    /// The scopes this transaction created, to be known once it is committed.
    pub(crate) fn into_created(self) -> HashMap<String, Scope> {
        self.created
    }
}

/// The receipt of an identity: the locator finds, the whole identity decides (I4).
pub(crate) fn of_identity(
    connection: &Connection,
    shared: &Shared,
    scope: Scope,
    identity: &Identity,
) -> Result<Option<Stored>, Unreadable> {
    let parameters = rows::parameters_of(identity);
    let key = identity.key.as_str();
    let locator = shared.locator(scope.id, parameters.as_deref(), key);
    let mut statement = connection.prepare_cached(concat!(
        "SELECT ",
        receipt_columns!(),
        receipt_tables!(),
        "WHERE r.locator = ?1 AND r.scope = ?2 AND r.key = ?3 AND r.parameters IS ?4 LIMIT 1"
    ))?;
    let mut found = statement.query((locator, scope.id, key, parameters.as_deref()))?;
    match found.next()? {
        Some(row) => rows::decode(row).map(Some),
        None => Ok(None),
    }
}

pub(crate) fn of_operation(
    connection: &Connection,
    operation_id: OperationId,
) -> Result<Option<Stored>, Unreadable> {
    let mut statement = connection.prepare_cached(concat!(
        "SELECT ",
        receipt_columns!(),
        receipt_tables!(),
        "WHERE r.operation_id = ?1"
    ))?;
    let mut found = statement.query([operation_id.to_bytes()])?;
    match found.next()? {
        Some(row) => rows::decode(row).map(Some),
        None => Ok(None),
    }
}
