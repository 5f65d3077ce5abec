use std::{sync::Arc, time::Duration};

use counterfoil_core::{
    Fingerprint, Identity, InvalidPolicy, Key, Policy, PrincipalId, Target, WorkspaceId,
};
use counterfoil_store::BoxFuture;

/// A declared operation: its version and how it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The version that answers new calls. Recorded in the receipt, not part of the identity.
    pub version: u32,
    /// How it runs and is kept.
    pub policy: Policy,
}

impl Operation {
    /// Checks the policy.
    ///
    /// # Errors
    /// [`InvalidPolicy`] if its parts do not fit together.
    pub fn new(version: u32, policy: Policy) -> Result<Arc<Self>, InvalidPolicy> {
        policy.check()?;
        Ok(Arc::new(Self { version, policy }))
    }
}

/// Why a result is withheld.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// The principal is not authorized (any more).
    #[error("the caller is not authorized")]
    Withdrawn,
    /// It could not be read whether it is. Nothing is handed over; trying again may help.
    #[error("the caller's authorization could not be read")]
    Unsettled,
}

/// Says whether the caller of one call is still authorized. Asked before anything is reserved or
/// replayed, and again before a result is handed over after a run or a wait (invariant I4).
pub trait Authority: Send + Sync {
    /// Reads the present truth, not a copy.
    fn check(&self) -> BoxFuture<'_, Result<(), Denied>>;
}

/// For callers inside the process, who need no authorization.
#[derive(Clone, Copy, Debug, Default)]
pub struct Open;

impl Authority for Open {
    fn check(&self) -> BoxFuture<'_, Result<(), Denied>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

/// Who calls, as the surface's authentication established it. Never from an argument.
#[derive(Clone)]
pub struct Caller {
    /// The tenant of the credential.
    pub workspace: WorkspaceId,
    /// The principal of the credential.
    pub principal: PrincipalId,
    /// Whether it is still authorized, read afresh.
    pub authority: Arc<dyn Authority>,
}

impl Caller {
    /// The identity of a call by this caller.
    #[must_use]
    pub fn identity(&self, target: Target, key: Key) -> Identity {
        Identity {
            workspace: self.workspace.clone(),
            principal: self.principal.clone(),
            target,
            key,
        }
    }
}

/// One keyed call. The surface has authenticated and authorized its principal just now.
#[derive(Clone)]
pub struct Call {
    /// Whose call it is.
    pub identity: Identity,
    /// What it asks.
    pub fingerprint: Fingerprint,
    /// What it is an instance of.
    pub operation: Arc<Operation>,
    /// Whether the principal may still have the result.
    pub authority: Arc<dyn Authority>,
    /// How long a duplicate waits for the first one's answer; `None`: the operation's default.
    /// Bounded by the policy's `wait_max`.
    pub wait: Option<Duration>,
    /// The digest of its inputs or payment, if it answers a question.
    pub inputs: Option<[u8; 32]>,
}

impl Call {
    /// A plain call by a caller inside the process.
    #[must_use]
    pub fn new(identity: Identity, fingerprint: Fingerprint, operation: Arc<Operation>) -> Self {
        Self {
            identity,
            fingerprint,
            operation,
            authority: Arc::new(Open),
            wait: None,
            inputs: None,
        }
    }
}
