//! Two servers on one data folder.

use std::collections::HashMap;
use std::sync::{Arc, Barrier};
use std::thread;

use counterfoil_e2e::{Folder, Server};

use crate::STORE;

const CALLERS: usize = 64;

#[test]
fn i1_field_05_two_processes_64_callers_one_key_one_effect() {
    let folder = Folder::new(STORE);
    let servers = [Server::start(&folder), Server::start(&folder)];
    let start = Arc::new(Barrier::new(CALLERS));
    let calls: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let (http, start) = (servers[caller % 2].http(), Arc::clone(&start));
            thread::spawn(move || {
                start.wait();
                http.note_until_answered("one", r#"{"body":"one"}"#)
            })
        })
        .collect();
    let replies: Vec<_> = calls.into_iter().map(|call| call.join().unwrap()).collect();
    for reply in &replies {
        assert_eq!(reply.status, 201, "{}", reply.text());
        assert_eq!(reply.body, replies[0].body);
    }
    let fresh = replies
        .iter()
        .filter(|reply| reply.header("idempotent-replayed").is_none());
    assert_eq!(fresh.count(), 1, "exactly one ran");
    for server in &servers {
        assert_eq!(server.http().count("one"), 1);
    }
}

#[test]
fn i1_two_processes_many_keys_each_one_effect_and_one_answer() {
    const KEYS: usize = 24;
    let folder = Folder::new(STORE);
    let servers = [Server::start(&folder), Server::start(&folder)];
    let start = Arc::new(Barrier::new(CALLERS));
    let calls: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let (http, start) = (servers[caller % 2].http(), Arc::clone(&start));
            thread::spawn(move || {
                start.wait();
                (0..KEYS)
                    .map(|step| {
                        let key = format!("key-{}", (step + caller) % KEYS);
                        let note = format!(r#"{{"body":"{key}"}}"#);
                        let reply = http.note_until_answered(&key, &note);
                        (key, reply)
                    })
                    .collect::<Vec<_>>()
            })
        })
        .collect();
    let mut answers: HashMap<String, Vec<u8>> = HashMap::new();
    for (key, reply) in calls.into_iter().flat_map(|call| call.join().unwrap()) {
        assert_eq!(reply.status, 201, "{key}: {}", reply.text());
        let first = answers.entry(key).or_insert_with(|| reply.body.clone());
        assert_eq!(*first, reply.body, "one answer for all callers");
    }
    assert_eq!(answers.len(), KEYS);
    let notes = servers[1].http().notes();
    assert_eq!(notes.len(), KEYS, "one effect for each key");
}

/// One of them dies under load: the other goes on and knows what the dead one had acknowledged.
#[test]
fn i2_what_one_process_acknowledged_the_other_replays_after_its_death() {
    let folder = Folder::new(STORE);
    let [one, two] = [Server::start(&folder), Server::start(&folder)];
    let acknowledged: Vec<_> = (0..32)
        .map(|n| {
            let key = format!("k{n}");
            let note = format!(r#"{{"body":"{key}"}}"#);
            let reply = one.http().note(Some(&key), &note).send().unwrap();
            assert_eq!(reply.status, 201, "{}", reply.text());
            (key, note, reply)
        })
        .collect();
    one.kill();
    for (key, note, reply) in acknowledged {
        let again = two.http().note(Some(&key), &note).send().unwrap();
        assert_eq!(again.body, reply.body);
        assert_eq!(again.header("idempotent-replayed"), Some("true"));
    }
    assert_eq!(two.http().notes().len(), 32);
}
