//! The server starts, keeps what it was given, and does not outlive its owner.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use counterfoil_test_postgres::{Database, Mode, Server};

const TABLE: &str = "create table t (n int); insert into t values (1)";

/// Waits until a folder is gone and nothing runs in it.
fn gone(folder: &Path) {
    let started = Instant::now();
    while folder.exists() || runs_in(folder) {
        assert!(
            started.elapsed() < Duration::from_secs(20),
            "{} is still there",
            folder.display()
        );
        sleep(Duration::from_millis(20));
    }
}

fn runs_in(folder: &Path) -> bool {
    fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd.starts_with(folder))
    })
}

#[test]
fn each_database_is_new_and_goes_away() {
    let one = Database::new();
    let other = Database::new();
    one.psql(TABLE);
    assert_eq!(one.psql("select n, n + 1 from t"), "1|2");
    let why = other.try_psql("select n from t").unwrap_err().to_string();
    assert!(why.contains("does not exist"), "{why}");
    assert_eq!(one.psql("show fsync"), "on");
    assert_eq!(one.psql("show server_encoding"), "UTF8");
    assert!(
        one.url()
            .ends_with(&format!("{}/{}", one.address(), one.name()))
    );
    let name = one.name().to_owned();
    drop(one);
    let count = format!("select count(*) from pg_database where datname = '{name}'");
    assert_eq!(other.psql(&count), "0");
}

#[test]
fn what_was_committed_outlives_every_stop() {
    let server = Server::start_with(&[("max_connections", "20")]);
    let database = Database::on(&server);
    database.psql(TABLE);
    let port = server.port();
    server.restart(Mode::Fast);
    assert_eq!(database.psql("insert into t values (2) returning n"), "2");
    server.restart(Mode::Immediate);
    assert_eq!(database.psql("insert into t values (3) returning n"), "3");
    server.stop(Mode::Fast);
    database.try_psql("select 1").unwrap_err();
    server.start_again();
    server.kill();
    database.try_psql("select 1").unwrap_err();
    assert!(!runs_in(server.folder()), "a backend outlives the kill");
    server.start_again();
    assert_eq!(database.psql("select count(*) from t"), "3");
    assert_eq!(database.psql("show max_connections"), "20");
    assert_eq!(server.port(), port);
    assert!(server.log_text().contains("automatic recovery in progress"));
}

#[test]
fn a_paused_server_takes_connections_and_does_not_answer() {
    let server = Server::start();
    let database = Database::on(&server);
    server.pause();
    let mut command = Command::new(counterfoil_test_postgres::program("psql"));
    command.args(["-X", "-w", "-d", database.url(), "-c", "select 1"]);
    command.env("PGCONNECT_TIMEOUT", "2").stderr(Stdio::piped());
    let done = command.output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(said.contains("timeout expired"), "{said}");
    server.resume();
    assert_eq!(database.psql("select 1"), "1");
    server.pause();
    let folder = server.folder().to_owned();
    drop(server);
    gone(&folder);
    // Last: a database is dropped by its server, which would not answer.
    drop(database);
}

#[test]
fn a_server_ends_with_its_owner() {
    let server = Server::start();
    let folder = server.folder().to_owned();
    let address = server.address();
    drop(server);
    gone(&folder);
    TcpStream::connect(address).unwrap_err();
}

#[test]
fn a_server_ends_when_its_owner_is_killed() {
    let mut owner = Command::new(env!("CARGO_BIN_EXE_counterfoil-test-postgres"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(owner.stdout.take().unwrap()).lines();
    let lines: Vec<String> = lines.take(2).map(Result::unwrap).collect();
    let address = lines[0].rsplit('@').next().unwrap().to_owned();
    let folder = PathBuf::from(lines[1].strip_prefix("# folder ").unwrap());
    TcpStream::connect(&address).unwrap();
    assert!(runs_in(&folder));
    owner.kill().unwrap();
    owner.wait().unwrap();
    gone(&folder);
    TcpStream::connect(&address).unwrap_err();
}
