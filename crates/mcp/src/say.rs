//! How an answer is said to an MCP client: one exhaustive mapping per dialect (contract §6).

use std::{borrow::Cow, time::Duration};

use counterfoil_core::{OperationId, Reply};
use counterfoil_engine::{Answer, Reason, Refusal};
use serde_json::{Map, Value, json};

use crate::{
    MetaPrefix, era::Era, framing::RpcError, key::Dialect, output::BLOCKS_TYPE, tool::RETRY_AFTER,
};

/// What a `tools/call` gets: a result, or a protocol error.
pub(crate) type Said = Result<Value, RpcError>;

/// Everything the words depend on beside the answer itself.
#[derive(Clone, Copy)]
pub(crate) struct Voice<'a> {
    pub(crate) prefix: &'a MetaPrefix,
    pub(crate) era: Era,
    pub(crate) server: &'a Value,
}

/// How an answer came about.
#[derive(Clone, Copy, Default)]
struct Manner {
    replayed: bool,
    stored_failure: bool,
    not_recorded: bool,
    /// The key is free again.
    free: bool,
}

const STORED_FAILURE: &str = "This is the stored failure of an earlier call with this key; nothing ran now. A new attempt needs a new key, after reading the current state.";
/// What is done next after a failure that is kept: the first time it is told and in every replay.
const USED_UP: &str = "This key is used up: read the current state; a new attempt needs a new key";
const WAIT: &str = "Wait, then send the same call with the same key";
/// The conflict of a key in `_meta`, which names one call whatever its tool.
const CONFLICT: &str = "Idempotency key was reused with another tool or different arguments";
const NOT_RECORDED: &str = "This answer may not be recorded: a retry with this key may not get it again, and will not make it happen twice. Keep it.";

impl Voice<'_> {
    /// Translates an engine's answer.
    pub(crate) fn answer(self, dialect: Dialect, answer: &Answer) -> Said {
        let plain = Manner::default();
        match answer {
            Answer::Ran {
                reply,
                operation_id,
            } => Ok(self.reply(reply, Some(*operation_id), plain)),
            Answer::Replayed {
                reply,
                operation_id,
                stored_failure,
            } => {
                let manner = Manner {
                    replayed: true,
                    stored_failure: *stored_failure,
                    ..plain
                };
                Ok(self.reply(reply, Some(*operation_id), manner))
            }
            Answer::Asked {
                reply,
                operation_id,
                replayed,
            } => {
                let manner = Manner {
                    replayed: *replayed,
                    ..plain
                };
                Ok(self.reply(reply, Some(*operation_id), manner))
            }
            Answer::Failed { reply } => {
                let manner = Manner {
                    free: true,
                    ..plain
                };
                Ok(self.reply(reply, None, manner))
            }
            Answer::NotRecorded {
                reply,
                operation_id,
            } => {
                let manner = Manner {
                    not_recorded: true,
                    ..plain
                };
                Ok(self.reply(reply, Some(*operation_id), manner))
            }
            Answer::Refused(refusal) => match dialect {
                Dialect::Argument => self.refused_to_argument(refusal),
                Dialect::Meta => Ok(self.refused_to_meta(refusal)),
            },
        }
    }

    /// The answer of a reading tool, or one given before anything was reserved.
    pub(crate) fn unkeyed(self, reply: &Reply) -> Value {
        self.reply(reply, None, Manner::default())
    }

    /// A refusal where there is no key and so no dialect.
    pub(crate) fn refused(self, reason: Reason) -> Value {
        let refusal = Refusal {
            reason,
            operation_id: None,
        };
        self.refusal(&refusal, Map::new())
    }

    /// The dialect of a key among the arguments.
    fn refused_to_argument(self, refusal: &Refusal) -> Said {
        let reason = &refusal.reason;
        let message: Cow<'static, str> = match reason {
            Reason::Conflict => "Idempotency key was reused with different arguments".into(),
            Reason::Expired => reason.message().into(),
            Reason::InProgress { .. }
            | Reason::Committed { .. }
            | Reason::ResultUnavailable
            | Reason::NotHappened
            | Reason::Unknown { .. }
            | Reason::Busy { .. }
            | Reason::Unavailable(_)
            | Reason::Quota { .. }
            | Reason::Denied
            | Reason::Internal(_) => return Ok(self.refusal(refusal, Map::new())),
        };
        let code = match self.era {
            Era::Legacy => -32001,
            // The range of the older number is closed there.
            Era::Modern => -31001,
        };
        let mut data = json!({
            "code": reason.code().as_str(),
            "retryable": reason.is_retryable(),
            "next_action": reason.next_action(),
        });
        if let Some(operation_id) = refusal.operation_id {
            data["operation_id"] = json!(operation_id.to_string());
        }
        Err(RpcError::new(code, message).with_data(data))
    }

    /// The dialect of a key in `_meta`.
    fn refused_to_meta(self, refusal: &Refusal) -> Value {
        let reason = &refusal.reason;
        let code = meta_code(reason);
        let mut error = json!({"code": code});
        if let Some(retry_after) = reason.retry_after() {
            error["retryAfter"] = json!(whole_seconds(retry_after));
        }
        if let Some(operation_id) = refusal.operation_id {
            error["operation_id"] = json!(operation_id.to_string());
        }
        let mut meta = Map::new();
        meta.insert(self.prefix.key("error"), error);
        self.refusal(refusal, meta)
    }

    /// A refusal as a tool execution error.
    fn refusal(self, refusal: &Refusal, meta: Map<String, Value>) -> Value {
        let reason = &refusal.reason;
        let mut facts = Map::new();
        facts.insert("status".to_owned(), json!(status_of(reason)));
        if let Some(operation_id) = refusal.operation_id {
            facts.insert("operation_id".to_owned(), json!(operation_id.to_string()));
        }
        facts.insert("retryable".to_owned(), json!(reason.is_retryable()));
        if let Some(retry_after) = reason.retry_after() {
            let millis = u64::try_from(retry_after.as_millis()).unwrap_or(u64::MAX);
            facts.insert("retry_after_ms".to_owned(), json!(millis));
        }
        facts.insert("next_action".to_owned(), json!(reason.next_action()));
        facts.insert("code".to_owned(), json!(reason.code().as_str()));
        let message = match reason {
            Reason::Conflict => CONFLICT,
            Reason::InProgress { .. }
            | Reason::Committed { .. }
            | Reason::ResultUnavailable
            | Reason::NotHappened
            | Reason::Unknown { .. }
            | Reason::Expired
            | Reason::Busy { .. }
            | Reason::Unavailable(_)
            | Reason::Quota { .. }
            | Reason::Denied
            | Reason::Internal(_) => reason.message(),
        };
        facts.insert("message".to_owned(), json!(message));
        let structured = Value::Object(facts);
        let content = vec![text_block(&text_of(&structured))];
        self.result(content, Some(structured), true, meta, refusal.operation_id)
    }

    /// A domain result, rendered. The same reply gives the same result, first or replayed, but for
    /// `_meta` and the sentence that says that a failure is a stored one.
    fn reply(self, reply: &Reply, operation_id: Option<OperationId>, manner: Manner) -> Value {
        let failed = reply.is_error();
        let (mut content, structured) = self.body(reply, operation_id, manner);
        if manner.stored_failure {
            content.push(text_block(STORED_FAILURE));
        }
        let mut meta = Map::new();
        if manner.replayed {
            meta.insert(self.prefix.key("replayed"), json!(true));
        }
        if manner.not_recorded {
            meta.insert(self.prefix.key("not-recorded"), json!(true));
            content.push(text_block(NOT_RECORDED));
        }
        self.result(content, structured, failed, meta, operation_id)
    }

    fn body(
        self,
        reply: &Reply,
        operation_id: Option<OperationId>,
        manner: Manner,
    ) -> (Vec<Value>, Option<Value>) {
        let value: Value = serde_json::from_slice(&reply.body)
            .unwrap_or_else(|_| json!(String::from_utf8_lossy(&reply.body)));
        if reply.content_type.as_deref() == Some(BLOCKS_TYPE) {
            let Value::Object(mut parts) = value else {
                return (Vec::new(), None);
            };
            let content = match parts.remove("content") {
                Some(Value::Array(blocks)) => blocks,
                Some(_) | None => Vec::new(),
            };
            let structured = match parts.remove("structured") {
                Some(Value::Object(own)) => Some(succeeded(own, operation_id)),
                Some(_) | None => None,
            };
            return (content, structured);
        }
        let own = match value {
            Value::Object(own) => own,
            Value::Null if reply.body.is_empty() => Map::new(),
            other @ (Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Array(_)) => Map::from_iter([("result".to_owned(), other)]),
        };
        let structured = if reply.is_error() {
            failed(own, reply.status, operation_id, manner)
        } else {
            succeeded(own, operation_id)
        };
        (vec![text_block(&text_of(&structured))], Some(structured))
    }

    fn result(
        self,
        content: Vec<Value>,
        structured: Option<Value>,
        is_error: bool,
        mut meta: Map<String, Value>,
        operation_id: Option<OperationId>,
    ) -> Value {
        let mut result = Map::new();
        if self.era == Era::Modern {
            result.insert("resultType".to_owned(), json!("complete"));
            meta.insert(SERVER_INFO.to_owned(), self.server.clone());
        }
        result.insert("content".to_owned(), Value::Array(content));
        if let Some(structured) = structured {
            result.insert("structuredContent".to_owned(), structured);
        }
        result.insert("isError".to_owned(), json!(is_error));
        if let Some(operation_id) = operation_id {
            meta.insert(
                self.prefix.key("operation-id"),
                json!(operation_id.to_string()),
            );
        }
        if !meta.is_empty() {
            result.insert("_meta".to_owned(), Value::Object(meta));
        }
        Value::Object(result)
    }
}

/// Where 2026-07-28 wants the server's name in every result.
pub(crate) const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";

/// A JSON value always serializes; its `Display` takes twice as long.
pub(crate) fn text_of(value: &Value) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

fn text_block(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

/// The envelope of a success. Without an operation (a reading tool) the tool's own fields win.
fn succeeded(own: Map<String, Value>, operation_id: Option<OperationId>) -> Value {
    let mut facts = Map::new();
    facts.insert("status".to_owned(), json!("succeeded"));
    match operation_id {
        Some(operation_id) => {
            facts.insert("operation_id".to_owned(), json!(operation_id.to_string()));
            for (name, value) in own {
                facts.entry(name).or_insert(value);
            }
        }
        None => facts.extend(own),
    }
    Value::Object(facts)
}

/// The envelope of a failure. Understands our own errors and problem details (RFC 9457).
fn failed(
    mut own: Map<String, Value>,
    status: u16,
    operation_id: Option<OperationId>,
    manner: Manner,
) -> Value {
    let mut text = |names: &[&str]| {
        names.iter().find_map(|name| match own.remove(*name) {
            Some(Value::String(text)) => Some(text),
            Some(_) | None => None,
        })
    };
    let code = text(&["code"]).unwrap_or_else(|| format!("status_{status}"));
    let message = text(&["message", "detail", "title"])
        .unwrap_or_else(|| format!("the tool failed with status {status}"));
    let action = text(&["next_action"]);
    let mut facts = Map::new();
    facts.insert("status".to_owned(), json!("failed"));
    if let Some(operation_id) = operation_id {
        facts.insert("operation_id".to_owned(), json!(operation_id.to_string()));
    }
    let retryable = manner.free || operation_id.is_none() && matches!(status, 429 | 503);
    facts.insert("retryable".to_owned(), json!(retryable));
    if retryable {
        let given = own.remove("retry_after_ms").filter(Value::is_u64);
        let millis = u64::try_from(RETRY_AFTER.as_millis()).unwrap_or(u64::MAX);
        facts.insert(
            "retry_after_ms".to_owned(),
            given.unwrap_or_else(|| json!(millis)),
        );
    }
    let (next, advice) = match (operation_id, action) {
        // What the tool says about the key does not count: it is used up (contract §4).
        (Some(_), own) if !manner.free => (USED_UP.to_owned(), own),
        (_, Some(own)) => (own, None),
        (_, None) if retryable => (WAIT.to_owned(), None),
        (_, None) => ("Correct the call; no key is used up".to_owned(), None),
    };
    facts.insert("next_action".to_owned(), json!(next));
    facts.insert("code".to_owned(), json!(code));
    facts.insert("message".to_owned(), json!(message));
    if let Some(advice) = advice {
        facts.insert("advice".to_owned(), json!(advice));
    }
    // What problem details say about HTTP says nothing here.
    for name in ["type", "title", "detail", "status", "instance"] {
        own.remove(name);
    }
    for (name, value) in own {
        facts.entry(name).or_insert(value);
    }
    Value::Object(facts)
}

const fn status_of(reason: &Reason) -> &'static str {
    match reason {
        Reason::Conflict => "conflict",
        Reason::InProgress { .. } => "in_progress",
        Reason::Committed { .. } => "committed",
        Reason::ResultUnavailable | Reason::NotHappened => "result_unavailable",
        Reason::Unknown { .. } => "outcome_unknown",
        Reason::Expired => "expired",
        Reason::Busy { .. } => "busy",
        Reason::Unavailable(_) => "unavailable",
        Reason::Quota { .. } => "quota_exceeded",
        Reason::Denied => "unauthorized",
        Reason::Internal(_) => "internal",
    }
}

/// The code of a refusal in the dialect of a key in `_meta`.
#[must_use]
pub const fn meta_code(reason: &Reason) -> &'static str {
    match reason {
        Reason::Conflict => "IDEMPOTENCY_KEY_REUSED",
        Reason::InProgress { .. }
        | Reason::Committed {
            retry_after: Some(_),
        } => "IDEMPOTENCY_IN_PROGRESS",
        Reason::Committed { retry_after: None }
        | Reason::ResultUnavailable
        | Reason::NotHappened
        | Reason::Expired => "IDEMPOTENCY_RESULT_UNAVAILABLE",
        Reason::Unknown { .. } => "IDEMPOTENCY_ATTEMPT_STALLED",
        Reason::Busy { .. }
        | Reason::Unavailable(_)
        | Reason::Quota { .. }
        | Reason::Denied
        | Reason::Internal(_) => reason.code().as_str(),
    }
}

/// Enough of a name from outside to know it by.
pub(crate) fn shortened(text: &str) -> String {
    text.chars().take(128).collect()
}

/// Whole seconds, rounded up, at least one.
#[must_use]
pub const fn whole_seconds(duration: Duration) -> u64 {
    let seconds = duration.as_secs() + if duration.subsec_nanos() > 0 { 1 } else { 0 };
    if seconds == 0 { 1 } else { seconds }
}

#[cfg(test)]
mod tests {
    use counterfoil_core::Timestamp;

    use super::*;

    fn every_reason() -> Vec<Reason> {
        let retry_after = Duration::from_millis(1500);
        let unknown = |retryable| Reason::Unknown {
            first: false,
            timed_out: false,
            retryable,
        };
        vec![
            Reason::Conflict,
            Reason::InProgress { retry_after },
            Reason::Committed {
                retry_after: Some(retry_after),
            },
            Reason::Committed { retry_after: None },
            Reason::ResultUnavailable,
            Reason::NotHappened,
            unknown(false),
            unknown(true),
            Reason::Expired,
            Reason::Busy { retry_after },
            Reason::Unavailable("disk full at /secret/path".to_owned()),
            Reason::Quota { limit: 7 },
            Reason::Denied,
            Reason::Internal("SELECT secret".to_owned()),
        ]
    }

    #[test]
    fn every_refusal_in_each_dialect_and_era() {
        let (prefix, server) = (MetaPrefix::default(), json!({"name": "s", "version": "1"}));
        for era in [Era::Legacy, Era::Modern] {
            let voice = Voice {
                prefix: &prefix,
                era,
                server: &server,
            };
            for dialect in [Dialect::Argument, Dialect::Meta] {
                let said: Vec<Value> = every_reason()
                    .into_iter()
                    .map(|reason| {
                        let name = format!("{reason:?}");
                        let answer = Answer::Refused(Refusal {
                            reason,
                            operation_id: Some(OperationId::new(
                                Timestamp::from_millis(0),
                                [1; 10],
                            )),
                        });
                        let said = match voice.answer(dialect, &answer) {
                            Ok(result) => json!({"result": result}),
                            Err(error) => json!({"error": error.to_value()}),
                        };
                        // What is for operators does not reach callers.
                        assert!(!said.to_string().contains("secret"), "{said}");
                        json!({name: said})
                    })
                    .collect();
                let name = format!("refusals-{dialect:?}-{era:?}").to_lowercase();
                insta::assert_json_snapshot!(name, said);
            }
        }
    }

    #[test]
    fn an_answer_that_was_not_recorded_says_so() {
        let (prefix, server) = (MetaPrefix::default(), json!({}));
        let voice = Voice {
            prefix: &prefix,
            era: Era::Legacy,
            server: &server,
        };
        let answer = Answer::NotRecorded {
            reply: Reply::json(200, &json!([1, 2])),
            operation_id: OperationId::new(Timestamp::from_millis(0), [1; 10]),
        };
        let said = voice.answer(Dialect::Argument, &answer).unwrap();
        assert_eq!(said["_meta"]["dev.counterfoil/not-recorded"], json!(true));
        assert_eq!(said["structuredContent"]["result"], json!([1, 2]));
        assert_eq!(said["content"][1]["text"], json!(NOT_RECORDED));
    }

    #[test]
    fn problem_details_are_understood() {
        let (prefix, server) = (MetaPrefix::default(), json!({}));
        let voice = Voice {
            prefix: &prefix,
            era: Era::Legacy,
            server: &server,
        };
        let problem = json!({
            "type": "https://example/x", "title": "Conflict", "status": 409,
            "code": "version_conflict", "detail": "It changed", "current_version": 3,
        });
        let said = voice.unkeyed(&Reply::json(409, &problem));
        assert_eq!(
            said["structuredContent"],
            json!({
                "status": "failed",
                "retryable": false,
                "next_action": "Correct the call; no key is used up",
                "code": "version_conflict",
                "message": "It changed",
                "current_version": 3,
            })
        );
    }

    #[test]
    fn seconds_are_rounded_up() {
        for (millis, seconds) in [(0, 1), (1, 1), (1000, 1), (1001, 2), (5000, 5)] {
            assert_eq!(whole_seconds(Duration::from_millis(millis)), seconds);
        }
    }
}
