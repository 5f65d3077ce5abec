use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// The file in which an upstream writes down what it received and what it did: one line of JSON
/// each, written whole before anything is answered. It outlives the process, and several processes
/// may share it.
///
/// Lines have a `kind`:
/// - `start`: a process began. With `pid`.
/// - `message`: anything received that is no `tools/call`. With `text` as it came.
/// - `call`: a `tools/call` was received. With `tool`, `id` (the argument), `fault`, `text` and,
///   over HTTP, `headers`.
/// - `effect`: the call did what it is for. With `tool` and `id`.
/// - `cancelled`: a call stopped without its effect because its client told it to. With `tool`, `id`.
#[derive(Clone, Debug)]
pub struct Ledger(PathBuf);

/// One line.
#[derive(Clone, Debug)]
pub struct Entry(Value);

impl Ledger {
    /// The one in this file, which need not be there yet.
    #[must_use]
    pub const fn new(path: PathBuf) -> Self {
        Self(path)
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Adds a line.
    ///
    /// # Panics
    /// If it cannot be written: without its ledger an upstream proves nothing.
    pub fn add(&self, entry: &Value) {
        let mut line = entry.to_string();
        line.push('\n');
        let mut file = OpenOptions::new()
            .append(true)
            .create(true)
            .open(&self.0)
            .expect("the ledger opens");
        // In one write, so that lines of several processes do not mix.
        file.write_all(line.as_bytes())
            .expect("the ledger takes a line");
    }

    /// Every line, oldest first.
    ///
    /// # Panics
    /// If there is a line that is no JSON.
    #[must_use]
    pub fn entries(&self) -> Vec<Entry> {
        let text = fs::read_to_string(&self.0).unwrap_or_default();
        // A line that is being written right now has no end yet.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole
            .lines()
            .map(|line| Entry(serde_json::from_str(line).expect("a line of the ledger")))
            .collect()
    }

    /// The lines of one kind about one tool and one `id`.
    #[must_use]
    pub fn about(&self, kind: &str, tool: &str, id: &str) -> Vec<Entry> {
        let mut entries = self.entries();
        entries.retain(|entry| entry.kind() == kind && entry.is_of(tool, id));
        entries
    }

    /// How often a tool did what it is for, for this `id`.
    #[must_use]
    pub fn effects(&self, tool: &str, id: &str) -> usize {
        self.about("effect", tool, id).len()
    }

    /// How often a tool was called with this `id`.
    #[must_use]
    pub fn calls(&self, tool: &str, id: &str) -> usize {
        self.about("call", tool, id).len()
    }

    /// How many effects there are in all.
    #[must_use]
    pub fn all_effects(&self) -> usize {
        let entries = self.entries();
        entries
            .iter()
            .filter(|entry| entry.kind() == "effect")
            .count()
    }

    /// The received messages of a method, calls too, as they came.
    #[must_use]
    pub fn received(&self, method: &str) -> Vec<String> {
        let entries = self.entries();
        let texts = entries.iter().filter_map(|entry| entry.text());
        let of = |text: &&str| {
            serde_json::from_str::<Value>(text).is_ok_and(|message| message["method"] == method)
        };
        texts.filter(of).map(str::to_owned).collect()
    }
}

impl Entry {
    /// What the line is about.
    #[must_use]
    pub fn kind(&self) -> &str {
        self.0["kind"].as_str().unwrap_or_default()
    }

    /// The message as it was received.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        self.0["text"].as_str()
    }

    /// The received message.
    ///
    /// # Panics
    /// If this line has none.
    #[must_use]
    pub fn message(&self) -> Value {
        let text = self.text().expect("a line with a message");
        serde_json::from_str(text).expect("a message is JSON")
    }

    /// A header of the HTTP request it came by; the name in lower case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.0["headers"][name].as_str()
    }

    /// Any other field.
    #[must_use]
    pub fn field(&self, name: &str) -> &Value {
        &self.0[name]
    }

    fn is_of(&self, tool: &str, id: &str) -> bool {
        self.0["tool"] == tool && self.0["id"] == id
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_line_without_its_end_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::new(folder.path().join("effects"));
        assert_eq!(ledger.all_effects(), 0);
        ledger.add(&json!({"kind": "effect", "tool": "append", "id": "a"}));
        fs::OpenOptions::new()
            .append(true)
            .open(ledger.path())
            .unwrap()
            .write_all(b"{\"kind\":\"eff")
            .unwrap();
        assert_eq!(ledger.effects("append", "a"), 1);
        assert_eq!(ledger.effects("append", "b"), 0);
    }
}
