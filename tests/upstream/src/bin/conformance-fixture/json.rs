//! Messages are written as JSON here and read into the SDK's types.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// A picture of one pixel.
pub(crate) const PIXEL: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg==";
/// A sound of no length.
pub(crate) const SILENCE: &str = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQAAAAA=";

/// What the SDK makes of it.
pub(crate) fn typed<T: DeserializeOwned>(value: Value) -> T {
    let said = value.to_string();
    serde_json::from_value(value).unwrap_or_else(|why| panic!("{why}: {said}"))
}

/// A result that is all there is. For the older era the SDK leaves that word out again.
pub(crate) fn whole<T: DeserializeOwned>(mut result: Value) -> T {
    result["resultType"] = json!("complete");
    typed(result)
}

/// What the SDK holds, as JSON.
pub(crate) fn value(of: &impl Serialize) -> Value {
    serde_json::to_value(of).expect("the SDK's types are JSON")
}

pub(crate) fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

pub(crate) fn image() -> Value {
    json!({"type": "image", "data": PIXEL, "mimeType": "image/png"})
}

pub(crate) fn resource(uri: &str, kind: &str, text: &str) -> Value {
    json!({"type": "resource", "resource": {"uri": uri, "mimeType": kind, "text": text}})
}
