//! What a host sees of a server through the proxy is what it sees without.

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::answer::{Answer, items, members};
use crate::host::{Era, Host, Start};
use crate::servers;
use crate::subject::{Call, Subject, proxy};

/// What the proxy adds to the tools that change something.
const KEY: &str = "idempotency_key";
const OWN: &str = "counterfoil_";

/// The same questions to a server alone and behind a proxy.
fn same(subject: &Subject, era: Era) {
    subject.lay();
    let (direct, proxied) = (&subject.direct, &subject.proxied(&[]));
    let (mut alone, mut behind) = (Host::start(direct, era), Host::start(proxied, era));
    same_lists(&mut alone, &mut behind);
    same_bytes(&mut alone, &mut behind, &subject.asks, &subject.reads);
    let (tool, arguments) = &subject.change;
    let first = alone.call(tool, arguments);
    let effects = subject.effects();
    assert_eq!(effects, 1, "{}", first.text);
    drop(alone);
    subject.lay();
    let guarded = behind.call(tool, arguments);
    assert_eq!(subject.effects(), 1, "{}", guarded.text);
    same_but_for_meta(&first, &guarded);
    behind.end();
}

/// What is not touched, byte for byte: whole messages, the id in them too.
fn same_bytes(alone: &mut Host, behind: &mut Host, asks: &[(&'static str, Value)], reads: &[Call]) {
    for (method, params) in asks {
        let [one, other] = [&mut *alone, &mut *behind].map(|host| host.ask(method, params.clone()));
        assert_eq!(one.text, other.text, "{method}");
    }
    for (tool, arguments) in reads {
        let [one, other] = [&mut *alone, &mut *behind].map(|host| host.call(tool, arguments));
        assert_eq!(one.text, other.text, "{tool}");
        assert_eq!(other.operation(), None, "{tool}");
    }
}

fn same_lists(alone: &mut Host, behind: &mut Host) {
    let [direct, proxied] = [alone, behind].map(|host| host.ask("tools/list", json!({})));
    let added = same_tools(&direct.result_text(), &proxied.result_text());
    assert_eq!(
        added,
        ["get_operation", "list_operations", "cancel_operation"].map(|name| format!("{OWN}{name}"))
    );
    let [mut one, mut other] = [&direct, &proxied].map(|list| members(&list.text));
    one.remove("result");
    other.remove("result");
    assert_eq!(one, other);
}

/// Two results of `tools/list`: the names of the tools that only the second one has.
pub(crate) fn same_tools(direct: &str, proxied: &str) -> Vec<String> {
    let [mut direct, mut proxied] = [direct, proxied].map(members);
    let [listed, shown] =
        [&mut direct, &mut proxied].map(|list| items(&list.remove("tools").unwrap()));
    assert_eq!(direct, proxied, "what stands beside the tools");
    for (tool, seen) in listed.iter().zip(&shown) {
        let value: Value = serde_json::from_str(tool).unwrap();
        if value["annotations"]["readOnlyHint"] == true {
            assert_eq!(tool, seen);
        } else {
            same_but_for_the_key(tool, seen);
        }
    }
    let own = shown[listed.len()..].iter();
    own.map(|tool| {
        let tool: Value = serde_json::from_str(tool).unwrap();
        tool["name"].as_str().unwrap().to_owned()
    })
    .collect()
}

/// A tool that changes something: one property more, a description that goes on, nothing else.
fn same_but_for_the_key(tool: &str, seen: &str) {
    // Its members as they were spelled, those of its schema, and those of the properties.
    let parts = |tool: &str| {
        let mut tool = members(tool);
        let mut schema = members(&tool.remove("inputSchema").unwrap());
        let properties = members(&schema.remove("properties").unwrap_or("{}".to_owned()));
        (tool, schema, properties)
    };
    let (mut one, schema, properties) = parts(tool);
    let (mut other, seen_schema, mut seen_properties) = parts(seen);
    let key = seen_properties.remove(KEY).expect("the key's argument");
    assert!(key.contains("\"type\":\"string\""), "{key}");
    assert_eq!(schema, seen_schema, "{seen}");
    assert_eq!(properties, seen_properties, "{seen}");
    let described = |tool: Option<String>| {
        let text = tool.unwrap_or("\"\"".to_owned());
        serde_json::from_str::<String>(&text).unwrap()
    };
    let was = described(one.remove("description"));
    let is = described(other.remove("description"));
    let more = is.strip_prefix(&was).expect("the description goes on");
    assert!(
        more.contains(KEY) && !more.contains("unique for every"),
        "{more}"
    );
    assert_eq!(one, other, "{seen}");
    // And in the same order.
    let mut value: Value = serde_json::from_str(seen).unwrap();
    value["description"] = json!(was);
    let properties = value["inputSchema"]["properties"].as_object_mut().unwrap();
    properties.shift_remove(KEY);
    let before: Value = serde_json::from_str(tool).unwrap();
    assert_eq!(value.to_string(), before.to_string());
}

/// A guarded call's answer: what the server said, spelled as it did, and the handle beside it.
pub(crate) fn same_but_for_meta(direct: &Answer, guarded: &Answer) {
    guarded.must_be_fresh();
    assert_eq!(direct.result_members(), guarded.result_members());
    let [mut one, mut other] = [direct, guarded].map(|answer| members(&answer.text));
    for message in [&mut one, &mut other] {
        message.remove("result");
        message.remove("id");
    }
    assert_eq!(one, other);
}

#[test]
fn server_filesystem_is_the_same_through_the_proxy() {
    same(&servers::filesystem(), Era::Legacy);
}

#[test]
fn server_memory_is_the_same_through_the_proxy() {
    same(&servers::memory(), Era::Legacy);
}

#[test]
fn server_everything_is_the_same_through_the_proxy() {
    same(&servers::everything(), Era::Legacy);
}

#[test]
fn mcp_server_git_is_the_same_through_the_proxy() {
    same(&servers::git(), Era::Legacy);
}

#[test]
fn mcp_server_git_is_the_same_through_the_proxy_in_the_newest_revision() {
    same(&servers::git(), Era::Modern);
}

/// None of its tools says that it only reads, so all are guarded: their results are the same but
/// for the handle.
#[test]
fn mcp_server_sqlite_is_the_same_through_the_proxy() {
    let subject = servers::sqlite();
    same(&subject, Era::Legacy);
    subject.lay();
    let mut alone = Host::start(&subject.direct, Era::Legacy);
    let mut behind = subject.host(Era::Legacy);
    for (tool, arguments) in [
        ("list_tables", json!({})),
        ("describe_table", json!({"table_name": "rows"})),
        (
            "read_query",
            json!({"query": "SELECT 1.50 AS odd, 'h\u{e9}' AS text"}),
        ),
        ("read_query", json!({"query": "DELETE FROM rows"})),
    ] {
        let direct = alone.call(tool, &arguments);
        same_but_for_meta(&direct, &behind.call(tool, &arguments));
    }
}

/// Where it is configured that they only read, they pass as they are.
#[test]
fn mcp_server_sqlite_reads_pass_untouched_where_they_are_configured_to() {
    let subject = servers::sqlite();
    subject.lay();
    let config = subject.folder.path().join("proxy.toml");
    let words: Vec<_> = subject
        .direct
        .words
        .iter()
        .map(|word| format!("'{word}'"))
        .collect();
    let command = words.join(", ");
    let reads = ["list_tables", "read_query"];
    let tools = reads.map(|tool| format!("[upstream.rows.tools.{tool}]\nread_only = true\n"));
    let text = format!("[upstream.rows]\ncommand = [{command}]\n{}", tools.concat());
    std::fs::write(&config, text).unwrap();
    let proxied = Start {
        words: proxy(
            subject.folder.path(),
            &["--config", &config.display().to_string()],
        ),
        ..subject.direct.clone()
    };
    let mut alone = Host::start(&subject.direct, Era::Legacy);
    let mut behind = Host::start(&proxied, Era::Legacy);
    let [one, other] = [&mut alone, &mut behind].map(|host| {
        let list = host.ask("tools/list", json!({}));
        let listed = members(&list.result_text());
        items(&listed["tools"])
    });
    let names = |tool: &&String| {
        reads
            .iter()
            .any(|name| tool.contains(&format!("\"{name}\"")))
    };
    let [plain, shown] = [&one, &other].map(|tools| tools.iter().filter(names).collect::<Vec<_>>());
    assert_eq!(plain.len(), 2);
    assert_eq!(plain, shown);
    let calls = [
        ("list_tables", json!({})),
        ("read_query", json!({"query": "SELECT 1.50 AS odd"})),
    ];
    same_bytes(&mut alone, &mut behind, &[], &calls);
}

/// A server that only reads is not touched at all; without the proxy's own tools not even its list
/// is.
#[test]
fn mcp_server_time_passes_untouched_in_both_eras() {
    for era in [Era::Legacy, Era::Modern] {
        let state = TempDir::new().unwrap();
        let direct = servers::time();
        let mut words = proxy(state.path(), &["--no-tools", "--"]);
        words.extend(direct.words.iter().cloned());
        let proxied = Start {
            words,
            ..direct.clone()
        };
        let (mut alone, mut behind) = (Host::start(&direct, era), Host::start(&proxied, era));
        let noon = json!({
            "source_timezone": "Europe/Berlin", "time": "12:00", "target_timezone": "Asia/Tokyo",
        });
        let asks = [("tools/list", json!({})), ("no/such/method", json!({}))];
        same_bytes(&mut alone, &mut behind, &asks, &[("convert_time", noon)]);
        if era == Era::Modern {
            same_bytes(
                &mut alone,
                &mut behind,
                &[("server/discover", json!({}))],
                &[],
            );
        }
    }
}
