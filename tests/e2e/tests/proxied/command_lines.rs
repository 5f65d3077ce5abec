//! The inspector's and fastmcp's command lines as clients of the proxy: each call is a process,
//! and one that takes too long is killed with everything it knew.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use counterfoil_e2e::installed::{fastmcp, inspector};
use counterfoil_e2e::until;
use serde_json::{Value, json};

use crate::front::Counted;

const META: &str = "dev.counterfoil/";
/// Milliseconds that the upstream keeps an answer back.
const HOLD: u64 = 1_500;
/// Longest wait for what is under way.
const SOON: Duration = Duration::from_secs(60);

/// A command line: how it is told where the server is, and what to call.
struct Line {
    run: fn(&Path) -> Command,
    pipes: fn(&Counted) -> Vec<String>,
    url: fn(&str) -> Vec<String>,
    list: fn(&[String]) -> Vec<String>,
    call: fn(&[String], &str, &Value) -> Vec<String>,
}

fn strings(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

const INSPECTOR: Line = Line {
    run: inspector,
    pipes: configured,
    url: |url| strings(&[url, "--transport", "http"]),
    list: |server| [server, &strings(&["--method", "tools/list"])].concat(),
    call: |server, tool, arguments| {
        let mut words = server.to_vec();
        let call = ["--method", "tools/call", "--tool-name", tool, "--tool-arg"];
        words.extend(strings(&call));
        for (name, value) in arguments.as_object().unwrap() {
            let value = value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned);
            words.push(format!("{name}={value}"));
        }
        words
    },
};

const FASTMCP: Line = Line {
    run: fastmcp,
    pipes: |counted| strings(&["--command", &counted.words(&[]).join(" ")]),
    url: |url| strings(&[url]),
    list: |server| [&strings(&["list"]), server, &strings(&["--json"])].concat(),
    call: |server, tool, arguments| {
        let mut words = strings(&["call"]);
        words.extend(server.iter().cloned());
        words.extend(strings(&["--target", tool, "--json", "--input-json"]));
        words.push(arguments.to_string());
        words
    },
};

impl Line {
    fn ask(&self, counted: &Counted, words: &[String]) -> Output {
        let mut command = (self.run)(counted.folder.path());
        command.args(words).output().expect("it starts")
    }

    fn through(&self, counted: &Counted, server: &[String]) {
        let call = |tool: &str, arguments: Value| (self.call)(server, tool, &arguments);
        let listed = printed(&self.ask(counted, &(self.list)(server)));
        assert!(
            listed.contains("append") && listed.contains("idempotency_key"),
            "{listed}"
        );
        let read = printed(&self.ask(counted, &call("count", json!({"id": "nothing"}))));
        assert!(read.contains("nothing"), "{read}");
        let keyed = call("append", json!({"id": "keyed", "idempotency_key": "one"}));
        let first = printed(&self.ask(counted, &keyed));
        let again = printed(&self.ask(counted, &keyed));
        for said in [&first, &again] {
            assert!(said.contains("append keyed: effect "), "{said}");
        }
        assert_eq!(counted.effects("keyed"), 1);
        self.lost(
            counted,
            &call("append", json!({"id": "keyless", "hold": HOLD})),
            "keyless",
        );
        let late = json!({"id": "late", "hold": HOLD, "idempotency_key": "two"});
        self.lost(counted, &call("append", late), "late");
    }

    /// Killed before the answer; asked again by the next process.
    fn lost(&self, counted: &Counted, words: &[String], id: &str) {
        let mut command = (self.run)(counted.folder.path());
        command
            .args(words)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut first = command.spawn().unwrap();
        counted.until_done(id);
        first.kill().unwrap();
        first.wait().unwrap();
        let said = until("it is settled", SOON, || {
            let said = both(&self.ask(counted, words));
            let under_way = said.contains("is still running") && !said.contains("identical");
            (!under_way).then_some(said)
        });
        assert_eq!(counted.effects(id), 1, "{said}");
        // The first answer, or how to get it.
        let got = said.contains(&format!("append {id}: effect "));
        let asked = said.contains("an identical call") && said.contains("operation_id op_");
        assert!(got || asked, "{said}");
    }
}

/// The file that the proxy prints for the inspector, which reads no `--` on its command line.
fn configured(counted: &Counted) -> Vec<String> {
    let words = counted.words(&["--print-config", "inspector"]);
    let printed = Command::new(&words[0]).args(&words[1..]).output().unwrap();
    assert!(printed.status.success(), "{}", both(&printed));
    let file = counted.folder.path().join("mcp.json");
    fs::write(&file, printed.stdout).unwrap();
    let file = file.display().to_string();
    strings(&["--config", &file, "--server", "faulty-upstream"])
}

/// Everything it printed, however it broke the lines.
fn both(done: &Output) -> String {
    let printed = String::from_utf8_lossy(&done.stdout);
    let errors = String::from_utf8_lossy(&done.stderr);
    let words = printed.split_whitespace().chain(errors.split_whitespace());
    words.collect::<Vec<_>>().join(" ")
}

fn printed(done: &Output) -> String {
    assert!(done.status.success(), "{}\n{}", done.status, both(done));
    String::from_utf8_lossy(&done.stdout).into_owned()
}

fn over_pipes(line: &Line) {
    let counted = Counted::new();
    line.through(&counted, &(line.pipes)(&counted));
}

fn over_http(line: &Line) {
    let counted = Counted::new();
    let proxy = counted.listen();
    line.through(&counted, &(line.url)(&proxy.url()));
}

#[test]
fn i2_i5_field_12_inspector_over_pipes() {
    over_pipes(&INSPECTOR);
}

#[test]
fn i2_i5_field_12_inspector_over_http() {
    over_http(&INSPECTOR);
}

#[test]
fn i2_i5_field_12_fastmcp_over_pipes() {
    over_pipes(&FASTMCP);
}

#[test]
fn i2_i5_field_12_fastmcp_over_http() {
    over_http(&FASTMCP);
}

/// The inspector's user may put a key into `_meta`.
#[test]
fn i2_field_15_inspector_with_a_key_that_no_model_sees() {
    let counted = Counted::new();
    let proxy = counted.listen();
    let server = (INSPECTOR.url)(&proxy.url());
    let mut words = (INSPECTOR.call)(&server, "append", &json!({"id": "meta"}));
    words.push("--tool-metadata".to_owned());
    words.push(format!("{META}idempotency-key=m"));
    for _ in 0..2 {
        let said = printed(&INSPECTOR.ask(&counted, &words));
        assert!(said.contains("append meta: effect "), "{said}");
    }
    assert_eq!(counted.effects("meta"), 1);
}
