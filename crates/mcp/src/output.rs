use bytes::Bytes;
use counterfoil_core::{Code, Reply};
use counterfoil_engine::store::Failure;
use serde_json::{Map, Value, json};

/// The content type of a stored result that is content blocks and not a domain value.
pub(crate) const BLOCKS_TYPE: &str = "application/vnd.counterfoil.mcp-content+json";

/// What a tool answers. It is stored as it is here; text and envelope are rendered from it when it
/// is handed over, the same way for the first answer and for a replay.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// The domain result. An object's members stand beside those of the envelope; anything else
    /// becomes the member `result`.
    Json(Value),
    /// Content blocks as MCP has them (text, image, audio, resource), for tools that need them.
    Blocks {
        /// The blocks.
        content: Vec<Value>,
        /// The domain result beside them, an object.
        structured: Option<Map<String, Value>>,
    },
}

impl Output {
    /// One text block.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Self {
        Self::Blocks {
            content: vec![json!({"type": "text", "text": text.into()})],
            structured: None,
        }
    }
}

impl From<Value> for Output {
    fn from(value: Value) -> Self {
        Self::Json(value)
    }
}

impl From<Output> for Reply {
    fn from(output: Output) -> Self {
        match output {
            Output::Json(value) => Self::json(200, &value),
            Output::Blocks {
                content,
                structured,
            } => Self {
                status: 200,
                content_type: Some(BLOCKS_TYPE.to_owned()),
                headers: Vec::new(),
                body: Bytes::from(
                    json!({"content": content, "structured": structured}).to_string(),
                ),
            },
        }
    }
}

/// A tool execution error: something the model can read and act on.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolError {
    /// As HTTP has it, 400 to 599. Own refusals are 4xx.
    pub status: u16,
    /// A permanent code.
    pub code: String,
    /// What is wrong.
    pub message: String,
    /// What to do next, if that can be said.
    pub next_action: Option<String>,
    /// Further facts, beside `code` and `message`.
    pub details: Vec<(String, Value)>,
}

impl ToolError {
    /// An error under one of the project's codes or the tool's own.
    #[must_use]
    pub fn new(status: u16, code: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            status: status.clamp(400, 599),
            code: code.into(),
            message: message.into(),
            next_action: None,
            details: Vec::new(),
        }
    }

    /// The arguments are not right.
    #[must_use]
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(422, Code::Invalid.as_str(), message)
    }

    /// There is no such thing.
    #[must_use]
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(404, Code::NotFound.as_str(), message)
    }

    /// Says what to do next.
    #[must_use]
    pub fn next_action(mut self, action: impl Into<String>) -> Self {
        self.next_action = Some(action.into());
        self
    }

    /// Adds a fact.
    #[must_use]
    pub fn detail(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.details.push((name.to_owned(), value.into()));
        self
    }
}

impl From<ToolError> for Reply {
    fn from(error: ToolError) -> Self {
        let mut body = Map::new();
        body.insert("code".to_owned(), error.code.into());
        body.insert("message".to_owned(), error.message.into());
        if let Some(action) = error.next_action {
            body.insert("next_action".to_owned(), action.into());
        }
        for (name, value) in error.details {
            body.entry(name).or_insert(value);
        }
        Self::json(error.status, &Value::Object(body))
    }
}

impl From<ToolError> for Failure {
    /// A definite judgement below 500, otherwise a failure that keeps nothing.
    fn from(error: ToolError) -> Self {
        let keeps_nothing = error.status >= 500 || error.status == 429;
        let reply = Reply::from(error);
        if keeps_nothing {
            Self::Aborted(reply)
        } else {
            Self::Refused(reply)
        }
    }
}
