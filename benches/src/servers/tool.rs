use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use axum::Router;
use rmcp::{
    Json, ServerHandler,
    handler::server::{router::tool::ToolRouter, wrapper::Parameters},
    model::{ServerCapabilities, ServerConfig},
    schemars, tool, tool_handler, tool_router,
    transport::streamable_http_server::{
        StreamableHttpServerConfig, StreamableHttpService, session::local::LocalSessionManager,
    },
};

#[derive(Debug, serde::Deserialize, schemars::JsonSchema)]
struct NewNote {
    body: String,
    idempotency_key: String,
}

#[derive(Debug, serde::Serialize, schemars::JsonSchema)]
struct Note {
    status: &'static str,
    note_id: String,
    body: String,
}

#[derive(Clone)]
struct Notes {
    tool_router: ToolRouter<Self>,
    made: Arc<AtomicU64>,
}

#[tool_router]
impl Notes {
    #[tool(description = "Creates a note")]
    async fn create_note(&self, Parameters(new): Parameters<NewNote>) -> Json<Note> {
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        let _ = new.idempotency_key;
        Json(Note {
            status: "succeeded",
            note_id: format!("nt_{number:036}"),
            body: new.body,
        })
    }
}

#[tool_handler(router = self.tool_router)]
impl ServerHandler for Notes {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }
}

/// A server as the Rust SDK makes it, with the same tool and nothing behind it: nothing is stored.
pub(super) fn router() -> Router {
    let notes = Notes {
        tool_router: Notes::tool_router(),
        made: Arc::default(),
    };
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .with_json_response(true)
        .with_sse_keep_alive(None);
    let service: StreamableHttpService<Notes, LocalSessionManager> =
        StreamableHttpService::new(move || Ok(notes.clone()), Arc::default(), config);
    Router::new().nest_service("/mcp", service)
}
