//! The `_meta` dialect, prefix `assay`, as the real TypeScript SDK shows it.

use counterfoil_e2e::installed::typescript;
use counterfoil_e2e::{Fixture, Folder};
use serde_json::{Value, json};

use crate::STORE;

/// Makes calls through one SDK; each is a tool, a key and arguments.
fn outcomes(sdk: &str, url: &str, calls: &[Value]) -> Vec<Value> {
    typescript(&json!({"sdk": sdk, "url": url, "calls": calls})).outcomes
}

fn call(tool: &str, key: &str, arguments: Value) -> Value {
    json!({"tool": tool, "arguments": arguments, "meta": {"assay/idempotency-key": key}})
}

fn error(outcome: &Value) -> &Value {
    let error = &outcome["result"]["_meta"]["assay/error"];
    assert_eq!(outcome["result"]["isError"], true, "{outcome}");
    assert!(error["code"].is_string(), "{outcome}");
    error
}

fn each_sdk(test: impl Fn(&dyn Fn(&[Value]) -> Vec<Value>)) {
    for sdk in ["v1", "v2"] {
        let folder = Folder::new(STORE);
        let fixture = Fixture::start(&folder, &["--meta-prefix", "assay"]);
        test(&|calls| outcomes(sdk, &fixture.url(), calls));
    }
}

#[test]
fn a_completed_duplicate_is_marked_replayed() {
    each_sdk(|ask| {
        let twice = ask(&[
            call("counter", "k", json!({})),
            call("counter", "k", json!({})),
        ]);
        let [first, again] = twice.as_slice() else {
            panic!("{twice:?}")
        };
        assert_ne!(first["result"]["isError"], true, "{first}");
        assert_eq!(again["result"]["_meta"]["assay/replayed"], true, "{again}");
        assert_ne!(first["result"]["_meta"]["assay/replayed"], true, "{first}");
        assert_eq!(again["result"]["content"], first["result"]["content"]);
        let other = ask(&[call("counter", "other", json!({}))]);
        assert_ne!(
            other[0]["result"]["content"], first["result"]["content"],
            "it runs"
        );
    });
}

#[test]
fn a_running_duplicate_is_told_to_wait() {
    each_sdk(|ask| {
        let mut first = call("slow", "k", json!({"ms": 3_000}));
        first["background"] = json!(true);
        let both = ask(&[first, call("slow", "k", json!({"ms": 3_000}))]);
        let waits = both.iter().filter(|one| one["result"]["isError"] == true);
        let waits: Vec<_> = waits.collect();
        assert_eq!(waits.len(), 1, "one runs, the other is told: {both:?}");
        let error = error(waits[0]);
        assert_eq!(error["code"], "IDEMPOTENCY_IN_PROGRESS");
        let seconds = error["retryAfter"].as_f64().expect("seconds");
        assert!((0.5..=120.0).contains(&seconds), "{error}");
        let after = ask(&[call("slow", "k", json!({"ms": 3_000}))]);
        assert_eq!(
            after[0]["result"]["_meta"]["assay/replayed"], true,
            "{after:?}"
        );
    });
}

#[test]
fn a_key_under_other_arguments_or_another_tool_is_reused() {
    each_sdk(|ask| {
        let done = ask(&[
            call("slow", "k", json!({"ms": 1})),
            call("slow", "k", json!({"ms": 2})),
            call("counter", "k", json!({})),
            call("slow", "k", json!({"ms": 1})),
        ]);
        assert_eq!(error(&done[1])["code"], "IDEMPOTENCY_KEY_REUSED");
        assert_eq!(error(&done[2])["code"], "IDEMPOTENCY_KEY_REUSED");
        assert_eq!(
            done[3]["result"]["_meta"]["assay/replayed"], true,
            "{:?}",
            done[3]
        );
    });
}

#[test]
fn field_06_a_result_too_large_to_keep_is_unavailable_and_does_not_run_again() {
    each_sdk(|ask| {
        let done = ask(&[
            call("large", "k", json!({})),
            call("large", "k", json!({})),
            call("large", "k", json!({})),
        ]);
        assert_ne!(
            done[0]["result"]["isError"], true,
            "the first caller gets it whole"
        );
        assert!(done[0]["result"]["content"].to_string().len() > 262_144);
        for again in &done[1..] {
            assert_eq!(error(again)["code"], "IDEMPOTENCY_RESULT_UNAVAILABLE");
        }
    });
}

/// A tool's own failure is an answer: kept, replayed, and told apart from a fresh one.
#[test]
fn field_10_a_stored_failure_is_replayed_as_one() {
    each_sdk(|ask| {
        let twice = ask(&[call("fail", "k", json!({})), call("fail", "k", json!({}))]);
        let [first, again] = twice.as_slice() else {
            panic!("{twice:?}")
        };
        assert_eq!(first["result"]["isError"], true, "{first}");
        assert_eq!(again["result"]["isError"], true, "{again}");
        assert_eq!(again["result"]["_meta"]["assay/replayed"], true, "{again}");
    });
}
