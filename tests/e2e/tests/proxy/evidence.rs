//! What is unknown, and how it becomes known: a reading tool, a key that the upstream honours. On
//! evidence only.

use std::time::Duration;

use counterfoil_e2e::until;
use serde_json::{Value, json};

use crate::client::Era;
use crate::said::Said;
use crate::setup::{By, Setup, Wrapped};

const SOON: Duration = Duration::from_secs(30);

fn key(key: &str) -> Value {
    json!({"dev.counterfoil/idempotency-key": key})
}

/// What the file says of the tools, for whatever is wrapped.
fn with_rules(rules: &str) -> Setup {
    let setup = Setup::new().with(&["--name", "it"]);
    setup.with_config(&format!("[upstream.it]\ncommand = [\"unused\"]\n{rules}"))
}

/// The upstream died, and stands again.
fn revive(wrapped: &mut Wrapped) {
    if let Some(upstream) = &mut wrapped.upstream {
        until("it died", SOON, || upstream.has_ended().then_some(()));
        upstream.restart();
    }
}

/// Calls until a session that went with the upstream is made anew.
fn heard_again(wrapped: &Wrapped) {
    until("the upstream answers", SOON, || {
        let said = wrapped
            .client
            .call("count", json!({"id": "nothing"}), json!({}));
        said.value["result"].is_object().then_some(())
    });
}

fn each(rules: &str, check: impl Fn(&Setup, &mut Wrapped)) {
    for era in Era::BOTH {
        for back in By::BOTH {
            println!("{era:?} {back:?}");
            let setup = with_rules(rules);
            let mut wrapped = setup.start(era, By::Pipe, back);
            wrapped.client.ask("tools/list", json!({}));
            check(&setup, &mut wrapped);
        }
    }
}

fn call(wrapped: &Wrapped, fault: &str) -> Said {
    let arguments = json!({"id": "a", "fault": fault, "once": true});
    wrapped.client.call("append", arguments, key("k"))
}

#[test]
fn i3_a_reading_tool_proves_that_it_happened() {
    let rules = "[upstream.it.tools.append.reconcile]\ntool = \"count\"\narguments = { id = \"{/id}\" }\nhappened_if_text = \"{/id} happened\"\n";
    each(rules, |setup, wrapped| {
        call(wrapped, "die_after");
        revive(wrapped);
        heard_again(wrapped);
        let again = call(wrapped, "die_after");
        assert_ne!(
            again.code(),
            "IDEMPOTENCY_ATTEMPT_STALLED",
            "{}",
            again.text
        );
        assert_ne!(again.code(), "IDEMPOTENCY_IN_PROGRESS", "{}", again.text);
        assert_eq!(setup.states(), ["succeeded"], "{}", again.text);
        assert_eq!(setup.ledger.effects("append", "a"), 1);
        assert_eq!(setup.ledger.calls("append", "a"), 1);
    });
}

#[test]
fn i3_what_a_reading_tool_does_not_find_proves_nothing_by_itself() {
    let rules = "[upstream.it.tools.append.reconcile]\ntool = \"count\"\narguments = { id = \"{/id}\" }\nhappened_if_text = \"{/id} happened\"\n";
    each(rules, |setup, wrapped| {
        call(wrapped, "die_before");
        revive(wrapped);
        heard_again(wrapped);
        let again = call(wrapped, "die_before");
        assert_eq!(
            again.code(),
            "IDEMPOTENCY_ATTEMPT_STALLED",
            "{}",
            again.text
        );
        assert_eq!(setup.states(), ["outcome_unknown"]);
        assert_eq!(setup.ledger.calls("append", "a"), 1);
    });
}

/// Past the hard deadline, and the time after which nothing arrives any more.
#[test]
fn i3_absence_is_proof_once_nothing_can_arrive_any_more() {
    let rules = "timeout = \"1s\"\n[upstream.it.tools.append.reconcile]\ntool = \"count\"\narguments = { id = \"{/id}\" }\nhappened_if_text = \"{/id} happened\"\nsettle_after = \"1s\"\n";
    each(rules, |setup, wrapped| {
        call(wrapped, "die_before");
        revive(wrapped);
        heard_again(wrapped);
        let last = until("it is settled", SOON, || {
            let said = call(wrapped, "die_before");
            (said.code() != "IDEMPOTENCY_ATTEMPT_STALLED").then_some(said)
        });
        assert!(last.is_error(), "{}", last.text);
        let states = setup.states();
        assert!(
            states == ["failed"] || states == ["cancelled"],
            "{states:?} {}",
            last.text
        );
        assert_eq!(setup.ledger.effects("append", "a"), 0);
        assert_eq!(setup.ledger.calls("append", "a"), 1);
    });
}

/// The header is made from the operation, so that all attempts of one have the same.
#[test]
fn i1_a_provider_key_in_a_header_makes_a_second_sending_safe() {
    for era in Era::BOTH {
        let setup = with_rules(
            "[upstream.it.tools.pay]\nprovider_key = { header = \"Idempotency-Key\" }\n",
        );
        let wrapped = setup.start(era, By::Pipe, By::Web);
        wrapped.client.ask("tools/list", json!({}));
        for fault in ["500_after", "cut", "half"] {
            let arguments = json!({"id": fault, "amount": 5, "fault": fault, "once": true});
            let first = wrapped.client.call("pay", arguments.clone(), key(fault));
            let last = match first.code() {
                "" => first,
                "IDEMPOTENCY_ATTEMPT_STALLED" => wrapped.client.call("pay", arguments, key(fault)),
                code => panic!("{code}: {}", first.text),
            };
            let words = last.words();
            assert_eq!(
                words.lines().next(),
                Some(&*format!("paid {fault}")),
                "{}",
                last.text
            );
            assert_eq!(setup.ledger.effects("pay", fault), 1);
            let sent = setup.ledger.about("call", "pay", fault);
            let keys: Vec<_> = sent
                .iter()
                .map(|call| call.header("idempotency-key"))
                .collect();
            assert_eq!(keys.len(), 2, "{keys:?}");
            assert!(keys[0].is_some() && keys[0] == keys[1], "{keys:?}");
        }
        assert_eq!(setup.states(), ["succeeded"; 3]);
    }
}
