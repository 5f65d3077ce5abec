//! The MCP surface: one tool a domain step, which translates and decides nothing.

mod error;
mod schemas;

use counterfoil_core::{OperationId, Reply};
use counterfoil_engine::{TxHandler, store::BoxFuture};
use counterfoil_mcp::{Output, Tool, ToolError, ToolRequest};
use counterfoil_store::{Failure, Sql};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::{
    AgentKey,
    notes::{self, Note},
    operations::{self, OperationFilter},
    state::Shared,
};
use error::tool_error;

/// The tools of the application.
pub(crate) fn tools(shared: &Shared) -> Vec<Tool> {
    vec![
        create_note(shared),
        get_note(shared),
        list_notes(shared),
        get_operation(shared),
        list_operations(shared),
    ]
}

#[derive(Debug, Deserialize)]
struct NewNote {
    body: String,
}

#[derive(Debug, Deserialize)]
struct NoteRef {
    note_id: String,
}

#[derive(Debug, Deserialize)]
struct OperationRef {
    operation_id: String,
}

#[derive(Debug, Deserialize)]
struct Listing {
    limit: Option<u32>,
    cursor: Option<String>,
    state: Option<String>,
}

/// The arguments, which the endpoint has checked against the tool's schema.
fn arguments<T: DeserializeOwned>(request: &ToolRequest) -> Result<T, ToolError> {
    T::deserialize(&request.arguments).map_err(|error| ToolError::invalid(error.to_string()))
}

/// The caller's key, read afresh.
async fn principal(shared: &Shared, request: &ToolRequest) -> Result<AgentKey, ToolError> {
    let id = request.caller.principal.as_str();
    let found = shared.agent_keys.find(id).await.map_err(tool_error)?;
    let stands =
        |key: &AgentKey| key.revoked_at.is_none() && key.workspace == request.caller.workspace;
    found.filter(stands).ok_or_else(|| {
        ToolError::new(
            401,
            "unauthorized",
            "the credential is not valid (any more)",
        )
    })
}

fn create_note(shared: &Shared) -> Tool {
    let operation = shared.operations.create_note.clone();
    let shared = shared.clone();
    let prepare = move |request: ToolRequest| {
        let shared = shared.clone();
        async move {
            let NewNote { body } = arguments(&request)?;
            let note = notes::draft(&shared.engine, &request.caller.principal, body)
                .map_err(tool_error)?;
            let handler: Box<dyn TxHandler> = Box::new(CreateNote {
                note,
                workspace: request.caller.workspace,
            });
            Ok(handler)
        }
    };
    Tool::atomic(
        "create_note",
        "Stores a note in your workspace. A note is never changed afterwards.",
        schemas::new_note(),
        operation,
        prepare,
    )
    .title("Create a note")
    .output_schema(schemas::note())
}

/// The body of the transaction.
struct CreateNote {
    note: Note,
    workspace: counterfoil_core::WorkspaceId,
}

impl TxHandler for CreateNote {
    fn call<'t>(
        &'t self,
        _operation_id: Option<OperationId>,
        tx: &'t mut dyn Sql,
    ) -> BoxFuture<'t, Result<Reply, Failure>> {
        Box::pin(async move {
            notes::insert(tx, &self.workspace, &self.note).await?;
            Ok(Output::Json(notes::to_json(&self.note)).into())
        })
    }
}

fn get_note(shared: &Shared) -> Tool {
    let shared = shared.clone();
    Tool::read(
        "get_note",
        "Reads one note of your workspace by its id.",
        schemas::note_ref(),
        move |request| {
            let shared = shared.clone();
            async move {
                let NoteRef { note_id } = arguments(&request)?;
                let note = notes::get(&shared.engine, &request.caller.workspace, &note_id)
                    .await
                    .map_err(tool_error)?;
                Ok(notes::to_json(&note).into())
            }
        },
    )
    .title("Read a note")
    .output_schema(schemas::note())
}

fn list_notes(shared: &Shared) -> Tool {
    let shared = shared.clone();
    Tool::read(
        "list_notes",
        "Lists the notes of your workspace, the newest first. Go on with next_cursor.",
        schemas::note_listing(),
        move |request| {
            let shared = shared.clone();
            async move {
                let Listing { limit, cursor, .. } = arguments(&request)?;
                let limit = limit.unwrap_or(notes::PAGE_DEFAULT);
                let workspace = &request.caller.workspace;
                let page = notes::list(&shared.engine, workspace, limit, cursor.as_deref())
                    .await
                    .map_err(tool_error)?;
                Ok(page.to_json().into())
            }
        },
    )
    .title("List notes")
    .output_schema(schemas::note_page())
}

fn get_operation(shared: &Shared) -> Tool {
    let shared = shared.clone();
    Tool::read(
        "get_operation",
        "Looks at what became of a keyed call: its state, whether its effect happened, its events, and its stored result if it is yours. Use it whenever an outcome is uncertain.",
        schemas::operation_ref(),
        move |request| {
            let shared = shared.clone();
            async move {
                let OperationRef { operation_id } = arguments(&request)?;
                let key = principal(&shared, &request).await?;
                let view = operations::get(&shared.engine, &key, &operation_id)
                    .await
                    .map_err(tool_error)?;
                Ok(view.to_json().into())
            }
        },
    )
    .title("Look at an operation")
    .output_schema(schemas::operation())
}

fn list_operations(shared: &Shared) -> Tool {
    let shared = shared.clone();
    Tool::read(
        "list_operations",
        "Lists your keyed calls, those whose outcome is in doubt first, then the newest first. Use it to find an operation whose id was lost with its answer. Go on with next_cursor.",
        schemas::operation_listing(),
        move |request| {
            let shared = shared.clone();
            async move {
                let Listing {
                    limit,
                    cursor,
                    state,
                } = arguments(&request)?;
                let key = principal(&shared, &request).await?;
                let filter = OperationFilter {
                    state: state.as_deref(),
                    limit: limit.unwrap_or(operations::PAGE_DEFAULT),
                    cursor: cursor.as_deref(),
                };
                let page = operations::list(&shared.engine, &key, &filter)
                    .await
                    .map_err(tool_error)?;
                Ok(page.to_json().into())
            }
        },
    )
    .title("List operations")
    .output_schema(schemas::operation_page())
}
