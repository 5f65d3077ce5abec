use rmcp::model::{
    CompleteRequestParams, CompleteResult, ErrorData, GetPromptRequestParams, GetPromptResponse,
};
use serde_json::{Value, json};

use crate::json::{image, resource, text, whole};
use crate::rounds;

const TOWNS: &[&str] = &["paris", "park", "party", "oslo"];

pub(crate) fn all() -> Value {
    let wanted = |names: &[&str]| -> Value {
        let one = |name: &&str| json!({"name": name, "description": format!("The argument {name}."), "required": true});
        names.iter().map(one).collect()
    };
    json!([
        {"name": "test_simple_prompt", "description": "A prompt."},
        {
            "name": "test_prompt_with_arguments",
            "description": "A prompt with arguments.",
            "arguments": wanted(&["arg1", "arg2"]),
        },
        {
            "name": "test_prompt_with_embedded_resource",
            "description": "A prompt with a resource in it.",
            "arguments": wanted(&["resourceUri"]),
        },
        {"name": "test_prompt_with_image", "description": "A prompt with an image in it."},
        {"name": "test_input_required_result_prompt", "description": "A prompt that asks first."},
    ])
}

pub(crate) fn get(request: &GetPromptRequestParams) -> Result<GetPromptResponse, ErrorData> {
    let argument = |name: &str| {
        let found = request.arguments.as_ref().and_then(|all| all.get(name));
        let missing = || ErrorData::invalid_params(format!("{name} is missing"), None);
        found.and_then(Value::as_str).ok_or_else(missing)
    };
    let contents = match request.name.as_str() {
        "test_simple_prompt" => vec![text("This is a simple prompt for testing.")],
        "test_prompt_with_arguments" => {
            let (one, two) = (argument("arg1")?, argument("arg2")?);
            vec![text(&format!(
                "Prompt with arguments: arg1='{one}', arg2='{two}'"
            ))]
        }
        "test_prompt_with_embedded_resource" => {
            let words = "Embedded resource content for testing.";
            vec![
                resource(argument("resourceUri")?, "text/plain", words),
                text("Please process the embedded resource above."),
            ]
        }
        "test_prompt_with_image" => vec![image(), text("Please analyze the image above.")],
        "test_input_required_result_prompt" => {
            let responses = request.input_responses.as_ref();
            let Some(context) = rounds::answer(responses, "user_context", "context") else {
                let question = "What context should the prompt use?";
                let wanted = rounds::question(question, "context", "string");
                let asked = rounds::asked(&json!({"user_context": wanted}), None);
                return Ok(GetPromptResponse::InputRequired(asked));
            };
            vec![text(&format!("The context is {context}."))]
        }
        name => {
            let why = format!("there is no prompt {name}");
            return Err(ErrorData::invalid_params(why, None));
        }
    };
    let message = |content: Value| json!({"role": "user", "content": content});
    let messages: Vec<_> = contents.into_iter().map(message).collect();
    let result = whole(json!({"messages": messages}));
    Ok(GetPromptResponse::Complete(result))
}

/// The towns that begin like this.
pub(crate) fn complete(request: &CompleteRequestParams) -> CompleteResult {
    let begun = request.argument.value.as_str();
    let found: Vec<_> = TOWNS
        .iter()
        .filter(|town| town.starts_with(begun))
        .collect();
    let total = found.len();
    whole(json!({"completion": {"values": found, "total": total, "hasMore": false}}))
}
