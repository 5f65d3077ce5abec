//! One intended call, and what came of sending it once.

use counterfoil_e2e::{Http, Mcp};
use serde_json::{Value, json};

/// The way a call takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// A note over REST.
    Rest,
    /// A note over MCP.
    Mcp,
    /// A guarded tool, over MCP.
    Guarded,
}

/// Its effect bears the name of its key, so that effects can be counted.
#[derive(Clone)]
pub(crate) struct Intent {
    pub(crate) key: String,
    pub(crate) way: Way,
    /// How long the guarded tool takes.
    pub(crate) ms: u64,
}

pub(crate) enum Got {
    /// A definite answer; over MCP the result without `_meta`.
    Answer(Vec<u8>),
    /// It is not known whether it happened; the handle.
    Unknown(String),
    /// Asked to come again.
    Later,
    /// An answer that may not be recorded.
    NotRecorded,
    /// Nothing: nobody knows.
    Lost,
}

impl Intent {
    pub(crate) fn call(&self, http: &Http) -> Got {
        match self.way {
            Way::Rest => self.over_rest(http),
            Way::Mcp => self.over_mcp(http, "create_note", json!({"body": self.key})),
            Way::Guarded => {
                self.over_mcp(http, "append", json!({"label": self.key, "ms": self.ms}))
            }
        }
    }

    fn over_rest(&self, http: &Http) -> Got {
        let note = json!({"body": self.key}).to_string();
        let Ok(reply) = http.note(Some(&self.key), &note).send() else {
            return Got::Lost;
        };
        match (reply.status, reply.code().as_str()) {
            (201, _) => Got::Answer(reply.body),
            (_, "outcome_unknown") => Got::Unknown(handle(&reply.value())),
            (503 | 429, _) | (409, "idempotency_in_progress" | "idempotency_committed") => {
                Got::Later
            }
            (status, _) => panic!("{}: {status} {}", self.key, reply.text()),
        }
    }

    fn over_mcp(&self, http: &Http, tool: &str, mut arguments: Value) -> Got {
        arguments["idempotency_key"] = json!(self.key);
        let Ok(said) = Mcp::new(http.clone()).try_call(tool, arguments) else {
            return Got::Lost;
        };
        if matches!(said.reply.status, 429 | 503) {
            return Got::Later;
        }
        let mut result = said.result().clone();
        if result["isError"] == true {
            let content = &result["structuredContent"];
            if content["code"] == "outcome_unknown" {
                return Got::Unknown(handle(content));
            }
            assert_eq!(content["retryable"], true, "{}: {result}", self.key);
            return Got::Later;
        }
        if result["_meta"]["dev.counterfoil/not-recorded"] == true {
            return Got::NotRecorded;
        }
        if let Some(result) = result.as_object_mut() {
            result.remove("_meta");
        }
        Got::Answer(result.to_string().into_bytes())
    }
}

fn handle(said: &Value) -> String {
    said["operation_id"].as_str().unwrap_or_default().to_owned()
}
