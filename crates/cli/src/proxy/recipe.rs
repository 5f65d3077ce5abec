//! How the file says by which reading tool it is found out whether a call happened.

use std::{path::Path, time::Duration};

use counterfoil_proxy::Reconcile;
use serde_json::json;
use toml::{Table, Value};

use super::{file::CENTURY, section::Section};
use crate::exit::{Exit, Failure};

/// `reconcile` of a tool's section.
pub(super) fn recipe(
    tool: &Section<'_>,
    at: &str,
    file: &Path,
) -> Result<Option<Reconcile>, Failure> {
    let Some(table) = tool.table("reconcile")? else {
        return Ok(None);
    };
    let at = format!("{at}reconcile.");
    let keys = ["tool", "arguments", "happened_if_text", "settle_after"];
    let section = Section::new(&at, table, file, &keys)?;
    let missing = |key: &str| section.wrong(key, "there, as text in quotes");
    let recipe = Reconcile {
        tool: section.text("tool")?.ok_or_else(|| missing("tool"))?,
        arguments: match section.table("arguments")? {
            None => json!({}),
            Some(table) => json_object(table).ok_or_else(|| {
                section.wrong(
                    "arguments",
                    "texts, numbers, true, false, arrays and tables",
                )
            })?,
        },
        happened_if_text: section
            .text("happened_if_text")?
            .ok_or_else(|| missing("happened_if_text"))?,
        settle_after: section.time("settle_after", Duration::ZERO..=CENTURY)?,
    };
    for (key, word) in [
        ("arguments", mistyped_in(&recipe.arguments)),
        ("happened_if_text", mistyped(&recipe.happened_if_text)),
    ] {
        if let Some(word) = word {
            let text = format!(
                "{{{word}}} in {at}{key} in {} stands for nothing: it would be looked for as it is",
                file.display()
            );
            return Err(Failure::new(Exit::Config, text).hint(format!(
                "an argument of the call is written {{/{word}}}; braces that are meant as such take spaces: {{ {word} }}"
            )));
        }
    }
    Ok(Some(recipe))
}

fn json_object(table: &Table) -> Option<serde_json::Value> {
    let members = table
        .iter()
        .map(|(name, value)| Some((name.clone(), json_value(value)?)));
    members
        .collect::<Option<serde_json::Map<_, _>>>()
        .map(Into::into)
}

fn json_value(value: &Value) -> Option<serde_json::Value> {
    match value {
        Value::String(text) => Some(json!(text)),
        Value::Integer(number) => Some(json!(number)),
        Value::Float(number) => serde_json::Number::from_f64(*number).map(Into::into),
        Value::Boolean(on) => Some(json!(on)),
        // JSON has no dates: which text is meant is not for us to say.
        Value::Datetime(_) => None,
        Value::Array(items) => {
            let items = items.iter().map(json_value);
            items.collect::<Option<Vec<_>>>().map(Into::into)
        }
        Value::Table(table) => json_object(table),
    }
}

/// Text that stands for nothing where a pointer into the arguments was meant: `{word}`.
fn mistyped(text: &str) -> Option<&str> {
    let mut rest = text;
    while let Some((_, after)) = rest.split_once('{') {
        rest = after;
        let Some((word, _)) = after.split_once('}') else {
            continue;
        };
        let fits = |c: char| c.is_alphanumeric() || "_-.~$/".contains(c);
        if !word.is_empty() && !word.starts_with('/') && word.chars().all(fits) {
            return Some(word);
        }
    }
    None
}

/// The same in every text of a recipe's arguments.
fn mistyped_in(value: &serde_json::Value) -> Option<&str> {
    use serde_json::Value as Json;
    match value {
        Json::String(text) => mistyped(text),
        Json::Array(items) => items.iter().find_map(mistyped_in),
        Json::Object(members) => members.values().find_map(mistyped_in),
        Json::Null | Json::Bool(_) | Json::Number(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn braces_that_are_no_pointers_may_stay() {
        for text in [
            "{/a} {}",
            "query { user { id } }",
            r#"{"a": {/b}}"#,
            "{",
            "}{",
        ] {
            assert_eq!(mistyped(text), None, "{text}");
        }
        assert_eq!(mistyped("{{a}"), Some("a"));
    }
}
