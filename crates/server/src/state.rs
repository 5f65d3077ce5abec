use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use counterfoil_engine::Engine;
use counterfoil_http::Rest;

use crate::{AgentKeys, gate::Gate, settings::Operations};

/// What every request needs.
#[derive(Clone)]
pub(crate) struct Shared(Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) engine: Engine,
    pub(crate) agent_keys: AgentKeys,
    pub(crate) gate: Gate,
    pub(crate) operations: Operations,
    pub(crate) rest: Rest,
    pub(crate) openapi: String,
    draining: AtomicBool,
}

impl Shared {
    pub(crate) fn new(
        engine: Engine,
        agent_keys: AgentKeys,
        gate: Gate,
        operations: Operations,
        rest: Rest,
        openapi: String,
    ) -> Self {
        Self(Arc::new(Inner {
            engine,
            agent_keys,
            gate,
            operations,
            rest,
            openapi,
            draining: AtomicBool::new(false),
        }))
    }

    pub(crate) fn start_draining(&self) {
        self.0.draining.store(true, Ordering::Release);
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.0.draining.load(Ordering::Acquire)
    }
}

impl std::ops::Deref for Shared {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}
