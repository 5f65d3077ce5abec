use std::{
    collections::HashMap,
    sync::{PoisonError, RwLock},
};

use counterfoil_core::Identity;
use rusqlite::{Connection, Error as Sqlite, OptionalExtension as _};

/// The interned part of an identity: workspace, principal, operation, upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scope {
    pub(crate) id: i64,
    pub(crate) workspace: i64,
}

/// The scopes known to be committed, in memory. They are never changed and never deleted.
#[derive(Debug)]
pub(crate) struct Scopes {
    known: RwLock<HashMap<String, Scope>>,
    max: usize,
}

impl Scopes {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            known: RwLock::default(),
            max: max.max(1),
        }
    }

    pub(crate) fn get(&self, name: &str) -> Option<Scope> {
        self.known
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(name)
            .copied()
    }

    /// Only for scopes whose transaction is committed.
    pub(crate) fn put(&self, name: String, scope: Scope) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= self.max {
            known.clear();
        }
        known.insert(name, scope);
    }
}

/// The parts with their lengths, so that no two scopes have one name.
pub(crate) fn name(identity: &Identity) -> String {
    let parts = [
        identity.workspace.as_str(),
        identity.principal.as_str(),
        &identity.target.operation,
        &identity.target.upstream,
    ];
    let bytes: usize = parts.iter().map(|part| part.len() + 5).sum();
    let mut name = String::with_capacity(bytes);
    for part in parts {
        name.push_str(&part.len().to_string());
        name.push(':');
        name.push_str(part);
    }
    name
}

/// Looks a scope up in the database.
pub(crate) fn find(connection: &Connection, identity: &Identity) -> Result<Option<Scope>, Sqlite> {
    connection
        .prepare_cached(
            "SELECT s.id, s.workspace
             FROM counterfoil_workspaces AS w JOIN counterfoil_scopes AS s ON s.workspace = w.id
             WHERE w.name = ?1 AND s.principal = ?2 AND s.operation = ?3 AND s.upstream = ?4",
        )?
        .query_row(
            (
                identity.workspace.as_str(),
                identity.principal.as_str(),
                &identity.target.operation,
                &identity.target.upstream,
            ),
            |row| {
                Ok(Scope {
                    id: row.get(0)?,
                    workspace: row.get(1)?,
                })
            },
        )
        .optional()
}

/// Creates a scope that is not there yet.
pub(crate) fn create(connection: &Connection, identity: &Identity) -> Result<Scope, Sqlite> {
    connection
        .prepare_cached(
            "INSERT INTO counterfoil_workspaces(name, unresolved) VALUES (?1, 0)
             ON CONFLICT (name) DO NOTHING",
        )?
        .execute([identity.workspace.as_str()])?;
    let workspace: i64 = connection
        .prepare_cached("SELECT id FROM counterfoil_workspaces WHERE name = ?1")?
        .query_row([identity.workspace.as_str()], |row| row.get(0))?;
    let id = connection
        .prepare_cached(
            "INSERT INTO counterfoil_scopes(workspace, principal, operation, upstream)
             VALUES (?1, ?2, ?3, ?4)",
        )?
        .insert((
            workspace,
            identity.principal.as_str(),
            &identity.target.operation,
            &identity.target.upstream,
        ))?;
    Ok(Scope { id, workspace })
}
