use crate::process::{Finished, Place};

#[test]
fn a_check_says_what_is_in_force_and_where_it_comes_from() {
    let place = Place::new();
    std::fs::write(
        place.path("counterfoil.toml"),
        "[retention]\nreplay_for = \"24h\"\n[limits]\nqueue_max = 7\n",
    )
    .unwrap();
    let mut command = place.command(&["config", "check", "--json", "--data", "elsewhere"]);
    let report = Finished(
        command
            .env("COUNTERFOIL_LIMITS_QUEUE_MAX", "8")
            .output()
            .unwrap(),
    )
    .json();
    let settings = report["settings"].as_array().unwrap();
    let of = |name: &str| {
        let found = settings
            .iter()
            .find(|setting| setting["name"] == name)
            .unwrap();
        (
            found["value"].as_str().unwrap(),
            found["source"].as_str().unwrap(),
        )
    };
    assert_eq!(of("retention.replay_for"), ("24h", "file counterfoil.toml"));
    assert_eq!(
        of("limits.queue_max"),
        ("8", "environment COUNTERFOIL_LIMITS_QUEUE_MAX")
    );
    assert_eq!(of("server.data"), ("elsewhere", "flag --data"));
    assert_eq!(of("server.listen"), ("127.0.0.1:8700", "default"));
    let table = place.command(&["config", "check"]).output().unwrap();
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(table.contains("retention.replay_for") && table.contains("file counterfoil.toml"));
}

#[test]
fn unknown_names_stop_every_command() {
    let place = Place::new();
    std::fs::write(
        place.path("counterfoil.toml"),
        "[server]\nlissten = \"127.0.0.1:1\"\n",
    )
    .unwrap();
    for arguments in [["config", "check"], ["keys", "list"]] {
        let said = Finished(place.command(&arguments).output().unwrap()).fails(3);
        assert!(said.contains("did you mean server.listen?"), "{said}");
    }
    std::fs::remove_file(place.path("counterfoil.toml")).unwrap();
    let mut command = place.command(&["config", "check"]);
    let output = command
        .env("COUNTERFOIL_SERVER_LISTN", "x")
        .output()
        .unwrap();
    let said = Finished(output).fails(3);
    assert!(
        said.contains("did you mean COUNTERFOIL_SERVER_LISTEN?"),
        "{said}"
    );
    let missing = place.command(&["config", "check", "--config", "nowhere.toml"]);
    let said = Finished({ missing }.output().unwrap()).fails(3);
    assert!(said.contains("nowhere.toml"), "{said}");
}

#[test]
fn sealing_keys_are_checked_at_the_start() {
    let place = Place::new();
    std::fs::write(place.path("keys"), "1 short\n").unwrap();
    std::fs::write(
        place.path("counterfoil.toml"),
        "[sealing]\nkey_file = \"keys\"\nnotes = true\n",
    )
    .unwrap();
    let said = place.run(&["serve", "--listen", "127.0.0.1:0"]).fails(3);
    assert!(said.contains("line 1"), "{said}");
    assert!(
        !said.contains("short"),
        "the content of a key file is never shown"
    );
    std::fs::write(place.path("keys"), format!("1 {}=\n", "A".repeat(43))).unwrap();
    let server = place.serve();
    let key = place.agent_key();
    let first = server.note(&key, "k", "sealed");
    assert_eq!(first.status, 201);
    let again = server.note(&key, "k", "sealed");
    assert!(again.is_replay());
    assert_eq!(again.body, first.body);
}

#[test]
fn a_check_refuses_what_a_start_would_refuse() {
    let place = Place::new();
    for (file, part) in [
        ("[telemetry]\nlog = \"=[\"", "telemetry.log"),
        ("[server]\nlisten = \"0.0.0.0:0\"", "--allow-remote"),
        ("[sealing]\nkey_file = \"nowhere\"", "sealing.key_file"),
        ("[mcp]\nallowed_hosts = [\"*\"]", "allowed host"),
        ("[mcp]\nallowed_origins = [\"a b\"]", "allowed origin"),
        ("[limits]\nlock_patience = \"0\"", "limits.lock_patience"),
        (
            "[limits]\nconnections_max = 9223372036854775807",
            "limits.connections_max",
        ),
    ] {
        std::fs::write(place.path("counterfoil.toml"), file).unwrap();
        let check = Finished(place.command(&["config", "check"]).output().unwrap());
        let said = check.fails(3);
        assert!(said.contains(part), "{file}: {said}");
        let mut serve = place.command(&["serve"]);
        if !file.contains("listen") {
            serve.args(["--listen", "127.0.0.1:0"]);
        }
        let said = Finished(serve.output().unwrap()).fails(3);
        assert!(said.contains(part), "{file}: {said}");
    }
}

#[cfg(unix)]
#[test]
fn a_key_file_that_others_can_read_is_said() {
    use std::os::unix::fs::PermissionsExt as _;
    let place = Place::new();
    let path = place.path("keys");
    std::fs::write(&path, format!("1 {}=\n", "A".repeat(43))).unwrap();
    std::fs::write(
        place.path("counterfoil.toml"),
        "[sealing]\nkey_file = \"keys\"\n",
    )
    .unwrap();
    for (mode, warned) in [(0o644, true), (0o660, true), (0o600, false), (0o640, false)] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        let check = place.command(&["config", "check"]).output().unwrap();
        assert!(check.status.success());
        let said = String::from_utf8(check.stderr).unwrap();
        assert_eq!(said.contains("chmod 600"), warned, "{mode:o}: {said}");
    }
}

#[test]
fn a_mistyped_address_of_a_store_is_refused_without_being_shown() {
    let place = Place::new();
    for (address, part) in [
        (
            "postgres://u@127.0.0.1:1/d?passwd=hunter2",
            "did you mean password?",
        ),
        (
            "postgres://u@127.0.0.1:1/d?passwor=hunter2",
            "did you mean password?",
        ),
        ("postgres://u:hunter2/127.0.0.1/d", "an @ between"),
        (
            "postgres//u:hunter2@127.0.0.1/d",
            "did you mean postgres://?",
        ),
        (
            "postgres://u@127.0.0.1:1/d?sslmode=verify-full&options=hunter2",
            "require verifies the certificate",
        ),
    ] {
        for arguments in [
            &["config", "check", "--store", address][..],
            &["config", "check", "--json", "--store", address],
            &["serve", "--listen", "127.0.0.1:0", "--store", address],
            &["store", "copy", "--to", address],
        ] {
            let said = place.run(arguments).fails(3);
            assert!(said.contains(part), "{arguments:?}: {said}");
            assert!(!said.contains("hunter2"), "{arguments:?}: {said}");
        }
        let mut command = place.command(&["config", "check"]);
        let output = command.env("COUNTERFOIL_STORE", address).output().unwrap();
        let said = Finished(output).fails(3);
        assert!(said.contains(part) && !said.contains("hunter2"), "{said}");
        std::fs::write(
            place.path("counterfoil.toml"),
            format!("store = {address:?}\n"),
        )
        .unwrap();
        let said = place.run(&["config", "check"]).fails(3);
        assert!(said.contains(part) && !said.contains("hunter2"), "{said}");
        std::fs::remove_file(place.path("counterfoil.toml")).unwrap();
    }
    assert!(!place.data().exists());
    // What is right is shown without values that may be secrets.
    let right = "postgres://u@127.0.0.1:1/d?options=hunter2&sslmode=require";
    let shown = "postgres://u@127.0.0.1:1/d?options=…&sslmode=require";
    let checked = place.run(&["config", "check", "--store", right]).ok();
    assert!(
        checked.contains(shown) && !checked.contains("hunter2"),
        "{checked}"
    );
    let said = place.run(&["keys", "list", "--store", right]).fails(4);
    assert!(said.contains(shown) && !said.contains("hunter2"), "{said}");
}
