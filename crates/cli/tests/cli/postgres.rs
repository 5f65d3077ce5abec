//! `--store postgres://…`: many nodes, one database.

use std::{
    process::{Command, Output, Stdio},
    time::Duration,
};

use counterfoil_test_postgres::Database;
use serde_json::json;

use crate::process::{Finished, Place, Server};

/// No password is asked for by the server of the tests: whatever is said is taken.
const PASSWORD: &str = "hunter2-in-an-address";

/// The address of a database with a password in it.
fn with_password(database: &Database) -> String {
    let url = database
        .url()
        .replacen("postgres@", &format!("postgres:{PASSWORD}@"), 1);
    assert!(url.contains(PASSWORD), "{url}");
    url
}

fn node(place: &Place, database: &Database) -> Server {
    Server::start(place, &["--store", database.url()])
}

fn tables(database: &Database) -> String {
    database.psql("SELECT count(*) FROM information_schema.tables WHERE table_schema = 'public'")
}

fn id_of(credential: &str) -> String {
    format!("ak_{}", credential.split('_').nth(1).unwrap())
}

#[test]
fn of_ten_first_starts_at_once_one_makes_the_key_and_the_others_say_where_to_look() {
    let database = Database::new();
    let places: Vec<Place> = (0..10).map(|_| Place::new()).collect();
    let nodes: Vec<Server> = std::thread::scope(|scope| {
        let threads: Vec<_> = places
            .iter()
            .map(|place| scope.spawn(|| node(place, &database)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    let has_file = |place: &&Place| place.data().join("agent-key").exists();
    let makers: Vec<&Place> = places.iter().filter(has_file).collect();
    assert_eq!(makers.len(), 1);
    let key = makers[0].agent_key();
    let shown = nodes.iter().filter(|node| node.greeting.contains(&key));
    assert_eq!(shown.count(), 1);
    let told = nodes.iter().filter(|node| {
        node.greeting.contains("has agent keys already") && node.greeting.contains(&id_of(&key))
    });
    assert_eq!(told.count(), 9);
    for (node, place) in nodes.iter().zip(&places) {
        assert_eq!(node.get(&key, "/api/v1/notes").status, 200);
        assert!(!place.data().join("agent-key.draft").exists());
        assert!(!place.data().join("counterfoil.db").exists());
    }
    let listed = places[0].run(&["keys", "list", "--json", "--store", database.url()]);
    assert_eq!(listed.json()["agent_keys"].as_array().unwrap().len(), 1);
    // One key, ten nodes: one note, and the same answer everywhere.
    let first = nodes[0].note(&key, "k", "hello");
    assert_eq!(first.status, 201);
    for node in &nodes {
        let again = node.note(&key, "k", "hello");
        assert!(again.is_replay());
        assert_eq!(again.body, first.body);
    }
}

#[test]
fn a_node_that_died_before_it_knew_finds_out_whether_the_key_is_its_own() {
    let database = Database::new();
    let maker = Place::new();
    assert!(node(&maker, &database).terminate());
    let (file, draft) = (
        maker.data().join("agent-key"),
        maker.data().join("agent-key.draft"),
    );
    let key = maker.agent_key();
    std::fs::rename(&file, &draft).unwrap();
    let again = node(&maker, &database);
    assert_eq!(maker.agent_key(), key);
    assert!(!draft.exists());
    assert!(again.greeting.contains(&key), "nobody had seen it yet");
    let other = Place::new();
    std::fs::create_dir(other.data()).unwrap();
    let never_stored = format!("cfk_{}_{}\n", "0".repeat(32), "1".repeat(64));
    std::fs::write(other.data().join("agent-key.draft"), never_stored).unwrap();
    let told = node(&other, &database).greeting.clone();
    assert!(told.contains("has agent keys already"), "{told}");
    assert!(!other.data().join("agent-key").exists());
    assert!(!other.data().join("agent-key.draft").exists());
}

#[test]
fn field_22_a_database_that_does_not_know_the_agent_key_is_not_begun_anew() {
    let (database, empty, others) = (Database::new(), Database::new(), Database::new());
    let place = Place::new();
    assert!(node(&place, &database).terminate());
    assert!(node(&Place::new(), &others).terminate());
    for other in [&empty, &others] {
        let serve = ["serve", "--listen", "127.0.0.1:0", "--store", other.url()];
        let said = place.run(&serve).fails(4);
        assert!(said.contains("does not know the agent key"), "{said}");
        assert!(said.contains("RUNS AGAIN"), "{said}");
    }
    assert_eq!(tables(&empty), "0", "nothing was made");
    // A file whose folder holds no receipts any more is as before.
    let again = node(&place, &database);
    assert_eq!(again.get(&place.agent_key(), "/api/v1/notes").status, 200);
}

#[test]
fn a_second_start_finds_its_key_and_a_rotated_one_is_kept() {
    let database = Database::new();
    let place = Place::new();
    let first = node(&place, &database);
    let old = place.agent_key();
    let note = first.note(&old, "k", "hello");
    let rotate = ["keys", "rotate", &id_of(&old), "--store", database.url()];
    place.run(&rotate).ok();
    let new = place.agent_key();
    assert_ne!(new, old);
    assert_eq!(first.get(&old, "/api/v1/notes").status, 401);
    first.kill();
    let second = node(&place, &database);
    assert!(second.greeting.contains("as it was"), "{}", second.greeting);
    let again = second.note(&new, "k", "hello");
    assert!(again.is_replay());
    assert_eq!(again.body, note.body);
}

/// Everything a command says.
fn said(command: &mut Command) -> (Option<i32>, String) {
    let output = command.output().unwrap();
    let all = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(all).unwrap())
}

#[test]
fn a_password_is_refused_on_the_command_line_and_shown_nowhere() {
    let database = Database::new();
    let place = Place::new();
    let url = with_password(&database);
    let as_parameter = format!("{}?password={PASSWORD}", database.url());
    for url in [&url, &as_parameter] {
        let (code, text) = said(&mut place.command(&["keys", "list", "--store", url]));
        assert_eq!(code, Some(2), "{text}");
        assert!(
            text.contains("COUNTERFOIL_STORE") && !text.contains(PASSWORD),
            "{text}"
        );
    }
    let environment = |arguments: &[&str]| {
        let mut command = place.command(arguments);
        command.env("COUNTERFOIL_STORE", &url);
        command
    };
    let file = place.path("counterfoil.toml");
    let password = place.path("password");
    std::fs::write(&password, format!("{PASSWORD}\n")).unwrap();
    let from_file = |arguments: &[&str]| {
        let mut command = place.command(arguments);
        command
            .env("COUNTERFOIL_STORE_PASSWORD_FILE", &password)
            .args(["--store", database.url()]);
        command
    };
    for arguments in [
        &["migrate"][..],
        &["config", "check"],
        &["config", "check", "--json"],
        &["keys", "issue", "--name", "n"],
        &["keys", "list"],
        &["operations", "list"],
        &["sweep"],
    ] {
        for mut command in [environment(arguments), from_file(arguments)] {
            let (code, text) = said(&mut command);
            assert_eq!(code, Some(0), "{text}");
            assert!(!text.contains(PASSWORD), "{arguments:?}: {text}");
        }
    }
    let (_, text) = said(&mut environment(&["config", "check"]));
    assert!(text.contains(database.url()), "{text}");
    // What cannot be reached is named, without its password.
    std::fs::write(
        &file,
        format!("store = \"postgres://u:{PASSWORD}@127.0.0.1:1/d\"\n"),
    )
    .unwrap();
    for arguments in [&["serve", "--listen", "127.0.0.1:0"][..], &["keys", "list"]] {
        let (code, text) = said(&mut place.command(arguments));
        assert_eq!(code, Some(4), "{text}");
        assert!(text.contains("postgres://u@127.0.0.1:1/d"), "{text}");
        assert!(!text.contains(PASSWORD), "{text}");
    }
    // The file is everybody's to read.
    let (_, text) = said(&mut place.command(&["config", "check"]));
    assert!(text.contains("chmod 600"), "{text}");
    let mut serve = environment(&["serve", "--listen", "127.0.0.1:0"]);
    std::fs::remove_file(&file).unwrap();
    let log = std::fs::File::create(place.path("log")).unwrap();
    let mut child = serve
        .env("COUNTERFOIL_TELEMETRY_LOG", "trace")
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .unwrap();
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut greeting = String::new();
    while !greeting.contains("Ctrl-C") {
        assert!(std::io::BufRead::read_line(&mut out, &mut greeting).unwrap() > 0);
    }
    // What a stop says is in the log at the latest.
    let id = rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
    let log = std::fs::read_to_string(place.path("log")).unwrap();
    assert!(log.contains("stopped"), "{log}");
    assert!(!log.contains(PASSWORD), "{log}");
    assert!(!greeting.contains(PASSWORD), "{greeting}");
    assert!(
        greeting.contains("Receipts are in postgres://"),
        "{greeting}"
    );
}

/// The stores that a command is tried on: with nothing in them.
fn both(database: &Database) -> [(Place, Option<&str>); 2] {
    [(Place::new(), None), (Place::new(), Some(database.url()))]
}

fn run(place: &Place, store: Option<&str>, arguments: &[&str]) -> Finished {
    let mut all = arguments.to_vec();
    if let Some(url) = store {
        all.extend(["--store", url]);
    }
    place.run(&all)
}

#[test]
fn ten_migrations_at_once_end_well_and_say_what_they_found() {
    let database = Database::new();
    for (place, store) in both(&database) {
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..10)
                .map(|_| scope.spawn(|| run(&place, store, &["migrate"]).0))
                .collect();
            let ended: Vec<Output> = threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect();
            let well = ended.iter().all(|output| output.status.success());
            assert!(well, "{store:?}: {ended:#?}");
            let made = ended
                .iter()
                .any(|output| String::from_utf8_lossy(&output.stdout).contains("made"));
            assert!(made, "{store:?}: {ended:#?}");
        });
        let again = run(&place, store, &["migrate", "--json"]).json();
        let steps = again["migrated"].as_array().unwrap();
        assert_eq!(steps.len(), 2);
        assert!(
            steps.iter().all(|step| step["from"] == step["to"]),
            "{again}"
        );
        let keys = run(&place, store, &["keys", "list", "--json"]).json();
        assert_eq!(keys["agent_keys"], json!([]), "tables, and nothing in them");
    }
}

#[test]
fn with_migrate_never_a_start_leaves_the_tables_alone() {
    let database = Database::new();
    for (place, store) in both(&database) {
        std::fs::write(place.path("own.toml"), "migrate = \"never\"\n").unwrap();
        let config = place.path("own.toml").display().to_string();
        let serve = ["serve", "--listen", "127.0.0.1:0", "--config", &config];
        let said = run(&place, store, &serve).fails(4);
        assert!(said.contains("run `counterfoil migrate`"), "{said}");
        if store.is_some() {
            assert_eq!(tables(&database), "0");
        }
        run(&place, store, &["migrate"]).ok();
        let mut more = vec!["--config", config.as_str()];
        more.extend(store.map(|url| ["--store", url]).into_iter().flatten());
        let server = Server::start(&place, &more);
        assert_eq!(server.note(&place.agent_key(), "k", "hello").status, 201);
        assert!(server.terminate());
        // An older application on a store that is up to date.
        match store {
            Some(_) => drop(database.psql(
                "UPDATE counterfoil_components SET version = 1 WHERE name = 'application'; \
                 DROP TABLE sealing_keys",
            )),
            None => {
                let file = place.data().join("counterfoil.db");
                let sqlite = rusqlite::Connection::open(file).unwrap();
                sqlite
                    .execute_batch(
                        "UPDATE counterfoil_components SET version = 1 WHERE name = 'application'; \
                         DROP TABLE sealing_keys",
                    )
                    .unwrap();
            }
        }
        let said = run(&place, store, &serve).fails(4);
        assert!(said.contains("run `counterfoil migrate`"), "{said}");
        let said = run(&place, store, &["migrate"]).ok();
        assert!(said.contains("application: from version 1 to 2"), "{said}");
        assert!(Server::start(&place, &more).terminate());
    }
}

#[test]
fn a_role_that_may_not_change_tables_is_enough_for_a_node() {
    let database = Database::new();
    let place = Place::new();
    run(&place, Some(database.url()), &["migrate"]).ok();
    // Roles belong to the whole server: its name is that of the database.
    let role = format!("node_of_{}", database.name());
    database.psql(&format!(
        "CREATE ROLE {role} LOGIN; \
         REVOKE ALL ON SCHEMA public FROM PUBLIC; \
         GRANT USAGE ON SCHEMA public TO {role}; \
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}; \
         GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {role}"
    ));
    let url = database.url().replacen("postgres@", &format!("{role}@"), 1);
    let server = Server::start(&place, &["--store", &url]);
    let key = place.agent_key();
    let first = server.note(&key, "k", "hello");
    assert_eq!(first.status, 201, "{first:?}");
    assert!(server.note(&key, "k", "hello").is_replay());
    let bearer = format!("Bearer {key}");
    let without_key = server.ask(
        "POST",
        "/api/v1/notes",
        &[("authorization", bearer.as_str())],
        r#"{"body":"hello"}"#,
    );
    assert_eq!(without_key.status, 201, "{without_key:?}");
    assert_eq!(server.ask("GET", "/readyz", &[], "").status, 200);
    run(&place, Some(&url), &["sweep"]).ok();
    assert!(server.terminate());
    let said = run(&place, Some(&url), &["migrate"]).ok();
    assert!(said.contains("as before"), "{said}");
    database.psql(&format!("DROP OWNED BY {role}; DROP ROLE {role}"));
}

#[test]
fn commands_want_a_store_that_is_there_and_work_on_it() {
    let database = Database::new();
    let place = Place::new();
    let run = |arguments: &[&str]| run(&place, Some(database.url()), arguments);
    for arguments in [
        &["keys", "list"][..],
        &["keys", "issue", "--name", "n"],
        &["operations", "list"],
        &["sweep"],
    ] {
        let said = run(arguments).fails(5);
        assert!(said.contains("counterfoil migrate"), "{said}");
    }
    assert_eq!(tables(&database), "0");
    run(&["migrate"]).ok();
    let issued = run(&[
        "keys", "issue", "--name", "ops", "--role", "admin", "--json",
    ])
    .json();
    let key = issued["key"].as_str().unwrap().to_owned();
    assert!(!place.data().exists(), "there is nothing to keep here");
    // With a key in the database a start makes none, and needs no folder.
    let server = node(&place, &database);
    assert!(server.greeting.contains("has agent keys already"));
    assert!(server.greeting.contains("ops"));
    assert!(!place.data().exists());
    let note = server.note(&key, "k", "hello");
    assert_eq!(note.status, 201);
    let list = run(&["operations", "list", "--json"]).json();
    let id = list["operations"][0]["operation_id"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(note.json()["operation_id"], id.as_str());
    let shown = run(&["operations", "show", &id, "--json"]).json();
    assert_eq!(shown["state"], "succeeded");
    let said = run(&["operations", "show", &format!("op_{}", "0".repeat(8))]).fails(5);
    assert!(said.contains("no such operation"), "{said}");
    run(&["sweep"]).ok();
    run(&["keys", "revoke", &id_of(&key)]).ok();
    assert_eq!(server.get(&key, "/api/v1/notes").status, 401);
}

#[test]
fn a_local_client_brings_its_own_key() {
    let database = Database::new();
    let maker = Place::new();
    assert!(node(&maker, &database).terminate());
    let place = Place::new();
    let said = place
        .run(&["mcp", "--stdio", "--store", database.url()])
        .fails(3);
    assert!(said.contains("--agent-key-file"), "{said}");
    let key = maker.data().join("agent-key").display().to_string();
    let mut child = place
        .command(&[
            "mcp",
            "--stdio",
            "--store",
            database.url(),
            "--agent-key-file",
            &key,
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "create_note", "arguments": {"body": "hello", "idempotency_key": "k"}}});
    let mut input = child.stdin.take().unwrap();
    std::io::Write::write_all(&mut input, format!("{call}\n").as_bytes()).unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["result"]["isError"], false, "{answer}");
}

#[test]
fn a_sqlite_file_may_lie_elsewhere() {
    let place = Place::new();
    let file = place.path("elsewhere.db").display().to_string();
    let server = Server::start(&place, &["--store", &file]);
    let key = place.agent_key();
    let first = server.note(&key, "k", "hello");
    assert_eq!(first.status, 201);
    server.kill();
    assert!(!place.data().join("counterfoil.db").exists());
    // In a configuration file its path is the file's neighbour.
    std::fs::create_dir(place.path("sub")).unwrap();
    let config = place.path("sub").join("own.toml");
    std::fs::write(&config, "store = \"sqlite:../elsewhere.db\"\n").unwrap();
    let config = config.display().to_string();
    let server = Server::start(&place, &["--config", &config]);
    let again = server.note(&key, "k", "hello");
    assert!(again.is_replay());
    assert_eq!(again.body, first.body);
    server.kill();
    std::fs::remove_file(&file).unwrap();
    let _ = std::fs::remove_file(format!("{file}-wal"));
    let said = place
        .run(&["serve", "--listen", "127.0.0.1:0", "--store", &file])
        .fails(4);
    assert!(
        said.contains("elsewhere.db") && said.contains("are gone"),
        "{said}"
    );
}

#[test]
fn a_node_outlives_its_database_and_readiness_follows_it() {
    let server = counterfoil_test_postgres::Server::start();
    let database = Database::on(&server);
    let place = Place::new();
    let node = node(&place, &database);
    let key = place.agent_key();
    let first = node.note(&key, "k", "hello");
    assert_eq!(first.status, 201);
    let until = |status: u16, bound: Duration| {
        let begun = std::time::Instant::now();
        loop {
            let answer = node.ask("GET", "/readyz", &[], "");
            assert!(begun.elapsed() < bound, "{answer:?}");
            if answer.status == status {
                return answer;
            }
        }
    };
    server.stop(counterfoil_test_postgres::Mode::Immediate);
    let red = until(503, Duration::from_secs(3));
    assert!(red.head.contains("retry-after"), "{red:?}");
    assert_eq!(node.ask("GET", "/healthz", &[], "").status, 200);
    let away = node.note(&key, "k2", "hello");
    assert_eq!(away.status, 503);
    assert!(away.head.contains("retry-after"), "{away:?}");
    server.start_again();
    until(200, Duration::from_secs(20));
    let again = node.note(&key, "k", "hello");
    assert!(again.is_replay());
    assert_eq!(again.body, first.body);
    assert_eq!(node.note(&key, "k2", "hello").status, 201);
}
