//! Agent keys: the principals of a workspace and their credentials.

mod key;
mod rows;

use std::sync::Arc;

use counterfoil_core::{PrincipalId, WorkspaceId};
use counterfoil_engine::Engine;
use counterfoil_store::{self as store, Row, Sql, Value};

use crate::{Credential, Error, ids::agent_key_id};
use key::check_name;
pub use key::{AgentKey, DEFAULT_WORKSPACE, Issued, NewAgentKey, Role, to_json};
use rows::{COLUMNS, ensure_workspace, oldest, read_row};
pub(crate) use rows::{insert, revoke, rotate};

/// Most keys a list shows.
const LIST_MAX: i64 = 1000;

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
    ///
    /// # Errors
    /// [`Error::Invalid`] for a name out of bounds, [`Error::NoRandomness`].
    pub fn draft(&self, new: NewAgentKey) -> Result<Issued, Error> {
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
        let new = workspace.clone();
        store::transact(self.store().as_ref(), Some(workspace), move |tx| {
            let workspace = new.clone();
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

    /// Stores a drafted key if its workspace has none yet, revoked ones included; otherwise the
    /// oldest one that is there. Of any number of processes that ask at the same time exactly one
    /// stores its own, and finds the same when it asks again.
    ///
    /// # Errors
    /// What the store says.
    pub async fn issue_first(&self, draft: &Issued) -> Result<AgentKey, Error> {
        let hash = draft.credential.hash();
        let workspace = &draft.agent_key.workspace;
        let key = Arc::new(draft.agent_key.clone());
        let first = store::transact(self.store().as_ref(), Some(workspace), move |tx| {
            let key = Arc::clone(&key);
            Box::pin(async move {
                ensure_workspace(tx, &key.workspace, key.created_at).await?;
                if let Some(first) = oldest(tx, &key.workspace).await? {
                    return Ok(first);
                }
                insert(tx, &key, hash).await?;
                Ok((*key).clone())
            })
        })
        .await?;
        Ok(first)
    }

    /// The oldest key of a workspace, revoked or not.
    ///
    /// # Errors
    /// What the store says.
    pub async fn oldest(&self, workspace: &WorkspaceId) -> Result<Option<AgentKey>, Error> {
        let found = store::read(self.store().as_ref(), |sql| {
            let workspace = workspace.clone();
            Box::pin(async move { oldest(sql, &workspace).await })
        })
        .await?;
        Ok(found)
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
        let workspace = &issued.agent_key.workspace;
        let key = Arc::new(issued.agent_key.clone());
        store::transact(self.store().as_ref(), Some(workspace), move |tx| {
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
        let (of, id) = (workspace.clone(), id.to_owned());
        let agent_key = self
            .change(workspace, move |tx| {
                let (workspace, id) = (of.clone(), id.clone());
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
        let (of, id) = (workspace.clone(), id.to_owned());
        self.change(workspace, move |tx| {
            let (workspace, id) = (of.clone(), id.clone());
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
    async fn change<F>(&self, workspace: &WorkspaceId, body: F) -> Result<AgentKey, Error>
    where
        F: for<'t> Fn(&'t mut dyn Sql) -> counterfoil_store::BoxFuture<'t, Result<AgentKey, Error>>
            + Send
            + Sync
            + 'static,
    {
        store::transact(self.store().as_ref(), Some(workspace), move |tx| {
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
