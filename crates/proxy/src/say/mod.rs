//! How what a call gets is said to the client: the text of the `result` or `error` of its answer,
//! by one exhaustive mapping (contract §6).
//!
//! The upstream's own answers are handed over as they are spelled, with facts put into `_meta`.
//! Refusals are tool results with one plain text for a model that knows nothing of keys, and the
//! facts in `_meta`; where the contract says so, they are JSON-RPC errors.

mod splice;
mod words;

use std::time::Duration;

use bytes::Bytes;
use counterfoil_core::{Code, OperationId, Reply, State};
use counterfoil_engine::{Answer, Reason};
use counterfoil_mcp::{
    Issue, MetaPrefix,
    framing::{Id, RpcError, codes, error_text, failure_text, result_text},
    meta_code, whole_seconds,
};
use serde_json::{Map, Value, json};

use splice::Marks;
pub(crate) use splice::text_block;
pub(crate) use words::aged;

use crate::wire::Failure;

/// The content type of a stored `result` of the upstream, as it is spelled.
pub(crate) const RESULT_TYPE: &str = "application/vnd.counterfoil.mcp-result+json";
/// The content type of a stored `error` of the upstream, as it is spelled.
pub(crate) const ERROR_TYPE: &str = "application/vnd.counterfoil.mcp-error+json";
/// The content type of what an [`Unsent`] call ends in. Never stored: its key is released.
const UNSENT_TYPE: &str = "application/vnd.counterfoil.proxy-unsent";
/// How soon an upstream that cannot be reached is tried again.
const REACHABLE_AFTER: Duration = Duration::from_secs(5);

/// The JSON-RPC codes of a proxy: those of the older era, whose range is closed in the newer one.
/// The one between them, a time-out, is not said: what is not guarded has no bound of its own.
#[derive(Clone, Copy)]
enum Rpc {
    Refused,
    Broken,
}

impl Rpc {
    const fn code(self, is_modern: bool) -> i64 {
        let number = match self {
            Self::Refused => 1,
            Self::Broken => 3,
        };
        if is_modern {
            -31_000 - number
        } else {
            -32_000 - number
        }
    }
}

/// What a request is answered with, as JSON text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// The `result` of the answer.
    Result(String),
    /// The `error` of the answer.
    Error(String),
}

impl Said {
    /// The whole answer to the request `id`.
    pub(crate) fn message(&self, id: &Id) -> Bytes {
        match self {
            Self::Result(result) => result_text(id, result),
            Self::Error(error) => failure_text(Some(id), error),
        }
    }
}

impl From<RpcError> for Said {
    fn from(error: RpcError) -> Self {
        Self::Error(error.to_value().to_string())
    }
}

/// In whose words a call is answered: that of the place of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// A key among or beside the arguments.
    Argument,
    /// A key in `_meta`.
    Meta,
    /// There is no key.
    None,
}

/// Why nothing was sent; the key is free again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unsent {
    /// The upstream cannot be reached.
    Unreachable,
    /// It refused the credentials before it looked at the call.
    Credentials,
}

impl Unsent {
    const fn word(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::Credentials => "credentials",
        }
    }

    /// What the handler ends in ([`counterfoil_engine::Outcome::NotApplied`]).
    pub(crate) fn reply(self) -> Reply {
        Reply {
            status: match self {
                Self::Unreachable => 503,
                Self::Credentials => 401,
            },
            content_type: Some(UNSENT_TYPE.to_owned()),
            headers: Vec::new(),
            body: Bytes::from_static(self.word().as_bytes()),
        }
    }

    fn of(body: &[u8]) -> Option<Self> {
        [Self::Unreachable, Self::Credentials]
            .into_iter()
            .find(|unsent| unsent.word().as_bytes() == body)
    }
}

/// What only a proxy refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refused<'a> {
    /// Without a key, and an identical call may have had the same effect already.
    PossibleDuplicate {
        /// The identical call.
        operation_id: OperationId,
        /// Where it stands.
        state: State,
        /// How long ago it was made.
        age: Duration,
    },
    /// The arguments do not fit the tool's schema. No key is used up.
    InvalidArguments(&'a [Issue]),
    /// Without a key where one is required.
    KeyRequired,
    /// Nothing was sent, and no key is used up.
    Unsent(Unsent),
}

/// Everything the words depend on beside the answer itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Voice<'a> {
    /// Of our `_meta` keys.
    pub(crate) prefix: &'a MetaPrefix,
    /// The client speaks 2026-07-28.
    pub(crate) is_modern: bool,
    /// Where the key was.
    pub(crate) dialect: Dialect,
    /// What stood in `_meta` cannot be a key, and one was made from it.
    pub(crate) is_key_replaced: bool,
    /// The tool.
    pub(crate) tool: &'a str,
    /// The argument that carries its key.
    pub(crate) key_argument: &'a str,
    /// The prefix of the proxy's own tools, if there are any.
    pub(crate) own_tools: Option<&'a str>,
    /// This very call was sent and its answer was lost, and what came of it was then read at the
    /// target: there is no earlier call to speak of.
    pub(crate) is_found_out: bool,
}

/// How an answer came about.
#[derive(Clone, Copy, Default)]
struct Manner {
    is_replayed: bool,
    is_stored_failure: bool,
    is_recorded: bool,
    /// How old the answer of the call is that this one was paired with.
    attached: Option<Duration>,
}

/// A refusal's facts for programs.
struct Facts<'a> {
    code: &'a str,
    is_retryable: bool,
    retry_after: Option<Duration>,
    operation_id: Option<OperationId>,
}

impl Voice<'_> {
    /// Translates what the engine answers. `attached` is set if the call was paired with an earlier
    /// one: how long ago that was made.
    pub(crate) fn answer(&self, answer: &Answer, attached: Option<Duration>) -> Said {
        let plain = Manner {
            is_recorded: true,
            attached,
            ..Manner::default()
        };
        match answer {
            Answer::Ran {
                reply,
                operation_id,
            } => self.reply(reply, Some(*operation_id), plain),
            Answer::Replayed {
                reply,
                operation_id,
                stored_failure,
            } => {
                let manner = Manner {
                    is_replayed: true,
                    is_stored_failure: *stored_failure,
                    ..plain
                };
                self.reply(reply, Some(*operation_id), manner)
            }
            Answer::Asked {
                reply,
                operation_id,
                replayed,
            } => {
                let manner = Manner {
                    is_replayed: *replayed,
                    ..plain
                };
                self.reply(reply, Some(*operation_id), manner)
            }
            Answer::Failed { reply } => self.reply(reply, None, plain),
            Answer::NotRecorded {
                reply,
                operation_id,
            } => {
                let manner = Manner {
                    is_recorded: false,
                    ..plain
                };
                self.reply(reply, Some(*operation_id), manner)
            }
            Answer::Refused(refusal) => {
                self.reason(&refusal.reason, refusal.operation_id, attached.is_some())
            }
        }
    }

    /// What only a proxy refuses.
    pub(crate) fn refuse(&self, refused: &Refused<'_>) -> Said {
        let mut facts = Facts {
            code: Code::Invalid.as_str(),
            is_retryable: false,
            retry_after: None,
            operation_id: None,
        };
        let text = self.refused_words(refused);
        match refused {
            Refused::PossibleDuplicate { operation_id, .. } => {
                facts.code = Code::PossibleDuplicate.as_str();
                facts.operation_id = Some(*operation_id);
            }
            Refused::InvalidArguments(_) => {}
            Refused::KeyRequired => {
                facts.code = Code::IdempotencyKeyRequired.as_str();
                let next = "Make a key for this intention, keep it, and send it with this call and every retry of it";
                return facts.error(codes::INVALID_PARAMS, text, next);
            }
            Refused::Unsent(Unsent::Unreachable) => {
                facts.code = Code::Unavailable.as_str();
                facts.is_retryable = true;
                facts.retry_after = Some(REACHABLE_AFTER);
            }
            Refused::Unsent(Unsent::Credentials) => facts.code = Code::Unauthorized.as_str(),
        }
        self.refusal(&facts, &text, false)
    }

    fn reason(
        &self,
        reason: &Reason,
        operation_id: Option<OperationId>,
        is_attached: bool,
    ) -> Said {
        let facts = Facts {
            code: match self.dialect {
                Dialect::Argument | Dialect::None => reason.code().as_str(),
                Dialect::Meta => meta_code(reason),
            },
            is_retryable: reason.is_retryable(),
            retry_after: reason.retry_after(),
            operation_id,
        };
        let text = self.reason_words(reason, operation_id);
        let is_rpc_error = match reason {
            Reason::Conflict | Reason::Expired => self.dialect == Dialect::Argument,
            Reason::InProgress { .. }
            | Reason::Committed { .. }
            | Reason::ResultUnavailable
            | Reason::NotHappened
            | Reason::Unknown { .. }
            | Reason::Busy { .. }
            | Reason::Unavailable(_)
            | Reason::Quota { .. }
            | Reason::Denied
            | Reason::Internal(_) => false,
        };
        if is_rpc_error {
            let code = Rpc::Refused.code(self.is_modern);
            return facts.error(code, text, reason.next_action());
        }
        self.refusal(&facts, &text, is_attached)
    }

    /// A refusal as a tool execution error.
    fn refusal(&self, facts: &Facts<'_>, text: &str, is_attached: bool) -> Said {
        let mut marks = Marks::none();
        let error = Value::Object(facts.members("retryAfter"));
        marks.add(self.prefix, "error", error.to_string());
        if is_attached {
            marks.add(self.prefix, "attached", "true");
        }
        self.mark(&mut marks, facts.operation_id);
        let kind = if self.is_modern {
            "\"resultType\":\"complete\","
        } else {
            ""
        };
        Said::Result(format!(
            "{{{kind}\"content\":[{}],\"isError\":true,\"_meta\":{}}}",
            text_block(text),
            marks.object()
        ))
    }

    /// What every answer of a guarded call says of itself.
    fn mark(&self, marks: &mut Marks, operation_id: Option<OperationId>) {
        if self.is_key_replaced {
            marks.add(self.prefix, "key-replaced", "true");
        }
        if let Some(operation_id) = operation_id {
            marks.add(self.prefix, "operation-id", format!("\"{operation_id}\""));
        }
    }

    /// An answer of the upstream.
    fn reply(&self, reply: &Reply, operation_id: Option<OperationId>, manner: Manner) -> Said {
        let kind = reply.content_type.as_deref();
        if kind == Some(UNSENT_TYPE)
            && let Some(unsent) = Unsent::of(&reply.body)
        {
            return self.refuse(&Refused::Unsent(unsent));
        }
        let mut marks = Marks::none();
        if manner.is_replayed {
            marks.add(self.prefix, "replayed", "true");
        }
        if manner.attached.is_some() {
            marks.add(self.prefix, "attached", "true");
        }
        if !manner.is_recorded {
            marks.add(self.prefix, "not-recorded", "true");
        }
        self.mark(&mut marks, operation_id);
        match (std::str::from_utf8(&reply.body), kind) {
            (Ok(text), Some(RESULT_TYPE)) => {
                let note = self.note(manner);
                let note = note.as_deref();
                Said::Result(splice::result(text, &marks, note, self.is_modern))
            }
            (Ok(text), Some(ERROR_TYPE)) => Said::Error(splice::error(text, &marks)),
            (Ok(_), Some(_) | None) | (Err(_), _) => {
                tracing::error!(?operation_id, "a stored answer is none of an upstream's");
                let reason = Reason::Internal(String::new());
                self.reason(&reason, operation_id, manner.attached.is_some())
            }
        }
    }
}

impl Facts<'_> {
    fn members(&self, retry_after: &str) -> Map<String, Value> {
        let mut members = Map::new();
        members.insert("code".to_owned(), json!(self.code));
        if let Some(after) = self.retry_after {
            members.insert(retry_after.to_owned(), json!(whole_seconds(after)));
        }
        if let Some(operation_id) = self.operation_id {
            let id = json!(operation_id.to_string());
            members.insert("operation_id".to_owned(), id);
        }
        members.insert("retryable".to_owned(), json!(self.is_retryable));
        members
    }

    fn error(&self, code: i64, message: String, next_action: &str) -> Said {
        let mut data = self.members("retryAfter");
        data.insert("next_action".to_owned(), json!(next_action));
        RpcError::new(code, message)
            .with_data(Value::Object(data))
            .into()
    }
}

/// The answer to a request that the proxy does not guard and that has none of the upstream's.
pub(crate) fn failed(id: &Id, is_modern: bool, why: &Failure) -> Bytes {
    let (code, is_retryable, next) = match why {
        Failure::NotSent(_) => (Code::Unavailable, true, "Try again once the server runs"),
        Failure::Unauthorized(_) => (Code::Unauthorized, false, "Renew the proxy's credentials"),
        Failure::Lost(_) => (
            Code::OutcomeUnknown,
            false,
            "If it changes nothing, send it again; otherwise check the target first",
        ),
    };
    let facts = Facts {
        code: code.as_str(),
        is_retryable,
        retry_after: None,
        operation_id: None,
    };
    let text = words::failed(why);
    facts
        .error(Rpc::Broken.code(is_modern), text, next)
        .message(id)
}

/// The answer to a request of the upstream whose client has gone (only the older era has such
/// requests).
pub(crate) fn client_gone(id: &Id) -> Bytes {
    let message = "The client that would answer this is gone; nobody will answer it";
    error_text(
        Some(id),
        &RpcError::new(Rpc::Broken.code(false), message)
            .with_data(json!({"code": Code::Unavailable.as_str(), "retryable": false})),
    )
}

#[cfg(test)]
mod tests;
