use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    Router,
    http::{HeaderMap, header},
};
use counterfoil_core::WorkspaceId;
use counterfoil_engine::{Caller, Engine};
use counterfoil_http::Rest;
use counterfoil_mcp::{AuthError, Authenticate, Endpoint, HttpOptions, Limits};
use counterfoil_store::{BoxFuture, Store};

use crate::{
    AgentKeys, Credential, DEFAULT_WORKSPACE, Error, Settings,
    gate::{Gate, Refused},
    meters, rest,
    schema::{COMPONENT, MIGRATIONS},
    sealing,
    settings::Operations,
    state::Shared,
    tools::tools,
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
    endpoint: Endpoint,
    /// The endpoint's routes.
    mcp: Router,
    settings: Arc<Settings>,
}

/// How a model best uses the MCP server.
const INSTRUCTIONS: &str = "Calls that change something run once per idempotency key. After a time-out or a lost answer send \
     the same call with the same key; it gets the first answer. get_operation and list_operations \
     tell what became of a call.";

impl Application {
    /// Under which name the store keeps the version of the application's tables.
    pub const COMPONENT: &str = COMPONENT;
    /// The version of the application's tables that this program writes.
    #[allow(clippy::cast_possible_wrap, reason = "a handful")]
    pub const SCHEMA_VERSION: i64 = MIGRATIONS.len() as i64;

    /// Brings the application's tables up, and nothing else.
    ///
    /// # Errors
    /// What the store says.
    pub async fn migrate(store: &dyn Store) -> Result<(), Error> {
        Ok(store.migrate(COMPONENT, MIGRATIONS).await?)
    }

    /// Brings the application's tables up, creates the workspace `default`, and is ready.
    ///
    /// # Errors
    /// [`Error::Settings`] if they contradict each other, or name another sealing key than other
    /// processes on this store do; [`Error::Store`] if the store cannot be used or holds a newer
    /// schema.
    pub async fn start(store: Arc<dyn Store>, settings: Settings) -> Result<Self, Error> {
        meters::recorder();
        Self::migrate(store.as_ref()).await?;
        sealing::check(store.as_ref(), settings.key_ring.as_deref()).await?;
        let application = Self::attach(store, settings)?;
        let workspace = WorkspaceId::new(DEFAULT_WORKSPACE)
            .map_err(|error| Error::Settings(error.to_string()))?;
        application
            .shared
            .agent_keys
            .ensure_workspace(&workspace)
            .await?;
        Ok(application)
    }

    /// The application on a store where it was started before. Writes nothing, so that it can
    /// look at a store that is open for reading only.
    ///
    /// # Errors
    /// [`Error::Settings`] if they contradict each other.
    pub fn attach(store: Arc<dyn Store>, settings: Settings) -> Result<Self, Error> {
        let operations = Operations::new(&settings)?;
        let openapi = rest::document(&settings.retention)?;
        let mut builder = Engine::builder(Arc::clone(&store)).limits(settings.limits);
        if let Some(ring) = &settings.key_ring {
            builder = builder.key_ring(Arc::clone(ring));
        }
        let engine = builder.build();
        let agent_keys = AgentKeys::new(engine.clone());
        let gate = Gate::new(agent_keys.clone(), store, settings.rate);
        let surface = Rest::default().body_bytes_max(settings.body_bytes_max);
        let shared = Shared::new(engine, agent_keys, gate, operations, surface, openapi);
        let endpoint = endpoint(&shared, &settings)?;
        let options = HttpOptions {
            allowed_hosts: settings.allowed_hosts.clone(),
            allowed_origins: settings.allowed_origins.clone(),
            ..HttpOptions::default()
        };
        let authenticate = Arc::new(Credentials::new(shared.clone()));
        let mcp = endpoint
            .router(authenticate, options)
            .map_err(|error| Error::Settings(error.to_string()))?;
        Ok(Self {
            shared,
            endpoint,
            mcp,
            settings: Arc::new(settings),
        })
    }

    /// REST under `/api/v1`, MCP at `/mcp`, and the probes.
    pub fn router(&self) -> Router {
        let mcp = self.mcp.clone();
        rest::router(self.shared.clone(), self.settings.body_bytes_max, mcp)
    }

    /// The MCP endpoint, for one client on a pair of streams.
    #[must_use]
    pub const fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Who presents this credential, for [`Application::endpoint`]; `None` if it is not valid.
    ///
    /// # Errors
    /// What the store says.
    pub async fn caller(&self, credential: &str) -> Result<Option<Caller>, Error> {
        let Some(credential) = Credential::parse(credential) else {
            return Ok(None);
        };
        let read_at = Instant::now();
        let found = self.shared.agent_keys.authenticate(&credential).await?;
        Ok(found.map(|key| self.shared.gate.caller(&key, read_at)))
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

fn endpoint(shared: &Shared, settings: &Settings) -> Result<Endpoint, Error> {
    let mut limits = Limits::default();
    limits.framing.message_bytes_max = settings.body_bytes_max;
    limits.drain_for = settings.drain_for;
    let gate = shared.clone();
    Endpoint::builder(shared.engine.clone())
        .title("Counterfoil")
        .server("counterfoil", env!("CARGO_PKG_VERSION"))
        .instructions(INSTRUCTIONS)
        .meta_prefix(&settings.meta_prefix)
        .limits(limits)
        .limiter(move |caller| gate.gate.count(&caller.principal))
        .tools(tools(shared))
        .build()
        .map_err(|error| Error::Settings(error.to_string()))
}

/// The gate as the MCP endpoint asks it.
struct Credentials {
    shared: Shared,
}

impl Credentials {
    const fn new(shared: Shared) -> Self {
        Self { shared }
    }
}

impl Authenticate for Credentials {
    fn authenticate<'a>(
        &'a self,
        headers: &'a HeaderMap,
        remote: Option<SocketAddr>,
    ) -> BoxFuture<'a, Result<Caller, AuthError>> {
        Box::pin(async move {
            let mut lines = headers.get_all(header::AUTHORIZATION).iter();
            let header = lines.next();
            if lines.next().is_some() {
                return Err(AuthError::Invalid);
            }
            let text = header.map(|value| value.to_str().unwrap_or_default());
            let remote = remote.map(|address| address.ip());
            match self.shared.gate.admit(text, remote).await {
                Ok((key, read_at)) => Ok(self.shared.gate.caller(&key, read_at)),
                Err(Refused::Unauthorized) if header.is_none() => Err(AuthError::Missing),
                Err(Refused::Unauthorized) => Err(AuthError::Invalid),
                Err(Refused::RateLimited(retry_after)) => {
                    Err(AuthError::RateLimited { retry_after })
                }
                Err(Refused::Store(error)) => {
                    tracing::warn!(%error, "a credential could not be checked");
                    let retry_after = Duration::from_secs(1);
                    Err(AuthError::Unavailable { retry_after })
                }
            }
        })
    }
}
