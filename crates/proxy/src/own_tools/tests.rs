use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use bytes::Bytes;
use counterfoil_core::{
    Fingerprint, Identity, Key, Mode, Policy, PrincipalId, Reply, Target as CoreTarget, Timestamp,
    WorkspaceId,
};
use counterfoil_engine::{Attempt, Call, Engine, Lookup, Operation, Outcome};
use counterfoil_store::{Completion, Fence};
use counterfoil_testkit::{MemoryStore, VirtualClock};
use tokio::sync::oneshot;

use super::*;
use crate::{
    say::{ERROR_TYPE, RESULT_TYPE},
    settings::Target,
};

const START: i64 = 1_700_000_000_000;
const RESULT: &str =
    r#"{"content":[ {"type":"text","text":"1 row\u0020changed"} ],"structuredContent":{"n":1.0}}"#;

struct House {
    engine: Engine,
    clock: Arc<VirtualClock>,
    workspace: WorkspaceId,
    principal: PrincipalId,
    own: OwnTools,
    cancels: AtomicU32,
}

/// A canceller for calls that do not run here, or that end so.
enum Fake {
    NotHere,
    Ends(oneshot::Sender<()>, Engine, OperationId),
    StillRuns,
}

struct Told(std::sync::Mutex<Option<Fake>>);

impl Told {
    fn new(fake: Fake) -> Self {
        Self(std::sync::Mutex::new(Some(fake)))
    }

    fn never() -> Self {
        Self(std::sync::Mutex::new(None))
    }
}

impl Canceller for Told {
    fn cancel(&self, operation_id: OperationId) -> BoxFuture<'_, Cancelled> {
        let fake = self.0.lock().unwrap().take().expect("nobody is asked");
        Box::pin(async move {
            match fake {
                Fake::NotHere => Cancelled::NotRunningHere,
                Fake::StillRuns => Cancelled::Requested,
                Fake::Ends(end, engine, wanted) => {
                    assert_eq!(operation_id, wanted);
                    end.send(()).unwrap();
                    assert!(engine.drain(std::time::Duration::from_secs(5)).await);
                    Cancelled::Requested
                }
            }
        })
    }
}

fn settings(resolve_by_model: bool) -> Settings {
    let mut settings = Settings::new(Target::Url {
        url: "http://127.0.0.1:1/mcp".to_owned(),
        headers: Vec::new(),
    });
    settings.resolve_by_model = resolve_by_model;
    settings
}

fn house() -> House {
    let clock = Arc::new(VirtualClock::new(Timestamp::from_millis(START)));
    let engine = Engine::builder(Arc::new(MemoryStore::new()))
        .clock(Arc::clone(&clock) as _)
        .build();
    House {
        engine,
        clock,
        workspace: WorkspaceId::new("default").unwrap(),
        principal: PrincipalId::new("local").unwrap(),
        own: OwnTools::of(&settings(true)).unwrap(),
        cancels: AtomicU32::new(0),
    }
}

fn reply(kind: &str, status: u16, text: &str) -> Reply {
    Reply {
        status,
        content_type: Some(kind.to_owned()),
        headers: Vec::new(),
        body: Bytes::copy_from_slice(text.as_bytes()),
    }
}

impl House {
    fn identity(&self, principal: &str, upstream: &str, operation: &str) -> Identity {
        let number = self.cancels.fetch_add(1, Ordering::Relaxed);
        Identity {
            workspace: self.workspace.clone(),
            principal: PrincipalId::new(principal).unwrap(),
            target: CoreTarget {
                upstream: upstream.to_owned(),
                ..CoreTarget::new(operation)
            },
            key: Key::new(format!("key-{number}")).unwrap(),
        }
    }

    /// Starts a call and says its id; it ends in what is sent.
    async fn start(&self, identity: Identity) -> (OperationId, oneshot::Sender<Outcome>) {
        let policy = Policy {
            mode: Mode::Guarded,
            ..Policy::default()
        };
        let operation = Operation::new(1, policy).unwrap();
        let call = Call::new(identity, Fingerprint::canonical("", b"{}"), operation);
        let Lookup::Ready(ready) = self.engine.look_up(call).await else {
            panic!("it does not run");
        };
        let (started, starts) = oneshot::channel();
        let (end, ends) = oneshot::channel();
        tokio::spawn(ready.run(|attempt: Attempt| async move {
            started.send(attempt.operation_id()).unwrap();
            ends.await.unwrap_or(Outcome::Lost { timed_out: false })
        }));
        (starts.await.unwrap(), end)
    }

    async fn made(&self, identity: Identity, outcome: Outcome) -> OperationId {
        let (id, end) = self.start(identity).await;
        end.send(outcome).unwrap();
        assert!(self.engine.drain(std::time::Duration::from_secs(5)).await);
        id
    }

    async fn own_call(&self, tool: &str, outcome: Outcome) -> OperationId {
        let identity = self.identity("local", "up", &format!("MCP {tool}"));
        self.made(identity, outcome).await
    }

    async fn ask_with(&self, name: &str, arguments: Value, canceller: &dyn Canceller) -> Value {
        let tool = self.own.find(&format!("counterfoil_{name}")).unwrap();
        let asker = Asker {
            engine: &self.engine,
            workspace: &self.workspace,
            principal: &self.principal,
            upstream: "up",
            is_modern: false,
        };
        let arguments = arguments.to_string();
        let text = self
            .own
            .call(tool, Some(&arguments), asker, canceller)
            .await;
        serde_json::from_str(&text).unwrap()
    }

    async fn ask(&self, name: &str, arguments: Value) -> Value {
        self.ask_with(name, arguments, &Told::never()).await
    }

    async fn get(&self, id: OperationId) -> Value {
        self.ask("get_operation", json!({"operation_id": id.to_string()}))
            .await
    }
}

fn succeeded() -> Outcome {
    Outcome::Succeeded(reply(RESULT_TYPE, 200, RESULT))
}

fn text(said: &Value) -> &str {
    said["content"][0]["text"].as_str().unwrap()
}

#[test]
fn definitions() {
    let listed = |resolve| -> Vec<Value> {
        super::listed(&settings(resolve))
            .iter()
            .map(|text| serde_json::from_str(text).unwrap())
            .collect()
    };
    insta::assert_json_snapshot!("definitions", listed(true));
    let names: Vec<Value> = listed(false)
        .iter()
        .map(|tool| tool["name"].clone())
        .collect();
    assert_eq!(
        names,
        [
            "counterfoil_get_operation",
            "counterfoil_list_operations",
            "counterfoil_cancel_operation"
        ]
    );
    let mut none = settings(true);
    none.own_tools = None;
    assert!(super::listed(&none).is_empty());
}

#[test]
fn a_verdict_is_for_people_unless_it_is_said() {
    let own = OwnTools::of(&settings(false)).unwrap();
    assert_eq!(own.find("counterfoil_resolve_operation"), None);
    assert_eq!(own.find("counterfoil_get_operation"), Some(OwnTool::Get));
    assert_eq!(own.find("get_operation"), None);
    assert_eq!(own.find("counterfoil_"), None);
}

#[tokio::test]
async fn a_result_is_shown_as_it_is_stored() {
    let house = house();
    let id = house.own_call("write_query", succeeded()).await;
    let said = house.get(id).await;
    let shown = serde_json::to_string_pretty(&said).unwrap();
    insta::assert_snapshot!("get", shown.replace(&id.to_string(), "op_[…]"));
    // The blocks of the stored result follow as they are spelled.
    let asker = Asker {
        engine: &house.engine,
        workspace: &house.workspace,
        principal: &house.principal,
        upstream: "up",
        is_modern: true,
    };
    let arguments = json!({"operation_id": id.to_string()}).to_string();
    let text = house
        .own
        .call(OwnTool::Get, Some(&arguments), asker, &Told::never())
        .await;
    assert!(text.starts_with("{\"resultType\":\"complete\","), "{text}");
    assert!(text.contains(r#",{"type":"text","text":"1 row\u0020changed"}],"#));
    assert!(text.contains(&format!("\"result\":{RESULT}")), "{text}");
}

#[tokio::test]
async fn every_state_says_what_it_means() {
    let house = house();
    let refused = Outcome::Refused {
        reply: reply(ERROR_TYPE, 400, r#"{"code":-1,"message":"no"}"#),
        effect_none: false,
    };
    for (outcome, status, effect, words) in [
        (succeeded(), "succeeded", "happened", "happened, once"),
        (refused, "failed", "unknown", "ended in an error"),
        (
            Outcome::Lost { timed_out: true },
            "outcome_unknown",
            "unknown",
            "may or may not have happened",
        ),
        (
            Outcome::NotApplied(reply("x/y", 503, "")),
            "free",
            "none",
            "did nothing",
        ),
    ] {
        let id = house.own_call("write_query", outcome).await;
        let said = house.get(id).await;
        let facts = &said["structuredContent"];
        assert_eq!(facts["status"], status);
        assert_eq!(facts["effect"], effect);
        assert_eq!(facts["tool"], "write_query");
        assert_eq!(facts["attempts"], 1);
        assert!(facts["next_action"].is_string());
        assert_eq!(said["isError"], false);
        assert!(text(&said).contains(words), "{said}");
        assert!(text(&said).split_whitespace().count() < 60, "{said}");
    }
    let (id, _end) = house
        .start(house.identity("local", "up", "MCP write_query"))
        .await;
    assert_eq!(
        house.get(id).await["structuredContent"]["status"],
        "running"
    );
}

#[tokio::test]
async fn an_error_of_the_server_is_shown_too() {
    let house = house();
    let error = r#"{"code":-32000,"message":"locked"}"#;
    let outcome = Outcome::Refused {
        reply: reply(ERROR_TYPE, 400, error),
        effect_none: false,
    };
    let id = house.own_call("write_query", outcome).await;
    let said = house.get(id).await;
    assert_eq!(said["structuredContent"]["error"]["message"], "locked");
    assert_eq!(said["content"][1]["text"], error);
}

#[tokio::test]
async fn what_is_past_its_window_has_no_result() {
    let house = house();
    let id = house.own_call("write_query", succeeded()).await;
    house
        .clock
        .advance(std::time::Duration::from_secs(72 * 3600));
    let said = house.get(id).await;
    assert_eq!(said["structuredContent"]["status"], "expired");
    assert!(said["structuredContent"].get("result").is_none());
    assert!(said["content"].get(1).is_none());
    assert!(text(&said).contains("no longer kept"), "{said}");
}

#[tokio::test]
async fn i4_what_is_somebody_else_s_is_not_found() {
    let house = house();
    let strangers = [
        house.identity("other", "up", "MCP write_query"),
        house.identity("local", "another upstream", "MCP write_query"),
        Identity {
            workspace: WorkspaceId::new("elsewhere").unwrap(),
            ..house.identity("local", "up", "MCP write_query")
        },
    ];
    let mut ids = Vec::new();
    for identity in strangers {
        ids.push(
            house
                .made(identity, Outcome::Lost { timed_out: false })
                .await,
        );
    }
    let mut texts: Vec<String> = ids.iter().map(ToString::to_string).collect();
    texts.push("op_0198c2a4-6c1e-7d3a-9f54-2b7c8e1d0a63".to_owned());
    texts.push("nonsense".to_owned());
    for id in texts {
        for (name, arguments) in [
            ("get_operation", json!({"operation_id": id})),
            ("cancel_operation", json!({"operation_id": id})),
            (
                "resolve_operation",
                json!({"operation_id": id, "verdict": "happened", "reason": "r"}),
            ),
        ] {
            let said = house.ask(name, arguments).await;
            assert_eq!(said["isError"], true, "{name} {id}");
            assert_eq!(
                said["structuredContent"]["code"], "not_found",
                "{name} {id}"
            );
        }
    }
    let listed = house.ask("list_operations", json!({})).await;
    assert_eq!(listed["structuredContent"]["operations"], json!([]));
    // And nothing was changed.
    for id in ids {
        let found = house.engine.store().get(id).await.unwrap().unwrap();
        assert_eq!(found.receipt.status.state, State::OutcomeUnknown);
    }
}

#[tokio::test]
async fn those_in_doubt_come_first() {
    let house = house();
    let lost = house
        .own_call("delete_row", Outcome::Lost { timed_out: false })
        .await;
    house.clock.advance(std::time::Duration::from_secs(1));
    let first = house.own_call("write_query", succeeded()).await;
    house.clock.advance(std::time::Duration::from_secs(1));
    let second = house
        .made(house.identity("local", "up", "*"), succeeded())
        .await;
    let said = house.ask("list_operations", json!({})).await;
    let ids = |said: &Value| -> Vec<String> {
        let listed = said["structuredContent"]["operations"].as_array().unwrap();
        let ids = listed
            .iter()
            .map(|one| one["operation_id"].as_str().unwrap());
        ids.map(ToOwned::to_owned).collect()
    };
    assert_eq!(ids(&said), [lost, second, first].map(|id| id.to_string()));
    assert_eq!(said["structuredContent"]["more"], false);
    assert_eq!(
        said["structuredContent"]["operations"][1]["tool"],
        Value::Null
    );
    for id in [lost, first, second] {
        assert!(text(&said).contains(&id.to_string()));
    }
    let said = house
        .ask("list_operations", json!({"in_doubt_only": true}))
        .await;
    assert_eq!(ids(&said), [lost.to_string()]);
    let said = house.ask("list_operations", json!({"limit": 2})).await;
    assert_eq!(ids(&said), [lost, second].map(|id| id.to_string()));
    assert_eq!(said["structuredContent"]["more"], true);
}

#[tokio::test]
async fn two_calls_of_a_list_can_be_told_apart() {
    let house = house();
    let keyed = house.own_call("write_query", succeeded()).await;
    house
        .clock
        .advance(std::time::Duration::from_millis(119_999));
    let mut identity = house.identity("local", "up", "MCP write_query");
    identity.key = Key::new(format!("keyless-{}-1", "0a".repeat(32))).unwrap();
    let keyless = house.made(identity, succeeded()).await;
    let mut identity = house.identity("local", "up", "MCP write_query");
    identity.key = Key::new(format!("keyless-{}", "k".repeat(100))).unwrap();
    let alike = house.made(identity.clone(), succeeded()).await;
    let said = house.ask("list_operations", json!({})).await;
    let line = |id: OperationId| {
        let id = id.to_string();
        let line = text(&said).lines().find(|line| line.starts_with(&id));
        line.unwrap().strip_prefix(&id).unwrap().to_owned()
    };
    assert_eq!(
        line(keyed),
        " write_query succeeded, 1 minute ago (2023-11-14T22:13:20.000Z), key `key-0`"
    );
    assert_eq!(
        line(keyless),
        " write_query succeeded, less than a second ago (2023-11-14T22:15:19.999Z), without a key"
    );
    assert!(line(alike).ends_with("kk…`"), "{}", line(alike));
    let operations = said["structuredContent"]["operations"].as_array().unwrap();
    let fact = |id: OperationId, name: &str| {
        let found = operations
            .iter()
            .find(|one| one["operation_id"] == id.to_string());
        found.unwrap()[name].clone()
    };
    assert_eq!(fact(keyed, "key"), "key-0");
    assert_eq!(fact(keyed, "age_seconds"), 119);
    assert_eq!(fact(keyless, "key"), Value::Null);
    assert_eq!(fact(alike, "key"), identity.key.as_str());
}

#[tokio::test]
async fn what_is_wrong_with_arguments_is_said_in_plain_words() {
    let house = house();
    for (name, arguments, words) in [
        ("get_operation", json!({}), "operation_id is missing"),
        (
            "get_operation",
            json!({"operation_id": null}),
            "operation_id is missing",
        ),
        (
            "cancel_operation",
            json!({"operation_id": 7}),
            "operation_id must be a string",
        ),
        ("get_operation", json!([]), "they must be an object"),
        (
            "list_operations",
            json!({"limit": "many"}),
            "limit must be a whole number from 1 to 50",
        ),
        (
            "list_operations",
            json!({"in_doubt_only": "yes"}),
            "in_doubt_only must be true or false",
        ),
        (
            "resolve_operation",
            json!({"operation_id": "x", "verdict": "perhaps", "reason": "r"}),
            "verdict must be happened or not_happened",
        ),
    ] {
        let said = house.ask(name, arguments).await;
        let wanted = format!("Invalid arguments: {words}. Correct the arguments and call again.");
        assert_eq!(text(&said), wanted);
    }
}

#[tokio::test]
async fn a_list_is_bounded() {
    let house = house();
    for _ in 0..55 {
        house.own_call("write_query", succeeded()).await;
    }
    let count = |said: &Value| {
        said["structuredContent"]["operations"]
            .as_array()
            .unwrap()
            .len()
    };
    assert_eq!(count(&house.ask("list_operations", json!({})).await), 20);
    let said = house.ask("list_operations", json!({"limit": 50})).await;
    assert_eq!(count(&said), 50);
    assert_eq!(said["structuredContent"]["more"], true);
    for limit in [json!(0), json!(51), json!(-1), json!("x")] {
        let said = house.ask("list_operations", json!({"limit": limit})).await;
        assert_eq!(said["isError"], true);
        assert_eq!(said["structuredContent"]["code"], "invalid");
    }
}

#[tokio::test]
async fn what_has_ended_is_shown_and_nobody_is_asked_to_stop_it() {
    let house = house();
    for (outcome, status) in [
        (succeeded(), "succeeded"),
        (Outcome::Lost { timed_out: false }, "outcome_unknown"),
        (Outcome::NotApplied(reply("x/y", 503, "")), "free"),
    ] {
        let id = house.own_call("write_query", outcome).await;
        let arguments = json!({"operation_id": id.to_string()});
        let said = house.ask("cancel_operation", arguments).await;
        assert_eq!(said["isError"], false);
        assert_eq!(said["structuredContent"]["status"], status);
        assert!(
            text(&said).starts_with("There is nothing to stop"),
            "{said}"
        );
        assert!(text(&said).split_whitespace().count() < 60, "{said}");
    }
}

/// I3: only a proof that nothing was done is a cancel.
#[tokio::test]
async fn i3_a_cancel_tells_what_really_happened() {
    let house = house();
    for (outcome, status, effect) in [
        (succeeded(), "succeeded", "happened"),
        (
            Outcome::NotApplied(reply("x/y", 503, "")),
            "cancelled",
            "none",
        ),
        (
            Outcome::Lost { timed_out: false },
            "outcome_unknown",
            "unknown",
        ),
    ] {
        let (id, end) = house
            .start(house.identity("local", "up", "MCP write_query"))
            .await;
        let (go, gone) = oneshot::channel::<()>();
        tokio::spawn(async move {
            gone.await.unwrap();
            end.send(outcome).unwrap();
        });
        let told = Told::new(Fake::Ends(go, house.engine.clone(), id));
        let arguments = json!({"operation_id": id.to_string()});
        let said = house.ask_with("cancel_operation", arguments, &told).await;
        assert_eq!(said["structuredContent"]["status"], status);
        assert_eq!(said["structuredContent"]["effect"], effect);
        assert!(text(&said).contains("what came of it"), "{said}");
        let events = house.engine.store().events(id).await.unwrap();
        assert!(
            events
                .iter()
                .any(|event| event.to == State::CancelRequested)
        );
    }
}

#[tokio::test]
async fn a_cancel_that_is_not_over_says_so() {
    let house = house();
    for (fake, words) in [
        (Fake::StillRuns, "has not ended yet"),
        (Fake::NotHere, "does not run in this process"),
    ] {
        let (id, _end) = house
            .start(house.identity("local", "up", "MCP write_query"))
            .await;
        let told = Told::new(fake);
        let arguments = json!({"operation_id": id.to_string()});
        let said = house.ask_with("cancel_operation", arguments, &told).await;
        assert_eq!(said["structuredContent"]["status"], "cancel_requested");
        assert!(text(&said).contains(words), "{said}");
        assert!(text(&said).split_whitespace().count() < 60, "{said}");
    }
}

#[tokio::test]
async fn a_verdict_settles_what_is_in_doubt_and_nothing_else() {
    let house = house();
    for (verdict, status, effect) in [
        ("happened", "succeeded", "happened"),
        ("not_happened", "failed", "none"),
    ] {
        let id = house
            .own_call("write_query", Outcome::Lost { timed_out: false })
            .await;
        let arguments =
            json!({"operation_id": id.to_string(), "verdict": verdict, "reason": "I read the row"});
        let said = house.ask("resolve_operation", arguments.clone()).await;
        assert_eq!(said["structuredContent"]["status"], status);
        assert_eq!(said["structuredContent"]["effect"], effect);
        assert!(text(&said).starts_with("It is settled."));
        // Nobody refused it.
        let found_not = text(&said).contains("was found not to have happened");
        assert_eq!(found_not, verdict == "not_happened", "{said}");
        assert!(!text(&said).contains("refused"), "{said}");
        let events = house.engine.store().events(id).await.unwrap();
        let last = events.last().unwrap();
        assert_eq!(last.reason, "resolved by the model: I read the row");
        // Once.
        let said = house.ask("resolve_operation", arguments).await;
        assert!(text(&said).starts_with("It is not in doubt"));
        assert_eq!(house.engine.store().events(id).await.unwrap(), events);
    }
}

#[tokio::test]
async fn a_verdict_needs_a_reason() {
    let house = house();
    let id = house
        .own_call("write_query", Outcome::Lost { timed_out: false })
        .await;
    for (verdict, reason) in [
        ("happened", String::new()),
        ("happened", "  ".to_owned()),
        ("happened", "r".repeat(301)),
        ("happened", "a\nb".to_owned()),
        ("perhaps", "r".to_owned()),
    ] {
        let arguments =
            json!({"operation_id": id.to_string(), "verdict": verdict, "reason": reason});
        let said = house.ask("resolve_operation", arguments).await;
        assert_eq!(
            said["structuredContent"]["code"], "invalid",
            "{verdict} {reason:?}"
        );
    }
    assert_eq!(
        house.get(id).await["structuredContent"]["status"],
        "outcome_unknown"
    );
}

/// The late answer of an attempt is stronger than what somebody says about it afterwards.
#[tokio::test]
async fn a_late_answer_that_came_first_stands() {
    let house = house();
    let id = house
        .own_call("write_query", Outcome::Lost { timed_out: false })
        .await;
    let fence = Fence {
        operation_id: id,
        attempt: 1,
    };
    let completion = Completion {
        event: Event::Succeeded { attempt: 1 },
        reply: None,
        kept: counterfoil_core::Kept::AnswerLost,
        at: house.engine.now(),
        reason: "late answer",
        evidence: None,
        question_for: std::time::Duration::ZERO,
    };
    house
        .engine
        .store()
        .complete(fence, completion)
        .await
        .unwrap();
    let arguments =
        json!({"operation_id": id.to_string(), "verdict": "not_happened", "reason": "r"});
    let said = house.ask("resolve_operation", arguments).await;
    assert_eq!(said["structuredContent"]["status"], "succeeded");
}

#[tokio::test]
async fn wrong_arguments_are_a_tool_error() {
    let house = house();
    for arguments in [json!({}), json!({"operation_id": 7}), json!([])] {
        let said = house.ask("get_operation", arguments).await;
        assert_eq!(said["isError"], true);
        assert_eq!(said["structuredContent"]["code"], "invalid");
        assert!(text(&said).contains("Correct the arguments"), "{said}");
        // Not in the words of a parser.
        assert!(!text(&said).contains("line 1"), "{said}");
    }
}
