use std::{
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use crate::process::{Finished, Place, mode};

/// A command of the proxy's, with a home of the test's own and nothing to read.
fn command(place: &Place, arguments: &[&str]) -> Command {
    let mut command = place.command(arguments);
    command
        .env("HOME", place.path("home"))
        .env_remove("XDG_STATE_HOME")
        .stdin(Stdio::null());
    command
}

fn run(place: &Place, arguments: &[&str]) -> Finished {
    Finished(command(place, arguments).output().unwrap())
}

/// A server that does nothing until its input ends.
fn server(place: &Place) -> String {
    let path = place.path("server");
    std::fs::write(&path, "#!/bin/sh\nexec cat >/dev/null\n").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path.display().to_string()
}

#[test]
fn help_says_what_to_put_where() {
    let place = Place::new();
    let help = run(&place, &["proxy", "--help"]).ok();
    for part in [
        "--state",
        "--keyless",
        "counterfoil proxy -- npx",
        "[upstream.NAME]",
        "token_file",
        "counterfoil operations list --state FOLDER",
        "the file gives the rules only",
        "The options of the proxy stand before the command",
    ] {
        assert!(help.contains(part), "{part}");
    }
    let listed = run(&place, &["--help"]).ok();
    assert!(listed.contains("proxy"), "{listed}");
}

#[test]
fn each_client_is_told_its_own_way() {
    let place = Place::new();
    let binary = env!("CARGO_BIN_EXE_counterfoil");
    let print = |client: &str| {
        let line = ["proxy", "--keyless", "ask", "--print-config", client, "--"];
        let server = ["npx", "-y", "@modelcontextprotocol/server-memory", "a b"];
        run(&place, &[&line[..], &server].concat()).ok()
    };
    let arguments = r#"[
        "proxy",
        "--keyless",
        "ask",
        "--",
        "npx",
        "-y",
        "@modelcontextprotocol/server-memory",
        "a b"
      ]"#;
    let json = |key: &str, kind: &str| {
        format!(
            "{{\n  \"{key}\": {{\n    \"memory\": {{\n{kind}      \"command\": \"{binary}\",\n      \"args\": {arguments}\n    }}\n  }}\n}}\n"
        )
    };
    let stdio = "      \"type\": \"stdio\",\n";
    for (client, expected) in [
        ("claude-desktop", json("mcpServers", "")),
        ("cursor", json("mcpServers", "")),
        ("windsurf", json("mcpServers", "")),
        ("gemini-cli", json("mcpServers", "")),
        ("zed", json("context_servers", "")),
        ("vscode", json("servers", stdio)),
        ("inspector", json("mcpServers", stdio)),
        (
            "claude-code",
            format!(
                "claude mcp add memory -- {binary} proxy --keyless ask -- npx -y @modelcontextprotocol/server-memory 'a b'\n\n{}",
                json("mcpServers", stdio)
            ),
        ),
        (
            "codex",
            format!(
                "[mcp_servers.memory]\ncommand = \"{binary}\"\nargs = [\"proxy\", \"--keyless\", \"ask\", \"--\", \"npx\", \"-y\", \"@modelcontextprotocol/server-memory\", \"a b\"]\n"
            ),
        ),
    ] {
        assert_eq!(print(client), expected, "{client}");
    }
    let line = ["proxy", "--keyless", "ask", "--print-config", "cursor"];
    let server = ["npx", "-y", "@modelcontextprotocol/server-memory", "a b"];
    let bare = run(&place, &[&line[..], &server].concat()).ok();
    assert_eq!(bare, json("mcpServers", ""), "without the --");
    let said = run(&place, &["proxy", "--print-config", "emacs", "--", "x"]).fails(2);
    assert!(
        said.contains("claude-desktop") && said.contains("inspector"),
        "{said}"
    );
    assert!(!place.path("home").exists(), "nothing is made");
}

#[test]
fn what_is_printed_works_from_anywhere_and_holds_no_secret() {
    let place = Place::new();
    let file = "[upstream.far]\nurl = \"https://far.example/mcp\"\nheaders = { Authorization = { env = \"FAR_TOKEN\" } }\n";
    std::fs::write(place.path("proxy.toml"), file).unwrap();
    let line = ["proxy", "--config", "proxy.toml", "--state", "state"];
    let mut printed = command(&place, &[&line[..], &["--print-config", "cursor"]].concat());
    let output = printed.env("FAR_TOKEN", "hunter2").output().unwrap();
    let said = String::from_utf8(output.stderr.clone()).unwrap();
    assert!(said.contains("FAR_TOKEN"), "{said}");
    let text = Finished(output).ok();
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    let arguments = value["mcpServers"]["far"]["args"].as_array().unwrap();
    for name in ["proxy.toml", "state"] {
        let full = std::fs::canonicalize(place.path(".")).unwrap().join(name);
        let full = full.display().to_string();
        let found = arguments.iter().any(|argument| *argument == full.as_str());
        assert!(found, "{full} in {text}");
    }
    assert!(!text.contains("hunter2") && !said.contains("hunter2"));
    let print = ["proxy", "--print-config", "cursor"];
    let output = command(
        &place,
        &[&print[..], &["--", "./bin/server", "./x"]].concat(),
    )
    .output();
    let output = output.unwrap();
    let said = String::from_utf8(output.stderr.clone()).unwrap();
    assert!(said.contains("carry it over"), "{said}");
    let value: serde_json::Value = serde_json::from_str(&Finished(output).ok()).unwrap();
    let full = std::fs::canonicalize(place.path(".")).unwrap();
    let full = full.join("bin/server").display().to_string();
    let arguments = &value["mcpServers"]["server"]["args"];
    assert_eq!(*arguments, serde_json::json!(["proxy", "--", full, "./x"]));
    // What would not start is not printed.
    let url = "https://me:hunter2@far.example/mcp";
    let said = run(&place, &[&print[..], &["--url", url]].concat()).fails(3);
    assert!(
        said.contains("credentials") && !said.contains("hunter2"),
        "{said}"
    );
}

#[test]
fn what_follows_the_command_is_the_servers() {
    let place = Place::new();
    let path = place.path("echo");
    std::fs::write(
        &path,
        "#!/bin/sh\nprintf '%s|' \"$@\" >said\nexec cat >/dev/null\n",
    )
    .unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    let server = path.display().to_string();
    let given = ["-y", "--state", "theirs", "--", "x", "--help"];
    for dashes in [&["--"][..], &[]] {
        let line = ["proxy", "--state", "state", "--restart", "never"];
        let mut child = command(&place, &[&line[..], dashes, &[&server], &given].concat())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take();
        let whole = "-y|--state|theirs|--|x|--help|";
        let start = std::time::Instant::now();
        while std::fs::read_to_string(place.path("said")).unwrap_or_default() != whole {
            let waited = start.elapsed() < std::time::Duration::from_secs(30);
            assert!(waited, "{:?}", std::fs::read_to_string(place.path("said")));
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        drop(input);
        child.wait().unwrap();
        std::fs::remove_file(place.path("said")).unwrap();
    }
    assert!(!place.path("theirs").exists());
    // A mistyped option of ours is no command.
    let said = run(&place, &["proxy", "--keylees", "ask", &server]).fails(2);
    assert!(said.contains("--keyless"), "{said}");
}

#[test]
fn what_cannot_be_started_is_said_before_anything_is_made() {
    let place = Place::new();
    let said = run(&place, &["proxy"]).fails(2);
    assert!(said.contains("after `--`"), "{said}");
    let said = run(&place, &["proxy", "--", "no-such-program-at-all"]).fails(5);
    assert!(
        said.contains("no program `no-such-program-at-all`"),
        "{said}"
    );
    assert!(said.contains("full path"), "{said}");
    let said = run(&place, &["proxy", "--", "npx -y server"]).fails(5);
    assert!(said.contains("separate words"), "{said}");
    let said = run(&place, &["proxy", "--url", "far.example"]).fails(3);
    assert!(said.contains("http://"), "{said}");
    let url = "https://me:hunter2@far.example/mcp";
    let said = run(&place, &["proxy", "--url", url]).fails(3);
    assert!(
        said.contains("credentials") && !said.contains("hunter2"),
        "{said}"
    );
    for wrong in [
        &["proxy", "--keyless", "always", "--", "x"][..],
        &["proxy", "--timeout", "soon", "--", "x"],
        &["proxy", "--url", "http://h/", "--", "x"],
        &["proxy", "--no-tools", "--tools-prefix", "x_", "--", "x"],
        &["proxy", "--header-env", "A=B", "--", "x"],
        &["proxy", "--url", "http://h/", "x"],
    ] {
        run(&place, wrong).fails(2);
    }
    assert!(!place.path("home").exists(), "nothing is made");
}

#[test]
fn a_header_comes_from_the_environment_or_a_file_and_is_never_said() {
    let place = Place::new();
    let line = ["proxy", "--url", "http://127.0.0.1:1/mcp", "--header-env"];
    let said = run(
        &place,
        &[&line[..], &["Authorization=NOT_SET_TOKEN"]].concat(),
    )
    .fails(3);
    assert!(
        said.contains("NOT_SET_TOKEN") && said.contains("Authorization"),
        "{said}"
    );
    let wrong = [&line[..], &["Authorization: Bearer hunter2"]].concat();
    let said = run(&place, &wrong).fails(2);
    assert!(said.contains("its value is"), "{said}");
    let mut broken = command(
        &place,
        &[&line[..], &["Authorization=BROKEN_TOKEN"]].concat(),
    );
    let output = broken
        .env("BROKEN_TOKEN", "Bearer\nhunter2")
        .output()
        .unwrap();
    let said = Finished(output).fails(3);
    assert!(
        said.contains("Authorization") && !said.contains("hunter2"),
        "{said}"
    );
}

#[test]
fn a_wrong_file_is_refused_with_the_nearest_right_name() {
    let place = Place::new();
    let server = server(&place);
    let write = |text: &str| std::fs::write(place.path("proxy.toml"), text).unwrap();
    write("[upstream.git]\ncommand = [\"x\"]\nkeylees = \"ask\"\n");
    let said = run(&place, &["proxy", "--config", "proxy.toml"]).fails(3);
    assert!(
        said.contains("did you mean upstream.git.keyless?"),
        "{said}"
    );
    write(&format!(
        "[upstream.git]\ncommand = [\"{server}\"]\n[upstream.mail]\n"
    ));
    let said = run(&place, &["proxy", "--config", "proxy.toml"]).fails(2);
    assert!(said.contains("git, mail"), "{said}");
    let named = ["proxy", "--config", "proxy.toml", "--name"];
    let said = run(&place, &[&named[..], &["gitt"]].concat()).fails(3);
    assert!(said.contains("did you mean --name git?"), "{said}");
    let said = run(&place, &[&named[..], &["mail"]].concat()).fails(3);
    assert!(said.contains("neither a command nor a url"), "{said}");
    run(&place, &[&named[..], &["git"]].concat()).ok();
    // A section that has rules alone goes with a command.
    run(&place, &[&named[..], &["mail", "--", &server]].concat()).ok();
    let said = run(&place, &[&named[..], &["maill", "--", &server]].concat()).fails(3);
    assert!(said.contains("did you mean --name mail?"), "{said}");
    // Rules that nobody is said to be under do not hold in silence.
    write("keyless = \"ask\"\n[upstream.mail.tools.\"*\"]\nread_only = true\n[upstream.notes]\n");
    let unnamed = ["proxy", "--config", "proxy.toml", "--", &server];
    let said = run(&place, &unnamed).fails(2);
    assert!(
        said.contains("mail, notes") && said.contains("--name mail"),
        "{said}"
    );
    write("keyless = \"ask\"\n");
    run(&place, &unnamed).ok();
    write("[upstream.a]\ncommand = [\"x\"]\nreplay_for = \"60days\"\n");
    let said = run(&place, &["proxy", "--config", "proxy.toml"]).fails(3);
    assert!(said.contains("replay_for"), "{said}");
    let said = run(&place, &["proxy", "--config", "nowhere.toml"]).fails(3);
    assert!(said.contains("nowhere.toml"), "{said}");
}

#[test]
fn the_state_is_in_the_users_folder_and_a_projects_configuration_is_not_read() {
    let place = Place::new();
    let server = server(&place);
    // Whoever opens a project with a client must not have its receipts moved by it.
    let elsewhere = "[server]\ndata = \"elsewhere\"\nnonsense = 1\n";
    std::fs::write(place.path("counterfoil.toml"), elsewhere).unwrap();
    let mut started = command(&place, &["proxy", "--", &server]);
    started.env("COUNTERFOIL_SERVER_DATA", "elsewhere");
    let output = Finished(started.output().unwrap()).ok();
    assert_eq!(output, "", "standard output is for the protocol alone");
    let state = place.path("home/.local/state/counterfoil");
    assert!(!place.path("elsewhere").exists());
    assert_eq!(mode(&state), 0o700);
    assert_eq!(mode(&state.join("counterfoil.db")), 0o600);
    assert!(!state.join("agent-key").exists());
    let named = place.path("named");
    let mut started = command(&place, &["proxy", "--", &server]);
    started.env("XDG_STATE_HOME", &named);
    Finished(started.output().unwrap()).ok();
    assert!(named.join("counterfoil/counterfoil.db").exists());
}

#[test]
fn ten_at_once_start_on_a_new_state_folder() {
    let place = Place::new();
    let server = server(&place);
    let start = |_| -> Child {
        command(&place, &["proxy", "--state", "state", "--", &server])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let children: Vec<Child> = (0..10).map(start).collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.stderr.is_empty(), "{output:?}");
        assert_eq!(Finished(output).ok(), "");
    }
    let check = run(&place, &["store", "check", "--state", "state"]).ok();
    assert!(check.contains("Everything hangs together"), "{check}");
}

#[test]
fn a_folder_that_cannot_be_written_to_is_said_with_the_right_flag() {
    let place = Place::new();
    let server = server(&place);
    std::fs::write(place.path("file"), "").unwrap();
    let said = run(&place, &["proxy", "--state", "file", "--", &server]).fails(4);
    assert!(said.contains("the state folder file"), "{said}");
    assert!(
        said.contains("--state") && !said.contains("--data"),
        "{said}"
    );
    let mut homeless = command(&place, &["proxy", "--", &server]);
    let said = Finished(homeless.env_remove("HOME").output().unwrap()).fails(3);
    assert!(said.contains("--state"), "{said}");
}

#[test]
fn an_address_that_others_reach_needs_leave_and_tokens() {
    let place = Place::new();
    let server = server(&place);
    let line = ["proxy", "--state", "state", "--listen", "0.0.0.0:0"];
    let said = run(&place, &[&line[..], &["--", &server]].concat()).fails(3);
    assert!(said.contains("--allow-remote"), "{said}");
    let allowed = [&line[..], &["--allow-remote", "--", &server]].concat();
    let said = run(&place, &allowed).fails(3);
    assert!(said.contains("[[listen.client]]"), "{said}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let line = [
        "proxy", "--state", "state", "--listen", &address, "--", &server,
    ];
    let said = run(&place, &line).fails(6);
    assert!(said.contains("another process has this port"), "{said}");
    let named = format!("localhost:{}", taken.local_addr().unwrap().port());
    let line = [
        "proxy", "--state", "state", "--listen", &named, "--", &server,
    ];
    let said = run(&place, &line).fails(6);
    assert!(said.contains(&address), "{said}");
    let line = ["proxy", "--listen", "far.example:9000", "--", &server];
    let said = run(&place, &line).fails(2);
    assert!(said.contains("such as 127.0.0.1:9000"), "{said}");
}

/// A receipt as a proxy leaves it behind, in doubt.
async fn doubt(database: PathBuf, key: &str) -> String {
    use std::sync::Arc;

    use counterfoil_core::{Fingerprint, Identity, Key, Policy, PrincipalId, Target, WorkspaceId};
    use counterfoil_engine::{Answer, Call, Engine, Operation, Outcome};
    use counterfoil_store::Store as _;
    let store = counterfoil_sqlite::SqliteStore::open(database, Default::default()).unwrap();
    let engine = Engine::new(Arc::new(store.clone()));
    let upstream = "0123456789abcdef0123456789abcdef";
    let note = format!("upstream {upstream}");
    store.set_note(&note, b"work mail".to_vec()).await.unwrap();
    let target = Target {
        operation: "MCP send_mail".to_owned(),
        parameters: Vec::new(),
        upstream: upstream.to_owned(),
    };
    let identity = Identity {
        workspace: WorkspaceId::new("default").unwrap(),
        principal: PrincipalId::new("local").unwrap(),
        target,
        key: Key::new(key).unwrap(),
    };
    let operation = Operation::new(1, Policy::default()).unwrap();
    let call = Call::new(identity, Fingerprint::raw("", b""), operation);
    let lost = |_| async { Outcome::Lost { timed_out: true } };
    let Answer::Refused(refusal) = engine.run(call, lost).await else {
        panic!("the outcome is unknown");
    };
    store.close().await;
    refusal.operation_id.unwrap().to_string()
}

#[test]
fn field_21_operations_of_a_proxy_are_listed_shown_and_resolved() {
    let place = Place::new();
    let server = server(&place);
    run(&place, &["proxy", "--state", "state", "--", &server]).ok();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let id = runtime.block_on(doubt(place.path("state/counterfoil.db"), "doubt"));
    let at = |arguments: &[&str]| run(&place, &[arguments, &["--state", "state"]].concat());
    let list = at(&["operations", "list", "--json"]).json();
    let first = &list["operations"][0];
    assert_eq!(first["operation_id"], id.as_str());
    assert_eq!(first["state"], "outcome_unknown");
    assert_eq!(first["tool"], "send_mail");
    assert_eq!(first["upstream"], "work mail");
    let table = at(&["operations", "list"]).ok();
    assert!(table.contains("send_mail @ work mail"), "{table}");
    let only = at(&["operations", "list", "--in", "running", "--json"]).json();
    assert_eq!(only["operations"], serde_json::json!([]));
    let shown = at(&["operations", "show", &id]).ok();
    assert!(shown.contains("send_mail @ work mail"), "{shown}");
    let verdict = ["operations", "resolve", &id, "--as", "happened"];
    let reason = ["--reason", "it is in the outbox", "--json"];
    let resolved = at(&[&verdict[..], &reason].concat()).json();
    assert_eq!(resolved["state"], "succeeded");
    assert_eq!(resolved["tool"], "send_mail");
    let id = runtime.block_on(doubt(place.path("state/counterfoil.db"), "another"));
    let verdict = ["operations", "resolve", &id, "--as", "not-happened"];
    let reason = ["--reason", "the outbox is empty"];
    let resolved = at(&[&verdict[..], &reason].concat()).ok();
    assert!(
        resolved.contains("found not to have happened"),
        "{resolved}"
    );
    assert!(!resolved.contains("refused,"), "{resolved}");
    at(&["sweep"]).ok();
    // Nothing of the server's was added.
    let check = at(&["store", "check", "--json"]).json();
    assert_eq!(check["application_schema"], 0);
    let both = ["operations", "list", "--state", "state", "--data", "x"];
    run(&place, &both).fails(2);
}

#[test]
fn a_signal_ends_a_proxy_whose_client_stays() {
    let place = Place::new();
    let server = server(&place);
    let mut child = command(&place, &["proxy", "--state", "state", "--", &server])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // Signals are taken before the store is opened.
    while !place.path("state/counterfoil.db").exists() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let id = rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
    // Its standard input is open all the while.
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_server_that_ends_ends_a_proxy_that_is_told_not_to_start_it_again() {
    let place = Place::new();
    let path = place.path("short");
    std::fs::write(&path, "#!/bin/sh\nexit 7\n").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    let line = ["proxy", "--state", "state", "--restart", "never", "--"];
    let mut child = command(&place, &[&line[..], &[path.to_str().unwrap()]].concat())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Its client is still there.
    let input = child.stdin.take();
    let said = Finished(child.wait_with_output().unwrap()).fails(1);
    drop(input);
    assert!(said.contains("ended") && said.contains('7'), "{said}");
    let state = std::fs::canonicalize(place.path("state")).unwrap();
    let list = format!("operations list --state {}`", state.display());
    assert!(said.contains(&list), "{said}");
}

#[test]
fn proxies_may_share_a_database_that_no_server_has_seen() {
    let place = Place::new();
    let server = server(&place);
    let database = counterfoil_test_postgres::Database::new();
    let at = ["--store", database.url()];
    run(
        &place,
        &[&["proxy"][..], &at, &["--", server.as_str()]].concat(),
    )
    .ok();
    let list = run(
        &place,
        &[&["operations", "list", "--json"][..], &at].concat(),
    );
    assert_eq!(list.json()["operations"], serde_json::json!([]));
    run(&place, &[&["store", "check"][..], &at].concat()).ok();
    // What is the server's is still asked for.
    let said = run(&place, &[&["keys", "list"][..], &at].concat()).fails(4);
    assert!(said.contains("counterfoil migrate"), "{said}");
    assert!(!place.path("home").exists(), "no folder is needed");
}
