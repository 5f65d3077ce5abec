//! The servers that Counterfoil is measured against, and one that uses its layer. Each runs in a
//! process of its own.

mod echo;
mod guarded;
mod tool;
mod transaction;
mod upstream;

use std::{io::Read as _, path::Path};

use axum::{Router, serve::ListenerExt as _};
use tokio::net::TcpListener;

use crate::Error;

/// Which one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Which {
    /// Sends the body back.
    Echo,
    /// One transaction for each request, a connection for each thread: the common way.
    Transaction,
    /// One transaction for each request, on one connection behind a lock: the same at its best.
    OneConnection,
    /// A route behind Counterfoil's HTTP layer.
    Guarded,
    /// An MCP server with one tool and no receipts.
    Tool,
    /// An MCP server to put a proxy in front of, on standard input and output.
    Piped,
    /// The same over HTTP.
    Upstream,
}

/// Serves until standard input closes.
pub(crate) fn serve(which: Which, data: &Path) -> Result<(), Error> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime
        .enable_all()
        .build()
        .map_err(Error::io("the server's runtime"))?;
    if which == Which::Piped {
        return runtime.block_on(upstream::serve_piped());
    }
    // The bench is gone, however it ended.
    std::thread::spawn(|| {
        let mut nothing = Vec::new();
        let _ = std::io::stdin().read_to_end(&mut nothing);
        std::process::exit(0);
    });
    runtime.block_on(async {
        let router = match which {
            Which::Echo => echo::router(),
            Which::Transaction => transaction::router(data, false)?,
            Which::OneConnection => transaction::router(data, true)?,
            Which::Guarded => guarded::router(data)?,
            Which::Tool => tool::router(),
            Which::Upstream | Which::Piped => upstream::router(),
        };
        listen(router).await
    })
}

async fn listen(router: Router) -> Result<(), Error> {
    let listener = TcpListener::bind("127.0.0.1:0")
        .await
        .map_err(Error::io("listening"))?;
    let address = listener.local_addr().map_err(Error::io("listening"))?;
    println!("{address}");
    let listener = listener.tap_io(|stream| {
        let _ = stream.set_nodelay(true);
    });
    axum::serve(listener, router)
        .await
        .map_err(Error::io("serving"))
}
