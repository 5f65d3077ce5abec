use std::{net::TcpListener, time::Duration};

use rustix::process::Signal;
use serde_json::json;

use crate::process::{Place, Server, mode};

#[test]
fn a_first_start_makes_everything_and_says_what_to_paste() {
    let place = Place::new();
    let server = place.serve();
    let key = place.agent_key();
    let file = place.data().join("agent-key");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), format!("{key}\n"));
    assert_eq!(mode(&file), 0o600);
    assert_eq!(mode(&place.data()), 0o700);
    assert_eq!(server.greeting.matches(&key).count(), 1);
    assert_eq!(server.greeting.matches("curl -si").count(), 2);
    for part in [
        "Idempotency-Key: my-first-note",
        "\"url\"",
        "\"mcp\"",
        "--stdio",
    ] {
        assert!(server.greeting.contains(part), "{part}");
    }
    assert_eq!(server.ask("GET", "/readyz", &[], "").status, 200);
    let note = server.note(&key, "k", "hello");
    assert_eq!(note.status, 201);
    assert!(server.note(&key, "k", "hello").is_replay());
}

#[test]
fn a_second_start_finds_everything_as_it_was() {
    let place = Place::new();
    let first = place.serve();
    let key = place.agent_key();
    let note = first.note(&key, "k", "hello");
    assert!(first.terminate());
    let second = place.serve();
    assert_eq!(place.agent_key(), key);
    assert!(!second.greeting.contains(&key), "a key is printed once");
    assert!(second.greeting.contains("agent-key"));
    let again = second.note(&key, "k", "hello");
    assert!(again.is_replay());
    assert_eq!(again.body, note.body);
    let keys = place.run(&["keys", "list", "--json"]).json();
    assert_eq!(keys["agent_keys"].as_array().unwrap().len(), 1);
}

#[test]
fn i2_a_result_survives_kill_9_and_a_lost_response_is_found_again() {
    let place = Place::new();
    let first = place.serve();
    let key = place.agent_key();
    let bearer = format!("Bearer {key}");
    let headers = [
        ("authorization", bearer.as_str()),
        ("idempotency-key", "lost"),
    ];
    first.send_and_go_away("/api/v1/notes", &headers, r#"{"body":"hello"}"#);
    let found = loop {
        let answer = first.note(&key, "lost", "hello");
        if answer.status == 201 {
            break answer;
        }
        assert_eq!(answer.json()["code"], "idempotency_in_progress");
    };
    first.kill();
    let second = place.serve();
    let again = second.note(&key, "lost", "hello");
    assert!(again.is_replay());
    assert_eq!(again.body, found.body);
    let list = second.get(&key, "/api/v1/notes").json();
    assert_eq!(list["notes"].as_array().unwrap().len(), 1);
    assert_eq!(list["notes"][0]["note_id"], found.json()["note_id"]);
}

#[test]
fn field_05_two_servers_on_one_folder_run_one_key_once() {
    let place = Place::new();
    let servers = [place.serve(), place.serve()];
    let key = place.agent_key();
    let answers: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..16)
            .map(|n| {
                let (server, key) = (&servers[n % 2], &key);
                scope.spawn(move || {
                    loop {
                        let answer = server.note(key, "k", "hello");
                        if answer.status == 201 {
                            return answer.body;
                        }
                        let code = answer.json()["code"].clone();
                        assert!(
                            code == "idempotency_in_progress" || code == "busy",
                            "{code}"
                        );
                    }
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    assert!(answers.iter().all(|answer| *answer == answers[0]));
    let list = servers[0].get(&key, "/api/v1/notes").json();
    assert_eq!(list["notes"].as_array().unwrap().len(), 1);
}

#[test]
fn two_first_starts_at_once_make_one_key() {
    let place = Place::new();
    let servers: Vec<Server> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..3).map(|_| scope.spawn(|| place.serve())).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    let key = place.agent_key();
    for server in &servers {
        assert_eq!(server.get(&key, "/api/v1/notes").status, 200);
    }
    let printed = servers
        .iter()
        .filter(|server| server.greeting.contains(&key))
        .count();
    assert_eq!(printed, 1);
    let keys = place.run(&["keys", "list", "--json"]).json();
    assert_eq!(keys["agent_keys"].as_array().unwrap().len(), 1);
}

#[test]
fn a_lost_agent_key_file_is_written_anew_for_the_same_principal() {
    let place = Place::new();
    let first = place.serve();
    let old = place.agent_key();
    let note = first.note(&old, "k", "hello");
    assert!(first.terminate());
    std::fs::remove_file(place.data().join("agent-key")).unwrap();
    let second = place.serve();
    let new = place.agent_key();
    assert_ne!(new, old);
    assert_eq!(second.note(&old, "k", "hello").status, 401);
    let again = second.note(&new, "k", "hello");
    assert!(again.is_replay());
    assert_eq!(again.body, note.body);
}

#[test]
fn ctrl_c_ends_it_well_and_an_open_connection_does_not_hold_it() {
    let place = Place::new();
    let server = Server::start(&place, &[]);
    let idle = std::net::TcpStream::connect(&server.address).unwrap();
    assert_eq!(server.ask("GET", "/readyz", &[], "").status, 200);
    let begun = std::time::Instant::now();
    server.signal(Signal::INT);
    assert_eq!(server.wait(), Some(0));
    assert!(begun.elapsed() < Duration::from_secs(15));
    drop(idle);
}

#[test]
fn a_port_in_use_is_said_clearly() {
    let place = Place::new();
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = holder.local_addr().unwrap().to_string();
    let said = place.run(&["serve", "--listen", &address]).fails(6);
    assert!(
        said.contains(&format!("error: cannot listen on {address}")),
        "{said}"
    );
    assert!(
        said.contains("hint: another process has this port"),
        "{said}"
    );
}

#[test]
fn other_machines_are_listened_to_only_on_request() {
    let place = Place::new();
    let said = place.run(&["serve", "--listen", "0.0.0.0:0"]).fails(3);
    assert!(said.contains("--allow-remote"), "{said}");
    let mut command = place.command(&["serve", "--listen", "0.0.0.0:0", "--allow-remote"]);
    let log = std::fs::File::create(place.path("log")).unwrap();
    let mut child = command
        .arg("--data")
        .arg(place.data())
        .stdout(std::process::Stdio::piped())
        .stderr(log)
        .spawn()
        .unwrap();
    let mut first = String::new();
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut out, &mut first).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(
        first.starts_with("Counterfoil listens on http://0.0.0.0:"),
        "{first}"
    );
    let log = std::fs::read_to_string(place.path("log")).unwrap();
    assert!(log.contains("unencrypted"), "{log}");
}

#[test]
fn field_22_a_store_that_cannot_be_used_stops_the_start() {
    let place = Place::new();
    std::fs::write(place.path("data"), "a file").unwrap();
    let said = place.run(&["serve", "--listen", "127.0.0.1:0"]).fails(4);
    assert!(said.contains("there is a file in its place"), "{said}");

    let place = Place::new();
    std::fs::create_dir(place.data()).unwrap();
    std::fs::write(
        place.data().join("counterfoil.db"),
        "no database at all, by no means",
    )
    .unwrap();
    let said = place.run(&["serve", "--listen", "127.0.0.1:0"]).fails(4);
    assert!(
        said.contains("is not a SQLite database") && said.contains("hint: "),
        "{said}"
    );
}

#[test]
fn windows_come_from_the_configuration_file() {
    let place = Place::new();
    std::fs::write(
        place.path("own.toml"),
        "[retention]\nreplay_for = \"0s\"\ntombstone_for = \"1h\"\n[mcp]\nmeta_prefix = \"assay\"\n",
    )
    .unwrap();
    let server = Server::start(&place, &["--config", "own.toml"]);
    let key = place.agent_key();
    assert_eq!(server.note(&key, "k", "hello").status, 201);
    let expired = server.note(&key, "k", "hello");
    assert_eq!(expired.json()["code"], "idempotency_key_expired");
    let bearer = format!("Bearer {key}");
    let discover = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}});
    let answer = server.ask(
        "POST",
        "/mcp",
        &[("authorization", bearer.as_str())],
        &discover.to_string(),
    );
    assert!(answer.body.contains("assay/idempotency-key"), "{answer:?}");
}

/// A request whose body never comes, under way.
fn stuck(server: &Server, key: &str) -> std::net::TcpStream {
    use std::io::Write as _;
    let mut stream = std::net::TcpStream::connect(&server.address).unwrap();
    let head = format!(
        "POST /api/v1/notes HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\ncontent-length: 100\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    while !server
        .ask("GET", "/metrics", &[], "")
        .body
        .contains("counterfoil_http_in_flight 2")
    {}
    stream
}

#[test]
fn a_drain_is_bounded() {
    let place = Place::new();
    std::fs::write(place.path("own.toml"), "[limits]\ndrain = \"200ms\"\n").unwrap();
    let server = Server::start(&place, &["--config", "own.toml"]);
    let stuck = stuck(&server, &place.agent_key());
    let begun = std::time::Instant::now();
    assert!(server.terminate());
    assert!(begun.elapsed() < Duration::from_secs(5));
    drop(stuck);
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let place = Place::new();
    std::fs::write(place.path("own.toml"), "[limits]\ndrain = \"10m\"\n").unwrap();
    let server = Server::start(&place, &["--config", "own.toml"]);
    let stuck = stuck(&server, &place.agent_key());
    server.signal(Signal::TERM);
    // The listener is closed once the first signal was seen.
    while std::net::TcpStream::connect(&server.address).is_ok() {}
    server.signal(Signal::TERM);
    assert_eq!(server.wait(), Some(130));
    drop(stuck);
}

#[test]
fn the_agent_key_file_follows_a_rotation_and_a_stale_one_is_said() {
    let place = Place::new();
    let server = place.serve();
    let old = place.agent_key();
    let id = format!("ak_{}", old.split('_').nth(1).unwrap());
    place.run(&["keys", "rotate", &id]).ok();
    let new = place.agent_key();
    assert_ne!(new, old);
    assert_eq!(server.get(&new, "/api/v1/notes").status, 200);
    place.run(&["keys", "revoke", &id]).ok();
    assert!(server.terminate());
    let again = place.serve();
    assert!(
        again.greeting.contains("is not valid (any more)"),
        "{}",
        again.greeting
    );
    std::fs::remove_file(place.data().join("agent-key")).unwrap();
    assert!(again.terminate());
    let renewed = place.serve();
    let key = place.agent_key();
    assert!(
        !key.contains(old.split('_').nth(1).unwrap()),
        "a revoked key stays revoked"
    );
    assert_eq!(renewed.get(&key, "/api/v1/notes").status, 200);
}

#[test]
fn field_22_a_newer_schema_is_refused_whoever_brought_it() {
    for newer in [
        "PRAGMA user_version = 99",
        "UPDATE counterfoil_components SET version = 99 WHERE name = 'application'",
    ] {
        let place = Place::new();
        assert!(place.serve().terminate());
        let database = rusqlite::Connection::open(place.data().join("counterfoil.db")).unwrap();
        database.execute_batch(newer).unwrap();
        drop(database);
        let said = place.run(&["serve", "--listen", "127.0.0.1:0"]).fails(4);
        assert!(said.contains("99") && said.contains("hint: "), "{said}");
    }
}
