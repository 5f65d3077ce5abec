//! Calls of 2026-07-28 that want something from the client before they are done.

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, ClientCapabilities, ErrorData, InputRequiredResult,
    InputResponses,
};
use serde_json::{Map, Value, json};

use crate::calls::said;
use crate::json::{typed, value};

/// Nobody can make up another state that is taken: there are only these.
const CONFIRMING: &str = "confirming:9e1c7a52";
const GATHERING: &str = "gathering:1b60d3f8";
const FIRST: &str = "first:5c2f90ab";
const SECOND: &str = "second:d4418e07";
const SEALED: &str = "sealed:83a5f6c1";

/// The answer of a tool of this kind; `None` if there is no such tool here.
pub(crate) fn call(
    request: &CallToolRequestParams,
    capabilities: Option<&ClientCapabilities>,
) -> Option<Result<CallToolResponse, ErrorData>> {
    let responses = request.input_responses.as_ref();
    let state = request.request_state.as_deref();
    let name = request.name.strip_prefix("test_input_required_result_")?;
    Some(match name {
        "elicitation" => Ok(match answer(responses, "user_name", "name") {
            Some(name) => said(&format!("Hello, {name}!")),
            None => CallToolResponse::InputRequired(name_wanted(None)),
        }),
        "sampling" => Ok(match given(responses, "capital_question") {
            Some(answer) => said(&format!("The model said: {}", answer["content"]["text"])),
            None => asks(&json!({"capital_question": capital()}), None),
        }),
        "list_roots" => Ok(match given(responses, "client_roots") {
            Some(answer) => said(&format!("Roots: {}", answer["roots"])),
            None => asks(&json!({"client_roots": roots()}), None),
        }),
        "request_state" => match (state, given(responses, "confirm")) {
            (Some(CONFIRMING), Some(_)) => Ok(said("state-ok: it came back as it was")),
            (Some(CONFIRMING) | None, _) => {
                let wanted = question("Please confirm", "ok", "boolean");
                Ok(asks(&json!({"confirm": wanted}), Some(CONFIRMING)))
            }
            (Some(_), _) => Err(tampered()),
        },
        "multiple_inputs" => {
            let keys = ["user_name", "greeting", "client_roots"];
            let all = keys.iter().all(|key| given(responses, key).is_some());
            match state {
                Some(GATHERING) if all => Ok(said("All three are here.")),
                Some(GATHERING) | None => {
                    let wanted = json!({
                        "user_name": question("What is your name?", "name", "string"),
                        "greeting": sampling("Generate a greeting", 50),
                        "client_roots": roots(),
                    });
                    Ok(asks(&wanted, Some(GATHERING)))
                }
                Some(_) => Err(tampered()),
            }
        }
        "multi_round" => match (state, given(responses, "step1"), given(responses, "step2")) {
            (Some(SECOND), _, Some(_)) => Ok(said("Both steps are done.")),
            (Some(FIRST), Some(_), _) | (Some(SECOND), _, None) => {
                let wanted = question("Step 2: What is your favorite color?", "color", "string");
                Ok(asks(&json!({"step2": wanted}), Some(SECOND)))
            }
            (None | Some(FIRST), _, _) => {
                let wanted = question("Step 1: What is your name?", "name", "string");
                Ok(asks(&json!({"step1": wanted}), Some(FIRST)))
            }
            (Some(_), _, _) => Err(tampered()),
        },
        "tampered_state" => match (state, responses) {
            (Some(SEALED), Some(_)) => Ok(said("The state is whole.")),
            (None, None) => {
                let wanted = question("Please confirm", "ok", "boolean");
                Ok(asks(&json!({"confirm": wanted}), Some(SEALED)))
            }
            (Some(_) | None, _) => Err(tampered()),
        },
        "capabilities" => Ok(as_declared(responses, capabilities)),
        _ => return None,
    })
}

/// Asks only for what the client can do.
fn as_declared(
    responses: Option<&InputResponses>,
    capabilities: Option<&ClientCapabilities>,
) -> CallToolResponse {
    let can = value(&capabilities);
    let mut wanted = Map::new();
    for (capability, key, what) in [
        ("sampling", "capital_question", capital()),
        (
            "elicitation",
            "user_name",
            question("What is your name?", "name", "string"),
        ),
        ("roots", "client_roots", roots()),
    ] {
        if can[capability].is_object() && given(responses, key).is_none() {
            wanted.insert(key.to_owned(), what);
        }
    }
    if wanted.is_empty() {
        return said("Nothing more is wanted.");
    }
    asks(&Value::Object(wanted), None)
}

/// What wants a name of the user.
pub(crate) fn name_wanted(state: Option<&str>) -> InputRequiredResult {
    let wanted = question("What is your name?", "name", "string");
    asked(&json!({"user_name": wanted}), state)
}

fn asks(wanted: &Value, state: Option<&str>) -> CallToolResponse {
    CallToolResponse::InputRequired(asked(wanted, state))
}

/// A result that wants something.
pub(crate) fn asked(wanted: &Value, state: Option<&str>) -> InputRequiredResult {
    let mut result = json!({"resultType": "input_required", "inputRequests": wanted});
    if let Some(state) = state {
        result["requestState"] = json!(state);
    }
    typed(result)
}

/// Asks the user for one value.
pub(crate) fn question(message: &str, field: &str, kind: &str) -> Value {
    let mut properties = Map::new();
    properties.insert(field.to_owned(), json!({"type": kind}));
    let schema = json!({"type": "object", "properties": properties, "required": [field]});
    let params = json!({"message": message, "requestedSchema": schema});
    json!({"method": "elicitation/create", "params": params})
}

fn sampling(text: &str, most: u32) -> Value {
    let message = json!({"role": "user", "content": {"type": "text", "text": text}});
    let params = json!({"messages": [message], "maxTokens": most});
    json!({"method": "sampling/createMessage", "params": params})
}

fn capital() -> Value {
    sampling("What is the capital of France?", 100)
}

fn roots() -> Value {
    json!({"method": "roots/list", "params": {}})
}

/// What came for a key.
fn given<'a>(responses: Option<&'a InputResponses>, key: &str) -> Option<&'a Value> {
    responses?.get(key).filter(|answer| answer.is_object())
}

/// A text that the user gave.
pub(crate) fn answer<'a>(
    responses: Option<&'a InputResponses>,
    key: &str,
    field: &str,
) -> Option<&'a str> {
    let answer = given(responses, key)?;
    (answer["action"] == "accept").then_some(())?;
    answer["content"][field].as_str()
}

fn tampered() -> ErrorData {
    ErrorData::invalid_params("this is not the state that was given out", None)
}
