use std::{fmt, str::FromStr};

use counterfoil_core::{PrincipalId, Timestamp, WorkspaceId};

use crate::{Credential, Error, ids::rfc3339};

/// The workspace that is there from the first start.
pub const DEFAULT_WORKSPACE: &str = "default";
/// Longest name of an agent key, in characters.
pub(crate) const NAME_CHARS_MAX: usize = 100;

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
