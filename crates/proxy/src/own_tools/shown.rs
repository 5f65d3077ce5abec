//! What the proxy's own tools answer: a text, facts for programs, and what is stored.

use counterfoil_core::Code;
use counterfoil_engine::Reason;
use counterfoil_mcp::whole_seconds;
use counterfoil_store::Error;
use serde_json::{Map, Value, json};

use crate::{
    raw::{Edit, Object},
    say::{ERROR_TYPE, RESULT_TYPE, text_block},
};

/// A text with facts for programs, and the content blocks of a stored result.
pub(super) struct Shown {
    pub(super) text: String,
    pub(super) facts: Map<String, Value>,
    pub(super) stored: Option<Stored>,
}

/// What is stored of an answer of the upstream, as it is spelled.
pub(super) struct Stored {
    /// `result` or `error`.
    pub(super) name: &'static str,
    text: String,
}

/// A tool execution error.
#[derive(Debug)]
pub(super) struct Fault {
    code: Code,
    message: String,
    next_action: String,
    retry_after_ms: Option<u64>,
}

impl Fault {
    pub(super) fn new(
        code: Code,
        message: impl Into<String>,
        next_action: impl Into<String>,
    ) -> Self {
        Self {
            code,
            message: message.into(),
            next_action: next_action.into(),
            retry_after_ms: None,
        }
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        let reason = Reason::from(error);
        let retry_after = reason.retry_after();
        let next = match retry_after {
            Some(after) => format!("Call again in {} seconds", whole_seconds(after)),
            None => "Call list_operations to see where things stand; if it stays so, tell the user"
                .to_owned(),
        };
        let millis = retry_after.map(|after| u64::try_from(after.as_millis()).unwrap_or(u64::MAX));
        Self {
            retry_after_ms: millis,
            ..Self::new(reason.code(), reason.message(), next)
        }
    }
}

impl Stored {
    pub(super) fn of(reply: counterfoil_core::Reply) -> Option<Self> {
        let name = match reply.content_type.as_deref() {
            Some(RESULT_TYPE) => "result",
            Some(ERROR_TYPE) => "error",
            Some(_) | None => return None,
        };
        let text = String::from_utf8(reply.body.to_vec()).ok()?;
        Some(Self { name, text })
    }

    /// Its content blocks as they are spelled, each with a comma before it.
    fn blocks(&self) -> String {
        if self.name == "error" {
            return format!(",{}", text_block(&self.text));
        }
        let content = Object::read(&self.text).and_then(|result| result.get("content"));
        let inner = content.and_then(|content| {
            let inner = content.trim().strip_prefix('[')?.strip_suffix(']')?.trim();
            (!inner.is_empty()).then(|| format!(",{inner}"))
        });
        inner.unwrap_or_default()
    }
}

impl Fault {
    pub(super) fn shown(self) -> Shown {
        let mut facts = Map::new();
        facts.insert("status".to_owned(), json!("failed"));
        facts.insert("code".to_owned(), json!(self.code.as_str()));
        facts.insert("message".to_owned(), json!(self.message));
        facts.insert("retryable".to_owned(), json!(self.retry_after_ms.is_some()));
        if let Some(millis) = self.retry_after_ms {
            facts.insert("retry_after_ms".to_owned(), json!(millis));
        }
        facts.insert("next_action".to_owned(), json!(self.next_action));
        Shown {
            text: format!("{}. {}.", self.message, self.next_action),
            facts,
            stored: None,
        }
    }
}

impl Shown {
    /// The text of a `result`: text and structured content, the stored result as it is spelled.
    pub(super) fn result(self, is_modern: bool, is_error: bool) -> String {
        let kind = if is_modern {
            "\"resultType\":\"complete\","
        } else {
            ""
        };
        let facts = Value::Object(self.facts).to_string();
        let structured = self.stored.as_ref().and_then(|stored| {
            let object = Object::read(&facts)?;
            let mut edit = Edit::of(&object);
            edit.set(stored.name, &stored.text);
            edit.text()
        });
        let structured = structured.unwrap_or(facts);
        let blocks = self.stored.as_ref().map(Stored::blocks).unwrap_or_default();
        format!(
            "{{{kind}\"content\":[{}{blocks}],\"structuredContent\":{structured},\"isError\":{is_error}}}",
            text_block(&self.text)
        )
    }
}
