//! Calls without a key (contract §10): what was proven undelivered is attached, one to one and
//! visibly; what was delivered runs; what is unproven asks.

use std::time::Duration;

use counterfoil_e2e::{Random, until};
use serde_json::{Value, json};

use crate::client::{Client, Era};
use crate::setup::{By, Setup};

const SOON: Duration = Duration::from_secs(20);
const WAYS: [(By, By); 3] = [
    (By::Pipe, By::Pipe),
    (By::Pipe, By::Web),
    (By::Web, By::Pipe),
];

fn each(check: impl Fn(&Setup, &Client)) {
    for era in Era::BOTH {
        for (front, back) in WAYS {
            println!("{era:?} {front:?} {back:?}");
            let setup = Setup::new();
            let wrapped = setup.start(era, front, back);
            check(&setup, &wrapped.client);
        }
    }
}

/// An `append` whose answer takes a while, so that the client can give up before it.
fn held(id: &str) -> Value {
    json!({"id": id, "hold": 300})
}

/// Calls, and gives up once the effect is done.
fn lose(setup: &Setup, client: &Client, id: &str) {
    let lost = client.begin("append", held(id), json!({}));
    setup.until_done("append", id, 1);
    client.give_up(lost);
    // The proxy has taken the cancel when it answers what came after it.
    client.ask("tools/list", json!({}));
}

#[test]
fn i5_field_12_a_cancelled_call_and_its_retry_have_one_effect_and_it_says_so() {
    each(|setup, client| {
        lose(setup, client, "a");
        let again = client.call("append", held("a"), json!({}));
        assert!(again.is_attached(), "{}", again.text);
        assert!(
            again.words().starts_with("append a: effect 1"),
            "{}",
            again.text
        );
        let says = again.result()["content"].as_array().unwrap().len();
        assert_eq!(says, 2, "one sentence more, for the model: {}", again.text);
        assert!(again.operation().is_some());
        assert_eq!(setup.ledger.effects("append", "a"), 1);
    });
}

#[test]
fn i5_an_answer_is_attached_once() {
    each(|setup, client| {
        lose(setup, client, "a");
        // Two identical calls at once, and one answer that nobody got.
        let ids = [(); 2].map(|()| client.begin("append", held("a"), json!({})));
        let told = ids.map(|id| client.must(id));
        let attached = told.iter().filter(|said| said.is_attached()).count();
        assert_eq!(attached, 1, "{told:?}");
        let other = told.iter().find(|said| !said.is_attached()).unwrap();
        let effects = setup.ledger.effects("append", "a");
        match other.code() {
            "" => assert_eq!(effects, 2, "{}", other.text),
            code => assert_eq!((code, effects), ("possible_duplicate", 1)),
        }
        // And one later, when both were answered.
        let third = client.call("append", held("a"), json!({}));
        assert!(!third.is_attached(), "{}", third.text);
    });
}

#[test]
fn i5_field_11_two_parallel_identical_calls_on_a_live_connection_both_run() {
    each(|setup, client| {
        let ids = [(); 2].map(|()| client.begin("append", held("a"), json!({})));
        for id in ids {
            let said = client.must(id);
            assert!(!said.is_error() && !said.is_attached(), "{}", said.text);
        }
        assert_eq!(setup.ledger.effects("append", "a"), 2);
    });
}

#[test]
fn i5_field_11_a_deliberate_repeat_after_a_delivered_answer_runs() {
    each(|setup, client| {
        for times in 1..=3 {
            let said = client.call("append", json!({"id": "a"}), json!({}));
            assert!(!said.is_error() && !said.is_attached() && !said.is_replayed());
            assert_eq!(setup.ledger.effects("append", "a"), times, "{}", said.text);
        }
    });
}

/// What is known of the first call is on its way to the table while the second one is judged.
#[test]
fn i5_field_12_a_call_cancelled_at_any_moment_is_attached_to() {
    let seed = Random::seed();
    println!("E2E_SEED={seed}");
    let mut random = Random::new(seed);
    for era in Era::BOTH {
        let setup = Setup::new();
        let client = setup.client(era);
        let mut attached = 0;
        for round in 0..60 {
            let id = format!("r{round}");
            let arguments = json!({"id": id, "hold": 60});
            let lost = client.begin("append", arguments.clone(), json!({}));
            setup.until_done("append", &id, 1);
            // The one sleep that is no wait for anything: the moment of the cancel.
            std::thread::sleep(Duration::from_micros(random.below(20_000)));
            client.give_up(lost);
            let again = client.call("append", arguments, json!({}));
            if again.code() == "possible_duplicate" {
                // On a busy machine the cancel and the answer cross each other.
                let crossed = client.answers(lost);
                assert!(!crossed.is_empty(), "E2E_SEED={seed} {}", again.text);
                continue;
            }
            attached += 1;
            assert!(again.is_attached(), "E2E_SEED={seed} {}", again.text);
            assert_eq!(setup.ledger.effects("append", &id), 1);
        }
        assert!(attached > 0, "every cancel came too late");
    }
}

/// The end of one connection and the call on another may be seen in either order.
#[test]
fn i5_field_12_closing_a_connection_and_calling_again_at_once_is_no_second_call() {
    for era in Era::BOTH {
        let setup = Setup::new();
        let proxy = setup.listener(None);
        let client = Client::web(proxy.address, era, None, setup.path());
        for round in 0..40 {
            let id = format!("r{round}");
            let arguments = json!({"id": id, "hold": 60});
            let lost = client.begin("append", arguments.clone(), json!({}));
            setup.until_done("append", &id, 1);
            client.give_up(lost);
            let again = client.call("append", arguments, json!({}));
            assert!(again.is_attached(), "{}", again.text);
            assert_eq!(setup.ledger.effects("append", &id), 1);
        }
    }
}

/// Nothing but a later message on its connection, or in its session, proves that an answer arrived.
#[test]
fn i5_field_11_a_repeat_by_a_client_that_closes_each_connection_runs_or_asks() {
    for era in Era::BOTH {
        let setup = Setup::new();
        let proxy = setup.listener(None);
        let client = Client::closing_web(proxy.address, era, setup.path());
        let first = client.call("append", json!({"id": "a"}), json!({}));
        assert!(!first.is_error(), "{}", first.text);
        let again = client.call("append", json!({"id": "a"}), json!({}));
        // A later message of a session says the same as one on the connection, and there are no
        // sessions any more.
        if era == Era::Legacy {
            assert_eq!(again.words(), "append a: effect 2", "{}", again.text);
            continue;
        }
        assert_eq!(again.code(), "possible_duplicate", "{}", again.text);
        assert_eq!(again.operation(), first.operation());
        let meant = json!({"id": "a", "idempotency_key": "on purpose"});
        assert!(!client.call("append", meant, json!({})).is_error());
        assert_eq!(setup.ledger.effects("append", "a"), 2);
    }
}

#[test]
fn i5_a_write_cancelled_then_another_then_the_first_again_asks() {
    each(|setup, client| {
        lose(setup, client, "a");
        let other = client.call("append", json!({"id": "b"}), json!({}));
        assert!(!other.is_error(), "{}", other.text);
        let again = client.call("append", held("a"), json!({}));
        assert_eq!(again.code(), "possible_duplicate", "{}", again.text);
        assert!(again.is_error() && !again.is_attached());
        let handle = again.operation().expect("the operation it may repeat");
        let words = again.words();
        assert!(words.contains(handle), "both ways forward: {words}");
        assert!(words.contains("key"), "both ways forward: {words}");
        assert_eq!(setup.ledger.effects("append", "a"), 1);
        // Asked a second time it is still not attached.
        let again = client.call("append", held("a"), json!({}));
        assert_eq!(again.code(), "possible_duplicate", "{}", again.text);
        // One way forward: the operation, with its result.
        until("its result is stored", SOON, || {
            let arguments = json!({"operation_id": handle});
            let shown = client.call("counterfoil_get_operation", arguments, json!({}));
            shown.text.contains("append a: effect 1").then_some(())
        });
        // The other: a key of its own.
        let mut arguments = held("a");
        arguments["idempotency_key"] = json!("a second one, on purpose");
        let meant = client.call("append", arguments, json!({}));
        assert!(!meant.is_error(), "{}", meant.text);
        assert_eq!(setup.ledger.effects("append", "a"), 2);
    });
}

#[test]
fn i5_a_cancelled_query_of_an_unannotated_tool_never_gives_stale_rows() {
    for era in Era::BOTH {
        let setup = Setup::new();
        let client = setup.client(era);
        let question = json!({"question": "how many", "hold": 300});
        let lost = client.begin("query", question.clone(), json!({}));
        setup.until_called("query", "", 1);
        client.give_up(lost);
        // Somebody else adds a row meanwhile, past this proxy.
        setup
            .ledger
            .add(&json!({"kind": "effect", "tool": "append", "id": "elsewhere"}));
        // The one wait that is no wait for anything: a result may not be this old.
        std::thread::sleep(Duration::from_secs(6));
        let later = client.call("query", question.clone(), json!({}));
        assert_eq!(later.code(), "possible_duplicate", "{}", later.text);
        let mut fresh = question;
        fresh["idempotency_key"] = json!("asked anew");
        let fresh = client.call("query", fresh, json!({}));
        assert_eq!(fresh.words().lines().next(), Some("1"), "{}", fresh.text);
    }
}

#[test]
fn i5_a_query_that_is_configured_as_read_only_always_gives_fresh_rows() {
    for era in Era::BOTH {
        let setup = Setup::new();
        let command = toml_list(&setup.upstream_words());
        let setup = setup.with_config(&format!(
            "[upstream.rows]\ncommand = {command}\n[upstream.rows.tools.query]\nread_only = true\n"
        ));
        let client = Client::pipe(&setup.proxy_words(), era, setup.path());
        client.ask("tools/list", json!({}));
        let question = json!({"question": "how many", "hold": 300});
        let lost = client.begin("query", question.clone(), json!({}));
        setup.until_called("query", "", 1);
        client.give_up(lost);
        setup
            .ledger
            .add(&json!({"kind": "effect", "tool": "append", "id": "elsewhere"}));
        let fresh = client.call("query", question, json!({}));
        assert_eq!(fresh.words(), "1", "{}", fresh.text);
        assert_eq!(fresh.operation(), None, "it is not guarded: {}", fresh.text);
    }
}

fn toml_list(words: &[String]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
    format!("[{}]", quoted.join(", "))
}

#[test]
fn i5_a_proxy_killed_between_writing_an_answer_and_noting_it_asks() {
    let seed = Random::seed();
    println!("E2E_SEED={seed}");
    let mut random = Random::new(seed);
    for era in Era::BOTH {
        let setup = Setup::new();
        for round in 0..6 {
            let id = format!("r{round}");
            let client = setup.client(era);
            let first = client.call("append", json!({"id": id}), json!({}));
            assert!(!first.is_error(), "{}", first.text);
            // The one sleep that is no wait for anything: how far the note got.
            std::thread::sleep(Duration::from_micros(random.below(20_000)));
            client.kill();
            let client = setup.client(era);
            let again = client.call("append", json!({"id": id}), json!({}));
            assert_eq!(again.code(), "possible_duplicate", "{}", again.text);
            assert_eq!(setup.ledger.effects("append", &id), 1);
        }
    }
}

#[test]
fn i4_i5_another_client_is_never_attached() {
    for era in Era::BOTH {
        let setup = Setup::new();
        let proxy = setup.listener(None);
        let [one, two] =
            ["one", "two"].map(|token| Client::web(proxy.address, era, Some(token), setup.path()));
        lose(&setup, &one, "a");
        let other = two.call("append", held("a"), json!({}));
        assert!(!other.is_error() && !other.is_attached(), "{}", other.text);
        assert_eq!(setup.ledger.effects("append", "a"), 2);
        let own = one.call("append", held("a"), json!({}));
        assert!(own.is_attached(), "{}", own.text);
        assert!(
            own.words().starts_with("append a: effect 1"),
            "{}",
            own.text
        );
        // Nor does a key give it away.
        let key = json!({"dev.counterfoil/idempotency-key": "k"});
        one.call("append", json!({"id": "b"}), key.clone());
        let other = two.call("append", json!({"id": "b"}), key);
        assert!(!other.is_replayed(), "{}", other.text);
        assert_eq!(setup.ledger.effects("append", "b"), 2);
    }
}

#[test]
fn each_policy_for_calls_without_a_key_is_as_it_says() {
    for era in Era::BOTH {
        for policy in ["ask", "mint", "require"] {
            let setup = Setup::new().with(&["--keyless", policy]);
            let client = setup.client(era);
            if policy == "require" {
                let said = client.call("append", held("a"), json!({}));
                assert_eq!(said.value["error"]["code"], -32602, "{}", said.text);
                assert_eq!(said.code(), "idempotency_key_required", "{}", said.text);
                assert_eq!(setup.ledger.calls("append", "a"), 0);
                let key = json!({"dev.counterfoil/idempotency-key": "k"});
                assert!(!client.call("append", held("a"), key).is_error());
                continue;
            }
            lose(&setup, &client, "a");
            let again = client.call("append", held("a"), json!({}));
            let effects = setup.ledger.effects("append", "a");
            match policy {
                "ask" => assert_eq!((again.code(), effects), ("possible_duplicate", 1)),
                _ => assert_eq!((again.code(), effects), ("", 2), "{}", again.text),
            }
        }
    }
}
