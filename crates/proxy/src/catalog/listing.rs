//! `tools/list` as the client sees it: what the upstream sent, with the key's argument and how to
//! use it in each mutating tool, and the proxy's own tools at the end.

use counterfoil_core::KEY_CHARS_MAX;
use counterfoil_mcp::spell;
use serde_json::json;

use super::{Catalog, KEY_ARGUMENT, Tool};
use crate::{
    Keyless, Settings,
    raw::{self, Edit, Object, Splices},
};

/// A result of `tools/list` and its tools; `None` if it is none.
pub(super) fn page(result: &str) -> Option<(Object<'_>, Vec<&str>)> {
    let object = Object::read(result)?;
    if object.repeated().is_some() {
        return None;
    }
    let tools = raw::elements(object.get("tools")?)?;
    Some((object, tools))
}

/// The cursor of the next page, as JSON text. `null` and the empty string are none.
pub(super) fn next_cursor<'a>(page: &Object<'a>) -> Option<&'a str> {
    page.get("nextCursor")
        .filter(|cursor| !matches!(*cursor, "null" | "\"\""))
}

impl Catalog {
    /// A result of `tools/list` as it goes to the client; call [`Catalog::take_page`] with it
    /// before. `own_tools` are the proxy's own, as JSON text: they stand at the end of the last
    /// page, each unless the upstream has a tool of that name. Everything else stays as it is
    /// spelled, read-only tools and what cannot be read whole.
    pub(crate) fn rewrite_list(
        &self,
        result: &str,
        settings: &Settings,
        own_tools: &[String],
    ) -> String {
        self.rewritten(result, settings, own_tools)
            .unwrap_or_else(|| result.to_owned())
    }

    fn rewritten(&self, result: &str, settings: &Settings, own_tools: &[String]) -> Option<String> {
        let (object, tools) = page(result)?;
        let mut splices = Splices::default();
        for entry in &tools {
            if let Some(with_key) = with_key(entry, settings) {
                splices.put(raw::place_in(result, entry)?, with_key);
            }
        }
        if next_cursor(&object).is_none() {
            let mut added = Vec::new();
            for own in own_tools {
                let name = Object::read(own).and_then(|own| raw::string(own.get("name")?));
                if name.is_some_and(|name| self.get(&name).is_none()) {
                    added.push(own.as_str());
                }
            }
            if !added.is_empty() {
                let (at, comma) = match tools.last() {
                    Some(last) => (raw::place_in(result, last)?.end, ","),
                    None => (raw::place_in(result, object.get("tools")?)?.start + 1, ""),
                };
                splices.put(at..at, format!("{comma}{}", added.join(",")));
            }
        }
        splices.apply(result)
    }
}

/// A tool with the key's argument and how to use it; `None` if it stays as it is: it only reads,
/// has a parameter of that kind of its own, or nothing can be added to its schema.
fn with_key(entry: &str, settings: &Settings) -> Option<String> {
    let tool = Tool::read(entry)?;
    if !tool.is_mutating(settings) || !tool.called_like_a_key.is_empty() {
        return None;
    }
    let keyless = settings
        .tool(&tool.name)
        .keyless
        .unwrap_or(settings.keyless);
    let entry = Object::read(entry)?;
    let schema = schema_with_key(entry.get("inputSchema")?, keyless)?;
    let how = how_to_use(settings);
    let mut edit = Edit::of(&entry);
    edit.replace("inputSchema", &schema);
    match entry.get("description") {
        None => edit.insert_last("description", &raw::quoted(&how)),
        Some(description) => {
            // What it says is not decoded: it stays as it is spelled.
            if let Some(open) = description
                .strip_prefix('"')
                .and_then(|rest| rest.strip_suffix('"'))
            {
                let gap = if open.is_empty() { "" } else { "\n\n" };
                let added = raw::quoted(&format!("{gap}{how}"));
                edit.replace(
                    "description",
                    &format!("\"{open}{}", added.strip_prefix('"')?),
                );
            }
        }
    }
    edit.text()
}

/// The schema with one property more; `None` if that cannot be said in it.
fn schema_with_key(text: &str, keyless: Keyless) -> Option<String> {
    let schema = Object::read(text)?;
    if schema.repeated().is_some() || closed_elsewhere(&schema) {
        return None;
    }
    if !matches!(schema.get("type"), None | Some("\"object\"")) {
        return None;
    }
    let key = json!({
        "type": "string",
        "minLength": 1,
        "maxLength": KEY_CHARS_MAX,
        "description": "Names this one intended action. Make it when you decide to act, keep it, and send the same key again with every retry of the same action.",
    })
    .to_string();
    let mut edit = Edit::of(&schema);
    match schema.get("properties") {
        None => edit.insert_last(
            "properties",
            &format!("{{{}:{key}}}", raw::quoted(KEY_ARGUMENT)),
        ),
        Some(properties) => {
            let properties = Object::read(properties)?;
            let mut inner = Edit::of(&properties);
            inner.insert_last(KEY_ARGUMENT, &key);
            edit.replace("properties", &inner.text()?);
        }
    }
    if keyless == Keyless::Require {
        let name = raw::quoted(KEY_ARGUMENT);
        match schema.get("required") {
            None => edit.insert_last("required", &format!("[{name}]")),
            Some(required) => {
                let mut splices = Splices::default();
                match raw::elements(required)?.last() {
                    Some(last) => {
                        let at = raw::place_in(required, last)?.end;
                        splices.put(at..at, format!(",{name}"));
                    }
                    None => splices.put(1..1, name),
                }
                edit.replace("required", &splices.apply(required)?);
            }
        }
    }
    edit.text()
}

/// Whether a part of a schema beside its `properties` may refuse one more of them.
fn closed_elsewhere(schema: &Object<'_>) -> bool {
    let parts = [
        "allOf",
        "anyOf",
        "oneOf",
        "not",
        "if",
        "then",
        "else",
        "dependentSchemas",
    ];
    schema.has("$ref")
        || schema.has("$dynamicRef")
        || schema.has("maxProperties")
        || schema.has("propertyNames")
        || schema.has("patternProperties")
        || parts
            .iter()
            .filter_map(|part| schema.get(part))
            .any(|part| {
                [
                    "$ref",
                    "additionalProperties",
                    "unevaluatedProperties",
                    "maxProperties",
                    "propertyNames",
                ]
                .iter()
                .any(|word| part.contains(word))
            })
}

/// What a mutating tool's description says of its key (contract §11). Never that a key is unique
/// for each request: a model would make another one for a retry.
pub(crate) fn how_to_use(settings: &Settings) -> String {
    let good_for = spell(settings.replay_for);
    let uncertain = match &settings.own_tools {
        Some(prefix) => format!("ask {prefix}get_operation, or send this call again with that key"),
        None => "send this call again with that key: it says what is known".to_owned(),
    };
    format!(
        "{KEY_ARGUMENT}: make one when you decide on this action, before the first attempt, and keep it. \
         Send the same key with every retry of that action: it runs once. \
         A different action needs its own key. \
         A key is good for {good_for}. \
         If the outcome is uncertain, {uncertain}."
    )
}
