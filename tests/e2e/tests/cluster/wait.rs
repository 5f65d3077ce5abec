//! A duplicate on another node that waits.

use std::thread;
use std::time::{Duration, Instant};

use counterfoil_e2e::{Base, Outside, Reply, until};

use crate::nodes::Nodes;

const NOTE: &str = r#"{"body":"slow"}"#;
const BOUND: Duration = Duration::from_secs(30);
/// From the end of the first call to the duplicate's answer. Polling alone takes longer.
const SOON: Duration = Duration::from_secs(1);

fn waiting(http: &counterfoil_e2e::Http, seconds: u64) -> thread::JoinHandle<(Reply, Instant)> {
    let prefer = format!("wait={seconds}");
    let request = http.note(Some("k"), NOTE).header("Prefer", &prefer);
    thread::spawn(move || (request.send().unwrap(), Instant::now()))
}

/// The first call, on the first node, is held up by somebody else's lock. Its duplicates elsewhere
/// wait, and get its answer soon after it is done.
#[test]
fn a_duplicate_on_another_node_gets_the_answer_soon_after_it_is_there() {
    let nodes = Nodes::start(Base::new(), 3, &[]);
    let clients = nodes.clients();
    // So that the workspace and the scopes are known everywhere.
    for (n, http) in clients.iter().enumerate() {
        let note = http.note(Some(&format!("warm {n}")), NOTE).send().unwrap();
        assert_eq!(note.status, 201, "{}", note.text());
    }
    let lock = Outside::Postgres(nodes.base.clone()).lock_notes();
    let first = waiting(&clients[0], 0);
    until("the first call is held up", BOUND, || {
        let held =
            "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'notes'::regclass";
        (nodes.base.database().psql(held) != "0").then_some(())
    });
    let impatient = clients[1].note(Some("k"), NOTE).send().unwrap();
    assert_eq!(
        impatient.code(),
        "idempotency_in_progress",
        "it does not block on the first one: {}",
        impatient.text()
    );
    let others = [waiting(&clients[1], 20), waiting(&clients[2], 20)];
    until("both wait", BOUND, || {
        let waits = |at: usize| {
            let figures = clients[at].request("GET", "/metrics").send().ok()?;
            let text = figures.text();
            let line = text
                .lines()
                .find(|line| line.starts_with("counterfoil_http_in_flight"))?;
            line.rsplit(' ').next()?.parse::<f64>().ok()
        };
        // The look itself is in flight, too.
        (1..3)
            .all(|at| waits(at).is_some_and(|n| n >= 2.0))
            .then_some(())
    });
    lock.release();
    let (answer, done) = first.join().unwrap();
    assert_eq!(answer.status, 201, "{}", answer.text());
    for other in others {
        let (same, at) = other.join().unwrap();
        assert_eq!(same.status, 201, "{}", same.text());
        assert_eq!(same.body, answer.body);
        assert_eq!(same.header("idempotent-replayed"), Some("true"));
        assert_eq!(same.header("preference-applied"), Some("wait=20"));
        let later = at.saturating_duration_since(done);
        println!("a duplicate was answered {} ms later", later.as_millis());
        assert!(later < SOON, "{later:?}");
    }
    let count = "SELECT count(*) FROM notes WHERE body = 'slow'";
    assert_eq!(nodes.base.database().psql(count), "4");
}
