//! What goes through `counterfoil proxy` from pipe to pipe, byte for byte. The test is both the
//! client and the server, so it says and sees every byte, whatever any SDK would make of it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "test code"
)]

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use counterfoil_e2e::{built, until};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(30);
/// Nothing came if nothing came for so long.
const QUIET: Duration = Duration::from_millis(300);
const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
const META: &str = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"x-odd":{"depth":1.0}},"com.example/odd":1.50}"#;
const PLAIN: &str = r#""_meta":{"com.example/odd":1.50}"#;

/// A client, a proxy, and a server.
struct Pipes {
    proxy: Child,
    input: Option<ChildStdin>,
    heard: Receiver<String>,
    server: TcpStream,
    asked: Receiver<String>,
    folder: TempDir,
}

impl Pipes {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let relay = counterfoil_test_upstream::program().with_file_name("conformance-fixture");
        let mut command = Command::new(built());
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"COUNTERFOIL_") {
                command.env_remove(name);
            }
        }
        let mut proxy = command
            .args(["proxy", "--state"])
            .arg(folder.path().join("state"))
            .arg("--")
            .arg(relay)
            .args(["--relay", &listener.local_addr().unwrap().to_string()])
            .env_remove("RUST_LOG")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(folder.path().join("errors.txt")).unwrap())
            .spawn()
            .unwrap();
        let heard = lines(proxy.stdout.take().unwrap());
        let (server, _) = until("the proxy starts its server", PATIENCE, || {
            listener.accept().ok()
        });
        server.set_nonblocking(false).unwrap();
        Self {
            input: proxy.stdin.take(),
            proxy,
            heard,
            asked: lines(server.try_clone().unwrap()),
            server,
            folder,
        }
    }

    fn say(&mut self, line: &str) {
        let input = self.input.as_mut().unwrap();
        input.write_all(format!("{line}\n").as_bytes()).unwrap();
        input.flush().unwrap();
    }

    fn answer(&mut self, line: &str) {
        self.server
            .write_all(format!("{line}\n").as_bytes())
            .unwrap();
    }

    /// What the client says, as the server hears it.
    fn up(&mut self, line: &str) -> String {
        self.say(line);
        self.next(&self.asked, line)
    }

    /// What the server says, as the client hears it.
    fn down(&mut self, line: &str) -> String {
        self.answer(line);
        self.next(&self.heard, line)
    }

    fn next(&self, from: &Receiver<String>, after: &str) -> String {
        from.recv_timeout(PATIENCE).unwrap_or_else(|why| {
            let errors = fs::read_to_string(self.folder.path().join("errors.txt"));
            let after: String = after.chars().take(400).collect();
            panic!("{why} after {after}\n{}", errors.unwrap_or_default())
        })
    }

    fn passes_up(&mut self, line: &str) {
        same(&self.up(line), line);
    }

    fn passes_down(&mut self, line: &str) {
        same(&self.down(line), line);
    }

    /// A handshake that offers and wants what nobody knows.
    fn shake_hands(&mut self) {
        self.passes_up(r#"{ "method":"initialize", "id":"first", "jsonrpc":"2.0", "params":{"protocolVersion":"2099-01-01","capabilities":{"x-odd":{"depth":1e0},"sampling":{}},"clientInfo":{"name":"r\u0061w","version":"0","x-odd":[ ]}},"x-odd":null}"#);
        self.passes_down(r#"{"id":"first","jsonrpc":"2.0","result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"x-odd":{"n":-0.0}},"serverInfo":{"name":"\u00e9","version":"1"},"x-odd":1.0}}"#);
        self.passes_up(INITIALIZED);
    }

    /// The list that says which tools only read. It is rewritten, but what is in it stays.
    fn list(&mut self, meta: &str) {
        self.passes_up(&format!(
            r#"{{"jsonrpc":"2.0","id":"list","method":"tools/list","params":{{{meta}}}}}"#
        ));
        let reading = r#"{"name":"read","description":"caf\u00e9","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true,"x-odd":1.0},"x-odd":1.50e+0}"#;
        let schema = r#""properties":{"n":{"type":"number","x-odd":10.0}},"x-odd":[1.0]"#;
        let head = r#"{"jsonrpc":"2.0","id":"list","result":{"tools":["#;
        let listed = self.down(&format!(
            r#"{head}{reading},{{"name":"write","inputSchema":{{"type":"object",{schema}}}}}],"x-odd":-0.0}},"x-odd":2}}"#
        ));
        assert!(listed.starts_with(&format!("{head}{reading},")), "{listed}");
        assert!(
            listed.ends_with(r#"],"x-odd":-0.0},"x-odd":2}"#),
            "{listed}"
        );
        for kept in [r#""n":{"type":"number","x-odd":10.0}"#, r#""x-odd":[1.0]"#] {
            assert!(listed.contains(kept), "{listed}");
        }
    }

    fn is_quiet(&self) {
        let said = self.asked.recv_timeout(QUIET).ok();
        assert_eq!(said, None, "nobody asked for this");
        let said = self.heard.recv_timeout(QUIET).ok();
        assert_eq!(said, None, "nobody said this");
    }
}

impl Drop for Pipes {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.proxy.kill();
        let _ = self.proxy.wait();
    }
}

fn lines(from: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(from).split(b'\n').map_while(Result::ok) {
            if sender.send(String::from_utf8(line).unwrap()).is_err() {
                break;
            }
        }
    });
    lines
}

/// Short where it is the same, so that a long line is not printed.
fn same(came: &str, was: &str) {
    if came != was {
        let short = |text: &str| text.chars().take(2000).collect::<String>();
        panic!("came:\n{}\nwas:\n{}", short(came), short(was));
    }
}

fn eras(check: impl Fn(&mut Pipes, &str)) {
    let mut older = Pipes::new();
    older.shake_hands();
    check(&mut older, PLAIN);
    older.is_quiet();
    let mut newer = Pipes::new();
    check(&mut newer, META);
    newer.is_quiet();
}

/// Values that are often spelled otherwise by whoever reads and writes them again.
const VALUES: &[&str] = &[
    "1.50e+0",
    "-0.0",
    "1E400",
    "123456789012345678901234567890",
    "0.1000000000000000055511151231257827",
    r#""\u00e9\/\ud83e\udd80 é漢🦀 \u0000""#,
    r#""\ud800""#,
    "{ \"b\" : 1 ,\t\"a\":[ ] , \"\": {} }",
    r#"{"twice":1,"twice":2}"#,
    "[null, true ,false,[[[]]]]",
];

/// Methods that the proxy has nothing to do with.
const UNKNOWN: &[&str] = &["x/unknown", "resources/subscribe", "completion/complete"];

#[test]
fn methods_that_nobody_knows_pass_with_everything_in_them() {
    eras(|pipes, meta| {
        for (number, value) in VALUES.iter().enumerate() {
            for (more, method) in UNKNOWN.iter().enumerate() {
                let id = format!("\"{number}/é/{method}\"");
                pipes.passes_up(&format!(
                    r#"{{"x-odd":{value}, "id":{id},"method":"{method}","params":{{"x-odd":{value},{meta}}},"jsonrpc":"2.0"}}"#
                ));
                pipes.passes_down(&format!(
                    r#"{{"result":{{"x-odd":{value},"_meta":{{"a/b":{value}}}}},"jsonrpc":"2.0","id":{id}, "x-odd":{value}}}"#
                ));
                let code = -32601 - i64::try_from(number).unwrap();
                let number = 10 * number + more;
                pipes.passes_up(&format!(
                    r#"{{"jsonrpc":"2.0","id":{number},"method":"{method}","params":{{{meta}}}}}"#
                ));
                pipes.passes_down(&format!(
                    r#"{{"jsonrpc":"2.0","id":{number},"error":{{"code":{code},"message":"\u006eo","data":{value},"x-odd":1.0}}}}"#
                ));
            }
        }
        // Nothing to read in it, and more than fits into a pipe.
        let long = "\\u00e9".repeat(200_000);
        pipes.passes_up(&format!(
            r#"{{"jsonrpc":"2.0","id":"long","method":"x/long","params":{{"text":"{long}",{meta}}}}}"#
        ));
        pipes.passes_down(&format!(
            r#"{{"jsonrpc":"2.0","id":"long","result":"{long}"}}"#
        ));
        pipes.passes_up(r#"{"jsonrpc":"2.0","id":"bare","method":"x/bare"}"#);
        pipes.passes_down(r#"{"jsonrpc":"2.0","id":"bare","result":null}"#);
        pipes.passes_up(r#"{"jsonrpc":"2.0","id":"list","method":"x/list","params":[1.0,{}]}"#);
        pipes.passes_down(r#"{"jsonrpc":"2.0","id":"list","result":[ 1.0 ]}"#);
    });
}

#[test]
fn ids_keep_their_type_and_their_size() {
    eras(|pipes, meta| {
        let ids = [
            "1",
            r#""1""#,
            "0",
            "-1",
            "9007199254740993",
            "18446744073709551616",
            "123456789012345678901234567890",
            r#""""#,
            r#""é漢🦀""#,
            r#""counterfoil-1""#,
        ];
        // All at once, so that each answer must find its own question.
        for id in ids {
            pipes.passes_up(&format!(
                r#"{{"jsonrpc":"2.0","id":{id},"method":"x/slow","params":{{{meta}}}}}"#
            ));
        }
        for id in ids.iter().rev() {
            pipes.passes_down(&format!(
                r#"{{"jsonrpc":"2.0","id":{id},"result":{{"of":{id}}}}}"#
            ));
        }
    });
}

#[test]
fn an_id_that_cannot_go_on_as_it_is_comes_back_as_it_was() {
    eras(|pipes, meta| {
        // A server may spell what is escaped in another way; the last was used a moment ago.
        for id in [r#""\u00e9\/""#, r#""\"\\""#, r#""used""#, r#""used""#] {
            let came = pipes.up(&format!(
                r#"{{"jsonrpc":"2.0","id":{id},"method":"x/slow","params":{{{meta}}}}}"#
            ));
            let (_, rest) = came.split_once(r#""id":"#).unwrap();
            let (other, rest) = rest.split_once(',').unwrap();
            same(rest, &format!(r#""method":"x/slow","params":{{{meta}}}}}"#));
            let said = pipes.down(&format!(r#"{{"jsonrpc":"2.0","id":{other},"result":1.0}}"#));
            same(
                &said,
                &format!(r#"{{"jsonrpc":"2.0","id":{id},"result":1.0}}"#),
            );
        }
    });
}

#[test]
fn notifications_and_progress_pass_both_ways() {
    eras(|pipes, meta| {
        for value in VALUES {
            let odd = format!(
                r#"{{"method":"notifications/x-unknown","params":{{"x-odd":{value},{meta}}}, "jsonrpc":"2.0","x-odd":{value}}}"#
            );
            pipes.passes_up(&odd);
            pipes.passes_down(&odd);
        }
        let tokens = [r#""tok\u00e9""#, "7", "9007199254740993"];
        for (id, token) in tokens.iter().enumerate() {
            let with = meta.replacen('{', &format!("{{\"progressToken\":{token},"), 1);
            pipes.passes_up(&format!(
                r#"{{"jsonrpc":"2.0","id":{id},"method":"x/slow","params":{{{with}}}}}"#
            ));
            for done in ["0.0", "5e1", "100"] {
                pipes.passes_down(&format!(
                    r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":{done},"x-odd":1.0}}}}"#
                ));
            }
            pipes.passes_down(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#));
        }
    });
}

#[test]
fn what_a_server_asks_and_is_answered_passes() {
    let mut pipes = Pipes::new();
    pipes.shake_hands();
    for (id, method) in [
        ("1", "sampling/createMessage"),
        (r#""1""#, "elicitation/create"),
        ("123456789012345678901234567890", "x/unknown"),
    ] {
        for value in VALUES {
            pipes.passes_down(&format!(
                r#"{{"id":{id},"jsonrpc":"2.0","method":"{method}","params":{{"x-odd":{value}}},"x-odd":{value}}}"#
            ));
            pipes.passes_up(&format!(
                r#"{{"result":{{"x-odd":{value}}},"id":{id}, "jsonrpc":"2.0"}}"#
            ));
        }
        pipes.passes_down(&format!(
            r#"{{"id":{id},"jsonrpc":"2.0","method":"{method}"}}"#
        ));
        pipes.passes_up(&format!(
            r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-1,"message":"","data":1.0}}}}"#
        ));
    }
    pipes.is_quiet();
}

#[test]
fn calls_of_reading_tools_pass_and_of_others_lose_nothing() {
    eras(|pipes, meta| {
        pipes.list(meta);
        for (id, value) in VALUES.iter().enumerate() {
            pipes.passes_up(&format!(
                r#"{{"jsonrpc":"2.0","id":{id},"params":{{"name":"r\u0065ad","arguments":{{"n":{value}}},"task":{{"ttl":1e3}},"x-odd":{value},{meta}}},"method":"tools/call"}}"#
            ));
            pipes.passes_down(&format!(
                r#"{{"jsonrpc":"2.0","id":{id},"result":{{"content":[{{"type":"x-odd","value":{value}}}],"x-odd":{value}}}}}"#
            ));
        }
        // A guarded call's own parts: its arguments, what is beside them, its result.
        let arguments = r#"{"n":1.50e+0, "text":"\u00e9\/"}"#;
        let came = pipes.up(&format!(
            r#"{{"jsonrpc":"2.0","id":"w","method":"tools/call","params":{{"name":"write","arguments":{arguments},"x-odd":10.0,{meta}}}}}"#
        ));
        for kept in [arguments, r#""x-odd":10.0"#, r#""com.example/odd":1.5"#] {
            assert!(came.contains(kept), "{came}");
        }
        let id = serde_json::from_str::<serde_json::Value>(&came).unwrap()["id"].to_string();
        let content =
            r#""content":[{"type":"text","text":"caf\u00e9","x-odd":1.50e+0}],"x-odd":-0.0"#;
        let said = pipes.down(&format!(
            r#"{{"jsonrpc":"2.0","id":{id},"result":{{{content}}}}}"#
        ));
        assert!(said.contains(content), "{said}");
        assert!(said.contains("dev.counterfoil/operation-id"), "{said}");
        assert!(said.contains(r#""id":"w""#), "{said}");
    });
}
