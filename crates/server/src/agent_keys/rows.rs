//! The rows of agent keys, inside whatever transaction they are asked for.

use counterfoil_core::{PrincipalId, Timestamp, WorkspaceId};
use counterfoil_store::{self as store, Row, Sql};

use super::AgentKey;
use crate::{Error, credential::SecretHash};

/// The columns of a key, as [`read_row`] takes them.
pub(super) const COLUMNS: &str = "id, workspace, name, role, created_at, rotated_at, revoked_at";

pub(super) fn read_row(row: &Row) -> Result<AgentKey, store::Error> {
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

/// Adds a workspace if it is not there yet.
pub(super) async fn ensure_workspace(
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

/// The oldest key of a workspace, revoked or not.
pub(super) async fn oldest(
    sql: &mut dyn Sql,
    workspace: &WorkspaceId,
) -> Result<Option<AgentKey>, store::Error> {
    let found = sql
        .query(
            &format!(
                "SELECT {COLUMNS} FROM agent_keys WHERE workspace = $1 \
                 ORDER BY created_at, id LIMIT 1"
            ),
            &[workspace.as_str().into()],
        )
        .await?;
    found.first().map(read_row).transpose()
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
