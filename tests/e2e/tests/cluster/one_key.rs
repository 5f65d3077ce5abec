//! One key, many callers, three nodes.

use std::sync::{Arc, Barrier};
use std::thread;

use counterfoil_e2e::Base;

use crate::nodes::Nodes;

const CALLERS: usize = 64;
const NOTE: &str = r#"{"body":"one"}"#;

/// Each caller calls once. Exactly one call runs; whoever came too early is told so, and everybody
/// gets the same bytes from every node afterwards.
#[test]
fn i1_field_05_three_nodes_64_callers_one_key_one_effect() {
    let nodes = Nodes::start(Base::new(), 3, &[]);
    let clients = nodes.clients();
    let start = Arc::new(Barrier::new(CALLERS));
    let calls: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let (http, start) = (clients[caller % 3].clone(), Arc::clone(&start));
            thread::spawn(move || {
                start.wait();
                http.note(Some("one"), NOTE).send().unwrap()
            })
        })
        .collect();
    let replies: Vec<_> = calls.into_iter().map(|call| call.join().unwrap()).collect();

    let answered: Vec<_> = replies.iter().filter(|reply| reply.status == 201).collect();
    let fresh = answered
        .iter()
        .filter(|reply| reply.header("idempotent-replayed").is_none());
    assert_eq!(fresh.count(), 1, "exactly one ran");
    for reply in &answered {
        assert_eq!(reply.body, answered[0].body);
    }
    for reply in replies.iter().filter(|reply| reply.status != 201) {
        let early = ["idempotency_in_progress", "idempotency_committed"];
        assert!(early.contains(&reply.code().as_str()), "{}", reply.text());
        assert!(reply.header("retry-after").is_some(), "{}", reply.text());
    }
    println!(
        "{} of {CALLERS} were answered, the others told to come again",
        answered.len()
    );
    for http in &clients {
        let again = http.note(Some("one"), NOTE).send().unwrap();
        assert_eq!(again.status, 201, "{}", again.text());
        assert_eq!(again.body, answered[0].body, "byte for byte on every node");
        assert_eq!(again.header("idempotent-replayed"), Some("true"));
    }
    assert_eq!(
        nodes.base.database().psql("SELECT count(*) FROM notes"),
        "1"
    );
    let other = clients[2].note(Some("one"), r#"{"body":"two"}"#).send();
    assert_eq!(other.unwrap().code(), "idempotency_conflict");
}
