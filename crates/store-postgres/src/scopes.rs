use std::{
    collections::HashMap,
    sync::{PoisonError, RwLock},
};

use counterfoil_core::Identity;
use sha2::{Digest as _, Sha256};
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::{
    connect::{Session, Text},
    error::{Done, Fault, corrupt},
};

/// The interned part of an identity: workspace, principal, operation, upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scope {
    pub(crate) id: i64,
    pub(crate) workspace: i64,
    /// The digest of its parts, which is the same in every database.
    pub(crate) name: Uuid,
}

/// The scopes known to be committed, in memory, by the digest of their parts. They are never
/// changed and never deleted; but a failover may lose the latest, and give their numbers to
/// others. So whoever writes has them checked ([`crate::lane::LOCK`]), and forgets all of them if
/// one is not what it was.
#[derive(Debug)]
pub(crate) struct Scopes {
    known: RwLock<HashMap<Uuid, Scope>>,
    max: usize,
}

static FIND: Text = Text {
    sql: "SELECT s.id, s.workspace, w.name, s.principal, s.operation, s.upstream, s.name
          FROM counterfoil_scopes AS s JOIN counterfoil_workspaces AS w ON w.id = s.workspace
          WHERE s.name = ANY($1)",
    types: &[Type::UUID_ARRAY],
};
static CREATE_WORKSPACES: Text = Text {
    sql: "INSERT INTO counterfoil_workspaces(name)
          SELECT DISTINCT name FROM unnest($1) AS t(name) ORDER BY name
          ON CONFLICT (name) DO NOTHING",
    types: &[Type::TEXT_ARRAY],
};
static CREATE: Text = Text {
    sql: "INSERT INTO counterfoil_scopes(name, workspace, principal, operation, upstream)
          SELECT t.name, w.id, t.principal, t.operation, t.upstream
          FROM unnest($1, $2, $3, $4, $5) AS t(name, workspace, principal, operation, upstream)
          JOIN counterfoil_workspaces AS w ON w.name = t.workspace
          ORDER BY t.name
          ON CONFLICT (name) DO NOTHING",
    types: &[
        Type::UUID_ARRAY,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
    ],
};

impl Scopes {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            known: RwLock::default(),
            max: max.max(1),
        }
    }

    pub(crate) fn known(&self, identity: &Identity) -> Option<Scope> {
        let name = name(identity);
        self.known
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&name)
            .copied()
    }

    /// The database is not the one they were read from.
    pub(crate) fn forget(&self) {
        self.known
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }

    fn put(&self, name: Uuid, scope: Scope) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= self.max {
            known.clear();
        }
        known.insert(name, scope);
    }

    /// The scope of an identity, if it has one.
    pub(crate) async fn find(&self, session: &Session, identity: &Identity) -> Done<Option<Scope>> {
        match self.known(identity) {
            Some(scope) => Ok(Some(scope)),
            None => {
                let scopes = self.look(session, &[identity]).await?;
                Ok(scopes.into_values().next())
            }
        }
    }

    /// The scopes of these identities, created where there are none: outside of any transaction,
    /// because a scope without receipts does no harm, and waiting for a rival that creates the
    /// same one must not hold anything else up.
    pub(crate) async fn all(
        &self,
        session: &Session,
        identities: &[&Identity],
    ) -> Done<Vec<Scope>> {
        let mut missing: HashMap<Uuid, &Identity> = HashMap::new();
        for identity in identities {
            if self.known(identity).is_none() {
                missing.insert(name(identity), identity);
            }
        }
        let mut found = HashMap::new();
        if !missing.is_empty() {
            let wanted: Vec<&Identity> = missing.values().copied().collect();
            found = self.look(session, &wanted).await?;
            let new: Vec<&Identity> = wanted
                .into_iter()
                .filter(|identity| !found.contains_key(&name(identity)))
                .collect();
            if !new.is_empty() {
                create(session, &new).await?;
                found.extend(self.look(session, &new).await?);
            }
        }
        identities
            .iter()
            .map(|identity| {
                found
                    .get(&name(identity))
                    .copied()
                    .or_else(|| self.known(identity))
                    .ok_or_else(|| Fault::Said(corrupt("scope")))
            })
            .collect()
    }

    async fn look(
        &self,
        session: &Session,
        identities: &[&Identity],
    ) -> Done<HashMap<Uuid, Scope>> {
        let by_name: HashMap<Uuid, &Identity> = identities
            .iter()
            .map(|identity| (name(identity), *identity))
            .collect();
        let names: Vec<Uuid> = by_name.keys().copied().collect();
        let mut found = HashMap::new();
        for row in session.ask(&FIND, &[&names]).await? {
            let name: Uuid = row.get(6);
            let scope = Scope {
                id: row.get(0),
                workspace: row.get(1),
                name,
            };
            let same = by_name.get(&name).is_some_and(|identity| {
                identity.workspace.as_str() == row.get::<_, &str>(2)
                    && identity.principal.as_str() == row.get::<_, &str>(3)
                    && identity.target.operation == row.get::<_, &str>(4)
                    && identity.target.upstream == row.get::<_, &str>(5)
            });
            if !same {
                return Err(Fault::Said(corrupt("scope")));
            }
            self.put(name, scope);
            found.insert(name, scope);
        }
        Ok(found)
    }
}

async fn create(session: &Session, new: &[&Identity]) -> Done<()> {
    let names: Vec<Uuid> = new.iter().map(|identity| name(identity)).collect();
    let column = |of: fn(&Identity) -> &str| -> Vec<String> {
        new.iter().map(|identity| of(identity).to_owned()).collect()
    };
    let workspaces = column(|identity| identity.workspace.as_str());
    let principals = column(|identity| identity.principal.as_str());
    let operations = column(|identity| &identity.target.operation);
    let upstreams = column(|identity| &identity.target.upstream);
    session.tell(&CREATE_WORKSPACES, &[&workspaces]).await?;
    session
        .tell(
            &CREATE,
            &[&names, &workspaces, &principals, &operations, &upstreams],
        )
        .await
        .map(drop)
}

/// A digest of the parts with their lengths.
pub(crate) fn name(identity: &Identity) -> Uuid {
    let mut hash = Sha256::new();
    for part in [
        identity.workspace.as_str(),
        identity.principal.as_str(),
        &identity.target.operation,
        &identity.target.upstream,
    ] {
        hash.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
        hash.update(part);
    }
    let digest: [u8; 32] = hash.finalize().into();
    let mut first = [0; 16];
    first.copy_from_slice(&digest[..16]);
    Uuid::from_bytes(first)
}
