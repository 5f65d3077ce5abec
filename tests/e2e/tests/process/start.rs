use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use counterfoil_e2e::{Folder, Server, until};

use crate::STORE;

const BOUND: Duration = Duration::from_secs(60);

#[test]
fn first_start_makes_the_folder_a_key_and_says_what_to_paste() {
    let folder = Folder::new(STORE);
    let server = Server::start(&folder);
    let file = folder.path().join("agent-key");
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "the key is its owner's alone");
    let text = std::fs::read_to_string(&file).unwrap();
    assert_eq!(text.lines().count(), 1, "one line, the key");
    let printed = server.printed();
    assert!(printed.contains(&folder.key()), "the key is printed once");
    assert!(
        printed.contains(&format!("{}/mcp", server.address())),
        "{printed}"
    );
    assert!(printed.contains("mcpServers"), "{printed}");
    assert!(server.address().ip().is_loopback());
}

#[test]
fn the_printed_curl_creates_a_note_and_then_replays_it() {
    let folder = Folder::new(STORE);
    let server = Server::start(&folder);
    let commands = curls(&server.printed());
    assert!(!commands.is_empty(), "{}", server.printed());
    let paste = |command: &str| {
        let done = Command::new("sh")
            .args(["-c", command])
            .current_dir(folder.root())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(done.status.success(), "{command}: {done:?}");
        String::from_utf8(done.stdout).unwrap()
    };
    let first = paste(&commands[0]);
    let again = paste(commands.last().unwrap());
    let repeated = paste(&commands[0]);
    assert_eq!(note_id(&first), note_id(&again), "{first}\n{again}");
    assert_eq!(note_id(&first), note_id(&repeated));
    assert_eq!(server.http().notes().len(), 1);
}

/// The commands among the printed lines, each with its continued lines.
fn curls(printed: &str) -> Vec<String> {
    let mut commands: Vec<String> = Vec::new();
    let mut open = false;
    for line in printed.lines().map(str::trim) {
        if open {
            let command = commands.last_mut().unwrap();
            command.push('\n');
            command.push_str(line);
        } else if line.starts_with("curl ") {
            commands.push(line.to_owned());
        } else {
            continue;
        }
        open = line.ends_with('\\');
    }
    commands
}

fn note_id(printed: &str) -> String {
    let at = printed.find('{').expect("JSON in what curl printed");
    let mut values = serde_json::Deserializer::from_str(&printed[at..]).into_iter();
    let value: serde_json::Value = values.next().unwrap().unwrap();
    value["note_id"].as_str().expect("a note id").to_owned()
}

#[test]
fn a_second_start_finds_everything_as_it_was() {
    let folder = Folder::new(STORE);
    let server = Server::start(&folder);
    let key = folder.key();
    let first = server
        .http()
        .note(Some("k"), r#"{"body":"kept"}"#)
        .send()
        .unwrap();
    server.stop();
    let server = Server::start(&folder);
    assert_eq!(folder.key(), key, "the same agent key");
    assert!(!server.printed().contains(&key), "it is printed once only");
    let again = server
        .http()
        .note(Some("k"), r#"{"body":"kept"}"#)
        .send()
        .unwrap();
    assert_eq!(again.body, first.body);
    assert_eq!(again.header("idempotent-replayed"), Some("true"));
    assert_eq!(server.http().notes().len(), 1);
}

/// A call that waits for the database is in flight when SIGTERM comes: it is answered, then the
/// process ends well.
#[test]
fn sigterm_drains_what_is_in_flight() {
    let folder = Folder::new(STORE);
    let server = Server::start(&folder);
    let lock = folder.outside().lock();
    let http = server.http();
    let call = std::thread::spawn(move || http.note(Some("k"), r#"{"body":"in flight"}"#).send());
    until("the call is in flight", BOUND, || {
        in_flight(&server).then_some(())
    });
    server.terminate();
    until("no new calls", BOUND, || (!server.is_ready()).then_some(()));
    lock.release();
    let reply = call
        .join()
        .unwrap()
        .expect("the call in flight is answered");
    assert_eq!(reply.status, 201, "{}", reply.text());
    let printed = server.printed();
    let status = server.ended();
    assert!(status.success(), "{status}\n{printed}");
    let server = Server::start(&folder);
    let again = server
        .http()
        .note(Some("k"), r#"{"body":"in flight"}"#)
        .send()
        .unwrap();
    assert_eq!(again.body, reply.body);
}

/// Whether the kernel has handed the server every byte of the one other connection.
fn in_flight(server: &Server) -> bool {
    let port = format!(":{:04X}", server.address().port());
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    table.lines().skip(1).any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, local, _, state, queues, ..] = fields.as_slice() else {
            return false;
        };
        local.ends_with(&port) && *state == "01" && *queues == "00000000:00000000"
    })
}

/// A client that never goes on holds no one up: the drain is bounded.
#[test]
fn i6_sigterm_ends_within_a_bound_though_a_client_holds_its_connection() {
    use std::io::Write as _;
    let folder = Folder::new(STORE);
    let server = Server::start(&folder);
    let mut held = std::net::TcpStream::connect(server.address()).unwrap();
    held.write_all(b"POST /api/v1/notes HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        .unwrap();
    server.terminate();
    let status = server.ended();
    assert!(status.success(), "{status}");
}

#[test]
fn interrupt_ends_it_too() {
    let folder = Folder::new(STORE);
    let server = Server::start(&folder);
    server.signal("INT");
    assert!(server.ended().success());
}
