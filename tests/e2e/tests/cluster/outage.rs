//! The database goes away and comes back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use counterfoil_e2e::{Base, Http, Reply, Server, until};
use counterfoil_test_postgres::Mode;

use crate::nodes::Nodes;

/// How long the database is away.
const AWAY: Duration = Duration::from_secs(10);
/// Until a node that lost its database says so.
const RED: Duration = Duration::from_secs(3);
/// Until a node is back after its database is.
const GREEN: Duration = Duration::from_secs(10);
const BOUND: Duration = Duration::from_secs(60);

/// What a caller keeps of each call: its key, and the answer if there was one.
type Calls = Vec<(String, std::io::Result<Reply>)>;

fn note(key: &str) -> String {
    format!(r#"{{"body":"{key}"}}"#)
}

fn call_until(over: Arc<AtomicBool>, http: Http, caller: usize) -> thread::JoinHandle<Calls> {
    thread::spawn(move || {
        let mut calls = Vec::new();
        while !over.load(Ordering::Relaxed) {
            let key = format!("{caller}-{}", calls.len());
            let reply = http.note(Some(&key), &note(&key)).send();
            let refused = !matches!(&reply, Ok(reply) if reply.status == 201);
            calls.push((key, reply));
            if refused {
                // As a caller does that is told to come again.
                thread::sleep(Duration::from_millis(200));
            }
        }
        calls
    })
}

/// Until every node is green, or red.
fn all(servers: &[Server], ready: bool, limit: Duration) -> Duration {
    let started = Instant::now();
    until("every node sees it", limit, || {
        let seen = servers.iter().all(|server| server.is_ready() == ready);
        seen.then_some(())
    });
    started.elapsed()
}

fn goes_away(mode: Mode) {
    let nodes = Nodes::start(Base::with_server(), 3, &[]);
    let clients = nodes.clients();
    let kept = clients[0].note(Some("kept"), &note("kept")).send().unwrap();
    assert_eq!(kept.status, 201, "{}", kept.text());
    let over = Arc::new(AtomicBool::new(false));
    let callers: Vec<_> = (0..9)
        .map(|caller| call_until(Arc::clone(&over), clients[caller % 3].clone(), caller))
        .collect();
    let count = "SELECT count(*) FROM notes";
    until("there is load", BOUND, || {
        let notes: u32 = nodes.base.database().psql(count).parse().unwrap();
        (notes > 50).then_some(())
    });

    let stopped = Instant::now();
    nodes.base.server().stop(mode);
    let red = all(&nodes.servers, false, BOUND);
    assert!(red < RED, "red after {red:?}");
    for server in &nodes.servers {
        let alive = server.http().request("GET", "/healthz").send().unwrap();
        assert_eq!(alive.status, 200, "the process itself is well");
    }
    let left = AWAY.saturating_sub(stopped.elapsed());
    thread::sleep(left);
    nodes.base.server().start_again();
    let green = all(&nodes.servers, true, BOUND);
    assert!(green < GREEN, "green after {green:?}");
    over.store(true, Ordering::Relaxed);

    let mut counts = [0; 3];
    let mut effects = 1;
    for (key, reply) in callers
        .into_iter()
        .flat_map(|caller| caller.join().unwrap())
    {
        let reply = reply.expect("the server answers, whatever it says");
        match reply.status {
            201 => counts[0] += 1,
            503 => {
                counts[1] += 1;
                assert!(
                    ["busy", "unavailable"].contains(&reply.code().as_str()),
                    "{key}: {}",
                    reply.text()
                );
                assert!(reply.header("retry-after").is_some(), "{}", reply.text());
            }
            _ => {
                counts[2] += 1;
                // The other true thing to say: nobody knows.
                assert_eq!(reply.code(), "outcome_unknown", "{key}: {}", reply.text());
            }
        }
        // Whatever was said: the same key on another node gets there, once.
        let other = &clients[effects % 3];
        let again = other.note_until_answered(&key, &note(&key));
        assert_eq!(again.status, 201, "{key}: {}", again.text());
        if reply.status == 201 {
            assert_eq!(again.body, reply.body, "{key}");
        }
        effects += 1;
    }
    let all = nodes.base.database().psql(count);
    assert_eq!(all, effects.to_string(), "one effect a key");
    let twice = "SELECT count(*) FROM (SELECT FROM notes GROUP BY body HAVING count(*) > 1) AS t";
    assert_eq!(nodes.base.database().psql(twice), "0");
    for http in &clients {
        let again = http.note(Some("kept"), &note("kept")).send().unwrap();
        assert_eq!(again.body, kept.body);
    }
    println!(
        "{mode:?}: red after {} ms, green {} ms after it was back; {} answered, {} told to come \
         again, {} unknown",
        red.as_millis(),
        green.as_millis(),
        counts[0],
        counts[1],
        counts[2]
    );
    assert!(counts[0] > 0 && counts[1] > 0, "calls met the outage");
}

#[test]
fn i2_i3_field_22_a_database_stopped_for_ten_seconds_invents_nothing_and_all_recovers() {
    goes_away(Mode::Fast);
}

#[test]
fn i2_i3_field_22_a_database_that_quits_at_once_invents_nothing_and_all_recovers() {
    goes_away(Mode::Immediate);
}
