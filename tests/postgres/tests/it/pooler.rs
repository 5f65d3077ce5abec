//! PgBouncer is what it says: one backend for many clients, one transaction at a time.

use std::process::Command;

use counterfoil_test_postgres::{Database, Pooler, program};

#[test]
fn clients_share_a_backend() {
    let database = Database::new();
    let pooler = Pooler::start(database.address());
    let psql = |url: &str, statement: &str| {
        let mut command = Command::new(program("psql"));
        command.args(["-X", "-A", "-t", "-q", "-w", "-d", url, "-c", statement]);
        let done = command.output().unwrap();
        assert!(done.status.success(), "{done:?}");
        String::from_utf8(done.stdout).unwrap()
    };
    let url = database.url_at(pooler.address());
    let first = psql(&url, "select pg_backend_pid()");
    assert_eq!(psql(&url, "select pg_backend_pid()"), first);
    let admin = format!("postgres://postgres@{}/pgbouncer", pooler.address());
    let settings = psql(&admin, "show config");
    let mode = settings.lines().find(|line| line.starts_with("pool_mode|"));
    assert!(mode.unwrap().starts_with("pool_mode|transaction|"));
}
