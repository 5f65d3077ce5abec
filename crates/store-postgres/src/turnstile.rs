use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use counterfoil_core::WorkspaceId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::{Done, Fault};

/// Workspaces that use connections, or wait for them, in one moment.
const WORKSPACES_MAX: usize = 16_384;

/// Lets so many callers of each workspace through at once: the mutations of a workspace take turns
/// anyway, and those that wait must not keep all connections from the others.
#[derive(Clone)]
pub(crate) struct Turnstile {
    each: usize,
    workspaces: Arc<Mutex<HashMap<WorkspaceId, Users>>>,
}

struct Users {
    permits: Arc<Semaphore>,
    /// Who is through, or waits.
    count: usize,
}

/// One caller of a workspace that is through; until it is dropped.
pub(crate) struct Passed {
    /// Given back before the caller is no longer counted.
    _permit: OwnedSemaphorePermit,
    _counted: Counted,
}

/// One caller of a workspace. The last one takes the workspace's entry along.
struct Counted {
    turnstile: Turnstile,
    workspace: WorkspaceId,
}

impl Turnstile {
    pub(crate) fn new(each: usize) -> Self {
        Self {
            each,
            workspaces: Arc::default(),
        }
    }

    /// Waits for a turn until `deadline`.
    pub(crate) async fn pass(&self, workspace: &WorkspaceId, deadline: Instant) -> Done<Passed> {
        let (permits, counted) = self.count(workspace)?;
        let permit = tokio::time::timeout_at(deadline.into(), permits.acquire_owned())
            .await
            .map_err(|_| Fault::Locked)?
            .map_err(|_| Fault::Said(crate::queue::closed()))?;
        Ok(Passed {
            _permit: permit,
            _counted: counted,
        })
    }

    fn count(&self, workspace: &WorkspaceId) -> Done<(Arc<Semaphore>, Counted)> {
        let mut workspaces = self
            .workspaces
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if workspaces.len() >= WORKSPACES_MAX && !workspaces.contains_key(workspace) {
            return Err(Fault::Locked);
        }
        let users = workspaces
            .entry(workspace.clone())
            .or_insert_with(|| Users {
                permits: Arc::new(Semaphore::new(self.each)),
                count: 0,
            });
        users.count += 1;
        let permits = Arc::clone(&users.permits);
        drop(workspaces);
        let counted = Counted {
            turnstile: self.clone(),
            workspace: workspace.clone(),
        };
        Ok((permits, counted))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut workspaces = self
            .turnstile
            .workspaces
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(users) = workspaces.get_mut(&self.workspace) {
            users.count -= 1;
            if users.count == 0 {
                workspaces.remove(&self.workspace);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(20)
    }

    #[tokio::test]
    async fn a_workspace_waits_for_its_own_and_leaves_nothing_behind() {
        let turnstile = Turnstile::new(2);
        let (one, two) = (
            WorkspaceId::new("one").unwrap(),
            WorkspaceId::new("two").unwrap(),
        );
        let first = turnstile.pass(&one, soon()).await.unwrap();
        let second = turnstile.pass(&one, soon()).await.unwrap();
        let third = turnstile.pass(&one, soon()).await;
        assert!(matches!(third, Err(Fault::Locked)));
        let other = turnstile.pass(&two, soon()).await.unwrap();
        drop(first);
        let third = turnstile.pass(&one, soon()).await.unwrap();
        drop((second, third, other));
        assert!(turnstile.workspaces.lock().unwrap().is_empty());
    }
}
