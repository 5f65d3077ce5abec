//! The proxy passes what it should, and cuts exactly where it says.

use std::net::TcpStream;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use counterfoil_test_postgres::{Database, Plan, Proxy, program};

struct Scene {
    database: Database,
    proxy: Proxy,
}

impl Scene {
    fn new() -> Self {
        let database = Database::new();
        database.psql("create table t (n int primary key)");
        let proxy = Proxy::start(database.address());
        Self { database, proxy }
    }

    /// Statements through the proxy: each `-c` is one message.
    fn psql(&self, statements: &[&str]) -> Output {
        self.start_psql(statements).wait_with_output().unwrap()
    }

    fn start_psql(&self, statements: &[&str]) -> Child {
        let mut command = Command::new(program("psql"));
        let url = self.database.url_at(self.proxy.address());
        command.args(["-X", "-A", "-t", "-q", "-w", "-v", "ON_ERROR_STOP=1", "-d"]);
        command.arg(url).env("PGCONNECT_TIMEOUT", "2");
        for statement in statements {
            command.args(["-c", statement]);
        }
        command.stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    }

    /// A script through the proxy by the extended protocol.
    fn pgbench(&self, mode: &str, script: &str) -> Output {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("script");
        std::fs::write(&file, script).unwrap();
        let url = self.database.url_at(self.proxy.address());
        let mut command = Command::new(program("pgbench"));
        command.args(["-n", "-t", "1", "-M", mode, "-f"]).arg(&file);
        command.arg(url).stdin(Stdio::null()).output().unwrap()
    }

    fn rows(&self) -> String {
        self.database
            .psql("select coalesce(string_agg(n::text, ',' order by n), '') from t")
    }

    fn rows_become(&self, wanted: &str) {
        let started = Instant::now();
        while self.rows() != wanted {
            assert!(
                started.elapsed() < Duration::from_secs(20),
                "{}",
                self.rows()
            );
            sleep(Duration::from_millis(10));
        }
    }
}

fn insert(n: u32) -> String {
    format!("insert into t values ({n})")
}

#[track_caller]
fn lost(done: &Output) {
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(!done.status.success(), "it was told of success");
    assert!(
        said.contains("closed the connection")
            || said.contains("connection to server was lost")
            || said.contains("aborted"),
        "{said}"
    );
}

#[track_caller]
fn fine(done: &Output) -> String {
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{said}");
    String::from_utf8_lossy(&done.stdout).trim_end().to_owned()
}

#[test]
fn what_no_plan_wants_passes() {
    let scene = Scene::new();
    let long = "select length(repeat('x', 3000000)), repeat('y', 3000000)";
    let done = scene.psql(&["begin", &insert(1), "commit", long]);
    assert_eq!(fine(&done).len(), "3000000|".len() + 3_000_000);
    assert_eq!(scene.rows(), "1");
    let counts = scene.proxy.counts();
    assert_eq!((counts.connections, counts.commits), (1, 1));
    assert!(
        counts.from_client >= 5 && counts.from_server >= 10,
        "{counts:?}"
    );
}

#[test]
fn cut_after_commit_leaves_a_commit_without_an_answer() {
    let scene = Scene::new();
    let plan = scene.proxy.cut_after_commit();
    lost(&scene.psql(&["begin", &insert(1), "commit", &insert(2)]));
    plan.wait(1);
    assert_eq!(scene.rows(), "1");
    // Once only; and in one message as well.
    fine(&scene.psql(&["begin", &insert(3), "commit"]));
    let plan = scene.proxy.cut_after_commit();
    lost(&scene.psql(&["begin; insert into t values (4); commit; insert into t values (5)"]));
    assert_eq!(plan.count(), 1);
    scene.rows_become("1,3,4,5");
}

#[test]
fn cut_before_commit_leaves_nothing() {
    let scene = Scene::new();
    let plan = scene.proxy.cut_before_commit();
    lost(&scene.psql(&["begin", &insert(1), "commit"]));
    assert_eq!(plan.count(), 1);
    fine(&scene.psql(&[&insert(1)]));
    assert_eq!(scene.rows(), "1");
}

#[test]
fn a_held_commit_comes_late() {
    let scene = Scene::new();
    let plan = scene.proxy.hold_commit(Duration::from_millis(700));
    lost(&scene.psql(&["begin", &insert(1), "commit"]));
    assert_eq!((plan.count(), plan.late_commits()), (1, 0));
    assert_eq!(scene.rows(), "", "its backend still has it open");
    plan.wait_late(1);
    assert_eq!(scene.rows(), "1");
}

#[test]
fn the_extended_protocol_is_cut_at_the_same_places() {
    let scene = Scene::new();
    let plain = |n| format!("begin;\n{};\ncommit;\n", insert(n));
    let piped = |n| format!("\\startpipeline\n{}\\endpipeline\n", plain(n));
    fine(&scene.pgbench("extended", &plain(1)));
    fine(&scene.pgbench("prepared", &plain(2)));
    fine(&scene.pgbench("extended", &piped(3)));
    for (n, mode, script) in [
        (10, "extended", plain(10)),
        (11, "prepared", plain(11)),
        (12, "extended", piped(12)),
    ] {
        let plan = scene.proxy.cut_after_commit();
        lost(&scene.pgbench(mode, &script));
        assert_eq!(plan.count(), 1, "{mode} {n}");
    }
    assert_eq!(scene.rows(), "1,2,3,10,11,12");
    for (n, mode, script) in [
        (20, "extended", plain(20)),
        (21, "prepared", plain(21)),
        (22, "extended", piped(22)),
    ] {
        let plan = scene.proxy.cut_before_commit();
        lost(&scene.pgbench(mode, &script));
        assert_eq!(plan.count(), 1, "{mode} {n}");
    }
    let plan = scene.proxy.hold_commit(Duration::from_millis(200));
    lost(&scene.pgbench("extended", &piped(30)));
    plan.wait_late(1);
    assert_eq!(scene.rows(), "1,2,3,10,11,12,30");
}

#[test]
fn a_plan_picks_its_transactions() {
    let scene = Scene::new();
    let plan = Plan::cut_after_commit()
        .containing("(77)")
        .skipping(1)
        .times(2);
    let plan = scene.proxy.apply(plan);
    fine(&scene.psql(&["begin", &insert(1), "commit"]));
    fine(&scene.psql(&["begin", "select (77)", "commit"]));
    lost(&scene.psql(&["begin", "select (77)", &insert(2), "commit"]));
    fine(&scene.psql(&["begin", "select 77", "commit"]));
    lost(&scene.psql(&["begin", "select (77)", &insert(3), "commit"]));
    fine(&scene.psql(&["begin", "select (77)", "commit"]));
    assert_eq!(plan.count(), 2);
    let plan = scene.proxy.cut_before_commit();
    plan.cancel();
    fine(&scene.psql(&["begin", "commit"]));
    let plan = scene.proxy.cut_before_commit();
    scene.proxy.clear();
    fine(&scene.psql(&["begin", "commit"]));
    assert_eq!(plan.count(), 0);
    assert_eq!(scene.rows(), "1,2,3");
}

#[test]
fn a_commit_that_the_server_refuses_is_no_commit() {
    let scene = Scene::new();
    scene.database.psql(
        "create table u (n int unique deferrable initially deferred); insert into u values (1)",
    );
    let plan = scene.proxy.cut_after_commit();
    let done = scene.psql(&["begin", "insert into u values (1)", "commit"]);
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(said.contains("duplicate key"), "{said}");
    assert_eq!(plan.count(), 0);
    lost(&scene.psql(&["begin", &insert(1), "commit"]));
    assert_eq!(plan.count(), 1);
}

#[test]
fn cut_now_and_refuse() {
    let scene = Scene::new();
    let busy = scene.start_psql(&["select pg_sleep(60)"]);
    let running = "select count(*) from pg_stat_activity where datname = current_database() \
                   and query like 'select pg_sleep%'";
    let started = Instant::now();
    while scene.database.psql(running) != "1" {
        assert!(started.elapsed() < Duration::from_secs(20));
    }
    scene.proxy.refuse(true);
    let error = TcpStream::connect(scene.proxy.address()).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    assert_eq!(scene.proxy.connections(), 1, "the open one goes on");
    scene.proxy.cut_now();
    lost(&busy.wait_with_output().unwrap());
    scene.proxy.refuse(false);
    assert_eq!(fine(&scene.psql(&["select 1"])), "1");
}

#[test]
fn silence_swallows_what_is_sent() {
    let scene = Scene::new();
    let mut asleep = scene.start_psql(&["begin", &insert(1), "select pg_sleep(0.3)", "commit"]);
    let open = "select count(*) from pg_stat_activity where datname = current_database() \
                and query like 'select pg_sleep%'";
    let started = Instant::now();
    while scene.database.psql(open) != "1" {
        assert!(started.elapsed() < Duration::from_secs(20));
    }
    scene.proxy.silent(true);
    let done = scene.psql(&["select 1"]);
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(said.contains("timeout expired"), "{said}");
    assert_eq!(asleep.try_wait().unwrap(), None, "it waits for an answer");
    scene.proxy.silent(false);
    assert_eq!(fine(&scene.psql(&["select 1"])), "1");
    assert_eq!(asleep.try_wait().unwrap(), None, "its answer was swallowed");
    assert_eq!(scene.database.psql(open), "1", "its transaction is open");
    scene.proxy.cut_now();
    lost(&asleep.wait_with_output().unwrap());
    scene.rows_become("");
}
