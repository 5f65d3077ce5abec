//! Rows 11 to 17 of the field's list of faults, each through the proxy. `FIELD.md` says which other
//! tests are about them.

use std::time::{Duration, Instant};

use counterfoil_e2e::until;
use serde_json::{Value, json};

use crate::client::{Client, Era};
use crate::setup::{By, Setup};

const SOON: Duration = Duration::from_secs(30);

fn key(key: &str) -> Value {
    json!({"dev.counterfoil/idempotency-key": key})
}

#[test]
fn field_11_an_identical_second_call_is_run_or_visibly_refused() {
    for era in Era::BOTH {
        for front in By::BOTH {
            let setup = Setup::new();
            let wrapped = setup.start(era, front, By::Pipe);
            let client = &wrapped.client;
            let arguments = json!({"id": "a", "text": "the same"});
            let first = client.call("append", arguments.clone(), json!({}));
            let second = client.call("append", arguments, json!({}));
            assert_eq!(first.words(), "append a: effect 1");
            assert_eq!(second.words(), "append a: effect 2");
            assert_ne!(first.operation(), second.operation());
        }
    }
}

/// The client never sent a key, waited, gave up, and closed its connection.
#[test]
fn field_12_a_client_that_timed_out_and_asks_again_without_a_key_gets_the_first_result() {
    for era in Era::BOTH {
        for back in By::BOTH {
            for front in By::BOTH {
                let setup = Setup::new();
                let wrapped = setup.start(era, front, back);
                let client = &wrapped.client;
                let arguments = json!({"id": "wall", "fault": "late:1000", "once": true});
                let lost = client.begin("deploy", arguments.clone(), json!({}));
                setup.until_done("deploy", "wall", 1);
                client.give_up(lost);
                let again = client.call("deploy", arguments, json!({}));
                assert!(
                    again.words().starts_with("deploy wall: effect 1"),
                    "{}",
                    again.text
                );
                assert!(again.is_attached(), "{}", again.text);
                assert_eq!(setup.ledger.effects("deploy", "wall"), 1);
            }
        }
    }
}

#[test]
fn field_13_a_lost_result_is_fetched_by_its_operation_and_every_wait_is_bounded() {
    for era in Era::BOTH {
        let setup = Setup::new().with(&["--timeout", "2s"]);
        let proxy = setup.listener(None);
        let client = Client::web(proxy.address, era, None, setup.path());
        let lost = client.begin("append", json!({"id": "a", "hold": 300}), key("k"));
        setup.until_done("append", "a", 1);
        client.give_up(lost);
        let found = until("the result is stored", SOON, || {
            let listed = client.call("counterfoil_list_operations", json!({}), json!({}));
            let at = listed.text.find("op_")?;
            let id: String = listed.text[at..]
                .chars()
                .take_while(|c| c.is_ascii_alphanumeric() || *c == '_' || *c == '-')
                .collect();
            let arguments = json!({"operation_id": id});
            let shown = client.call("counterfoil_get_operation", arguments, json!({}));
            shown.text.contains("append a: effect 1").then_some(shown)
        });
        assert!(!found.is_error(), "{}", found.text);

        let started = Instant::now();
        let arguments = json!({"id": "b", "fault": "never"});
        let silent = client.call("append", arguments, key("never answered"));
        assert_eq!(
            silent.code(),
            "IDEMPOTENCY_ATTEMPT_STALLED",
            "{}",
            silent.text
        );
        assert!(started.elapsed() < SOON);
        let id = silent.operation().expect("a handle");
        let shown = client.call(
            "counterfoil_get_operation",
            json!({"operation_id": id}),
            json!({}),
        );
        assert!(shown.text.contains("outcome_unknown"), "{}", shown.text);
    }
}

#[test]
fn field_14_a_crash_leaves_nothing_in_progress_for_ever_and_says_what_to_do() {
    let setup = Setup::new();
    let client = setup.client(Era::Legacy);
    let arguments = json!({"id": "a", "ms": 0, "hold": 20_000});
    client.begin("slow", arguments.clone(), key("k"));
    setup.until_done("slow", "a", 1);
    client.kill();
    let client = setup.client(Era::Modern);
    let first = client.call("slow", arguments.clone(), key("k"));
    assert!(
        ["IDEMPOTENCY_IN_PROGRESS", "IDEMPOTENCY_ATTEMPT_STALLED"].contains(&first.code()),
        "{}",
        first.text
    );
    if first.code() == "IDEMPOTENCY_IN_PROGRESS" {
        assert!(first.retry_after().is_some(), "{}", first.text);
    }
    let last = until("it is settled", Duration::from_secs(150), || {
        let said = client.call("slow", arguments.clone(), key("k"));
        if said.code() == "IDEMPOTENCY_IN_PROGRESS" {
            std::thread::sleep(Duration::from_millis(500));
            return None;
        }
        Some(said)
    });
    assert_eq!(last.code(), "IDEMPOTENCY_ATTEMPT_STALLED", "{}", last.text);
    let handle = last.operation().expect("a handle");
    assert!(last.words().contains(handle), "{}", last.words());
    assert_eq!(setup.states(), ["outcome_unknown"]);
    assert_eq!(setup.ledger.effects("slow", "a"), 1);
    assert_eq!(setup.ledger.calls("slow", "a"), 1);
}

#[test]
fn field_15_the_proxys_descriptions_say_when_to_make_a_key_and_when_to_reuse_it() {
    for era in Era::BOTH {
        let setup = Setup::new();
        let client = setup.client(era);
        let listed = client.ask("tools/list", json!({}));
        let tools = listed.result()["tools"].as_array().unwrap();
        let tool = |name: &str| tools.iter().find(|tool| tool["name"] == name).unwrap();
        for name in ["append", "deploy", "query", "slow", "task"] {
            let text = tool(name).to_string().to_lowercase();
            let argument = &tool(name)["inputSchema"]["properties"]["idempotency_key"];
            assert_eq!(argument["type"], "string", "{name}: {text}");
            for wrong in ["unique for every request", "unique per request"] {
                assert!(!text.contains(wrong), "{name}: {text}");
            }
            assert!(text.contains("retry"), "{name}: {text}");
            let reuse = text.contains("reuse") || text.contains("same key");
            assert!(reuse, "when to reuse it: {text}");
            let long = text.contains("hour") || text.contains("day");
            assert!(long, "how long it is good for: {text}");
            assert!(
                text.contains("operation"),
                "how to look at what is uncertain: {text}"
            );
            let required = tool(name)["inputSchema"]["required"].to_string();
            assert!(!required.contains("idempotency_key"), "{required}");
        }
        for name in ["read", "count", "echo"] {
            let text = tool(name).to_string();
            assert!(!text.contains("idempotency_key"), "{text}");
        }
        // One with such an argument of its own keeps its own.
        let own = &tool("pay")["inputSchema"]["properties"]["idempotency_key"];
        assert_eq!(own, &json!({"type": "string"}));
        // With a policy that wants keys, the schema says so.
        let strict = Setup::new().with(&["--keyless", "require"]);
        let client = strict.client(era);
        let listed = client.ask("tools/list", json!({}));
        let tools = listed.result()["tools"].as_array().unwrap();
        let append = tools.iter().find(|tool| tool["name"] == "append").unwrap();
        let required = append["inputSchema"]["required"].to_string();
        assert!(required.contains("idempotency_key"), "{append}");
    }
}

#[test]
fn field_16_a_key_in_any_accepted_place_is_used_and_elsewhere_it_is_an_error() {
    for era in Era::BOTH {
        let setup = Setup::new();
        let client = setup.client(era);
        client.ask("tools/list", json!({}));
        let beside = |id: &str| {
            let params = json!({
                "name": "append", "arguments": {"id": id}, "idempotencyKey": format!("beside {id}"),
            });
            client.ask("tools/call", params)
        };
        let argument = |id: &str| {
            let arguments = json!({"id": id, "idempotency_key": format!("argument {id}")});
            client.call("append", arguments, json!({}))
        };
        let meta = |id: &str| client.call("append", json!({"id": id}), key(&format!("meta-{id}")));
        for (place, call) in [
            ("beside", &beside as &dyn Fn(&str) -> _),
            ("argument", &argument),
            ("meta", &meta),
        ] {
            let first = call(place);
            let again = call(place);
            assert!(!first.is_error() && !first.is_replayed(), "{}", first.text);
            assert!(again.is_replayed(), "{place}: {}", again.text);
            assert_eq!(setup.ledger.effects("append", place), 1, "{place}");
            // The upstream's arguments are what its closed schema allows.
            let sent = &setup.ledger.about("call", "append", place)[0];
            let sent = sent.message()["params"]["arguments"].clone();
            assert_eq!(sent, json!({"id": place}));
        }
        // The host knows better than the model.
        let both = json!({"id": "both", "idempotency_key": "the model's"});
        client.call("append", both, key("the-hosts"));
        let both = json!({"id": "both", "idempotency_key": "another of the model's"});
        let both = client.call("append", both, key("the-hosts"));
        assert!(both.is_replayed(), "{}", both.text);
        // Misspelled among the arguments: the tool's schema refuses it, and nothing ran.
        let wrong = json!({"id": "wrong", "idempotencyKey": "k"});
        let wrong = client.call("append", wrong, json!({}));
        let refused = wrong.is_error() || wrong.value["error"].is_object();
        assert!(refused, "an error, not ignored: {}", wrong.text);
        assert_eq!(setup.ledger.effects("append", "wrong"), 0);
        // Malformed in each place.
        let long = "k".repeat(201);
        let malformed = json!({"id": "bad", "idempotency_key": long});
        let malformed = client.call("append", malformed, json!({}));
        assert_eq!(
            malformed.value["error"]["code"], -32602,
            "{}",
            malformed.text
        );
        assert_eq!(malformed.code(), "invalid_key", "{}", malformed.text);
        assert_eq!(setup.ledger.calls("append", "bad"), 0);
        // One of the host's that cannot be is replaced by one made from it.
        for replayed in [false, true] {
            let said = client.call("append", json!({"id": "odd"}), key("schlüssel"));
            let replaced = &said.result()["_meta"]["dev.counterfoil/key-replaced"];
            assert_eq!(replaced, true, "{}", said.text);
            assert_eq!(said.is_replayed(), replayed, "{}", said.text);
        }
        assert_eq!(setup.ledger.effects("append", "odd"), 1);
        // The same key, and another call.
        let conflict = client.call("append", json!({"id": "other"}), key("the-hosts"));
        assert_eq!(
            conflict.code(),
            "IDEMPOTENCY_KEY_REUSED",
            "{}",
            conflict.text
        );
        let arguments = json!({"id": "other", "idempotency_key": "argument argument"});
        let conflict = client.call("append", arguments, json!({}));
        let code = if era == Era::Legacy { -32001 } else { -31001 };
        assert_eq!(conflict.value["error"]["code"], code, "{}", conflict.text);
        assert_eq!(conflict.code(), "idempotency_conflict", "{}", conflict.text);
        assert_eq!(setup.ledger.calls("append", "other"), 0);
    }
}

/// The upstream's session is gone, its process died, its stream was cut: the proxy connects again
/// and sends nothing twice.
#[test]
fn field_17_after_a_reconnect_nothing_is_sent_again() {
    for era in Era::BOTH {
        let setup = Setup::new();
        let mut wrapped = setup.start(era, By::Pipe, By::Web);
        wrapped
            .client
            .call("append", json!({"id": "first"}), key("first"));
        for fault in ["404_after", "cut", "503_after", "die_after"] {
            let arguments = json!({"id": fault, "fault": fault, "once": true});
            let said = wrapped.client.call("append", arguments.clone(), key(fault));
            assert_eq!(said.code(), "IDEMPOTENCY_ATTEMPT_STALLED", "{}", said.text);
            let upstream = wrapped.upstream.as_mut().unwrap();
            if fault == "die_after" {
                until("it died", SOON, || upstream.has_ended().then_some(()));
            }
            // Every session is gone with its process.
            upstream.restart();
            let next = format!("after {fault}");
            let after = wrapped
                .client
                .call("append", json!({"id": next}), json!({}));
            let ran = !after.is_error() && after.value["result"].is_object();
            // In the older era the session must be made anew, which the client sees or does not;
            // nothing is sent twice either way.
            if !ran {
                println!("{fault}: {}", after.text);
            }
            assert!(setup.ledger.effects("append", &next) <= 1);
            assert_eq!(
                setup.ledger.effects("append", &next) == 1,
                ran,
                "{}",
                after.text
            );
            assert_eq!(setup.ledger.calls("append", fault), 1);
            assert_eq!(setup.ledger.effects("append", fault), 1);
        }
    }
}

/// The exception: an upstream that honours a key gets the same one again.
#[test]
fn field_17_an_upstream_that_honours_a_key_is_sent_to_again_under_the_same() {
    for era in Era::BOTH {
        let setup = Setup::new();
        let words: Vec<String> = setup.upstream_words();
        let quoted: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
        let setup = setup.with_config(&format!(
            "[upstream.bank]\ncommand = [{}]\n[upstream.bank.tools.pay]\nprovider_key = {{ argument = \"idempotency_key\" }}\n",
            quoted.join(", ")
        ));
        let client = Client::pipe(&setup.proxy_words(), era, setup.path());
        let arguments = json!({"id": "p", "amount": 5, "fault": "die_after", "once": true});
        let first = client.call("pay", arguments.clone(), key("k"));
        let last = match first.code() {
            "" => first,
            "IDEMPOTENCY_ATTEMPT_STALLED" => client.call("pay", arguments, key("k")),
            code => panic!("{code}: {}", first.text),
        };
        assert_eq!(last.words().lines().next(), Some("paid p"), "{}", last.text);
        assert_eq!(setup.ledger.effects("pay", "p"), 1);
        let sent = setup.ledger.about("call", "pay", "p");
        let keys: Vec<_> = sent
            .iter()
            .map(|call| call.message()["params"]["arguments"]["idempotency_key"].clone())
            .collect();
        assert_eq!(keys.len(), 2, "{keys:?}");
        assert!(keys[0].is_string() && keys[0] == keys[1], "{keys:?}");
        assert_eq!(setup.states(), ["succeeded"]);
    }
}
