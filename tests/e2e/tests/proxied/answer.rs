//! What a server said, with the bytes it said it in.

use std::collections::BTreeMap;

use serde_json::Value;
use serde_json::value::RawValue;

const META: &str = "dev.counterfoil/";

/// The answer to one request.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    /// As it was spelled.
    pub(crate) text: String,
    pub(crate) value: Value,
}

impl Answer {
    pub(crate) fn new(text: &str) -> Self {
        let text = text.trim_end().to_owned();
        let value = serde_json::from_str(&text).unwrap_or_else(|why| panic!("{why}: {text}"));
        Self { text, value }
    }

    pub(crate) fn result(&self) -> &Value {
        let result = self.value.get("result");
        result.unwrap_or_else(|| panic!("no result: {}", self.text))
    }

    /// The bytes of the result.
    pub(crate) fn result_text(&self) -> String {
        members(&self.text)["result"].clone()
    }

    /// The members of the result as they were spelled, without what the proxy says beside them.
    pub(crate) fn result_members(&self) -> BTreeMap<String, String> {
        let mut members = members(&self.result_text());
        if let Some(meta) = members.remove("_meta") {
            let mut own: Value = serde_json::from_str(&meta).unwrap();
            let own = own.as_object_mut().unwrap();
            own.retain(|name, _| !name.starts_with(META));
            if !own.is_empty() {
                members.insert("_meta".to_owned(), format!("{own:?}"));
            }
        }
        members
    }

    /// The first text block.
    pub(crate) fn words(&self) -> &str {
        let text = &self.result()["content"][0]["text"];
        text.as_str()
            .unwrap_or_else(|| panic!("no text: {}", self.text))
    }

    fn meta(&self, name: &str) -> &Value {
        &self.value["result"]["_meta"][format!("{META}{name}")]
    }

    pub(crate) fn is_replayed(&self) -> bool {
        self.meta("replayed") == true
    }

    pub(crate) fn is_attached(&self) -> bool {
        self.meta("attached") == true
    }

    pub(crate) fn is_error(&self) -> bool {
        self.value["result"]["isError"] == true
    }

    /// The permanent code of a refusal of the proxy's; empty: it is none.
    pub(crate) fn code(&self) -> &str {
        let in_result = &self.meta("error")["code"];
        let in_error = &self.value["error"]["data"]["code"];
        in_result.as_str().or(in_error.as_str()).unwrap_or_default()
    }

    /// The handle of a guarded call.
    pub(crate) fn operation(&self) -> Option<&str> {
        self.meta("operation-id").as_str()
    }

    /// It ran now, for this call.
    pub(crate) fn must_be_fresh(&self) {
        assert!(self.operation().is_some(), "guarded: {}", self.text);
        let fresh = !self.is_replayed() && !self.is_attached() && self.code().is_empty();
        assert!(fresh, "it runs: {}", self.text);
    }

    /// It is the first call's answer, and says so.
    pub(crate) fn must_be_replay_of(&self, first: &Self) {
        assert!(self.is_replayed(), "a replay: {}", self.text);
        assert_eq!(self.result_members(), first.result_members());
        assert_eq!(self.operation(), first.operation());
    }
}

/// The members of an object, each as it was spelled.
pub(crate) fn members(text: &str) -> BTreeMap<String, String> {
    let read: BTreeMap<String, Box<RawValue>> =
        serde_json::from_str(text).unwrap_or_else(|why| panic!("{why}: {text}"));
    let spelled = read.into_iter();
    spelled
        .map(|(name, value)| (name, value.get().to_owned()))
        .collect()
}

/// The items of an array, each as it was spelled.
pub(crate) fn items(text: &str) -> Vec<String> {
    let read: Vec<Box<RawValue>> =
        serde_json::from_str(text).unwrap_or_else(|why| panic!("{why}: {text}"));
    read.iter().map(|item| item.get().to_owned()).collect()
}
