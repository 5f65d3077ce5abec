use std::time::{Duration, Instant};

use deadpool::managed::{
    Manager, Metrics, Object, Pool as Deadpool, PoolError, RecycleError, RecycleResult, Timeouts,
};

use crate::{
    connect::{Connector, Session},
    error::{Done, Fault},
};

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

/// A connection on loan; one that is in the middle of a transaction is not lent again.
pub(crate) type Lent = Object<Maker>;

/// The connections for everything that is not a batch.
#[derive(Clone)]
pub(crate) struct Pool(Deadpool<Maker>);

impl Pool {
    pub(crate) fn new(connector: Connector, max: usize) -> Self {
        let builder = Deadpool::builder(Maker(connector))
            .max_size(max.max(1))
            .runtime(deadpool::Runtime::Tokio1);
        // It fails only for time-outs without a runtime, and there is one.
        Self(builder.build().unwrap_or_else(|_| unreachable!()))
    }

    /// A connection, waiting for one until `deadline`.
    pub(crate) async fn lend(&self, deadline: Instant) -> Done<Lent> {
        let left = deadline
            .saturating_duration_since(Instant::now())
            .max(Duration::from_millis(1));
        let timeouts = Timeouts {
            wait: Some(left),
            create: Some(left),
            recycle: Some(left),
        };
        self.0
            .timeout_get(&timeouts)
            .await
            .map_err(|error| match error {
                PoolError::Timeout(_) => Fault::Locked,
                PoolError::Backend(fault) => fault,
                PoolError::Closed
                | PoolError::NoRuntimeSpecified
                | PoolError::PostCreateHook(_) => Fault::Said(crate::queue::closed()),
            })
    }

    /// No more connections from now on.
    pub(crate) fn close(&self) {
        self.0.close();
    }
}
