use std::{
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use counterfoil_core::{PrincipalId, WorkspaceId};
use counterfoil_engine::{Authority, Caller, Denied};
use counterfoil_store::{self as store, BoxFuture, Store, Value};

use crate::{
    AgentKey, AgentKeys, Credential, Error,
    credential::bearer,
    rate::{Limiter, Rate},
};

/// Why a request does not get in. No receipt is looked at before it does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// No valid credential.
    Unauthorized,
    /// Too many calls, or too many failed authentications.
    RateLimited(Duration),
    /// The store failed.
    Store(store::Error),
}

/// Authenticates and limits, the same for every surface.
pub(crate) struct Gate {
    keys: AgentKeys,
    store: Arc<dyn Store>,
    limiter: Limiter,
}

impl Gate {
    pub(crate) fn new(keys: AgentKeys, store: Arc<dyn Store>, rate: Rate) -> Self {
        Self {
            keys,
            store,
            limiter: Limiter::new(rate),
        }
    }

    /// The principal of an `Authorization` header. Its row is read now: a revocation is in force
    /// with the next request, whichever process it was made in.
    ///
    /// A request without the header guesses nothing, so that it is neither counted nor limited.
    /// Too many failures of one address keep it from the database; credentials that were valid a
    /// moment ago still get through, because others may share the address.
    ///
    /// Beside the key, when it was asked for.
    pub(crate) async fn admit(
        &self,
        authorization: Option<&str>,
        remote: Option<IpAddr>,
    ) -> Result<(AgentKey, Instant), Refused> {
        let Some(authorization) = authorization else {
            return Err(Refused::Unauthorized);
        };
        let credential = bearer(authorization).and_then(Credential::parse);
        if !self.limiter.is_known(authorization) {
            self.limiter
                .may_fail(remote)
                .map_err(Refused::RateLimited)?;
        }
        let asked = Instant::now();
        let found = match &credential {
            None => None,
            Some(credential) => match self.keys.authenticate(credential).await {
                Ok(found) => found,
                Err(Error::Store(error)) => return Err(Refused::Store(error)),
                Err(
                    Error::Invalid(_)
                    | Error::NotFound(_)
                    | Error::Forbidden
                    | Error::Settings(_)
                    | Error::NoRandomness,
                ) => None,
            },
        };
        let Some(key) = found else {
            self.limiter.forget(authorization);
            self.limiter.failure(remote).map_err(Refused::RateLimited)?;
            return Err(Refused::Unauthorized);
        };
        self.limiter.know(authorization);
        self.count(&key.id).map_err(Refused::RateLimited)?;
        Ok((key, asked))
    }

    /// Counts a call of `principal`; `Err` says when to try again.
    pub(crate) fn count(&self, principal: &PrincipalId) -> Result<(), Duration> {
        self.limiter.call(principal.as_str())
    }

    /// The principal as the engine knows it. `read_at` is when its row was asked for.
    pub(crate) fn caller(&self, key: &AgentKey, read_at: Instant) -> Caller {
        Caller {
            workspace: key.workspace.clone(),
            principal: key.id.clone(),
            authority: Arc::new(Standing {
                store: Arc::clone(&self.store),
                id: key.id.clone(),
                workspace: key.workspace.clone(),
                read_at,
            }),
        }
    }
}

/// Whether a principal still stands. Judged by the principal, not by the secret it came with: the
/// rotation of a secret does not take an answer away from its caller.
struct Standing {
    store: Arc<dyn Store>,
    id: PrincipalId,
    workspace: WorkspaceId,
    /// When its row was asked for, at the request's authentication: what the store answered is no
    /// older, however long the answer took.
    read_at: Instant,
}

/// How long a reading of a principal's row counts as the present, for the request it was made
/// for: less than its answer is on its way.
const PRESENT: Duration = Duration::from_millis(1);

impl Authority for Standing {
    fn check(&self) -> BoxFuture<'_, Result<(), Denied>> {
        if self.read_at.elapsed() < PRESENT {
            return Box::pin(std::future::ready(Ok(())));
        }
        Box::pin(async move {
            let stands = store::read(self.store.as_ref(), |sql| {
                let parameters = [
                    Value::from(self.id.as_str()),
                    Value::from(self.workspace.as_str()),
                ];
                Box::pin(async move {
                    let rows = sql
                        .query(
                            "SELECT 1 FROM agent_keys \
                             WHERE id = $1 AND workspace = $2 AND revoked_at IS NULL",
                            &parameters,
                        )
                        .await?;
                    Ok(!rows.is_empty())
                })
            })
            .await;
            match stands {
                Ok(true) => Ok(()),
                Ok(false) => Err(Denied::Withdrawn),
                Err(error) => {
                    tracing::warn!(%error, "authorization could not be read; the answer is withheld");
                    Err(Denied::Unsettled)
                }
            }
        })
    }
}
