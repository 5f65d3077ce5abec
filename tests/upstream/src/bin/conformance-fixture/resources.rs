use rmcp::model::{ErrorData, ReadResourceResponse};
use serde_json::{Value, json};

use crate::json::{PIXEL, whole};

pub(crate) fn all() -> Value {
    json!([
        one("test://static-text", "static-text", "text/plain"),
        one("test://static-binary", "static-binary", "image/png"),
        one("test://watched-resource", "watched-resource", "text/plain"),
    ])
}

fn one(uri: &str, name: &str, kind: &str) -> Value {
    json!({"uri": uri, "name": name, "description": format!("The resource {name}."), "mimeType": kind})
}

pub(crate) fn templates() -> Value {
    json!([{
        "uriTemplate": "test://template/{id}/data",
        "name": "template",
        "description": "Something for each id.",
        "mimeType": "application/json",
    }])
}

pub(crate) fn read(uri: &str) -> Result<ReadResourceResponse, ErrorData> {
    let content = match uri {
        "test://static-text" => plain(uri, "This is the content of the static text resource."),
        "test://watched-resource" => plain(uri, "This resource is watched."),
        "test://static-binary" => json!({"uri": uri, "mimeType": "image/png", "blob": PIXEL}),
        _ => {
            let rest = uri.strip_prefix("test://template/");
            let Some(id) = rest.and_then(|rest| rest.strip_suffix("/data")) else {
                let found = Some(json!({"uri": uri}));
                return Err(ErrorData::resource_not_found("no such resource", found));
            };
            let text =
                json!({"id": id, "templateTest": true, "data": format!("Data for ID: {id}")});
            json!({"uri": uri, "mimeType": "application/json", "text": text.to_string()})
        }
    };
    let result = whole(json!({"contents": [content]}));
    Ok(ReadResourceResponse::Complete(result))
}

fn plain(uri: &str, text: &str) -> Value {
    json!({"uri": uri, "mimeType": "text/plain", "text": text})
}
