use std::{
    ops::Deref,
    time::{Duration, Instant},
};

use counterfoil_core::WorkspaceId;
use deadpool::managed::{
    Manager, Metrics, Object, Pool as Deadpool, PoolError, RecycleError, RecycleResult, Timeouts,
};

use crate::{
    connect::{Connector, Session},
    error::{Done, Fault},
    turnstile::{Passed, Turnstile},
};

/// A workspace may use this part of the handlers' connections.
const SHARE: usize = 3;
/// But so many in any case.
const LEAST: usize = 2;

/// Makes connections for the pool.
pub(crate) struct Maker(Connector);

impl Manager for Maker {
    type Type = Session;
    type Error = Fault;

    async fn create(&self) -> Result<Session, Fault> {
        self.0.connect().await.map(|(session, _)| session)
    }

    async fn recycle(&self, session: &mut Session, _: &Metrics) -> RecycleResult<Fault> {
        if session.is_clean() {
            Ok(())
        } else {
            Err(RecycleError::message(
                "closed, or in the middle of something",
            ))
        }
    }
}

/// A connection on loan. One that comes back in the middle of something is closed.
pub(crate) struct Lent {
    object: Object<Maker>,
    /// Held while the connection is.
    _turn: Option<Passed>,
}

impl Deref for Lent {
    type Target = Session;

    fn deref(&self) -> &Session {
        &self.object
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if !self.object.is_clean() {
            // Its locks are not to be kept until somebody else wants a connection, and what is
            // closed is not lent again.
            self.object.end();
        }
    }
}

impl Lent {
    /// Not to be lent again.
    pub(crate) fn discard(self) {
        self.object.end();
    }
}

/// Connections for everything that is not a batch.
#[derive(Clone)]
pub(crate) struct Pool {
    connections: Deadpool<Maker>,
    turnstile: Turnstile,
}

/// Two pools, so that handlers that take long leave something for those who look.
pub(crate) struct Pools {
    /// For reads, looks at the database's health and upkeep.
    pub(crate) reads: Pool,
    /// For atomic handlers and application transactions.
    pub(crate) handlers: Pool,
}

impl Pools {
    /// At most `max` connections in all; a single one is for everybody.
    pub(crate) fn new(connector: Connector, max: usize) -> Self {
        if max < 2 {
            let one = Pool::new(connector, 1);
            return Self {
                reads: one.clone(),
                handlers: one,
            };
        }
        let reads = (max / 4).max(2).min(max - 1);
        Self {
            reads: Pool::new(connector.clone(), reads),
            handlers: Pool::new(connector, max - reads),
        }
    }

    /// No more connections from now on.
    pub(crate) fn close(&self) {
        self.reads.connections.close();
        self.handlers.connections.close();
    }
}

impl Pool {
    fn new(connector: Connector, max: usize) -> Self {
        let builder = Deadpool::builder(Maker(connector))
            .max_size(max)
            .runtime(deadpool::Runtime::Tokio1);
        Self {
            // It fails only for time-outs without a runtime, and there is one.
            connections: builder.build().unwrap_or_else(|_| unreachable!()),
            turnstile: Turnstile::new((max / SHARE).max(LEAST)),
        }
    }

    /// A connection for a mutation, waiting for one until `deadline`. One workspace gets so many at
    /// once.
    pub(crate) async fn lend_for(
        &self,
        workspace: Option<&WorkspaceId>,
        deadline: Instant,
    ) -> Done<Lent> {
        let turn = match workspace {
            Some(workspace) => Some(self.turnstile.pass(workspace, deadline).await?),
            None => None,
        };
        self.take(turn, deadline).await
    }

    /// A connection, waiting for one until `deadline`.
    pub(crate) async fn lend(&self, deadline: Instant) -> Done<Lent> {
        self.take(None, deadline).await
    }

    async fn take(&self, turn: Option<Passed>, deadline: Instant) -> Done<Lent> {
        let left = deadline
            .saturating_duration_since(Instant::now())
            .max(Duration::from_millis(1));
        let timeouts = Timeouts {
            wait: Some(left),
            // Connecting is bounded by itself.
            create: None,
            recycle: Some(left),
        };
        let lent = if self.connections.status().available > 0 {
            tokio::time::timeout(left, self.connections.timeout_get(&timeouts)).await
        } else {
            // A connection that is being made is there for the next one, if this caller's patience
            // is shorter than the way to the database.
            let connections = self.connections.clone();
            let lending = tokio::spawn(async move { connections.timeout_get(&timeouts).await });
            tokio::time::timeout(left, lending)
                .await
                .map(|joined| joined.unwrap_or(Err(PoolError::Closed)))
        };
        match lent {
            Ok(Ok(object)) => Ok(Lent {
                object,
                _turn: turn,
            }),
            Err(_) | Ok(Err(PoolError::Timeout(_))) => Err(Fault::Locked),
            Ok(Err(PoolError::Backend(fault))) => Err(fault),
            Ok(Err(
                PoolError::Closed | PoolError::NoRuntimeSpecified | PoolError::PostCreateHook(_),
            )) => Err(Fault::Said(crate::queue::closed())),
        }
    }
}
