use std::{sync::Arc, time::Duration};

use axum::Router;
use rmcp::{
    ServerHandler, ServiceExt as _,
    handler::server::{router::tool::ToolRouter, wrapper::Parameters},
    model::{ServerCapabilities, ServerConfig},
    schemars, tool, tool_handler, tool_router,
    transport::streamable_http_server::{
        StreamableHttpServerConfig, StreamableHttpService, session::local::LocalSessionManager,
    },
};

use crate::Error;

#[derive(Debug, serde::Deserialize, schemars::JsonSchema)]
struct Words {
    text: String,
}

#[derive(Debug, serde::Deserialize, schemars::JsonSchema)]
struct Slowly {
    text: String,
    millis: u64,
}

#[derive(Clone)]
struct Shelf {
    tool_router: ToolRouter<Self>,
}

#[tool_router]
impl Shelf {
    #[tool(
        description = "Says what is written there",
        annotations(read_only_hint = true)
    )]
    async fn look_up(&self, Parameters(words): Parameters<Words>) -> String {
        words.text
    }

    #[tool(description = "Puts something down")]
    async fn put_down(&self, Parameters(words): Parameters<Words>) -> String {
        words.text
    }

    #[tool(description = "Puts something down, and takes its time")]
    async fn put_down_slowly(&self, Parameters(slowly): Parameters<Slowly>) -> String {
        tokio::time::sleep(Duration::from_millis(slowly.millis)).await;
        slowly.text
    }
}

#[tool_handler(router = self.tool_router)]
impl ServerHandler for Shelf {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }
}

fn shelf() -> Shelf {
    Shelf {
        tool_router: Shelf::tool_router(),
    }
}

/// A server as the Rust SDK makes it, until its input ends. Its tools do nothing: whatever is in
/// front of it weighs as much as it ever can.
pub(super) async fn serve_piped() -> Result<(), Error> {
    let service = shelf()
        .serve(rmcp::transport::stdio())
        .await
        .map_err(|_| Error::Form("what the client said first"))?;
    service.waiting().await.map(drop).map_err(|_| Error::Task)
}

/// The same over HTTP.
pub(super) fn router() -> Router {
    let shelf = shelf();
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .with_json_response(true)
        .with_sse_keep_alive(None);
    let service: StreamableHttpService<Shelf, LocalSessionManager> =
        StreamableHttpService::new(move || Ok(shelf.clone()), Arc::default(), config);
    Router::new().nest_service("/mcp", service)
}
