use std::{fmt, str::FromStr, sync::Arc};

use counterfoil_core::{PrincipalId, Timestamp, WorkspaceId};
use counterfoil_engine::Engine;
use counterfoil_store::{self as store, Row, Sql, Value};

use crate::{
    Credential, Error,
    credential::SecretHash,
    ids::{agent_key_id, rfc3339},
};

/// The workspace that is there from the first start.
pub const DEFAULT_WORKSPACE: &str = "default";
/// Longest name of an agent key, in characters.
pub(crate) const NAME_CHARS_MAX: usize = 100;
/// Most keys a list shows.
const LIST_MAX: i64 = 1000;
const COLUMNS: &str = "id, workspace, name, role, created_at, rotated_at, revoked_at";

/// What an agent key may do in its workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Calls, and sees its own operations.
    Member,
    /// Also sees the workspace's operations, and issues, rotates and revokes keys.
    Admin,
}

impl Role {
    /// The word on the wire and in the database.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Member => "member",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Role {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "member" => Ok(Self::Member),
            "admin" => Ok(Self::Admin),
            _ => Err(Error::invalid("role", "must be member or admin")),
        }
    }
}

/// An agent key: a principal of one workspace. Its id survives the rotation of its secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentKey {
    /// `ak_…`, the principal's id.
    pub id: PrincipalId,
    /// The only workspace it can reach.
    pub workspace: WorkspaceId,
    /// What people call it, 1 to 100 characters.
    pub name: String,
    /// What it may do.
    pub role: Role,
    /// When it was issued.
    pub created_at: Timestamp,
    /// When its secret was last replaced.
    pub rotated_at: Option<Timestamp>,
    /// When it was revoked, for good.
    pub revoked_at: Option<Timestamp>,
}

/// A key to be issued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewAgentKey {
    /// In which workspace.
    pub workspace: WorkspaceId,
    /// 1 to 100 characters, no control characters.
    pub name: String,
    /// What it may do.
    pub role: Role,
}

/// An agent key with its secret, which is shown once and never stored.
#[derive(Debug)]
pub struct Issued {
    /// The key.
    pub agent_key: AgentKey,
    /// Its credential.
    pub credential: Credential,
}

/// A key as every surface shows it, without its secret.
#[must_use]
pub fn to_json(key: &AgentKey) -> serde_json::Value {
    serde_json::json!({
        "id": key.id.as_str(),
        "workspace": key.workspace.as_str(),
        "name": key.name,
        "role": key.role.as_str(),
        "created_at": rfc3339(key.created_at),
        "rotated_at": key.rotated_at.map(rfc3339),
        "revoked_at": key.revoked_at.map(rfc3339),
    })
}

pub(crate) fn check_name(name: &str) -> Result<(), Error> {
    let chars = name.chars().count();
    if !(1..=NAME_CHARS_MAX).contains(&chars) || name.chars().any(char::is_control) {
        return Err(Error::invalid(
            "name",
            format!("must have 1 to {NAME_CHARS_MAX} characters and no control characters"),
        ));
    }
    Ok(())
}

fn read_row(row: &Row) -> Result<AgentKey, store::Error> {
    let wrong = |what| store::Error::Corrupt(format!("an agent key has an impossible {what}"));
    let time = |column| Ok::<_, store::Error>(row.int_or_null(column)?.map(Timestamp::from_millis));
    Ok(AgentKey {
        id: PrincipalId::new(row.text(0)?).map_err(|_| wrong("id"))?,
        workspace: WorkspaceId::new(row.text(1)?).map_err(|_| wrong("workspace"))?,
        name: row.text(2)?.to_owned(),
        role: row.text(3)?.parse().map_err(|_| wrong("role"))?,
        created_at: Timestamp::from_millis(row.int(4)?),
        rotated_at: time(5)?,
        revoked_at: time(6)?,
    })
}

/// Adds a key, or gives the key of the same id another secret.
pub(crate) async fn insert(
    tx: &mut dyn Sql,
    key: &AgentKey,
    hash: SecretHash,
) -> Result<(), store::Error> {
    tx.execute(
        "INSERT INTO agent_keys (id, workspace, name, role, secret_sha256, created_at) \
         VALUES ($1, $2, $3, $4, $5, $6) \
         ON CONFLICT (id) DO UPDATE SET secret_sha256 = excluded.secret_sha256",
        &[
            key.id.as_str().into(),
            key.workspace.as_str().into(),
            key.name.as_str().into(),
            key.role.as_str().into(),
            hash.to_vec().into(),
            key.created_at.as_millis().into(),
        ],
    )
    .await
    .map(drop)
}

async fn ensure_workspace(
    tx: &mut dyn Sql,
    workspace: &WorkspaceId,
    now: Timestamp,
) -> Result<(), store::Error> {
    tx.execute(
        "INSERT INTO workspaces (id, created_at) VALUES ($1, $2) ON CONFLICT (id) DO NOTHING",
        &[workspace.as_str().into(), now.as_millis().into()],
    )
    .await
    .map(drop)
}

/// The key `id` of `workspace`; [`Error::NotFound`] for every other one.
pub(crate) async fn get(
    sql: &mut dyn Sql,
    workspace: &WorkspaceId,
    id: &str,
) -> Result<AgentKey, Error> {
    let found = sql
        .query(
            &format!("SELECT {COLUMNS} FROM agent_keys WHERE id = $1 AND workspace = $2"),
            &[id.into(), workspace.as_str().into()],
        )
        .await?;
    let row = found.first().ok_or(Error::NotFound("agent key"))?;
    Ok(read_row(row)?)
}

/// Replaces the secret of a key that is not revoked.
pub(crate) async fn rotate(
    tx: &mut dyn Sql,
    workspace: &WorkspaceId,
    id: &str,
    hash: SecretHash,
    now: Timestamp,
) -> Result<AgentKey, Error> {
    let mut key = get(tx, workspace, id).await?;
    if key.revoked_at.is_some() {
        return Err(Error::invalid(
            "id",
            "names a revoked agent key, which cannot be rotated; issue a new one",
        ));
    }
    tx.execute(
        "UPDATE agent_keys SET secret_sha256 = $1, rotated_at = $2 WHERE id = $3",
        &[hash.to_vec().into(), now.as_millis().into(), id.into()],
    )
    .await?;
    key.rotated_at = Some(now);
    Ok(key)
}

/// Revokes a key for good. A revoked one stays as it is.
pub(crate) async fn revoke(
    tx: &mut dyn Sql,
    workspace: &WorkspaceId,
    id: &str,
    now: Timestamp,
) -> Result<AgentKey, Error> {
    let mut key = get(tx, workspace, id).await?;
    if key.revoked_at.is_none() {
        tx.execute(
            "UPDATE agent_keys SET revoked_at = $1 WHERE id = $2",
            &[now.as_millis().into(), id.into()],
        )
        .await?;
        key.revoked_at = Some(now);
    }
    Ok(key)
}

/// Agent keys, as the machine's operator handles them: without a receipt and across workspaces.
#[derive(Clone)]
pub struct AgentKeys {
    engine: Engine,
}

impl AgentKeys {
    pub(crate) const fn new(engine: Engine) -> Self {
        Self { engine }
    }

    /// What a new key will be, with a fresh secret. Nothing is stored.
    pub(crate) fn draft(&self, new: NewAgentKey) -> Result<Issued, Error> {
        check_name(&new.name)?;
        let id = agent_key_id(&self.engine).ok_or(Error::NoRandomness)?;
        let credential = self.secret_for(&id)?;
        Ok(Issued {
            agent_key: AgentKey {
                id: PrincipalId::new(id).map_err(|_| Error::NoRandomness)?,
                workspace: new.workspace,
                name: new.name,
                role: new.role,
                created_at: self.engine.now(),
                rotated_at: None,
                revoked_at: None,
            },
            credential,
        })
    }

    /// A fresh secret for the key `id`. Nothing is stored.
    pub(crate) fn secret_for(&self, id: &str) -> Result<Credential, Error> {
        Credential::generate(id, &self.engine).ok_or(Error::NotFound("agent key"))
    }

    /// Creates a workspace if it is not there yet.
    ///
    /// # Errors
    /// What the store says.
    pub async fn ensure_workspace(&self, workspace: &WorkspaceId) -> Result<(), Error> {
        let now = self.engine.now();
        let workspace = workspace.clone();
        store::transact(self.store().as_ref(), move |tx| {
            let workspace = workspace.clone();
            Box::pin(async move { ensure_workspace(tx, &workspace, now).await })
        })
        .await?;
        Ok(())
    }

    /// Issues a key, and creates its workspace if it is not there yet. The credential is in the
    /// answer and nowhere else.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a name out of bounds, [`Error::NoRandomness`], [`Error::Store`].
    pub async fn issue(&self, new: NewAgentKey) -> Result<Issued, Error> {
        let issued = self.draft(new)?;
        self.put(&issued).await?;
        Ok(issued)
    }

    /// Makes `known` a working key again whose secret was lost before it was written down, or
    /// issues a new one if there is no such key or it was revoked.
    ///
    /// # Errors
    /// As [`AgentKeys::issue`].
    pub async fn issue_as(&self, known: &str, new: NewAgentKey) -> Result<Issued, Error> {
        let mut issued = self.draft(new)?;
        let earlier = self.find(known).await?;
        if earlier.is_none_or(|key| key.revoked_at.is_none()) {
            let id = PrincipalId::new(known).map_err(|_| Error::NotFound("agent key"))?;
            issued.credential = self.secret_for(known)?;
            issued.agent_key.id = id;
        }
        self.put(&issued).await?;
        Ok(issued)
    }

    /// The id of a key to be issued with [`AgentKeys::issue_as`].
    ///
    /// # Errors
    /// [`Error::NoRandomness`].
    pub fn new_id(&self) -> Result<String, Error> {
        agent_key_id(&self.engine).ok_or(Error::NoRandomness)
    }

    async fn put(&self, issued: &Issued) -> Result<(), Error> {
        let hash = issued.credential.hash();
        let key = Arc::new(issued.agent_key.clone());
        store::transact(self.store().as_ref(), move |tx| {
            let key = Arc::clone(&key);
            Box::pin(async move {
                ensure_workspace(tx, &key.workspace, key.created_at).await?;
                insert(tx, &key, hash).await
            })
        })
        .await?;
        Ok(())
    }

    /// Replaces the secret of a key: the old one is refused from now on, the principal and its
    /// receipts stay.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Invalid`] if it is revoked, [`Error::Store`].
    pub async fn rotate(&self, workspace: &WorkspaceId, id: &str) -> Result<Issued, Error> {
        let credential = self.secret_for(id)?;
        let (hash, now) = (credential.hash(), self.engine.now());
        let (workspace, id) = (workspace.clone(), id.to_owned());
        let agent_key = self
            .change(move |tx| {
                let (workspace, id) = (workspace.clone(), id.clone());
                Box::pin(async move { rotate(tx, &workspace, &id, hash, now).await })
            })
            .await?;
        Ok(Issued {
            agent_key,
            credential,
        })
    }

    /// Revokes a key for good, effective with its next request in every process.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Store`].
    pub async fn revoke(&self, workspace: &WorkspaceId, id: &str) -> Result<AgentKey, Error> {
        let now = self.engine.now();
        let (workspace, id) = (workspace.clone(), id.to_owned());
        self.change(move |tx| {
            let (workspace, id) = (workspace.clone(), id.clone());
            Box::pin(async move { revoke(tx, &workspace, &id, now).await })
        })
        .await
    }

    /// The keys of a workspace, the oldest first, at most 1,000.
    ///
    /// # Errors
    /// What the store says.
    pub async fn list(&self, workspace: &WorkspaceId) -> Result<Vec<AgentKey>, Error> {
        let keys = store::read(self.store().as_ref(), |sql| {
            let workspace = workspace.clone();
            Box::pin(async move {
                let sentence = format!(
                    "SELECT {COLUMNS} FROM agent_keys WHERE workspace = $1 ORDER BY id LIMIT $2"
                );
                let parameters = [workspace.as_str().into(), Value::Int(LIST_MAX)];
                let rows = sql.query(&sentence, &parameters).await?;
                rows.iter().map(read_row).collect()
            })
        })
        .await?;
        Ok(keys)
    }

    /// The key `id` of whatever workspace.
    ///
    /// # Errors
    /// What the store says.
    pub async fn find(&self, id: &str) -> Result<Option<AgentKey>, Error> {
        Ok(self.row(id).await?.map(|(key, _)| key))
    }

    /// The key a credential belongs to, read afresh; `None` if there is none, the secret is
    /// another one, or it is revoked.
    ///
    /// # Errors
    /// What the store says.
    pub async fn authenticate(&self, credential: &Credential) -> Result<Option<AgentKey>, Error> {
        let found = self.row(credential.id()).await?;
        Ok(found.and_then(|(key, hash)| {
            (credential.matches(&hash) && key.revoked_at.is_none()).then_some(key)
        }))
    }

    async fn row(&self, id: &str) -> Result<Option<(AgentKey, Vec<u8>)>, Error> {
        let row = store::read(self.store().as_ref(), |sql| {
            let id = Value::from(id);
            Box::pin(async move {
                let rows = sql
                    .query(
                        "SELECT id, workspace, name, role, created_at, rotated_at, revoked_at, \
                         secret_sha256 FROM agent_keys WHERE id = $1",
                        std::slice::from_ref(&id),
                    )
                    .await?;
                let read = |row: &Row| Ok((read_row(row)?, row.blob(7)?.to_vec()));
                rows.first().map(read).transpose()
            })
        })
        .await?;
        Ok(row)
    }

    /// A change whose domain error is carried out of the transaction, which is rolled back.
    async fn change<F>(&self, body: F) -> Result<AgentKey, Error>
    where
        F: for<'t> Fn(&'t mut dyn Sql) -> counterfoil_store::BoxFuture<'t, Result<AgentKey, Error>>
            + Send
            + Sync
            + 'static,
    {
        store::transact(self.store().as_ref(), move |tx| {
            let done = body(tx);
            Box::pin(async move {
                match done.await {
                    Err(Error::Store(error)) => Err(error),
                    // Refusals come before the first write: there is nothing to roll back.
                    judged => Ok(judged),
                }
            })
        })
        .await?
    }

    fn store(&self) -> &Arc<dyn store::Store> {
        self.engine.store()
    }
}
