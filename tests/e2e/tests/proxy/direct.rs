//! The upstream itself, without a proxy: that it does what it is told, and counts it.

use std::time::Duration;

use counterfoil_test_upstream::Listening;
use serde_json::{Value, json};

use crate::client::{Client, Era};
use crate::said::Missing;
use crate::setup::{By, Setup};

/// Long enough to see that nothing comes.
const SILENCE: Duration = Duration::from_millis(300);
const SOON: Duration = Duration::from_secs(20);

struct Direct {
    client: Client,
    upstream: Option<Listening>,
    setup: Setup,
}

fn direct(era: Era, by: By) -> Direct {
    let setup = Setup::new();
    let upstream = (by == By::Web).then(|| setup.listening());
    let client = match &upstream {
        None => Client::pipe(&setup.upstream_words(), era, setup.path()),
        Some(upstream) => {
            let address = format!("127.0.0.1:{}", upstream.port());
            Client::web(address.parse().unwrap(), era, None, setup.path())
        }
    };
    Direct {
        client,
        upstream,
        setup,
    }
}

fn each(check: impl Fn(Era, By, &Direct)) {
    for era in Era::BOTH {
        for by in By::BOTH {
            println!("{era:?} {by:?}");
            check(era, by, &direct(era, by));
        }
    }
}

#[test]
fn a_healthy_call_has_one_effect() {
    each(|era, _, direct| {
        let listed = direct.client.ask("tools/list", json!({}));
        let names = listed.result()["tools"].as_array().unwrap().len();
        assert_eq!(names, 12);
        let said = direct
            .client
            .call("append", json!({"id": "a", "text": "t"}), json!({}));
        assert_eq!(said.words(), "append a: effect 1");
        let complete = era == Era::Modern;
        assert_eq!(
            said.result()["resultType"] == "complete",
            complete,
            "{}",
            said.text
        );
        assert!(said.text.contains("1.50e+0"), "{}", said.text);
        assert_eq!(direct.setup.ledger.effects("append", "a"), 1);
        let count = direct.client.call("count", json!({"id": "a"}), json!({}));
        assert_eq!(count.words(), "a happened");
        let rows = direct.client.call("query", json!({}), json!({}));
        assert_eq!(rows.words(), "1");
        let echo = direct
            .client
            .call("echo", json!({"n": 1.0}), json!({"x": 1}));
        let echoed: Value = serde_json::from_str(&echo.words()).unwrap();
        assert_eq!(echoed["params"]["_meta"]["x"], 1);
        let wrong = json!({"id": "a", "idempotency_key": "k"});
        let wrong = direct.client.call("append", wrong, json!({}));
        assert_eq!(wrong.value["error"]["code"], -32602);
        assert_eq!(
            direct.client.ask("odd/echo", json!({})).result()["resultType"],
            "complete"
        );
        let unknown = direct.client.ask("no/such", json!({}));
        assert_eq!(unknown.value["error"]["code"], -32601);
    });
}

#[test]
fn each_fault_is_as_its_name_says() {
    // Name, effects, and what the client gets over a pipe and over HTTP.
    let table = [
        ("die_before", 0, "gone", "gone"),
        ("die_after", 1, "gone", "gone"),
        ("never", 1, "silence", "silence"),
        ("never_before", 0, "silence", "silence"),
        ("late:50", 1, "done", "done"),
        ("half", 1, "gone", "gone"),
        ("torn", 1, "silence", "gone"),
        ("cut", 1, "gone", "gone"),
        ("cut_before", 0, "gone", "gone"),
        ("404_after", 1, "-32000", "gone"),
        ("500_after", 1, "-32000", "gone"),
        ("500_before", 0, "-32000", "gone"),
        ("401", 0, "-32000", "gone"),
        ("redirect", 1, "-32000", "gone"),
        ("error_32603", 1, "-32603", "-32603"),
        ("error_32602_before", 0, "-32602", "-32602"),
        ("is_error", 1, "refused", "refused"),
        ("is_error_before", 0, "refused", "refused"),
        ("flood", 1, "done", "done"),
        ("reuse_id", 1, "done", "done"),
        ("wrong_id", 1, "silence", "gone"),
        ("garbage", 1, "silence", "gone"),
        ("noise", 1, "done", "done"),
        ("big:300000", 1, "done", "done"),
    ];
    for (fault, effects, by_pipe, by_web) in table {
        each(|_, by, direct| {
            let arguments = json!({"id": "f", "fault": fault, "once": true});
            let id = direct.client.begin("append", arguments, json!({}));
            let expected = if by == By::Pipe { by_pipe } else { by_web };
            let limit = if expected == "silence" { SILENCE } else { SOON };
            let got = match direct.client.answer(id, limit) {
                Err(Missing::Late) => "silence".to_owned(),
                Err(Missing::Gone(_)) => "gone".to_owned(),
                Ok(said) if said.is_error() => "refused".to_owned(),
                Ok(said) if said.value["result"].is_object() => "done".to_owned(),
                Ok(said) => said.value["error"]["code"].to_string(),
            };
            assert_eq!(got, expected, "{fault}");
            assert_eq!(
                direct.setup.ledger.effects("append", "f"),
                effects,
                "{fault}"
            );
            assert_eq!(direct.setup.ledger.calls("append", "f"), 1, "{fault}");
        });
    }
}

#[test]
fn an_answer_comes_twice() {
    each(|_, _, direct| {
        let arguments = json!({"id": "f", "fault": "twice"});
        let first = direct.client.begin("append", arguments, json!({}));
        direct.client.must(first);
        // What comes after it on a pipe comes after both; over HTTP they share a stream.
        direct.client.call("read", json!({}), json!({}));
        counterfoil_e2e::until("both answers", SOON, || {
            (direct.client.answers(first).len() == 2).then_some(())
        });
    });
}

#[test]
fn a_fault_for_once_is_over_after_a_death() {
    for era in Era::BOTH {
        let mut direct = direct(era, By::Web);
        let arguments = json!({"id": "f", "fault": "die_after", "once": true});
        let lost = direct.client.begin("append", arguments.clone(), json!({}));
        assert!(matches!(
            direct.client.answer(lost, SOON),
            Err(Missing::Gone(_))
        ));
        let upstream = direct.upstream.as_mut().unwrap();
        counterfoil_e2e::until("it died", SOON, || upstream.has_ended().then_some(()));
        upstream.restart();
        let address = format!("127.0.0.1:{}", upstream.port()).parse().unwrap();
        let client = Client::web(address, era, None, direct.setup.path());
        let said = client.call("append", arguments, json!({}));
        assert_eq!(said.words(), "append f: effect 2");
        if era == Era::Legacy {
            let unknown = direct.client.begin("read", json!({}), json!({}));
            let why = direct.client.must(unknown).value["error"]["message"].clone();
            assert_eq!(why, "no such session");
        }
    }
}

#[test]
fn it_asks_reports_cancels_and_makes_tasks() {
    each(|era, by, direct| {
        let client = &direct.client;
        let mut said = client.call("ask", json!({"id": "q"}), json!({}));
        if era == Era::Modern {
            assert_eq!(said.result()["resultType"], "input_required");
            let answers = json!({"may": {"action": "accept", "content": {"yes": true}}});
            said = client.ask(
                "tools/call",
                json!({
                    "name": "ask", "arguments": {"id": "q"},
                    "inputResponses": answers, "requestState": said.result()["requestState"],
                }),
            );
        }
        assert_eq!(said.words(), "ask q: effect 1");

        let steps = json!({"id": "p", "steps": 3});
        client.call("progress", steps, json!({"progressToken": "tok"}));
        let heard = client.heard();
        let told = heard.iter().filter(|said| {
            said.value["method"] == "notifications/progress"
                && said.value["params"]["progressToken"] == "tok"
        });
        assert_eq!(told.count(), 3);

        let slow = client.begin("slow", json!({"id": "s", "ms": 5000}), json!({}));
        direct.setup.until_called("slow", "s", 1);
        client.give_up(slow);
        counterfoil_e2e::until("it stops", SOON, || {
            let stopped = direct.setup.ledger.about("cancelled", "slow", "s");
            (!stopped.is_empty()).then_some(())
        });
        assert_eq!(direct.setup.ledger.effects("slow", "s"), 0);

        let made = match era {
            Era::Legacy => client.ask(
                "tools/call",
                json!({"name": "task", "arguments": {"id": "t", "ms": 50}, "task": {"ttl": 60000}}),
            ),
            Era::Modern => {
                let knows = json!({"extensions": {"io.modelcontextprotocol/tasks": {}}});
                let name = "io.modelcontextprotocol/clientCapabilities";
                client.call("task", json!({"id": "t", "ms": 50}), json!({name: knows}))
            }
        };
        let result = made.result();
        let task = result["task"]["taskId"]
            .as_str()
            .or(result["taskId"].as_str());
        let task = task.unwrap_or_else(|| panic!("a task: {}", made.text));
        let done = counterfoil_e2e::until("the task is done", SOON, || {
            let got = client.ask("tasks/get", json!({"taskId": task}));
            (got.result()["status"] == "completed").then_some(got)
        });
        let result = match era {
            Era::Legacy => client.ask("tasks/result", json!({"taskId": task})).words(),
            Era::Modern => done.result()["result"]["content"][0]["text"].to_string(),
        };
        assert!(result.contains("task t: effect"), "{by:?} {result}");
    });
}

#[test]
fn what_is_announced_reaches_who_listens() {
    for by in By::BOTH {
        let direct = direct(Era::Modern, by);
        let wanted = json!({"notifications": {"toolsListChanged": true}});
        let listening = direct.client.request("subscriptions/listen", wanted);
        let about = |method: &str| {
            let heard = direct.client.heard();
            let name = "io.modelcontextprotocol/subscriptionId";
            heard.iter().any(|said| {
                said.value["method"] == method && said.value["params"]["_meta"][name] == listening
            })
        };
        counterfoil_e2e::until("acknowledged", SOON, || {
            about("notifications/subscriptions/acknowledged").then_some(())
        });
        direct.client.call("notify", json!({}), json!({}));
        counterfoil_e2e::until("told", SOON, || {
            about("notifications/tools/list_changed").then_some(())
        });
    }
}

#[test]
fn a_locked_era_refuses_the_other() {
    let setup = Setup::new().with_upstream(&["--era", "lock"]);
    let client = Client::pipe(&setup.upstream_words(), Era::Legacy, setup.path());
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let said = client.ask("server/discover", json!({"_meta": meta}));
    assert_eq!(said.value["error"]["code"], -32600, "{}", said.text);
    assert_eq!(client.ask("ping", json!({})).result(), &json!({}));
}
