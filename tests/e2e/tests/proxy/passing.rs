//! What the proxy passes on: byte for byte where it touches nothing, and both ways.

use std::time::Duration;

use counterfoil_e2e::until;
use serde_json::{Value, json};

use crate::client::{Client, Era};
use crate::setup::{By, Setup};

const SOON: Duration = Duration::from_secs(20);

fn each(check: impl Fn(Era, &Setup, &Client)) {
    for era in Era::BOTH {
        for front in By::BOTH {
            for back in By::BOTH {
                println!("{era:?} {front:?} {back:?}");
                let setup = Setup::new();
                let wrapped = setup.start(era, front, back);
                check(era, &setup, &wrapped.client);
            }
        }
    }
}

#[test]
fn what_is_not_acted_on_arrives_as_it_was_spelled() {
    each(|_, setup, client| {
        client.ask("tools/list", json!({}));
        let meta = client.dressed(json!({"_meta": {"com.example/odd": 1.50}}))["_meta"].clone();
        let echo = format!(
            r#""params":{{"name":"echo","arguments":{{"n":1.50e+0,"big":123456789012345678901,"text":"\u00e9\/"}},"unknown":[1.0],"_meta":{meta}}}"#
        );
        let odd = format!(r#""params":{{"x":-0.0,"_meta":{meta}}}"#);
        for (method, rest) in [("tools/call", &echo), ("odd/echo", &odd)] {
            let id = client.next_id();
            let text =
                format!(r#"{{"method":"{method}","jsonrpc":"2.0","extra":1e3,"id":{id},{rest}}}"#);
            client.send(Some(id), &text);
            let said = client.must(id);
            let received = match method {
                "tools/call" => said.words(),
                _ => said.result()["received"].as_str().unwrap().to_owned(),
            };
            assert_eq!(received, text);
        }
        // A mutating call's arguments too.
        let id = client.next_id();
        let arguments = r#"{"id":"a","text":"\u00e9\/"}"#;
        let text = format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"append","arguments":{arguments},"_meta":{meta}}}}}"#
        );
        client.send(Some(id), &text);
        let said = client.must(id);
        assert!(said.text.contains(r#""xUnknown":1.50e+0"#), "{}", said.text);
        let sent = setup.ledger.about("call", "append", "a");
        let sent = sent[0].text().unwrap();
        assert!(sent.contains(arguments), "{sent}");
        assert!(sent.contains(r#""com.example/odd":1.5"#), "{sent}");
    });
}

#[test]
fn a_guarded_call_reports_and_asks() {
    each(|era, setup, client| {
        let arguments = json!({"id": "p", "steps": 3});
        let said = client.call("progress", arguments, json!({"progressToken": "tok"}));
        assert!(
            said.words().starts_with("progress p: effect 1"),
            "{}",
            said.text
        );
        let heard = client.heard();
        let told = heard.iter().filter(|said| {
            said.value["method"] == "notifications/progress"
                && said.value["params"]["progressToken"] == "tok"
        });
        assert_eq!(told.count(), 3);

        let key = json!({"dev.counterfoil/idempotency-key": "k"});
        let ask = |more: Value| {
            let mut params = json!({"name": "ask", "arguments": {"id": "q"}, "_meta": key});
            for (name, value) in more.as_object().into_iter().flatten() {
                params[name] = value.clone();
            }
            client.ask("tools/call", params)
        };
        let more = match era {
            Era::Legacy => json!({}),
            Era::Modern => {
                let asked = ask(json!({}));
                assert_eq!(
                    asked.result()["resultType"],
                    "input_required",
                    "{}",
                    asked.text
                );
                let again = ask(json!({}));
                assert_eq!(
                    again.result()["resultType"],
                    "input_required",
                    "{}",
                    again.text
                );
                let state = &asked.result()["requestState"];
                let answers = json!({"may": {"action": "accept", "content": {"yes": true}}});
                json!({"inputResponses": answers, "requestState": state})
            }
        };
        let said = ask(more.clone());
        assert!(said.words().starts_with("ask q: effect 2"), "{}", said.text);
        let again = ask(more);
        assert!(again.is_replayed(), "{}", again.text);
        assert!(
            again.words().starts_with("ask q: effect 2"),
            "{}",
            again.text
        );
        assert_eq!(setup.ledger.effects("ask", "q"), 1);
    });
}

#[test]
fn a_task_is_made_once() {
    each(|era, setup, client| {
        let key = json!({"dev.counterfoil/idempotency-key": "k"});
        let make = || match era {
            Era::Legacy => client.ask(
                "tools/call",
                json!({
                    "name": "task", "arguments": {"id": "t", "ms": 50},
                    "task": {"ttl": 60000}, "_meta": key,
                }),
            ),
            Era::Modern => {
                let mut meta = key.clone();
                let name = "io.modelcontextprotocol/clientCapabilities";
                meta[name] = json!({"extensions": {"io.modelcontextprotocol/tasks": {}}});
                client.call("task", json!({"id": "t", "ms": 50}), meta)
            }
        };
        let made = make();
        let name = |said: &crate::said::Said| {
            let result = said.result();
            let name = result["task"]["taskId"]
                .as_str()
                .or(result["taskId"].as_str());
            name.unwrap_or_else(|| panic!("a task: {}", said.text))
                .to_owned()
        };
        let task = name(&made);
        let done = until("the task is done", SOON, || {
            let got = client.ask("tasks/get", json!({"taskId": task}));
            (got.result()["status"] == "completed").then_some(got)
        });
        let result = match era {
            Era::Legacy => client.ask("tasks/result", json!({"taskId": task})).text,
            Era::Modern => done.text,
        };
        assert!(result.contains("task t: effect 1"), "{result}");
        assert_eq!(name(&make()), task);
        assert_eq!(setup.ledger.effects("task", "t"), 1);
    });
}

#[test]
fn a_reading_call_is_cancelled_upstream_and_a_mutating_one_only_by_name() {
    for era in Era::BOTH {
        let setup = Setup::new().with(&["--timeout", "8s"]);
        let client = setup.client(era);
        client.ask("tools/list", json!({}));
        let reads = client.begin("count", json!({"id": "r", "fault": "never"}), json!({}));
        setup.until_called("count", "r", 1);
        client.give_up(reads);
        until("the cancel arrives", SOON, || {
            (setup.ledger.received("notifications/cancelled").len() == 1).then_some(())
        });
        let lost = client.begin("slow", json!({"id": "s", "ms": 1500}), json!({}));
        setup.until_called("slow", "s", 1);
        client.give_up(lost);
        client.ask("tools/list", json!({}));
        setup.until_done("slow", "s", 1);
        assert_eq!(setup.ledger.received("notifications/cancelled").len(), 1);

        // And by name: what really happened is told.
        let meta = json!({"dev.counterfoil/idempotency-key": "k"});
        let waits = client.begin("slow", json!({"id": "c", "ms": 20_000}), meta);
        setup.until_called("slow", "c", 1);
        let listed = client.call("counterfoil_list_operations", json!({}), json!({}));
        let ids: Vec<&str> = listed
            .text
            .split(|c: char| !c.is_alphanumeric() && c != '_' && c != '-')
            .filter(|word| word.starts_with("op_"))
            .collect();
        let running = ids.iter().find(|id| {
            let shown = client.call(
                "counterfoil_get_operation",
                json!({"operation_id": id}),
                json!({}),
            );
            shown.text.contains("running")
        });
        let id = running.unwrap_or_else(|| panic!("a running one: {}", listed.text));
        client.call(
            "counterfoil_cancel_operation",
            json!({"operation_id": id}),
            json!({}),
        );
        until("it stops", SOON, || {
            let stopped = setup.ledger.about("cancelled", "slow", "c");
            (!stopped.is_empty()).then_some(())
        });
        assert_eq!(setup.ledger.effects("slow", "c"), 0);
        // The upstream said nothing any more: nothing is known.
        let said = client.must(waits);
        assert!(said.is_error(), "{}", said.text);
        let code = said.code();
        assert_eq!(code, "IDEMPOTENCY_ATTEMPT_STALLED", "{}", said.text);
    }
}
