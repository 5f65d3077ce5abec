//! The arguments of the proxy's own tools. What is wrong is said in words for a model.

use std::ops::RangeInclusive;

use counterfoil_core::{Code, Verdict};
use serde_json::{Map, Value};

use super::shown::Fault;

/// The arguments of a call.
pub(super) struct Given(Map<String, Value>);

fn wrong(what: &str) -> Fault {
    Fault::new(
        Code::Invalid,
        format!("Invalid arguments: {what}"),
        "Correct the arguments and call again",
    )
}

impl Given {
    /// From the text of a JSON object.
    pub(super) fn read(arguments: &str) -> Result<Self, Fault> {
        let members =
            serde_json::from_str(arguments).map_err(|_| wrong("they must be an object"))?;
        Ok(Self(members))
    }

    /// What stands under a name; `null` is as good as nothing.
    fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    pub(super) fn text(&self, name: &str) -> Result<String, Fault> {
        let value = self
            .get(name)
            .ok_or_else(|| wrong(&format!("{name} is missing")))?;
        let text = value
            .as_str()
            .ok_or_else(|| wrong(&format!("{name} must be a string")))?;
        Ok(text.to_owned())
    }

    pub(super) fn number(
        &self,
        name: &str,
        range: RangeInclusive<u32>,
    ) -> Result<Option<u32>, Fault> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
        match number.filter(|number| range.contains(number)) {
            Some(number) => Ok(Some(number)),
            None => Err(wrong(&format!(
                "{name} must be a whole number from {} to {}",
                range.start(),
                range.end()
            ))),
        }
    }

    pub(super) fn switch(&self, name: &str) -> Result<Option<bool>, Fault> {
        self.get(name)
            .map(|value| {
                let on = value.as_bool();
                on.ok_or_else(|| wrong(&format!("{name} must be true or false")))
            })
            .transpose()
    }

    pub(super) fn verdict(&self, name: &str) -> Result<Verdict, Fault> {
        match self.text(name)?.as_str() {
            "happened" => Ok(Verdict::Happened),
            "not_happened" => Ok(Verdict::NotHappened),
            _ => Err(wrong(&format!("{name} must be happened or not_happened"))),
        }
    }
}
