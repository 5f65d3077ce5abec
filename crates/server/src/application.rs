use std::{sync::Arc, time::Duration};

use axum::Router;
use counterfoil_core::WorkspaceId;
use counterfoil_engine::Engine;
use counterfoil_http::Rest;
use counterfoil_store::Store;

use crate::{
    AgentKeys, DEFAULT_WORKSPACE, Error, Settings,
    gate::Gate,
    meters, rest,
    schema::{COMPONENT, MIGRATIONS},
    settings::Operations,
    state::Shared,
};

/// The built-in application on a store: agent keys, notes and operations over REST and MCP.
///
/// ```text
/// let application = Application::start(store, Settings::default()).await?;
/// tokio::spawn({ let application = application.clone(); async move { application.maintain().await } });
/// counterfoil_http::serve(listener, application.router(), bounds, async { stop.await; application.start_draining() }).await;
/// application.drain(bound).await;
/// ```
#[derive(Clone)]
pub struct Application {
    shared: Shared,
    settings: Arc<Settings>,
}

impl Application {
    /// Brings the application's tables up, creates the workspace `default`, and is ready.
    ///
    /// # Errors
    /// [`Error::Settings`] if they contradict each other, [`Error::Store`] if the store cannot be
    /// used or holds a newer schema.
    pub async fn start(store: Arc<dyn Store>, settings: Settings) -> Result<Self, Error> {
        let operations = Operations::new(&settings)?;
        let openapi = rest::document(&settings.retention)?;
        meters::recorder();
        store.migrate(COMPONENT, MIGRATIONS).await?;
        let mut builder = Engine::builder(Arc::clone(&store)).limits(settings.limits);
        if let Some(ring) = &settings.key_ring {
            builder = builder.key_ring(Arc::clone(ring));
        }
        let engine = builder.build();
        let agent_keys = AgentKeys::new(engine.clone());
        let workspace = WorkspaceId::new(DEFAULT_WORKSPACE)
            .map_err(|error| Error::Settings(error.to_string()))?;
        agent_keys.ensure_workspace(&workspace).await?;
        let gate = Gate::new(agent_keys.clone(), store, settings.rate);
        let surface = Rest::default().body_bytes_max(settings.body_bytes_max);
        Ok(Self {
            shared: Shared::new(engine, agent_keys, gate, operations, surface, openapi),
            settings: Arc::new(settings),
        })
    }

    /// REST under `/api/v1`, MCP at `/mcp`, and the probes.
    #[must_use]
    pub fn router(&self) -> Router {
        rest::router(
            self.shared.clone(),
            self.settings.body_bytes_max,
            Router::new(),
        )
    }

    /// The engine that runs the application's calls.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.shared.engine
    }

    /// Agent keys, as the machine's operator handles them.
    #[must_use]
    pub fn agent_keys(&self) -> AgentKeys {
        self.shared.agent_keys.clone()
    }

    /// The background work of a process: lapsed leases, sweeps. Never returns.
    pub async fn maintain(&self) {
        self.shared.engine.maintain().await;
    }

    /// `/readyz` is red from now on. Calls are still answered.
    pub fn start_draining(&self) {
        self.shared.start_draining();
    }

    /// Waits until nothing runs any more, at most `bound`; whether all is through.
    pub async fn drain(&self, bound: Duration) -> bool {
        self.start_draining();
        self.shared.engine.drain(bound).await
    }
}
