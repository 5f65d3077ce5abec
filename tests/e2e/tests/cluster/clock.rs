//! One node's clock is an hour off.

use std::time::{Duration, Instant, SystemTime};
use std::{fs, thread};

use counterfoil_e2e::{Base, Fixture, Folder, Http, Mcp, Server, until};
use serde_json::{Value, json};

use crate::nodes::Nodes;

const NOTE: &str = r#"{"body":"one"}"#;
const HOUR: i64 = 3600;
const BOUND: Duration = Duration::from_secs(60);
/// The lease of the fixture's guarded calls, and what it may take to look at it.
const LEASE: Duration = Duration::from_secs(30 + 10);

/// Two nodes, and a third whose clock is wrong. `None` where that cannot be arranged.
fn nodes(off_by: i64, config: &str) -> Option<Nodes> {
    let folder = Folder::on(&Base::new());
    let config = folder.config(config);
    let more = ["--config", config.as_str()];
    let base = folder.base().expect("a database").clone();
    let mut nodes = Nodes::start(base, 2, &more);
    let mut odd = Server::launch_off_by(&folder, off_by, &more)?;
    odd.wait_until_ready();
    nodes.folders.push(folder);
    nodes.servers.push(odd);
    Some(nodes)
}

fn retention(off_by: i64) {
    let config = "[retention]\nreplay_for = \"3s\"\ntombstone_for = \"1h\"\n";
    let Some(nodes) = nodes(off_by, config) else {
        return;
    };
    let clients = nodes.clients();
    for (n, writer) in clients.iter().enumerate() {
        let key = format!("of node {n}");
        let first = writer.note(Some(&key), NOTE).send().unwrap();
        assert_eq!(first.status, 201, "{}", first.text());
        for http in &clients {
            let again = http.note(Some(&key), NOTE).send().unwrap();
            assert_eq!(again.status, 201, "it is no hour old: {}", again.text());
            assert_eq!(again.body, first.body);
        }
        // All see the window end, none long before another.
        for http in &clients {
            until("the window ends", Duration::from_secs(20), || {
                let reply = http.note(Some(&key), NOTE).send().unwrap();
                (reply.code() == "idempotency_key_expired").then_some(())
            });
        }
    }
    let count = "SELECT count(*) FROM notes";
    assert_eq!(nodes.base.database().psql(count), "3", "nothing ran again");
    is_off(&nodes.servers[2], off_by);
}

/// The clock was shifted indeed: what the node wrote in its log bears another hour.
fn is_off(server: &Server, off_by: i64) {
    let hour = || {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let seconds = i64::try_from(now.unwrap().as_secs()).unwrap() + off_by;
        format!("{:02}", seconds / HOUR % 24)
    };
    let before = hour();
    server.terminate();
    let line = until("it says that it stops", BOUND, || {
        let printed = server.printed();
        let line = printed.lines().find(|line| line.contains("stopping"));
        line.map(str::to_owned)
    });
    let said = line.split('T').nth(1).unwrap_or_default();
    assert!(
        said.starts_with(&before) || said.starts_with(&hour()),
        "{line}"
    );
}

#[test]
fn i2_retention_is_the_same_on_a_node_whose_clock_is_an_hour_ahead() {
    retention(HOUR);
}

#[test]
fn i2_retention_is_the_same_on_a_node_whose_clock_is_an_hour_behind() {
    retention(-HOUR);
}

/// A guarded call: it appends a line to a file, then takes `ms`.
fn append(http: &Http, label: &str, ms: u64) -> std::io::Result<Value> {
    let arguments = json!({"label": label, "ms": ms, "idempotency_key": label});
    let said = Mcp::new(http.clone()).try_call("append", arguments)?;
    Ok(said.result().clone())
}

fn leases(off_by: i64) {
    let base = Base::new();
    let folders = [Folder::on(&base), Folder::on(&base)];
    let file = folders[0].root().join("effects");
    let effects = file.display().to_string();
    let more = ["--effects", effects.as_str()];
    let right = Fixture::start(&folders[0], &more);
    let Some(wrong) = Fixture::start_off_by(&folders[1], off_by, &more) else {
        return;
    };
    let lines = |label: &str| {
        let text = fs::read_to_string(&file).unwrap_or_default();
        text.lines().filter(|line| *line == label).count()
    };

    // What runs on one node is under way for the other, however long its clock says it took.
    for (label, here, there) in [("right", &right, &wrong), ("wrong", &wrong, &right)] {
        let http = here.http();
        let first = thread::spawn(move || append(&http, label, 4_000).unwrap());
        until("it has begun", BOUND, || (lines(label) == 1).then_some(()));
        let mut looks = 0;
        while !first.is_finished() {
            let said = append(&there.http(), label, 4_000).unwrap();
            if said["isError"] == true {
                let code = &said["structuredContent"]["code"];
                assert_eq!(code, "idempotency_in_progress", "{label}: {said}");
            }
            looks += 1;
            thread::sleep(Duration::from_millis(100));
        }
        assert!(looks > 10, "{label}: it was looked at while it ran");
        let done = first.join().unwrap();
        assert_eq!(done["isError"], false, "{label}: {done}");
        for http in [right.http(), wrong.http()] {
            let again = append(&http, label, 4_000).unwrap();
            assert_eq!(again["structuredContent"], done["structuredContent"]);
        }
        assert_eq!(lines(label), 1, "{label}: it ran once");
    }

    // The lease of a node that died ends when it should, and not an hour later.
    let http = wrong.http();
    let lost = thread::spawn(move || append(&http, "dead", 600_000).is_err());
    until("it has begun", BOUND, || (lines("dead") == 1).then_some(()));
    let died = Instant::now();
    wrong.kill();
    assert!(lost.join().unwrap());
    let alive = |said: &Value| said["structuredContent"]["code"] == "idempotency_in_progress";
    let look = || append(&right.http(), "dead", 600_000).unwrap();
    assert!(alive(&look()), "it counts as alive for a while");
    if off_by < 0 {
        // By its own clock the lease was over before it began: a second of looking shows it.
        while died.elapsed() < Duration::from_secs(2) {
            assert!(alive(&look()), "it counts as alive for a while");
            thread::sleep(Duration::from_millis(200));
        }
    } else {
        let said = until("its lease ends", LEASE, || {
            thread::sleep(Duration::from_millis(200));
            Some(look()).filter(|said| !alive(said))
        });
        let code = &said["structuredContent"]["code"];
        assert_eq!(code, "outcome_unknown", "{said}");
        println!(
            "unknown {:.1} s after its death",
            died.elapsed().as_secs_f64()
        );
    }
    assert_eq!(lines("dead"), 1, "it never ran again");
}

#[test]
fn i1_i3_leases_hold_on_and_under_a_node_whose_clock_is_an_hour_ahead() {
    leases(HOUR);
}

#[test]
fn i1_i3_leases_hold_on_and_under_a_node_whose_clock_is_an_hour_behind() {
    leases(-HOUR);
}
