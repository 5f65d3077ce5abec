//! The server with everything over Streamable HTTP, behind a proxy on pipes. Each of its sessions
//! has a switch of its own: what a session did is seen by what the switch says next.

use counterfoil_e2e::{Http, Mcp, Said};
use serde_json::json;
use tempfile::TempDir;

use crate::answer::Answer;
use crate::front::{Front, free_address};
use crate::host::{Era, Host, Start};
use crate::servers::{everything_asks, everything_reads, script};
use crate::subject::proxy;
use crate::transparent::{same_but_for_meta, same_tools};
use crate::twice::{keyed, settled};

const SWITCH: &str = "toggle-subscriber-updates";

struct Everything {
    folder: TempDir,
    server: Front,
}

impl Everything {
    fn start() -> Self {
        let folder = TempDir::new().unwrap();
        let address = free_address();
        let mut words = script("server-everything");
        words.push("streamableHttp".to_owned());
        let start = Start {
            words,
            environment: vec![("PORT", address.port().to_string())],
            folder: folder.path().to_path_buf(),
        };
        let server = Front::start(&start, address);
        Self { folder, server }
    }

    fn host(&self) -> Host {
        let start = Start {
            words: proxy(self.folder.path(), &["--url", &self.server.url()]),
            environment: Vec::new(),
            folder: self.folder.path().to_path_buf(),
        };
        let mut host = Host::start(&start, Era::Legacy);
        host.ask("tools/list", json!({}));
        host
    }
}

/// The message in an answer of HTTP's, as it was spelled.
fn spelled(said: &Said) -> Answer {
    let text = said.reply.text();
    let lines = text.lines().filter_map(|line| line.strip_prefix("data:"));
    let mut messages = lines.map(str::trim).filter(|line| line.contains("\"id\":"));
    Answer::new(messages.next_back().unwrap_or(&text))
}

#[test]
fn server_everything_over_http_is_the_same_through_the_proxy() {
    let everything = Everything::start();
    let alone = Mcp::legacy(Http::new(everything.server.address));
    let mut behind = everything.host();
    let list = spelled(&alone.method("tools/list", json!({})));
    let shown = behind.ask("tools/list", json!({}));
    let added = same_tools(&list.result_text(), &shown.result_text());
    assert_eq!(added.len(), 3, "{added:?}");
    let asks = everything_asks().into_iter();
    let calls = everything_reads().into_iter();
    let calls = calls
        .map(|(tool, arguments)| ("tools/call", json!({"name": tool, "arguments": arguments})));
    for (method, params) in asks.chain(calls) {
        let direct = spelled(&alone.method(method, params.clone()));
        let proxied = behind.ask(method, params);
        // The ids are two clients' own.
        let without_id = |answer: &Answer| {
            let mut members = crate::answer::members(&answer.text);
            members.remove("id");
            members
        };
        assert_eq!(without_id(&direct), without_id(&proxied), "{method}");
    }
    let zip =
        json!({"name": "one.txt.gz", "data": "data:text/plain,one", "outputType": "resource"});
    let direct = alone.method(
        "tools/call",
        json!({"name": "gzip-file-as-resource", "arguments": zip}),
    );
    let guarded = behind.call("gzip-file-as-resource", &zip);
    same_but_for_meta(&spelled(&direct), &guarded);
}

/// What the switch says once more: "Started" if it was off.
fn switch(host: &mut Host, key: &str) -> String {
    let (arguments, meta) = keyed(&json!({}), true, key);
    let said = host.call_with(SWITCH, &arguments, &meta);
    said.must_be_fresh();
    first_word(&said)
}

fn first_word(said: &Answer) -> String {
    let words = said.words().split_whitespace();
    words.take(1).collect()
}

#[test]
fn i2_field_12_server_everything_over_http_is_switched_once_for_a_lost_answer_with_a_key() {
    for in_meta in [false, true] {
        let everything = Everything::start();
        let (arguments, meta) = keyed(&json!({}), in_meta, "once");
        let mut host = everything.host();
        host.cancel(SWITCH, &arguments, &meta);
        let again = settled(|| host.call_with(SWITCH, &arguments, &meta));
        assert!(again.is_replayed(), "{}", again.text);
        assert_eq!(first_word(&again), "Started", "{}", again.text);
        // It was switched once: now it goes off.
        assert_eq!(switch(&mut host, "meant"), "Stopped");
        host.end();
        // In a new session of the server's the same key switches nothing.
        let mut host = everything.host();
        let later = host.call_with(SWITCH, &arguments, &meta);
        later.must_be_replay_of(&again);
        assert_eq!(switch(&mut host, "anew"), "Started");
    }
}

#[test]
fn i5_field_12_server_everything_over_http_is_switched_once_for_a_lost_answer_without_a_key() {
    let everything = Everything::start();
    let mut host = everything.host();
    host.cancel(SWITCH, &json!({}), &json!({}));
    let again = host.call(SWITCH, &json!({}));
    assert!(again.is_attached(), "{}", again.text);
    assert_eq!(first_word(&again), "Started", "{}", again.text);
    // The answer arrived: whoever says it now means it.
    for expected in ["Stopped", "Started"] {
        let meant = host.call(SWITCH, &json!({}));
        meant.must_be_fresh();
        assert_eq!(first_word(&meant), expected, "{}", meant.text);
    }
}

#[test]
fn i5_field_12_server_everything_over_http_is_switched_once_when_the_host_was_gone() {
    let everything = Everything::start();
    everything.host().vanish(SWITCH, &json!({}), &json!({}));
    let mut host = everything.host();
    let again = host.call(SWITCH, &json!({}));
    assert!(again.is_attached(), "{}", again.text);
    assert_eq!(first_word(&again), "Started", "{}", again.text);
    // Nothing was switched in this session.
    assert_eq!(switch(&mut host, "anew"), "Started");
}
