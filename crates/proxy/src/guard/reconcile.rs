//! Finding out whether a call happened whose answer was lost, by a reading tool of the upstream's.

use std::{borrow::Cow, sync::Arc, time::Duration};

use bytes::Bytes;
use counterfoil_core::{Event, OperationId, Verdict};
use counterfoil_engine::{Answer, Lookup, Reason, Refusal};
use serde_json::Value;

use super::{Asked, Named};
use crate::{
    call::CallParams,
    raw::{self, Object},
    session::Session,
    settings::Reconcile,
    wire::Kind,
};

/// How long the reading tool may take.
const READ_FOR: Duration = Duration::from_secs(30);

impl Session {
    /// An unknown outcome is looked into, where a recipe says how; any other answer stays. Whether
    /// that was the outcome of this very call, and it is now known.
    pub(super) async fn looked_into(
        self: &Arc<Self>,
        asked: &Arc<Asked>,
        named: &Named,
        answer: Answer,
    ) -> (Answer, bool) {
        let Answer::Refused(Refusal {
            reason: Reason::Unknown { first, .. },
            operation_id: Some(operation_id),
        }) = answer
        else {
            return (answer, false);
        };
        let policy = self.shared.settings.tool(&asked.call.name);
        let Some(recipe) = policy.reconcile else {
            return (answer, false);
        };
        let Some(verdict) = self.looked_up(asked, &recipe, operation_id).await else {
            return (answer, false);
        };
        let reason = match verdict {
            Verdict::Happened => "a reading tool shows that it happened",
            Verdict::NotHappened => "a reading tool shows that it did not happen",
        };
        let engine = &self.shared.engine;
        let recorded = engine
            .store()
            .record(
                operation_id,
                Event::Resolved { verdict },
                engine.now(),
                reason.to_owned(),
                Some(format!("tool {}", recipe.tool)),
            )
            .await;
        if let Err(error) = recorded {
            tracing::warn!(%operation_id, %error, "what was found out was not recorded");
            return (answer, false);
        }
        match engine.look_up(self.engine_call(asked, named)).await {
            Lookup::Answered(found) => {
                let is_found_out = first && is_verdict(&found);
                (found, is_found_out)
            }
            Lookup::Ready(_) => (answer, false),
        }
    }

    /// `None`: it could not be determined.
    async fn looked_up(
        self: &Arc<Self>,
        asked: &Asked,
        recipe: &Reconcile,
        operation_id: OperationId,
    ) -> Option<Verdict> {
        let params = CallParams::read(&asked.call.params).ok()?;
        let given: Value = serde_json::from_str(params.arguments().unwrap_or("{}")).ok()?;
        let arguments = filled(&recipe.arguments, &given)?;
        let wanted = text_of(&recipe.happened_if_text, &given)?;
        // What is not there proves something only if it was looked for when nothing could arrive
        // any more: from then on, not before.
        let store = self.shared.engine.store();
        let found = store.get(operation_id).await.ok().flatten()?;
        let settled = recipe
            .settle_after
            .map(|after| found.receipt.hard_deadline.plus(after))
            .is_some_and(|settled| self.shared.engine.now() >= settled);
        let id = self.link.fresh_id();
        let meta = asked.call.meta.as_ref();
        let text = format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":{},\"method\":\"tools/call\",\"params\":{{\"name\":{},\"arguments\":{arguments}{}}}}}",
            id.as_str(),
            raw::quoted(&recipe.tool),
            meta.map(|meta| format!(",\"_meta\":{meta}"))
                .unwrap_or_default(),
        );
        let kind = Kind::Request {
            id,
            method: "tools/call".to_owned(),
            name: None,
        };
        let asked_for = self
            .link
            .ask(None, None, self.link.outbound(text.into(), kind), None);
        let answer = match tokio::time::timeout(READ_FOR, asked_for).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(why)) => {
                tracing::warn!(%operation_id, %why, "the outcome could not be looked up");
                return None;
            }
            Err(_) => {
                tracing::warn!(%operation_id, "the outcome could not be looked up in time");
                return None;
            }
        };
        let said = said_by(&answer)?;
        if said.contains(wanted.as_ref()) {
            return Some(Verdict::Happened);
        }
        settled.then_some(Verdict::NotHappened)
    }
}

/// What a verdict makes of an operation, as opposed to its late answer.
const fn is_verdict(answer: &Answer) -> bool {
    matches!(
        answer,
        Answer::Refused(Refusal {
            reason: Reason::Committed { retry_after: None } | Reason::NotHappened,
            ..
        })
    )
}

/// All text of a tool's result; `None` if it is no success.
fn said_by(answer: &Bytes) -> Option<String> {
    let message = Object::read(std::str::from_utf8(answer).ok()?)?;
    let result = Object::read(message.get("result")?)?;
    if result.get("isError") == Some("true") {
        return None;
    }
    let mut said = String::new();
    for block in raw::elements(result.get("content")?)? {
        let text = Object::read(block)?.get("text").and_then(raw::string);
        said.push_str(text.as_deref().unwrap_or_default());
        said.push('\n');
    }
    Some(said)
}

/// The arguments of the reading tool: `{/pointer}` stands for that part of the call's arguments.
/// `None` if a pointer leads nowhere.
fn filled(template: &Value, given: &Value) -> Option<Value> {
    Some(match template {
        Value::String(text) => match whole_pointer(text) {
            Some(pointer) => given.pointer(pointer)?.clone(),
            None => Value::String(text_of(text, given)?.into_owned()),
        },
        Value::Array(items) => {
            let items = items.iter().map(|item| filled(item, given));
            Value::Array(items.collect::<Option<_>>()?)
        }
        Value::Object(members) => {
            let members = members
                .iter()
                .map(|(name, value)| Some((name.clone(), filled(value, given)?)));
            Value::Object(members.collect::<Option<_>>()?)
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => template.clone(),
    })
}

fn whole_pointer(text: &str) -> Option<&str> {
    let pointer = text.strip_prefix('{')?.strip_suffix('}')?;
    (pointer.starts_with('/') && !pointer.contains(['{', '}'])).then_some(pointer)
}

/// A text with what its pointers lead to put in. `None` if one leads nowhere, or to what has no
/// text of its own.
fn text_of<'t>(text: &'t str, given: &Value) -> Option<Cow<'t, str>> {
    if !text.contains("{/") {
        return Some(Cow::Borrowed(text));
    }
    let mut all = String::new();
    let mut rest = text;
    while let Some(start) = rest.find("{/") {
        let length = rest[start..].find('}')?;
        all.push_str(&rest[..start]);
        match given.pointer(&rest[start + 1..start + length])? {
            Value::String(text) => all.push_str(text),
            plain @ (Value::Number(_) | Value::Bool(_)) => all.push_str(&plain.to_string()),
            Value::Null | Value::Array(_) | Value::Object(_) => return None,
        }
        rest = &rest[start + length + 1..];
    }
    all.push_str(rest);
    // A match on nothing would prove everything.
    (!all.is_empty()).then_some(Cow::Owned(all))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pointers_are_filled_in() {
        let given = json!({"id": 7, "path": "/a b", "deep": {"list": ["x"]}});
        let template =
            json!({"id": "{/id}", "query": "id = {/id} in {/deep/list/0}", "n": [1, "{/path}"]});
        let wanted = json!({"id": 7, "query": "id = 7 in x", "n": [1, "/a b"]});
        assert_eq!(filled(&template, &given), Some(wanted));
        for missing in [json!("{/none}"), json!("a {/none}"), json!("a {/deep}")] {
            assert_eq!(filled(&missing, &given), None, "{missing}");
        }
        assert_eq!(text_of("{/x}", &json!({"x": ""})), None);
    }

    #[test]
    fn only_a_success_says_anything() {
        let answer = |text: &str| said_by(&Bytes::copy_from_slice(text.as_bytes()));
        let content = r#""content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]"#;
        let good = format!("{{\"result\":{{{content}}}}}");
        assert_eq!(answer(&good).as_deref(), Some("a\nb\n"));
        let bad = format!("{{\"result\":{{{content},\"isError\":true}}}}");
        assert_eq!(answer(&bad), None);
        assert_eq!(answer(r#"{"error":{"code":-1,"message":"a"}}"#), None);
    }
}
