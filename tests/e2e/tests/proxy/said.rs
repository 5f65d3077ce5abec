use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

const ERROR: &str = "dev.counterfoil/error";

/// A message that came.
#[derive(Clone, Debug)]
pub(crate) struct Said {
    /// As it was spelled.
    pub(crate) text: String,
    pub(crate) value: Value,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// Not yet.
    Late,
    /// There will be none: an HTTP status without a message, an ended stream, an ended process.
    Gone(String),
}

/// Everything that one client was told.
#[derive(Default)]
pub(crate) struct Inbox {
    heard: Mutex<Heard>,
    news: Condvar,
}

#[derive(Default)]
struct Heard {
    messages: Vec<Said>,
    gone: HashMap<u64, String>,
    ended: bool,
}

impl Inbox {
    pub(crate) fn add(&self, text: String) {
        let value = serde_json::from_str(&text).unwrap_or(Value::Null);
        self.lock().messages.push(Said { text, value });
        self.news.notify_all();
    }

    /// This request has no answer.
    pub(crate) fn gone(&self, id: u64, why: String) {
        self.lock().gone.insert(id, why);
        self.news.notify_all();
    }

    /// Nothing will be told any more.
    pub(crate) fn end(&self) {
        self.lock().ended = true;
        self.news.notify_all();
    }

    pub(crate) fn all(&self) -> Vec<Said> {
        self.lock().messages.clone()
    }

    /// Every answer to a request, in case there are too many.
    pub(crate) fn answers(&self, id: u64) -> Vec<Said> {
        let mut all = self.all();
        all.retain(|said| said.value["id"] == id && said.value.get("method").is_none());
        all
    }

    /// Waits for the answer to a request.
    pub(crate) fn answer(&self, id: u64, limit: Duration) -> Result<Said, Missing> {
        let until = Instant::now() + limit;
        let mut heard = self.lock();
        loop {
            let is = |said: &&Said| said.value["id"] == id && said.value.get("method").is_none();
            if let Some(said) = heard.messages.iter().find(is) {
                return Ok(said.clone());
            }
            if let Some(why) = heard.gone.get(&id) {
                return Err(Missing::Gone(why.clone()));
            }
            if heard.ended {
                return Err(Missing::Gone("the connection ended".to_owned()));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Missing::Late);
            }
            let waited = self.news.wait_timeout(heard, left);
            heard = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Said {
    pub(crate) fn result(&self) -> &Value {
        let result = self.value.get("result");
        result.unwrap_or_else(|| panic!("no result: {}", self.text))
    }

    /// What a model reads: every text block, in order.
    pub(crate) fn words(&self) -> String {
        let blocks = self.value["result"]["content"].as_array();
        let texts = blocks.into_iter().flatten();
        let texts: Vec<_> = texts.filter_map(|block| block["text"].as_str()).collect();
        texts.join("\n")
    }

    /// The permanent code of a refusal of the proxy's, wherever it stands; empty: it is none.
    pub(crate) fn code(&self) -> &str {
        let in_result = &self.value["result"]["_meta"][ERROR]["code"];
        let in_error = &self.value["error"]["data"]["code"];
        in_result.as_str().or(in_error.as_str()).unwrap_or_default()
    }

    /// In seconds.
    pub(crate) fn retry_after(&self) -> Option<u64> {
        self.value["result"]["_meta"][ERROR]["retryAfter"].as_u64()
    }

    pub(crate) fn is_error(&self) -> bool {
        self.value["result"]["isError"] == true
    }

    pub(crate) fn is_replayed(&self) -> bool {
        self.value["result"]["_meta"]["dev.counterfoil/replayed"] == true
    }

    pub(crate) fn is_attached(&self) -> bool {
        self.value["result"]["_meta"]["dev.counterfoil/attached"] == true
    }

    /// The handle, in an answer or in a refusal.
    pub(crate) fn operation(&self) -> Option<&str> {
        let result = &self.value["result"]["_meta"];
        let places = [
            &result["dev.counterfoil/operation-id"],
            &result[ERROR]["operation_id"],
            &self.value["error"]["data"]["operation_id"],
        ];
        places.into_iter().find_map(Value::as_str)
    }
}
