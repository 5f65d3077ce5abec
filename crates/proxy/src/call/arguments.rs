//! The arguments as the upstream gets them.

use counterfoil_core::Key;
use counterfoil_mcp::{Issue, framing::RpcError, header_value, streamable::check_param};
use jsonschema::error::ValidationErrorKind;
use serde_json::{Value, value::RawValue};

use super::key;
use crate::{
    catalog::Tool,
    raw::{self, Edit, Object},
};

/// Stands for a key that is only made when the call runs.
const NOT_YET: &str = "00000000-0000-7000-8000-000000000000";

/// What is done to the arguments of a guarded call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Guarded<'a> {
    /// The tool.
    pub(crate) tool: &'a Tool,
    /// The call's key; a tool with a parameter for one gets it, unless it was given one there.
    pub(crate) key: Option<&'a Key>,
    /// A key that the upstream honours: the argument, and the key.
    pub(crate) provider: Option<(&'a str, &'a str)>,
}

impl Guarded<'_> {
    /// The arguments that are sent; `None` if there are none. Without the proxy's own argument,
    /// with the keys that the upstream honours, everything else as it is spelled.
    ///
    /// # Errors
    /// If the text is no object, or could not be put together.
    pub(crate) fn arguments(&self, given: Option<&str>) -> Result<Option<String>, ()> {
        let object = Object::read(given.unwrap_or("{}")).ok_or(())?;
        let mut edit = Edit::of(&object);
        match self.tool.own_key.as_deref() {
            // A parameter of that name that takes no string is not for a key, but the tool's.
            None => {
                let name = key::argument(self.tool);
                if !self.tool.called_like_a_key.iter().any(|own| own == name) {
                    edit.remove(name);
                }
            }
            Some(own) => {
                let by_provider = self.provider.is_some_and(|(name, _)| name == own);
                if let Some(key) = self.key
                    && !by_provider
                    && !object.has(own)
                {
                    edit.insert_last(own, &raw::quoted(key.as_str()));
                }
            }
        }
        if let Some((name, key)) = self.provider {
            edit.set(name, &raw::quoted(key));
        }
        if given.is_none() && edit.is_empty() {
            return Ok(None);
        }
        edit.text().map(Some).ok_or(())
    }

    /// What is wrong with the arguments by the tool's own schema, at most [`Issue::MAX`], as they
    /// would be sent. `provider_argument` is filled in only when the call runs. Nothing, if the
    /// schema or the arguments cannot be judged.
    pub(crate) fn issues(
        &self,
        given: Option<&str>,
        provider_argument: Option<&str>,
    ) -> Vec<Issue> {
        let Some(validator) = self.tool.validator() else {
            return Vec::new();
        };
        let as_sent = Guarded {
            tool: self.tool,
            key: self.key,
            provider: provider_argument.map(|name| (name, NOT_YET)),
        };
        let Ok(arguments) = as_sent.arguments(given) else {
            return Vec::new();
        };
        let Ok(arguments) = serde_json::from_str::<Value>(arguments.as_deref().unwrap_or("{}"))
        else {
            return Vec::new();
        };
        let ours = provider_argument
            .map(|name| format!("/{}", name.replace('~', "~0").replace('/', "~1")));
        validator
            .iter_errors(&arguments)
            // A pattern that takes too long says nothing of the value.
            .filter(|error| {
                !matches!(
                    error.kind(),
                    ValidationErrorKind::BacktrackLimitExceeded { .. }
                )
            })
            .filter(|error| ours.as_deref() != Some(error.instance_path().as_str()))
            .take(Issue::MAX)
            .map(|error| Issue::of(&error))
            .collect()
    }
}

/// The `Mcp-Param-*` headers of a call with these arguments (2026-07-28, HTTP): names in lower
/// case, values as they go out. What is absent, `null` or no plain value has none.
pub(crate) fn param_headers(tool: &Tool, arguments: Option<&str>) -> Vec<(String, String)> {
    let found = tool.param_headers.iter().filter_map(|(name, path)| {
        let (text, _) = mirrored(arguments, path)?;
        Some((name.clone(), header_value(&text)))
    });
    found.collect()
}

/// Whether the `Mcp-Param-*` headers that came with a call say what its arguments say. To be asked
/// where the upstream does not see them.
///
/// # Errors
/// -32020 (400) names the first that does not.
pub(crate) fn check_param_headers(
    tool: &Tool,
    arguments: Option<&str>,
    headers: &[(String, String)],
) -> Result<(), RpcError> {
    for (name, path) in &tool.param_headers {
        let given = headers.iter().find(|(given, _)| given == name);
        let given = given.map(|(_, value)| value.as_str());
        let argument = mirrored(arguments, path);
        let is_number = matches!(argument, Some((_, true)));
        let argument = argument.as_ref().map(|(text, _)| text.as_str());
        check_param(name, given, argument, is_number)?;
    }
    Ok(())
}

/// An argument as its header says it; whether it is a number. `None`: it has no header.
fn mirrored(arguments: Option<&str>, path: &[String]) -> Option<(String, bool)> {
    let mut value = arguments?;
    for step in path {
        value = Object::read(value)?.get(step)?;
    }
    match raw::string(value) {
        Some(text) => Some((text.into_owned(), false)),
        None if matches!(value, "true" | "false") => Some((value.to_owned(), false)),
        None => Some((number(value)?, true)),
    }
}

/// A number in decimal: a whole one without point and exponent.
fn number(value: &str) -> Option<String> {
    let literal: &RawValue = serde_json::from_str(value).ok()?;
    let number: f64 = literal.get().parse().ok()?;
    let digits = value
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'-');
    if digits || number.fract() != 0.0 || number.abs() >= 9_007_199_254_740_992.0 {
        return Some(value.to_owned());
    }
    Some(format!("{number:.0}"))
}
