//! One state file, several proxies.

use std::thread;

use counterfoil_e2e::until;
use serde_json::json;

use crate::client::Era;
use crate::setup::Setup;

const ROUNDS: usize = 12;

#[test]
fn i1_two_proxies_on_one_state_file_and_the_same_call_at_once_have_one_effect() {
    for era in Era::BOTH {
        let setup = Setup::new();
        let clients = [(); 2].map(|()| setup.client(era));
        for round in 0..ROUNDS {
            let id = format!("a{round}");
            let meta = json!({"dev.counterfoil/idempotency-key": id});
            let arguments = json!({"id": id, "hold": 30});
            let told: Vec<_> = thread::scope(|scope| {
                let callers = clients.each_ref().map(|client| {
                    let (arguments, meta) = (&arguments, &meta);
                    scope.spawn(move || {
                        let limit = std::time::Duration::from_secs(30);
                        until("a definite answer", limit, || {
                            let said = client.call("append", arguments.clone(), meta.clone());
                            (said.code() != "IDEMPOTENCY_IN_PROGRESS").then_some(said)
                        })
                    })
                });
                callers.map(|caller| caller.join().unwrap()).into()
            });
            assert_eq!(setup.ledger.effects("append", &id), 1, "{told:?}");
            assert_eq!(told[0].result()["content"], told[1].result()["content"]);
            assert_eq!(told[0].operation(), told[1].operation());
            let replayed = told.iter().filter(|said| said.is_replayed()).count();
            assert!((1..=2).contains(&replayed), "{told:?}");
        }
        assert_eq!(setup.states(), ["succeeded"; ROUNDS]);
    }
}

/// Without a key nothing proves which of two processes' calls is which: at most one of them is
/// paired with the lost answer, and none is told of another's.
#[test]
fn i5_two_proxies_and_one_lost_answer_pair_it_once() {
    let setup = Setup::new();
    let first = setup.client(Era::Legacy);
    let arguments = json!({"id": "a", "hold": 300});
    let lost = first.begin("append", arguments.clone(), json!({}));
    setup.until_done("append", "a", 1);
    first.give_up(lost);
    first.ask("tools/list", json!({}));
    let second = setup.client(Era::Legacy);
    let clients = [&first, &second];
    let ids = clients.map(|client| client.begin("append", arguments.clone(), json!({})));
    let told: Vec<_> = clients
        .iter()
        .zip(ids)
        .map(|(client, id)| client.must(id))
        .collect();
    let attached = told.iter().filter(|said| said.is_attached()).count();
    assert!(attached <= 1, "{told:?}");
    for said in told.iter().filter(|said| !said.is_attached()) {
        let ran = said.code().is_empty();
        assert!(ran || said.code() == "possible_duplicate", "{}", said.text);
    }
    let ran = told.iter().filter(|said| said.code().is_empty()).count() - attached;
    assert_eq!(setup.ledger.effects("append", "a"), 1 + ran);
}

#[test]
fn i4_two_servers_with_the_same_tool_and_key_on_one_state_file_have_an_effect_each() {
    for era in Era::BOTH {
        let one = Setup::new();
        let two = Setup::new();
        let meta = json!({"dev.counterfoil/idempotency-key": "k"});
        // Another argument of its command makes it another server.
        let mut words = one.proxy_words();
        words.push("--".to_owned());
        words.extend(two.upstream_words());
        let clients = [
            one.client(era),
            crate::client::Client::pipe(&words, era, two.path()),
        ];
        // So that their results differ.
        let earlier = json!({"kind": "effect", "tool": "append", "id": "earlier"});
        two.ledger.add(&earlier);
        let operations = clients.each_ref().map(|client| {
            let said = client.call("append", json!({"id": "a"}), meta.clone());
            assert!(!said.is_error() && !said.is_replayed(), "{}", said.text);
            let again = client.call("append", json!({"id": "a"}), meta.clone());
            assert!(again.is_replayed(), "{}", again.text);
            said.operation().expect("a handle").to_owned()
        });
        assert_eq!(one.ledger.effects("append", "a"), 1);
        assert_eq!(two.ledger.effects("append", "a"), 1);
        // Neither shows the other's result.
        let shown = clients[1].call(
            "counterfoil_get_operation",
            json!({"operation_id": operations[0]}),
            json!({}),
        );
        assert!(!shown.text.contains("append a: effect 1"), "{}", shown.text);
        assert_eq!(one.states(), ["succeeded"; 2]);
        // Nor is a lost answer of one attached to the other's caller.
        let arguments = json!({"id": "b", "hold": 300});
        let lost = clients[0].begin("append", arguments.clone(), json!({}));
        one.until_done("append", "b", 1);
        clients[0].give_up(lost);
        let other = clients[1].call("append", arguments, json!({}));
        assert!(!other.is_attached() && !other.is_error(), "{}", other.text);
        assert_eq!(two.ledger.effects("append", "b"), 1);
    }
}
