//! Whether all processes on a store mean the same sealing keys.

use counterfoil_engine::KeyRing;
use counterfoil_store::{self as store, Sql, Store, Value};

use crate::Error;

/// Leaves a digest of each key in the store and compares it with what earlier processes left. Two
/// that seal with different keys under one id could not open each other's results, and would only
/// notice when somebody asks for one.
///
/// # Errors
/// [`Error::Settings`] names the id that another key stands under, [`Error::Store`].
pub(crate) async fn check(store: &dyn Store, ring: Option<&KeyRing>) -> Result<(), Error> {
    let Some(ring) = ring else {
        if any(store).await? {
            tracing::warn!(
                "results in this store were sealed, and this process has no sealing keys: those results are unavailable here"
            );
        }
        return Ok(());
    };
    let ours = ring.digests();
    // Once all are there, a start writes nothing.
    let there = store::read(store, |sql| Box::pin(read(sql))).await?;
    let there = if ours.iter().all(|ours| there.contains(ours)) {
        there
    } else {
        let new = ours.clone();
        store::transact(store, None, move |tx| {
            let new = new.clone();
            Box::pin(async move {
                for (id, digest) in &new {
                    tx.execute(
                        "INSERT INTO sealing_keys (id, digest) VALUES ($1, $2) \
                         ON CONFLICT (id) DO NOTHING",
                        &[Value::Int(i64::from(*id)), digest.to_vec().into()],
                    )
                    .await?;
                }
                read(tx).await
            })
        })
        .await?
    };
    for ours in &ours {
        if !there.contains(ours) {
            return Err(Error::Settings(format!(
                "sealing key {} is another key than the one that results in this store were sealed with under this id; give every process the same key file, or the new key a new id",
                ours.0
            )));
        }
    }
    let missing = there
        .iter()
        .filter(|(id, _)| ours.iter().all(|ours| ours.0 != *id));
    for (id, _) in missing {
        tracing::info!(
            id,
            "results may be sealed with a key that this process does not have"
        );
    }
    Ok(())
}

async fn read(sql: &mut dyn Sql) -> Result<Vec<(u32, [u8; 16])>, store::Error> {
    let wrong = || store::Error::Corrupt("a sealing key has an impossible row".to_owned());
    let rows = sql
        .query("SELECT id, digest FROM sealing_keys ORDER BY id", &[])
        .await?;
    rows.iter()
        .map(|row| {
            let id = u32::try_from(row.int(0)?).map_err(|_| wrong())?;
            let digest = row.blob(1)?.try_into().map_err(|_| wrong())?;
            Ok((id, digest))
        })
        .collect()
}

async fn any(store: &dyn Store) -> Result<bool, Error> {
    let found = store::read(store, |sql| {
        Box::pin(async move {
            let rows = sql.query("SELECT 1 FROM sealing_keys LIMIT 1", &[]).await?;
            Ok(!rows.is_empty())
        })
    })
    .await?;
    Ok(found)
}
