use std::fmt;

use crate::Key;

/// Longest workspace or principal id, in characters.
const ID_CHARS_MAX: usize = 128;

/// An id that does not have its form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidId {
    /// Not `op_` and a UUID.
    #[error("an operation id is `op_` followed by a UUID")]
    Operation,
    /// Not 1 to 128 of `A-Z a-z 0-9 _ - .`.
    #[error("a workspace or principal id is 1 to 128 of the characters A-Z a-z 0-9 _ - .")]
    Name,
}

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(String);

        impl $name {
            /// Checks the form: 1 to 128 of `A-Z a-z 0-9 _ - .`.
            ///
            /// # Errors
            /// [`InvalidId::Name`] for anything else.
            pub fn new(text: impl Into<String>) -> Result<Self, InvalidId> {
                let text = text.into();
                let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
                if text.is_empty() || text.len() > ID_CHARS_MAX || !text.chars().all(fits) {
                    return Err(InvalidId::Name);
                }
                Ok(Self(text))
            }

            /// The id as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name_type! {
    /// The tenant. Resolved on the server from the credential, never from an argument.
    WorkspaceId
}
name_type! {
    /// Who calls: an agent key, a person, a local client. Survives the rotation of its credential.
    PrincipalId
}

/// What a call addresses.
///
/// The `operation` comes from a declaration (a route template, a listed tool, a library
/// operation's name) and is interned by stores; the decoded path parameters are not. Whatever no
/// declaration matches has no target, and so can reserve nothing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// `POST /api/v1/notes/{id}`, `MCP create_note`, `*` (a key in `_meta`), or a library name.
    pub operation: String,
    /// The decoded path parameters, in the order of the template.
    pub parameters: Vec<String>,
    /// The upstream instance behind a proxy or gateway; empty for our own operations.
    pub upstream: String,
}

impl Target {
    /// A target without path parameters, of our own.
    #[must_use]
    pub fn new(operation: impl Into<String>) -> Self {
        Self {
            operation: operation.into(),
            parameters: Vec::new(),
            upstream: String::new(),
        }
    }

    /// The same target with decoded path parameters.
    #[must_use]
    pub fn with_parameters(mut self, parameters: Vec<String>) -> Self {
        self.parameters = parameters;
        self
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.operation)?;
        if !self.parameters.is_empty() {
            write!(f, " {:?}", self.parameters)?;
        }
        if !self.upstream.is_empty() {
            write!(f, " @ {}", self.upstream)?;
        }
        Ok(())
    }
}

/// The whole identity of a keyed call. Nothing is ever matched on less (invariant I4).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The tenant.
    pub workspace: WorkspaceId,
    /// The caller.
    pub principal: PrincipalId,
    /// What is addressed.
    pub target: Target,
    /// The caller's key.
    pub key: Key,
}
