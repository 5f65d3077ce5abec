//! An MCP server that offers what the official conformance suite asks of a server, in both eras,
//! over pipes and over Streamable HTTP. It is made with the Rust SDK, so nothing of it is this
//! project's own: what a proxy does to somebody else's server shows.
//!
//! ```text
//! conformance-fixture --stdio
//! conformance-fixture --http ADDRESS:PORT      prints the port that it listens on
//! conformance-fixture --relay ADDRESS:PORT     is no server: whoever listens there is one, by pipes
//! ```
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "test code"
)]

mod calls;
mod json;
mod prompts;
mod relay;
mod resources;
mod rounds;
mod server;
mod tasks;
mod tools;

use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;

use axum::Router;
use rmcp::ServiceExt as _;
use rmcp::transport::stdio;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use tokio::net::TcpListener;

use crate::server::Fixture;

type Failure = Box<dyn std::error::Error>;

#[tokio::main]
async fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["--stdio"] => pipes().await,
        ["--http", address] => http(address).await,
        ["--relay", address] => relay::run(address).await.map_err(Into::into),
        [..] => Err("--stdio, --http ADDRESS:PORT or --relay ADDRESS:PORT".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("conformance-fixture: {why}");
            ExitCode::from(2)
        }
    }
}

async fn pipes() -> Result<(), Failure> {
    Fixture::new().serve(stdio()).await?.waiting().await?;
    Ok(())
}

async fn http(address: &str) -> Result<(), Failure> {
    let listener = TcpListener::bind(address).await?;
    println!("{}", listener.local_addr()?.port());
    std::io::stdout().flush()?;
    let fixture = Fixture::new();
    let config = StreamableHttpServerConfig::default()
        .with_allowed_origins(["http://localhost:*", "http://127.0.0.1:*", "http://[::1]:*"])
        .with_sse_keep_alive(None);
    let service: StreamableHttpService<Fixture, LocalSessionManager> =
        StreamableHttpService::new(move || Ok(fixture.clone()), Arc::default(), config);
    let router = Router::new().nest_service("/mcp", service);
    axum::serve(listener, router).await?;
    Ok(())
}
