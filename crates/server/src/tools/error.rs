use counterfoil_core::Code;
use counterfoil_engine::Reason;
use counterfoil_mcp::ToolError;

use crate::Error;

/// The one mapping of the application's errors to tool errors. What is for operators goes to the
/// log.
pub(super) fn tool_error(error: Error) -> ToolError {
    match error {
        Error::Invalid(issue) => ToolError::invalid(format!("{}: {}", issue.field, issue.message))
            .next_action("Correct the argument"),
        Error::NotFound(what) => ToolError::not_found(format!("there is no such {what}")),
        Error::Forbidden => coded(403, Code::Forbidden, "only an admin key may do this"),
        Error::Settings(why) => {
            tracing::error!(reason = %why, "the settings are wrong");
            coded(500, Code::Internal, "the server failed")
        }
        Error::NoRandomness => {
            tracing::error!("the operating system gave no random bytes");
            coded(
                503,
                Code::Unavailable,
                "nothing can be done now; nothing was done",
            )
        }
        Error::Store(error) => {
            let shown = Reason::from(error.clone());
            tracing::warn!(%error, "a tool failed on the store");
            let status = if shown.is_retryable() { 503 } else { 500 };
            coded(status, shown.code(), shown.message()).next_action(shown.next_action())
        }
    }
}

fn coded(status: u16, code: Code, message: &str) -> ToolError {
    ToolError::new(status, code.as_str(), message)
}
