use std::{
    pin::Pin,
    task::{Context, Poll},
};

use counterfoil_server::{AgentKey, Application};
use tokio::io::{AsyncRead, ReadBuf};

use crate::{
    args::Mcp,
    config::Config,
    exit::{Exit, Failure},
    folder::{FirstKey, Folder, read_secret},
    open::{Mode, application, check_clock, folder, runtime},
    serve::Signals,
    telemetry::Telemetry,
};

/// Speaks MCP on standard input and output, as the local agent key. Standard output carries
/// nothing but protocol.
pub(crate) fn run(mcp: &Mcp) -> Result<(), Failure> {
    let config = Config::load(&mcp.place.flags())?;
    let telemetry = Telemetry::start(&config)?;
    let folder = folder(&config, Mode::Serving)?;
    let runtime = runtime()?;
    let done = runtime.block_on(serve(mcp, &config, &folder));
    // A read of standard input may still be waiting on a thread: it is not waited for.
    runtime.shutdown_background();
    telemetry.finish();
    done
}

async fn serve(mcp: &Mcp, config: &Config, folder: &Folder) -> Result<(), Failure> {
    let mut signals = Signals::new()?;
    let (application, store) = application(config, folder, Mode::Serving).await?;
    check_clock(application.engine(), false, "serve --accept-clock").await?;
    let file = match &mcp.agent_key_file {
        Some(file) => file.clone(),
        None => {
            let first = folder
                .first_key(config, application.engine(), &application.agent_keys())
                .await?;
            match first {
                FirstKey::New => tracing::warn!(
                    store = %config.store,
                    folder = %config.data.display(),
                    "a new, empty store was made here; is this what was meant?"
                ),
                FirstKey::Old | FirstKey::Stale => {}
                FirstKey::Elsewhere(oldest) => return Err(no_key_here(config, folder, &oldest)),
            }
            folder.agent_key()
        }
    };
    let caller = application.caller(&read_secret(&file)?).await?;
    let caller = caller.ok_or_else(|| {
        Failure::new(
            Exit::Config,
            format!(
                "the agent key in {} is not valid (any more)",
                file.display()
            ),
        )
        .hint(
            "`counterfoil keys list` shows the keys; `counterfoil keys rotate` makes a new secret",
        )
    })?;
    let background = tokio::spawn({
        let application = application.clone();
        async move { application.maintain().await }
    });
    let endpoint = application.endpoint().clone();
    let input = UntilStopped {
        input: tokio::io::stdin(),
        stopped: Box::pin(async move { signals.next().await }),
    };
    let done = endpoint
        .serve_stdio(caller, input, tokio::io::stdout())
        .await
        .map_err(|error| {
            Failure::new(
                Exit::Failure,
                format!("the client's streams broke: {error}"),
            )
        });
    background.abort();
    let _ = background.await;
    drain(&application, config).await;
    store.close().await;
    done
}

/// Another node made the first agent key.
fn no_key_here(config: &Config, folder: &Folder, oldest: &AgentKey) -> Failure {
    Failure::new(
        Exit::Config,
        format!(
            "{} has agent keys, and none of them is in {}; the oldest is {} ({})",
            config.store,
            folder.agent_key().display(),
            oldest.id,
            oldest.name
        ),
    )
    .hint("name a file that holds one with --agent-key-file; `counterfoil keys issue` makes one")
}

/// Standard input, which also ends when the process is told to stop: what was read before is still
/// answered, within the endpoint's bound.
struct UntilStopped {
    input: tokio::io::Stdin,
    stopped: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl AsyncRead for UntilStopped {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        if self.stopped.as_mut().poll(context).is_ready() {
            self.stopped = Box::pin(std::future::ready(()));
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.input).poll_read(context, buffer)
    }
}

async fn drain(application: &Application, config: &Config) {
    if !application.drain(config.drain).await {
        tracing::warn!(
            "stopped with something still in flight; its operations tell what became of it"
        );
    }
}
