//! A lost answer and its retry have one effect; what is meant twice has two.

use std::time::Duration;

use counterfoil_e2e::until;
use serde_json::{Value, json};

use crate::answer::Answer;
use crate::host::{Era, Host};
use crate::servers;
use crate::subject::Subject;

/// Longest wait for what is under way.
const SOON: Duration = Duration::from_secs(30);

/// Where a key is.
#[derive(Clone, Copy, Debug)]
enum Key {
    Argument,
    Meta,
}

/// Arguments and `_meta` of a call with a key.
pub(crate) fn keyed(arguments: &Value, in_meta: bool, key: &str) -> (Value, Value) {
    let mut arguments = arguments.clone();
    if in_meta {
        (arguments, json!({"dev.counterfoil/idempotency-key": key}))
    } else {
        arguments["idempotency_key"] = json!(key);
        (arguments, json!({}))
    }
}

/// Asks again while it is told that the call is still under way.
pub(crate) fn settled(mut ask: impl FnMut() -> Answer) -> Answer {
    until("the call is done", SOON, || {
        let said = ask();
        let under_way = ["idempotency_in_progress", "IDEMPOTENCY_IN_PROGRESS"];
        (!under_way.contains(&said.code())).then_some(said)
    })
}

/// The first answer never came; with the same key the retry gets it, and there was one effect.
fn recovers_with_a_key(subject: &Subject, era: Era, key: Key) {
    println!("{era:?} {key:?}");
    subject.lay();
    let (tool, arguments) = &subject.change;
    let (with_key, meta) = keyed(arguments, matches!(key, Key::Meta), "once");
    // The host is gone before the answer; the next one asks again.
    subject.host(era).vanish(tool, &with_key, &meta);
    assert_eq!(subject.effects(), 1, "what was sent is finished");
    subject.ready();
    let mut host = subject.host(era);
    let again = host.call_with(tool, &with_key, &meta);
    assert!(again.is_replayed() && !again.is_error(), "{}", again.text);
    let third = host.call_with(tool, &with_key, &meta);
    third.must_be_replay_of(&again);
    assert_eq!(subject.effects(), 1);
    // The host stays and cancels; then it asks again.
    let (with_key, meta) = keyed(arguments, matches!(key, Key::Meta), "another");
    host.cancel(tool, &with_key, &meta);
    subject.ready();
    let again = settled(|| host.call_with(tool, &with_key, &meta));
    assert!(again.is_replayed() && !again.is_error(), "{}", again.text);
    assert_eq!(subject.effects(), 2);
    // Other arguments under a used key are a conflict, and change nothing.
    let (with_key, meta) = keyed(&other(arguments), matches!(key, Key::Meta), "another");
    let conflict = host.call_with(tool, &with_key, &meta);
    assert!(
        ["idempotency_conflict", "IDEMPOTENCY_KEY_REUSED"].contains(&conflict.code()),
        "{}",
        conflict.text
    );
    assert_eq!(subject.effects(), 2);
}

/// Other arguments of the same shape.
fn other(arguments: &Value) -> Value {
    let mut arguments = arguments.clone();
    arguments["unheard_of"] = json!(true);
    arguments
}

/// Without a key: cancelled and asked again, on one connection.
fn recovers_without_a_key(subject: &Subject, era: Era) {
    subject.lay();
    let (tool, arguments) = &subject.change;
    let mut host = subject.host(era);
    host.cancel(tool, arguments, &json!({}));
    subject.ready();
    let again = host.call(tool, arguments);
    attached_or_asked(subject, &mut host, &again);
    // The answer arrived: whoever says it now means it.
    deliberate(subject, &mut host, 1);
}

/// Without a key: the host is gone, and the next one asks again.
fn recovers_in_a_new_session(subject: &Subject, era: Era) {
    subject.lay();
    let (tool, arguments) = &subject.change;
    subject.host(era).vanish(tool, arguments, &json!({}));
    assert_eq!(subject.effects(), 1, "what was sent is finished");
    subject.ready();
    let mut host = subject.host(era);
    let again = host.call(tool, arguments);
    attached_or_asked(subject, &mut host, &again);
}

/// One effect up to here, and the caller has the first answer or knows how to get it. A tool that
/// says nothing of itself gives an answer that is some seconds old only to those who ask for it.
fn attached_or_asked(subject: &Subject, host: &mut Host, again: &Answer) {
    assert_eq!(subject.effects(), 1, "{}", again.text);
    if again.is_attached() {
        assert!(!again.is_error() && again.operation().is_some());
        let blocks = again.result()["content"].as_array().unwrap();
        assert!(blocks.len() > 1, "it says so to the model: {}", again.text);
        return;
    }
    assert!(!subject.annotated, "attached: {}", again.text);
    assert_eq!(again.code(), "possible_duplicate", "{}", again.text);
    let handle = json!({"operation_id": again.operation().unwrap()});
    let shown = host.call("counterfoil_get_operation", &handle);
    assert!(shown.text.contains("succeeded"), "{}", shown.text);
}

/// The same again and again on one connection, each after the answer of the one before.
fn deliberate(subject: &Subject, host: &mut Host, before: usize) {
    let (tool, arguments) = &subject.change;
    for times in 1..=2 {
        subject.ready();
        let said = host.call(tool, arguments);
        said.must_be_fresh();
        assert_eq!(subject.effects(), before + times, "{}", said.text);
    }
}

/// Each on a subject of its own: what was said before decides what a call without a key gets.
fn everything_about(make: fn() -> Subject, era: Era) {
    recovers_with_a_key(&make(), era, Key::Argument);
    recovers_with_a_key(&make(), era, Key::Meta);
    recovers_without_a_key(&make(), era);
    recovers_in_a_new_session(&make(), era);
}

#[test]
fn i2_i5_field_11_12_server_filesystem_edits_once_for_a_lost_answer() {
    everything_about(servers::filesystem, Era::Legacy);
}

#[test]
fn i2_i5_field_11_12_server_memory_creates_once_for_a_lost_answer() {
    everything_about(servers::memory, Era::Legacy);
}

#[test]
fn i2_i5_field_11_12_server_everything_switches_once_for_a_lost_answer() {
    everything_about(servers::everything, Era::Legacy);
}

#[test]
fn i2_i5_field_11_12_mcp_server_git_commits_once_for_a_lost_answer() {
    everything_about(servers::git, Era::Legacy);
}

#[test]
fn i2_i5_field_11_12_mcp_server_git_commits_once_in_the_newest_revision() {
    everything_about(servers::git, Era::Modern);
}

#[test]
fn i2_i5_field_11_12_mcp_server_sqlite_inserts_once_for_a_lost_answer() {
    everything_about(servers::sqlite, Era::Legacy);
}
