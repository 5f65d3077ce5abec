//! What a tool's input schema says: of arguments that do not fit, and of arguments that also
//! travel as headers. A proxy stands on it too.

use jsonschema::{ValidationError, error::ValidationErrorKind};
use serde_json::Value;

use crate::say::shortened;

/// One thing that is wrong with a call's arguments. Names the field, never the value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issue {
    /// JSON Pointer into the arguments; `/` for all of them.
    pub field: String,
    /// What is wrong with it.
    pub problem: String,
}

impl Issue {
    /// Most issues told of one call.
    pub const MAX: usize = 8;

    /// From what a validator says. Both texts have at most 128 characters.
    #[must_use]
    pub fn of(error: &ValidationError<'_>) -> Self {
        let at = error.instance_path().to_string();
        // What is missing or too much has no place of its own, so it is named where it would be.
        let name = if let ValidationErrorKind::Required { property } = error.kind() {
            property.as_str()
        } else if let ValidationErrorKind::AdditionalProperties { unexpected } = error.kind() {
            unexpected.first().map(String::as_str)
        } else {
            None
        };
        let field = match name {
            Some(name) => format!("{at}/{name}"),
            None if at.is_empty() => "/".to_owned(),
            None => at,
        };
        Self {
            field: shortened(&field),
            problem: shortened(&error.masked().to_string()),
        }
    }

    /// All of them in one sentence for the model.
    #[must_use]
    pub fn told(issues: &[Self]) -> String {
        let told: Vec<String> = issues
            .iter()
            .map(|issue| format!("{}: {}", issue.field, issue.problem))
            .collect();
        format!("Invalid arguments: {}", told.join("; "))
    }
}

/// `x-mcp-header` annotations of an input schema, on properties that are reached through
/// `properties` alone: the header in lower case (`mcp-param-region`), and the argument's path.
#[must_use]
pub fn annotated_headers(schema: &Value) -> Vec<(String, Vec<String>)> {
    let mut found = Vec::new();
    collect(schema, &mut Vec::new(), &mut found);
    found
}

fn collect(schema: &Value, path: &mut Vec<String>, found: &mut Vec<(String, Vec<String>)>) {
    let Some(Value::Object(properties)) = schema.get("properties") else {
        return;
    };
    for (name, property) in properties {
        path.push(name.clone());
        if let Some(Value::String(header)) = property.get("x-mcp-header") {
            found.push((
                format!("mcp-param-{}", header.to_ascii_lowercase()),
                path.clone(),
            ));
        }
        collect(property, path, found);
        path.pop();
    }
}
