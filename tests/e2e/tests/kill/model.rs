//! What the callers know: which keys they used, and which answers they saw.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use counterfoil_e2e::{Http, Mcp, Random, until};
use serde_json::{Value, json};

/// Of ten steps, how many are about a key that was used before.
const RETRIES_IN_TEN: u64 = 6;
/// How long a caller waits that got no answer.
const BACK_OFF: Duration = Duration::from_millis(5);

/// One intended note. Its body names it, so that its effects can be counted.
#[derive(Clone)]
struct Intent {
    key: String,
    over_mcp: bool,
}

#[derive(Default)]
struct Known {
    intents: Vec<Intent>,
    /// The answer that was seen, byte for byte; over MCP the result without `_meta`.
    acknowledged: HashMap<String, Vec<u8>>,
    compared: u64,
    lost: u64,
}

/// Shared by all callers.
pub(crate) struct Model {
    known: Mutex<Known>,
}

/// What happened in all.
pub(crate) struct Counts {
    pub(crate) keys: u64,
    pub(crate) acknowledged: u64,
    pub(crate) compared: u64,
    pub(crate) lost: u64,
}

/// What one call got.
enum Got {
    /// A definite answer.
    Answer(Vec<u8>),
    /// Asked to come again.
    Later,
    /// Nothing: nobody knows.
    Lost,
}

impl Model {
    pub(crate) fn new() -> Self {
        Self {
            known: Mutex::new(Known::default()),
        }
    }

    /// One call: of a new intent, or again of an old one.
    pub(crate) fn step(&self, http: &Http, random: &mut Random) {
        let intent = self.choose(random);
        match intent.call(http) {
            Got::Answer(bytes) => self.saw(&intent, bytes),
            Got::Later => {}
            Got::Lost => {
                self.known.lock().unwrap().lost += 1;
                // The server is down, or not up yet: a caller backs off.
                std::thread::sleep(BACK_OFF);
            }
        }
    }

    fn choose(&self, random: &mut Random) -> Intent {
        let mut known = self.known.lock().unwrap();
        let used = known.intents.len() as u64;
        if used > 0 && random.below(10) < RETRIES_IN_TEN {
            // Mostly the youngest: those whose answer was just lost.
            let span = if random.below(2) == 0 {
                used.min(16)
            } else {
                used
            };
            let at = used - 1 - random.below(span);
            return known.intents[usize::try_from(at).unwrap()].clone();
        }
        let intent = Intent {
            key: format!("{used:06}-{:016x}", random.bits()),
            over_mcp: random.below(3) == 0,
        };
        known.intents.push(intent.clone());
        intent
    }

    fn saw(&self, intent: &Intent, bytes: Vec<u8>) {
        let mut known = self.known.lock().unwrap();
        if let Some(first) = known.acknowledged.get(&intent.key) {
            assert_eq!(
                String::from_utf8_lossy(first),
                String::from_utf8_lossy(&bytes),
                "{}: an acknowledged answer changed",
                intent.key
            );
            known.compared += 1;
            return;
        }
        known.acknowledged.insert(intent.key.clone(), bytes);
    }

    /// Retries every intent until it is answered, then counts effects.
    pub(crate) fn finish(&self, http: &Http) -> Counts {
        let (intents, acknowledged) = {
            let known = self.known.lock().unwrap();
            (known.intents.clone(), known.acknowledged.len() as u64)
        };
        let before = effects(http);
        for (body, count) in &before {
            assert_eq!(*count, 1, "{body}: more than one effect");
        }
        {
            let known = self.known.lock().unwrap();
            for key in known.acknowledged.keys() {
                assert!(
                    before.contains_key(key),
                    "{key}: acknowledged, and its effect is gone"
                );
            }
        }
        for intent in &intents {
            let bytes = until(
                "a definite answer",
                Duration::from_secs(60),
                || match intent.call(http) {
                    Got::Answer(bytes) => Some(bytes),
                    Got::Later | Got::Lost => None,
                },
            );
            self.saw(intent, bytes);
        }
        let after = effects(http);
        assert_eq!(
            after.len(),
            intents.len(),
            "an effect for each key and no others"
        );
        for intent in &intents {
            assert_eq!(
                after.get(&intent.key),
                Some(&1),
                "{}: not one effect",
                intent.key
            );
        }
        let known = self.known.lock().unwrap();
        Counts {
            keys: intents.len() as u64,
            acknowledged,
            compared: known.compared,
            lost: known.lost,
        }
    }
}

impl Intent {
    fn call(&self, http: &Http) -> Got {
        if self.over_mcp {
            self.call_mcp(http)
        } else {
            self.call_rest(http)
        }
    }

    fn call_rest(&self, http: &Http) -> Got {
        let note = json!({"body": self.key}).to_string();
        let Ok(reply) = http.note(Some(&self.key), &note).send() else {
            return Got::Lost;
        };
        match (reply.status, reply.code().as_str()) {
            (201, _) => Got::Answer(reply.body),
            (503 | 429, _) | (409, "idempotency_in_progress") => Got::Later,
            (status, _) => panic!("{}: {status} {}", self.key, reply.text()),
        }
    }

    fn call_mcp(&self, http: &Http) -> Got {
        let arguments = json!({"body": self.key, "idempotency_key": self.key});
        let mcp = Mcp::new(http.clone());
        let Ok(said) = mcp.try_call("create_note", arguments) else {
            return Got::Lost;
        };
        if matches!(said.reply.status, 429 | 503) {
            return Got::Later;
        }
        let mut result = said.result().clone();
        if result["isError"] == true {
            let content = &result["structuredContent"];
            assert_eq!(content["retryable"], true, "{}: {result}", self.key);
            return Got::Later;
        }
        if let Some(result) = result.as_object_mut() {
            result.remove("_meta");
        }
        Got::Answer(result.to_string().into_bytes())
    }
}

/// How many notes have each body.
fn effects(http: &Http) -> HashMap<String, u64> {
    let mut counts = HashMap::new();
    for note in http.notes() {
        let Value::String(body) = note["body"].clone() else {
            panic!("a note without a body: {note}");
        };
        *counts.entry(body).or_default() += 1;
    }
    counts
}
