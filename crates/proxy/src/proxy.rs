use std::{
    collections::HashMap,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use counterfoil_core::{InvalidPolicy, OperationId, PrincipalId, WorkspaceId};
use counterfoil_engine::{Engine, Operation, SystemEntropy};
use counterfoil_mcp::InvalidHttpOptions;
use counterfoil_store::Error;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::{
    InvalidSettings, Settings,
    front::{
        self,
        http::{HttpFront, Unready},
    },
    guard::Running,
    keyless::{Channel, Deliveries},
    own_tools::{self, OwnTools},
    session::Session,
    wire::Failure,
};

/// The workspace of all calls through a proxy.
const WORKSPACE: &str = "default";
/// The principal of a client at the other end of a pipe.
pub(crate) const LOCAL: &str = "local";
/// How often rows about deliveries that no longer matter are removed.
const PRUNE_EACH: Duration = Duration::from_secs(3600);

/// Why a proxy does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The settings.
    #[error(transparent)]
    Settings(#[from] InvalidSettings),
    /// The store.
    #[error("the receipt store cannot be used: {0}")]
    Store(#[from] Error),
    /// The HTTP front.
    #[error(transparent)]
    Front(#[from] InvalidHttpOptions),
    /// The random source of the operating system.
    #[error("there is no randomness to be had")]
    NoRandomness,
}

impl From<Unready> for StartError {
    fn from(unready: Unready) -> Self {
        match unready {
            Unready::Settings(error) => Self::Settings(error),
            Unready::Options(error) => Self::Front(error),
            Unready::NoEntropy => Self::NoRandomness,
        }
    }
}

/// Why serving ended before the client did.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The upstream could not be started.
    #[error("{0}")]
    Upstream(String),
    /// The upstream ended, and is not started again.
    #[error("{0}")]
    Ended(String),
}

/// A proxy in front of one upstream. Cheap to clone; needs a tokio runtime.
///
/// ```text
/// let proxy = Proxy::start(engine, settings).await?;
/// tokio::spawn({ let proxy = proxy.clone(); async move { proxy.maintain().await } });
/// proxy.serve_stdio(stdin, stdout, stop).await?;      // or: serve(proxy.router()?, …)
/// proxy.finish().await;
/// ```
#[derive(Clone)]
pub struct Proxy {
    shared: Arc<Shared>,
    front: Arc<OnceLock<HttpFront>>,
}

/// What all sessions of a proxy share.
pub(crate) struct Shared {
    pub(crate) engine: Engine,
    pub(crate) settings: Settings,
    pub(crate) workspace: WorkspaceId,
    /// Which upstream instance, in every identity.
    pub(crate) upstream: String,
    pub(crate) deliveries: Deliveries,
    /// The proxy's own tools, and as `tools/list` shows them, as JSON text.
    pub(crate) own: Option<OwnTools>,
    pub(crate) own_tools: Vec<String>,
    /// What runs here and can be cancelled.
    pub(crate) running: Mutex<HashMap<OperationId, Arc<Running>>>,
    /// The policies of tools, each checked once.
    operations: Mutex<HashMap<String, Arc<Operation>>>,
}

impl Shared {
    /// 16 random hex digits.
    pub(crate) fn random_hex(&self) -> String {
        let mut random = [0; 8];
        // Without randomness nothing runs anyway; the ids of one process still differ.
        let _ = self.engine.random(&mut random);
        random.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// A name for a connection.
    pub(crate) fn channel(&self) -> Channel {
        let mut random = [0; 16];
        if !self.engine.random(&mut random) {
            tracing::error!("there is no randomness to be had");
        }
        Channel(random)
    }

    /// How a tool's calls are kept.
    pub(crate) fn operation(&self, tool: &str) -> Result<Arc<Operation>, InvalidPolicy> {
        let mut operations = self
            .operations
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(operation) = operations.get(tool) {
            return Ok(Arc::clone(operation));
        }
        let mut policy = self.settings.policy(tool);
        // A paired call waits for the whole of the first one.
        policy.wait_max = policy.wait_max.max(policy.attempt_limit);
        if self.settings.tool(tool).keep_result == Some(false) {
            policy.result_bytes_max = 0;
        }
        let operation = Operation::new(1, policy)?;
        operations.insert(tool.to_owned(), Arc::clone(&operation));
        Ok(operation)
    }
}

impl Proxy {
    /// A proxy on the engine's store. The upstream is started with the first session.
    ///
    /// # Errors
    /// [`StartError`]: settings that do not hold, a store that cannot be used.
    pub async fn start(engine: Engine, settings: Settings) -> Result<Self, StartError> {
        settings.check()?;
        let workspace = WorkspaceId::new(WORKSPACE)
            .map_err(|_| InvalidSettings::Client(WORKSPACE.to_owned()))?;
        let deliveries = Deliveries::open(&engine, &settings).await?;
        let own = OwnTools::of(&settings);
        let shared = Arc::new(Shared {
            upstream: settings.upstream(),
            own_tools: own_tools::listed(&settings),
            own,
            engine,
            settings,
            workspace,
            deliveries,
            running: Mutex::default(),
            operations: Mutex::default(),
        });
        Ok(Self {
            shared,
            front: Arc::default(),
        })
    }

    #[cfg(test)]
    pub(crate) const fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Serves one client over a pair of streams, until `reader` ends, `stop` completes, or the
    /// upstream has ended for good. What is under way is drained, at most
    /// [`Settings::drain_for`]; then the upstream is ended. Nothing but protocol is written.
    ///
    /// # Errors
    /// [`ServeError`] if the upstream cannot be started, or ends and is not started again.
    pub async fn serve_stdio<R, W>(
        &self,
        reader: R,
        writer: W,
        stop: impl Future<Output = ()> + Send,
    ) -> Result<(), ServeError>
    where
        R: AsyncRead + Unpin + Send,
        W: AsyncWrite + Unpin + Send + 'static,
    {
        let principal =
            PrincipalId::new(LOCAL).map_err(|error| ServeError::Upstream(error.to_string()))?;
        let limits = front::stdio::Limits::new(
            self.shared.settings.message_bytes_max,
            self.shared.settings.drain_for,
        );
        let (opened, opening) = tokio::sync::oneshot::channel();
        let over = async move {
            let watched = async {
                let session: Arc<Session> = match opening.await {
                    Ok(session) => session,
                    Err(_) => return std::future::pending().await,
                };
                // On a task of its own: a client that closes at once must not cut it off halfway.
                let starting = Arc::clone(&session);
                let started = tokio::spawn(async move { starting.start().await });
                match started.await {
                    Ok(Err(Failure::NotSent(why))) => ServeError::Upstream(why),
                    Ok(Err(why)) => ServeError::Upstream(why.to_string()),
                    Ok(Ok(())) | Err(_) => ServeError::Ended(session.link.ended().await),
                }
            };
            tokio::select! {
                why = watched => Some(why),
                () = stop => None,
            }
        };
        let why = Arc::new(Mutex::new(None));
        let stop = {
            let why = Arc::clone(&why);
            async move {
                let ended = over.await;
                *why.lock().unwrap_or_else(PoisonError::into_inner) = ended;
            }
        };
        let shared = Arc::clone(&self.shared);
        let channel = self.shared.channel();
        front::stdio::serve(
            move |client| {
                let session = Session::open(&shared, principal, client);
                let _ = opened.send(Arc::clone(&session));
                session
            },
            channel,
            (reader, writer),
            limits,
            stop,
        )
        .await;
        self.shared.deliveries.closed(channel);
        let why = why.lock().unwrap_or_else(PoisonError::into_inner).take();
        why.map_or(Ok(()), Err)
    }

    /// [`Self::serve_stdio`] over the standard streams of this process, which must not be used for
    /// anything else meanwhile.
    ///
    /// # Errors
    /// As [`Self::serve_stdio`].
    pub async fn serve_standard(
        &self,
        stop: impl Future<Output = ()> + Send,
    ) -> Result<(), ServeError> {
        let front::stdio::Streams {
            reader,
            writer,
            restore,
        } = front::stdio::standard();
        let served = self.serve_stdio(reader, writer, stop).await;
        drop(restore);
        served
    }

    /// Routes for `/mcp`: Streamable HTTP for many clients, each with a session of its own. To be
    /// served by a server that puts a `ConnectInfo<SocketAddr>` and a `ConnectInfo<Instant>` (when
    /// the connection was accepted) beside each request, and notices when a client closes its
    /// connection before it has its answer. Needs a tokio runtime.
    ///
    /// # Errors
    /// [`StartError`] names what is wrong with [`Settings::listening`].
    pub fn router(&self) -> Result<axum::Router, StartError> {
        let front = match self.front.get() {
            Some(front) => front,
            None => {
                let shared = Arc::clone(&self.shared);
                let front = HttpFront::new(
                    &self.shared.settings,
                    &SystemEntropy,
                    move |principal, client| Session::open(&shared, principal, client),
                )?;
                self.front.get_or_init(|| front)
            }
        };
        Ok(front.router())
    }

    /// The HTTP front opens no session any more, and ends the streams that stay open until their
    /// client leaves. Call it when the server is told to stop.
    pub fn stop_listening(&self) {
        if let Some(front) = self.front.get() {
            front.stop();
        }
    }

    /// Keeps the store in order: lapsed leases, expired receipts, deliveries that no longer
    /// matter. Never ends.
    pub async fn maintain(&self) {
        let pruning = async {
            loop {
                tokio::time::sleep(PRUNE_EACH).await;
                loop {
                    let now = self.shared.engine.now();
                    match self.shared.deliveries.prune(now).await {
                        Ok(0) => break,
                        Ok(_) => {}
                        Err(error) => {
                            tracing::warn!(%error, "rows about deliveries were not removed");
                            break;
                        }
                    }
                }
            }
        };
        tokio::join!(self.shared.engine.maintain(), pruning);
    }

    /// Ends the sessions of the HTTP front, waits until what runs is recorded, within a bound, and
    /// writes what is known of deliveries.
    pub async fn finish(&self) {
        if let Some(front) = self.front.get() {
            front.end().await;
        }
        self.shared.engine.drain(Duration::from_secs(5)).await;
        let written = tokio::time::timeout(Duration::from_secs(5), self.shared.deliveries.flush());
        match written.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "deliveries were not written"),
            Err(_) => tracing::warn!("deliveries were not written in time"),
        }
    }
}
