//! A database that is not there, or not fit: what is wrong is said, nothing is invented, and
//! receipts that are there stay readable. What SQLite's file and disk are in `disk.rs`.

use std::time::Duration;

use counterfoil_e2e::{Base, Folder, Server, until};
use counterfoil_test_postgres::Mode;

use crate::STORE;

const NOTE: &str = r#"{"body":"one"}"#;
const BOUND: Duration = Duration::from_secs(30);

#[test]
fn i2_i3_field_22_a_database_that_goes_away_invents_nothing_and_comes_back() {
    let folder = crate::readable();
    let database = folder.base().unwrap().server();
    let server = Server::start(&folder);
    let http = server.http();
    let kept = http.note(Some("kept"), NOTE).send().unwrap();
    assert_eq!(kept.status, 201, "{}", kept.text());
    database.stop(Mode::Fast);
    for key in ["kept", "k"] {
        let refused = http.note(Some(key), NOTE).send().unwrap();
        assert_eq!(
            (refused.status, refused.code().as_str()),
            (503, "unavailable"),
            "{}",
            refused.text()
        );
        assert!(refused.header("retry-after").is_some());
    }
    database.start_again();
    until("it is ready again", BOUND, || {
        server.is_ready().then_some(())
    });
    let again = http.note_until_answered("kept", NOTE);
    assert_eq!(again.body, kept.body);
    let done = http.note_until_answered("k", NOTE);
    assert_eq!(done.status, 201, "{}", done.text());
    assert_eq!(http.count("one"), 2);
}

#[test]
fn field_22_a_start_without_its_database_says_so() {
    let folder = crate::readable();
    folder.base().unwrap().server().stop(Mode::Fast);
    let printed = Server::launch(&folder, &[]).refused();
    let address = folder.base().unwrap().database().address();
    assert!(printed.contains(&address.to_string()), "{printed}");
    assert!(printed.contains("database"), "{printed}");
}

/// As after a failover to a standby: what is stored is replayed, and nothing else is promised.
#[test]
fn i2_i3_field_22_a_read_only_database_replays_and_runs_nothing_and_no_node_starts_on_it() {
    let folder = Folder::new(STORE);
    let database = folder.base().unwrap().database();
    let server = Server::start(&folder);
    let http = server.http();
    let kept = http.note(Some("kept"), NOTE).send().unwrap();
    assert_eq!(kept.status, 201, "{}", kept.text());
    let turn = |how: &str| {
        let name = database.name();
        database.psql(&format!(
            "BEGIN READ WRITE;
             ALTER DATABASE {name} SET default_transaction_read_only = {how};
             COMMIT;
             SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                 WHERE datname = '{name}' AND pid <> pg_backend_pid()"
        ));
    };
    turn("on");
    let again = until("it has connected anew", BOUND, || {
        let reply = http.note(Some("kept"), NOTE).send().unwrap();
        (reply.status != 503).then_some(reply)
    });
    assert_eq!(again.body, kept.body, "receipts stay readable");
    let refused = http.note(Some("k"), NOTE).send().unwrap();
    assert_eq!(
        (refused.status, refused.code().as_str()),
        (503, "unavailable"),
        "{}",
        refused.text()
    );
    assert_eq!(http.count("one"), 1, "no silent pass-through");
    let other = Folder::on(folder.base().unwrap());
    let printed = Server::launch(&other, &[]).refused();
    assert!(printed.to_lowercase().contains("read-only"), "{printed}");
    turn("off");
    let done = http.note_until_answered("k", NOTE);
    assert_eq!(done.status, 201, "{}", done.text());
    assert_eq!(http.count("one"), 2);
}

#[test]
fn field_22_a_newer_schema_is_refused_and_left_alone() {
    let folder = Folder::new(STORE);
    Server::start(&folder).stop();
    let database = folder.base().unwrap().database();
    let version = "SELECT version FROM counterfoil_components WHERE name = 'store'";
    let known = database.psql(version);
    let set = |version: &str| {
        database.psql(&format!(
            "UPDATE counterfoil_components SET version = {version} WHERE name = 'store'"
        ))
    };
    set("4000");
    let printed = Server::launch(&folder, &[]).refused();
    assert!(printed.contains("4000"), "{printed}");
    assert!(printed.contains("newer"), "{printed}");
    assert_eq!(database.psql(version), "4000", "left as it was");
    set(&known);
    let _ = Server::start(&folder);
}

/// Whoever has an agent key knows of receipts: an empty database is not begun in silence, because
/// every key used so far would run again.
#[test]
fn i2_an_empty_database_in_the_place_of_the_right_one_is_refused() {
    let folder = Folder::new(STORE);
    Server::start(&folder).stop();
    let other = Folder::on(&Base::new());
    std::fs::create_dir(other.path()).unwrap();
    std::fs::copy(
        folder.path().join("agent-key"),
        other.path().join("agent-key"),
    )
    .unwrap();
    let printed = Server::launch(&other, &[]).refused();
    assert!(printed.contains("RUNS AGAIN"), "{printed}");
    let tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'";
    let database = other.base().unwrap().database();
    assert_eq!(database.psql(tables), "0", "nothing was begun");
}
