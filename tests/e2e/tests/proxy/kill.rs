//! Power cuts: the proxy at every step of a call, and the upstream.

use std::collections::BTreeMap;
use std::process::Command;
use std::thread::{self, sleep};
use std::time::Duration;

use counterfoil_e2e::{Random, until};
use serde_json::{Value, json};

use crate::client::{Client, Era};
use crate::said::Said;
use crate::setup::{By, Setup};

const SOON: Duration = Duration::from_secs(30);
/// Longer than a lease: what was running when its proxy died is settled within this.
const SETTLED: Duration = Duration::from_secs(120);
/// Rounds, unless `E2E_PROXY_ROUNDS` says otherwise.
const ROUNDS: u64 = 24;
/// Calls of a round, all at once.
const CALLS: u64 = 4;
/// Latest moment of a kill after the calls were sent, in µs.
const KILL_US_MAX: u64 = 150_000;

fn keyed(key: &str) -> Value {
    json!({"dev.counterfoil/idempotency-key": key})
}

/// Calls again until it is told something else than to wait.
fn settle(client: &Client, id: &str, arguments: &Value) -> Said {
    until(&format!("{id} is settled"), SETTLED, || {
        let said = client.call("slow", arguments.clone(), keyed(id));
        let waits = said.code() == "IDEMPOTENCY_IN_PROGRESS" || said.code() == "busy";
        if waits {
            sleep(Duration::from_millis(200));
        }
        (!waits).then_some(said)
    })
}

#[test]
fn i1_i2_i3_field_14_kill_9_of_the_proxy_at_every_step_of_a_call() {
    let seed = Random::seed();
    let rounds = std::env::var("E2E_PROXY_ROUNDS").map_or(ROUNDS, |rounds| rounds.parse().unwrap());
    println!("E2E_SEED={seed} E2E_PROXY_ROUNDS={rounds}");
    // At once: both mostly wait for the leases of what was killed.
    thread::scope(|scope| {
        for back in By::BOTH {
            scope.spawn(move || kill_at_every_step(back, seed, rounds));
        }
    });
}

fn kill_at_every_step(back: By, seed: u64, rounds: u64) {
    let setup = Setup::new();
    let upstream = (back == By::Web).then(|| setup.listening());
    let start = |era| match &upstream {
        None => setup.client(era),
        Some(upstream) => setup.client_of(&upstream.url(), era),
    };
    let mut random = Random::new(seed);
    // What was acknowledged before a kill.
    let mut calls: BTreeMap<String, (Value, Option<Value>)> = BTreeMap::new();
    for round in 0..rounds {
        let era = Era::BOTH[usize::try_from(round % 2).unwrap()];
        let client = start(era);
        let begun: Vec<_> = (0..CALLS)
            .map(|call| {
                let id = format!("{back:?}-{round}-{call}");
                let (ms, hold) = (random.below(60), random.below(60));
                let arguments = json!({"id": id, "ms": ms, "hold": hold});
                let number = client.begin("slow", arguments.clone(), keyed(&id));
                (number, id, arguments)
            })
            .collect();
        // The one sleep that is no wait for anything: the moment of the power cut.
        sleep(Duration::from_micros(random.below(KILL_US_MAX)));
        client.kill();
        for (number, id, arguments) in begun {
            let told = client.answer(number, SOON).ok();
            let told = told.filter(|said| said.code().is_empty());
            let content = told.map(|said| said.result()["content"].clone());
            calls.insert(id, (arguments, content));
        }
    }
    // One more proxy, on what they left.
    let client = start(Era::Modern);
    let mut counts = BTreeMap::<&str, u64>::new();
    for (id, (arguments, told)) in &calls {
        let said = settle(&client, id, arguments);
        let effects = setup.ledger.effects("slow", id);
        let sent = setup.ledger.calls("slow", id);
        assert!(effects <= 1, "{id}: {effects} effects");
        assert!(sent <= 1, "{id}: sent {sent} times");
        match (said.code(), told) {
            ("", Some(content)) => {
                *counts.entry("acknowledged, and replayed").or_default() += 1;
                assert!(said.is_replayed(), "{id}: {}", said.text);
                assert_eq!(&said.result()["content"], content, "{id}");
                assert_eq!(effects, 1, "{id}");
            }
            ("", None) => {
                let what = if said.is_replayed() {
                    "recorded and not told, and replayed"
                } else {
                    "never begun, and run"
                };
                *counts.entry(what).or_default() += 1;
                assert_eq!(effects, 1, "{id}: {}", said.text);
            }
            ("IDEMPOTENCY_ATTEMPT_STALLED", None) => {
                *counts.entry("unknown").or_default() += 1;
            }
            (code, told) => panic!("{id}: {code}, though {told:?} was told: {}", said.text),
        }
    }
    println!("{back:?}, {rounds} rounds: {counts:?}");
    let running = setup
        .states()
        .iter()
        .filter(|one| *one == "running")
        .count();
    assert_eq!(running, 0, "nothing is left running");
    if rounds >= ROUNDS {
        assert!(counts.len() >= 3, "the kills met several steps: {counts:?}");
    }
}

#[test]
fn i3_kill_9_of_the_upstream_makes_it_unknown_and_the_next_call_meets_a_new_one() {
    for era in Era::BOTH {
        for back in By::BOTH {
            for after in [false, true] {
                println!("{era:?} {back:?} after the effect: {after}");
                let setup = Setup::new();
                let mut wrapped = setup.start(era, By::Pipe, back);
                let client = &wrapped.client;
                let arguments = match after {
                    true => json!({"id": "a", "ms": 0, "hold": 20_000}),
                    false => json!({"id": "a", "ms": 20_000}),
                };
                let waits = client.begin("slow", arguments.clone(), keyed("k"));
                setup.until_called("slow", "a", 1);
                if after {
                    setup.until_done("slow", "a", 1);
                }
                match &mut wrapped.upstream {
                    Some(upstream) => upstream.restart(),
                    None => kill(&setup),
                }
                let client = &wrapped.client;
                for said in [
                    client.must(waits),
                    client.call("slow", arguments.clone(), keyed("k")),
                ] {
                    let code = said.code();
                    assert_eq!(code, "IDEMPOTENCY_ATTEMPT_STALLED", "{}", said.text);
                    assert!(said.operation().is_some());
                }
                // A session ends with its server. The first call that finds it gone (404) is unknown,
                // for a server may say so after the effect; the next one meets a new session.
                let mut next = client.call("append", json!({"id": "b"}), keyed("first"));
                let mut lost = 1;
                if next.is_error() {
                    assert_eq!(next.code(), "IDEMPOTENCY_ATTEMPT_STALLED", "{}", next.text);
                    assert_eq!(setup.ledger.calls("append", "b"), 0);
                    lost += 1;
                    next = client.call("append", json!({"id": "b"}), keyed("second"));
                }
                assert!(!next.is_error(), "{}", next.text);
                assert_eq!(setup.ledger.effects("append", "b"), 1);
                assert_eq!(setup.ledger.effects("slow", "a"), usize::from(after));
                assert_eq!(setup.ledger.calls("slow", "a"), 1);
                let states = setup.states();
                let unknown = states.iter().filter(|state| *state == "outcome_unknown");
                assert_eq!(unknown.count(), lost, "{states:?}");
                assert!(!states.contains(&"running".to_owned()), "{states:?}");
            }
        }
    }
}

/// Kills the upstream that started last, a child of the proxy's.
fn kill(setup: &Setup) {
    let entries = setup.ledger.entries();
    let started = entries.iter().rev().find(|entry| entry.kind() == "start");
    let process = started.unwrap().field("pid").as_u64().unwrap().to_string();
    let status = Command::new("sh")
        .args(["-c", "kill -9 \"$1\"", "sh", &process])
        .status()
        .unwrap();
    assert!(status.success());
}

#[test]
fn field_13_when_the_host_closes_its_pipe_what_is_under_way_is_finished() {
    for era in Era::BOTH {
        for back in By::BOTH {
            let setup = Setup::new();
            let wrapped = setup.start(era, By::Pipe, back);
            let client = &wrapped.client;
            client.begin(
                "slow",
                json!({"id": "a", "ms": 300, "hold": 100}),
                keyed("k"),
            );
            setup.until_called("slow", "a", 1);
            client.end_input();
            let status = client.ended(SOON);
            assert!(status.success(), "{status}: {}", client.errors());
            assert_eq!(setup.states(), ["succeeded"], "{}", client.errors());
            let client = match &wrapped.upstream {
                None => setup.client(era),
                Some(upstream) => setup.client_of(&upstream.url(), era),
            };
            let arguments = json!({"id": "a", "ms": 300, "hold": 100});
            let said = client.call("slow", arguments, keyed("k"));
            assert!(said.is_replayed(), "{}", said.text);
            assert_eq!(setup.ledger.effects("slow", "a"), 1);
        }
    }
}
