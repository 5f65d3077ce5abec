//! Whose calls may be seen.

use counterfoil_core::{Code, OperationId, Phase, PrincipalId, Receipt, State, WorkspaceId};
use counterfoil_engine::Engine;
use counterfoil_store::{Found, Query};

use super::shown::Fault;

/// Receipts read at once.
const PAGE: u32 = 200;
/// Most reads for one list, which may be short because of it: a list of the store knows nothing of
/// upstreams.
const LOOKS_MAX: u32 = 20;

/// Who asks: only calls of this principal to this upstream are shown.
#[derive(Clone, Copy)]
pub(crate) struct Asker<'a> {
    /// Where they are kept.
    pub(crate) engine: &'a Engine,
    /// The tenant.
    pub(crate) workspace: &'a WorkspaceId,
    /// Who.
    pub(crate) principal: &'a PrincipalId,
    /// The upstream instance, as in [`counterfoil_core::Target::upstream`].
    pub(crate) upstream: &'a str,
    /// The client speaks 2026-07-28.
    pub(crate) is_modern: bool,
}

impl Asker<'_> {
    fn may_see(&self, receipt: &Receipt) -> bool {
        let identity = &receipt.identity;
        identity.workspace == *self.workspace
            && identity.principal == *self.principal
            && identity.target.upstream == self.upstream
            && receipt.phase(self.engine.now()) != Phase::Gone
    }

    /// The operation of that id, if it may be seen.
    pub(super) async fn find(&self, prefix: &str, id: &str) -> Result<Found, Fault> {
        let absent = || {
            Fault::new(
                Code::NotFound,
                "There is no such operation here",
                format!("Check the operation_id; {prefix}list_operations shows those there are"),
            )
        };
        let id: OperationId = id.parse().map_err(|_| absent())?;
        let found = self.engine.store().get(id).await?;
        found
            .filter(|found| self.may_see(&found.receipt))
            .ok_or_else(absent)
    }

    /// The operations, those in doubt first, then the newest first, and whether there are more.
    pub(super) async fn list(
        &self,
        limit: u32,
        in_doubt_only: bool,
    ) -> Result<(Vec<Receipt>, bool), Fault> {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let doubt = vec![State::OutcomeUnknown];
        let rest = State::all()
            .filter(|state| !matches!(state, State::OutcomeUnknown | State::Free))
            .collect();
        let parts: Vec<Vec<State>> = if in_doubt_only {
            vec![doubt]
        } else {
            vec![doubt, rest]
        };
        let mut receipts: Vec<Receipt> = Vec::new();
        let mut looks = 0;
        for states in parts {
            let mut cursor = None;
            loop {
                if looks == LOOKS_MAX {
                    return Ok((receipts, true));
                }
                looks += 1;
                let query = Query {
                    workspace: self.workspace.clone(),
                    principal: Some(self.principal.clone()),
                    states: states.clone(),
                    cursor,
                    limit: PAGE,
                };
                let page = self.engine.store().list(&query).await?;
                for receipt in page.receipts {
                    if !self.may_see(&receipt) {
                        continue;
                    }
                    if receipts.len() == limit {
                        return Ok((receipts, true));
                    }
                    receipts.push(receipt);
                }
                cursor = page.next;
                if cursor.is_none() {
                    break;
                }
            }
        }
        Ok((receipts, false))
    }
}
