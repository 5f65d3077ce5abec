use std::sync::OnceLock;

use counterfoil_mcp::{annotated_headers, names_a_key};
use jsonschema::Validator;
use serde_json::Value;

use crate::{
    Settings,
    raw::{self, Object},
};

/// The argument that the proxy adds to a tool for its key.
pub(crate) const KEY_ARGUMENT: &str = "idempotency_key";
/// Largest schema that is compiled, in bytes.
const SCHEMA_BYTES_MAX: usize = 1 << 20;

/// A tool of the upstream's, as far as the proxy cares.
pub(crate) struct Tool {
    /// Its name.
    pub(crate) name: String,
    /// `annotations.readOnlyHint`, if it is there and a boolean.
    pub(crate) read_only_hint: Option<bool>,
    /// Whether that is said at all.
    pub(crate) annotated: bool,
    /// A parameter of its own for an idempotency key. It gets the key forwarded.
    pub(crate) own_key: Option<String>,
    /// All of its own parameters that are called like a key.
    pub(crate) called_like_a_key: Vec<String>,
    /// Arguments that also travel as `Mcp-Param-*` headers: the header in lower case, and the
    /// argument's path.
    pub(crate) param_headers: Vec<(String, Vec<String>)>,
    schema: Option<Box<str>>,
    validator: OnceLock<Option<Validator>>,
}

impl Tool {
    /// A tool that no list named: nothing is known of it, so it counts as mutating.
    pub(crate) fn unknown(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            read_only_hint: None,
            annotated: false,
            own_key: None,
            called_like_a_key: Vec::new(),
            param_headers: Vec::new(),
            schema: None,
            validator: OnceLock::new(),
        }
    }

    /// From an entry of a list; `None` if it is malformed. What is not known here is not looked at.
    pub(crate) fn read(entry: &str) -> Option<Self> {
        let entry = Object::read(entry)?;
        if entry.repeated().is_some() {
            return None;
        }
        let mut tool = Self::unknown(&raw::string(entry.get("name")?)?);
        if let Some(annotations) = entry.get("annotations").and_then(Object::read)
            && annotations.repeated().is_none()
        {
            tool.read_only_hint = match annotations.get("readOnlyHint") {
                Some("true") => Some(true),
                Some("false") => Some(false),
                Some(_) | None => None,
            };
            tool.annotated = tool.read_only_hint.is_some();
        }
        let Some(schema) = entry.get("inputSchema") else {
            return Some(tool);
        };
        tool.schema = Some(schema.into());
        let properties = Object::read(schema).and_then(|schema| schema.get("properties"));
        if let Some(properties) = properties.and_then(Object::read) {
            let members = properties.members().iter();
            let named = members.filter(|member| names_a_key(&member.name));
            for member in named {
                let fits = takes_a_string(member.value);
                if fits && (tool.own_key.is_none() || member.name == KEY_ARGUMENT) {
                    tool.own_key = Some(member.name.to_string());
                }
                tool.called_like_a_key.push(member.name.to_string());
            }
        }
        if schema.contains("x-mcp-header")
            && let Ok(schema) = serde_json::from_str::<Value>(schema)
        {
            let all = annotated_headers(&schema).into_iter();
            let usable = |(name, _): &(String, _)| {
                http::HeaderName::from_bytes(name.as_bytes()).is_ok() && name != "mcp-param-"
            };
            tool.param_headers = all.filter(usable).collect();
        }
        Some(tool)
    }

    /// Whether its calls are guarded: unless it says that it only reads. What is configured counts
    /// more, both ways.
    pub(crate) fn is_mutating(&self, settings: &Settings) -> bool {
        match settings.tool(&self.name).read_only {
            Some(read_only) => !read_only,
            None => self.read_only_hint != Some(true),
        }
    }

    /// Its own input schema, compiled at the first use: the draft is the one it names, else
    /// 2020-12. `None` if there is none or it cannot be compiled, such as one that refers to
    /// another document: nothing is ever fetched.
    pub(crate) fn validator(&self) -> Option<&Validator> {
        let compiled = self.validator.get_or_init(|| {
            let text = self.schema.as_deref()?;
            if text.len() > SCHEMA_BYTES_MAX {
                return None;
            }
            let schema: Value = serde_json::from_str(text).ok()?;
            // Formats are notes to most servers; only what they must refuse is refused here.
            let options = jsonschema::options()
                .offline()
                .should_validate_formats(false);
            options.build(&schema).ok()
        });
        compiled.as_ref()
    }

    /// What holds for a name under which two tools were listed.
    pub(crate) fn stricter(&self, other: &Self) -> Self {
        let mut both = Self::unknown(&self.name);
        both.read_only_hint = match (self.read_only_hint, other.read_only_hint) {
            (Some(true), Some(true)) => Some(true),
            (Some(false), _) | (_, Some(false)) => Some(false),
            (Some(true) | None, None) | (None, Some(true)) => None,
        };
        both.annotated = self.annotated && other.annotated;
        both.called_like_a_key.clone_from(&self.called_like_a_key);
        for name in &other.called_like_a_key {
            if !both.called_like_a_key.contains(name) {
                both.called_like_a_key.push(name.clone());
            }
        }
        if self.schema == other.schema {
            both.schema.clone_from(&self.schema);
            both.own_key.clone_from(&self.own_key);
            both.param_headers.clone_from(&self.param_headers);
        }
        both
    }
}

/// Whether a value for a property may be a string.
fn takes_a_string(schema: &str) -> bool {
    fn may(schema: &Value, depth: usize) -> bool {
        let Value::Object(schema) = schema else {
            return *schema == Value::Bool(true);
        };
        match schema.get("type") {
            Some(Value::String(one)) => return one == "string",
            Some(Value::Array(several)) => return several.iter().any(|one| one == "string"),
            Some(_) => return false,
            None => {}
        }
        let choice = ["anyOf", "oneOf"].iter().find_map(|name| schema.get(*name));
        match choice {
            Some(Value::Array(ways)) if depth > 0 => ways.iter().any(|way| may(way, depth - 1)),
            Some(_) | None => true,
        }
    }
    serde_json::from_str(schema).is_ok_and(|schema| may(&schema, 4))
}

/// Said of everything but what was compiled.
impl PartialEq for Tool {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
            && self.read_only_hint == other.read_only_hint
            && self.annotated == other.annotated
            && self.own_key == other.own_key
            && self.called_like_a_key == other.called_like_a_key
            && self.param_headers == other.param_headers
            && self.schema == other.schema
    }
}

impl std::fmt::Debug for Tool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tool")
            .field("name", &self.name)
            .field("read_only_hint", &self.read_only_hint)
            .field("own_key", &self.own_key)
            .finish_non_exhaustive()
    }
}
