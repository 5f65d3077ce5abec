//! The first agent key of a store that many nodes share.
//!
//! Exactly one of the nodes makes it, and only that one has its secret. The secret is written to
//! disk before the key is stored, under another name: a node that dies in between finds out at its
//! next start whether the key is its own.

use counterfoil_core::WorkspaceId;
use counterfoil_server::{AgentKeys, Credential, NewAgentKey, Role};

use crate::{
    config::Config,
    exit::Failure,
    folder::{FirstKey, Folder, Held},
    postgres::elsewhere,
};

/// Longest part of this machine's name in the name of a key, in characters.
const MACHINE_CHARS_MAX: usize = 60;

/// Makes the first agent key, if the workspace has none yet, and says where it is.
pub(crate) async fn first_key(
    config: &Config,
    folder: &Folder,
    keys: &AgentKeys,
    workspace: WorkspaceId,
) -> Result<FirstKey, Failure> {
    // A node that has its key, or keeps none, writes nothing: its folder may be read-only, or not
    // be there at all.
    if let Some(held) = folder.held(keys).await? {
        return judged(config, folder, &held);
    }
    if !folder.draft().exists()
        && let Some(oldest) = keys.oldest(&workspace).await?
    {
        return Ok(FirstKey::Elsewhere(oldest));
    }
    folder.create()?;
    let _lock = folder.locked(config.lock_patience).await?;
    if let Some(held) = folder.held(keys).await? {
        return judged(config, folder, &held);
    }
    if let Some(draft) = folder.read_draft()? {
        let won = match Credential::parse(&draft) {
            Some(credential) => keys.authenticate(&credential).await?.is_some(),
            None => false,
        };
        if won {
            folder.keep_draft()?;
            return Ok(FirstKey::New);
        }
        folder.drop_draft()?;
    }
    if let Some(oldest) = keys.oldest(&workspace).await? {
        return Ok(FirstKey::Elsewhere(oldest));
    }
    let draft = keys.draft(NewAgentKey {
        workspace,
        name: format!("first key, made on {}", machine()),
        role: Role::Admin,
    })?;
    folder.write_draft(&draft.credential.reveal())?;
    // Whatever goes wrong from here on, the draft stays for the next start to judge.
    let first = keys.issue_first(&draft).await?;
    if first.id == draft.agent_key.id {
        folder.keep_draft()?;
        return Ok(FirstKey::New);
    }
    folder.drop_draft()?;
    Ok(FirstKey::Elsewhere(first))
}

fn judged(config: &Config, folder: &Folder, held: &Held) -> Result<FirstKey, Failure> {
    match held {
        Held::Valid => Ok(FirstKey::Old),
        Held::Stale => Ok(FirstKey::Stale),
        Held::Unknown => Err(elsewhere(config, folder)),
    }
}

/// What this machine calls itself, as far as it can stand in a name.
fn machine() -> String {
    let name = rustix::system::uname();
    let name = name.nodename().to_string_lossy();
    let fit = name.chars().filter(|c| c.is_ascii_graphic());
    let fit: String = fit.take(MACHINE_CHARS_MAX).collect();
    if fit.is_empty() {
        "a machine without a name".to_owned()
    } else {
        fit
    }
}
