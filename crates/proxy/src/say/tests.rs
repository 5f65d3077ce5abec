use std::fmt::Write as _;

use counterfoil_core::Timestamp;
use counterfoil_engine::Refusal;

use super::*;

const TOOL: &str = "write_query";
const WORDS_MAX: usize = 60;
/// Spelled in a way that nothing which reads and writes it again would keep.
const RESULT: &str = r#"{ "content" : [ {"type":"text","text":"1 row\u0020changed"} ],
  "n": 1.0e0, "_meta" : {"x":  1}, "later": {"b":2,"a":1} }"#;
const FAILED: &str = r#"{"content":[{"type":"text","text":"no such table"}],"isError":true}"#;
const RPC_ERROR: &str = r#"{"code":-32603,"message":"Internal error","data":{"line": 7}}"#;

fn id() -> OperationId {
    OperationId::new(Timestamp::from_millis(1_700_000_000_000), [1; 10])
}

fn prefix() -> MetaPrefix {
    MetaPrefix::default()
}

fn voice(prefix: &MetaPrefix, dialect: Dialect, is_modern: bool) -> Voice<'_> {
    Voice {
        prefix,
        is_modern,
        dialect,
        is_key_replaced: false,
        tool: TOOL,
        key_argument: "idempotency_key",
        own_tools: Some("counterfoil_"),
        is_found_out: false,
    }
}

fn upstream(kind: &str, status: u16, text: &str) -> Reply {
    Reply {
        status,
        content_type: Some(kind.to_owned()),
        headers: Vec::new(),
        body: Bytes::copy_from_slice(text.as_bytes()),
    }
}

fn ran(text: &str) -> Answer {
    Answer::Ran {
        reply: upstream(RESULT_TYPE, 200, text),
        operation_id: id(),
    }
}

fn replayed(kind: &str, status: u16, text: &str) -> Answer {
    Answer::Replayed {
        reply: upstream(kind, status, text),
        operation_id: id(),
        stored_failure: status >= 400,
    }
}

fn refused(reason: Reason) -> Answer {
    Answer::Refused(Refusal {
        reason,
        operation_id: Some(id()),
    })
}

fn issues() -> Vec<Issue> {
    vec![
        Issue {
            field: "/query".to_owned(),
            problem: "value is not of type \"string\"".to_owned(),
        },
        Issue {
            field: "/limit".to_owned(),
            problem: "a very long problem ".repeat(30),
        },
    ]
}

/// Everything that can be said, each under a name.
fn everything(voice: &Voice<'_>) -> Vec<(&'static str, Said)> {
    let retry_after = Duration::from_millis(1500);
    let ago = Some(Duration::from_secs(12));
    let unknown = |first, timed_out, retryable| {
        refused(Reason::Unknown {
            first,
            timed_out,
            retryable,
        })
    };
    let answers = [
        ("ran", ran(RESULT), None),
        ("replay", replayed(RESULT_TYPE, 200, RESULT), None),
        ("replayed failure", replayed(RESULT_TYPE, 422, FAILED), None),
        ("replayed error", replayed(ERROR_TYPE, 400, RPC_ERROR), None),
        ("attached", replayed(RESULT_TYPE, 200, RESULT), ago),
        ("attached failure", replayed(RESULT_TYPE, 422, FAILED), ago),
        (
            "not recorded",
            Answer::NotRecorded {
                reply: upstream(RESULT_TYPE, 200, RESULT),
                operation_id: id(),
            },
            None,
        ),
        (
            "not sent",
            Answer::Failed {
                reply: Unsent::Unreachable.reply(),
            },
            None,
        ),
        (
            "credentials refused",
            Answer::Failed {
                reply: Unsent::Credentials.reply(),
            },
            None,
        ),
        ("conflict", refused(Reason::Conflict), None),
        (
            "in progress",
            refused(Reason::InProgress { retry_after }),
            None,
        ),
        (
            "committed",
            refused(Reason::Committed { retry_after: None }),
            None,
        ),
        (
            "result unavailable",
            refused(Reason::ResultUnavailable),
            None,
        ),
        ("not happened", refused(Reason::NotHappened), None),
        (
            "unknown, first, timed out",
            unknown(true, true, false),
            None,
        ),
        ("unknown, first, broken", unknown(true, false, false), None),
        ("unknown, retry", unknown(false, false, false), None),
        ("unknown, attached", unknown(false, false, false), ago),
        ("unknown, provider key", unknown(true, false, true), None),
        ("expired", refused(Reason::Expired), None),
        ("busy", Reason::Busy { retry_after }.into(), None),
        (
            "unavailable",
            Reason::Unavailable("disk full at /secret/path".to_owned()).into(),
            None,
        ),
        ("quota", Reason::Quota { limit: 10_000 }.into(), None),
        ("denied", Reason::Denied.into(), None),
        (
            "internal",
            refused(Reason::Internal("SELECT secret".to_owned())),
            None,
        ),
    ];
    let issues = issues();
    let duplicate = |state| Refused::PossibleDuplicate {
        operation_id: id(),
        state,
        age: Duration::from_millis(239_999),
    };
    let refusals = [
        ("possible duplicate, running", duplicate(State::Running)),
        ("possible duplicate, done", duplicate(State::Succeeded)),
        ("possible duplicate, error", duplicate(State::Failed)),
        (
            "possible duplicate, unknown",
            duplicate(State::OutcomeUnknown),
        ),
        ("invalid arguments", Refused::InvalidArguments(&issues)),
        ("key required", Refused::KeyRequired),
    ];
    let answers = answers
        .iter()
        .map(|(name, answer, attached)| (*name, voice.answer(answer, *attached)));
    let found_out = Voice {
        is_found_out: true,
        ..*voice
    };
    let committed = refused(Reason::Committed { retry_after: None });
    let found_out = [
        ("found out that it happened", committed),
        (
            "found out that it did not happen",
            refused(Reason::NotHappened),
        ),
    ]
    .map(|(name, answer)| (name, found_out.answer(&answer, None)));
    let refusals = refusals
        .iter()
        .map(|(name, refused)| (*name, voice.refuse(refused)));
    answers.chain(found_out).chain(refusals).collect()
}

fn value(said: &Said) -> Value {
    let (Said::Result(text) | Said::Error(text)) = said;
    serde_json::from_str(text).unwrap()
}

/// What a model reads of it: the texts, or the message of an error.
fn texts(said: &Said) -> Vec<String> {
    let value = value(said);
    match said {
        Said::Error(_) => vec![value["message"].as_str().unwrap().to_owned()],
        Said::Result(_) => value["content"]
            .as_array()
            .unwrap()
            .iter()
            .map(|block| block["text"].as_str().unwrap().to_owned())
            .collect(),
    }
}

const DIALECTS: [Dialect; 3] = [Dialect::Argument, Dialect::Meta, Dialect::None];

#[test]
fn everything_in_each_dialect_and_era() {
    let prefix = prefix();
    for dialect in DIALECTS {
        for (era, is_modern) in [("legacy", false), ("modern", true)] {
            let mut golden = String::new();
            for (name, said) in everything(&voice(&prefix, dialect, is_modern)) {
                let (kind, text) = match &said {
                    Said::Result(text) => ("result", text),
                    Said::Error(text) => ("error", text),
                };
                // What is for operators does not reach callers.
                assert!(!text.contains("secret"), "{text}");
                let _: Value = serde_json::from_str(text).unwrap();
                writeln!(golden, "{name}\n{kind} {text}\n").unwrap();
            }
            insta::assert_snapshot!(format!("said-{dialect:?}-{era}").to_lowercase(), golden);
        }
    }
}

#[test]
fn what_a_model_reads() {
    let prefix = prefix();
    for dialect in DIALECTS {
        let mut golden = String::new();
        for (name, said) in everything(&voice(&prefix, dialect, false)) {
            writeln!(golden, "{name}").unwrap();
            for text in texts(&said) {
                let words = text.split_whitespace().count();
                writeln!(golden, "  {text} ({words} words)").unwrap();
            }
        }
        insta::assert_snapshot!(format!("model-{dialect:?}").to_lowercase(), golden);
    }
}

#[test]
fn every_text_has_less_than_sixty_words_and_says_what_to_do() {
    let prefix = prefix();
    for dialect in DIALECTS {
        for own_tools in [None, Some("counterfoil_")] {
            let mut voice = voice(&prefix, dialect, true);
            voice.own_tools = own_tools;
            for (name, said) in everything(&voice) {
                let texts = texts(&said);
                for text in &texts {
                    let words = text.split_whitespace().count();
                    assert!(words < WORDS_MAX, "{name}: {words} words: {text}");
                }
                let own = texts.last().unwrap();
                let upstream = ["ran", "replay", "replayed error"].contains(&name);
                let next = [
                    "call again",
                    "call `",
                    "Do not repeat",
                    "call it again",
                    "Read the current",
                ];
                assert!(
                    upstream || next.iter().any(|next| own.contains(next)),
                    "{name}: {own}"
                );
                // Without tools of its own none is named.
                let named = own.contains("counterfoil_");
                assert!(own_tools.is_some() || !named, "{name}: {own}");
            }
        }
    }
}

#[test]
fn an_age_is_never_more_than_it_is() {
    for (millis, age) in [
        (0, "less than a second"),
        (999, "less than a second"),
        (1_999, "1 second"),
        (59_999, "59 seconds"),
        (60_000, "1 minute"),
        (239_999, "3 minutes"),
        (7_199_999, "1 hour"),
        (86_400_000, "1 day"),
        (200_000_000, "2 days"),
    ] {
        assert_eq!(words::aged(Duration::from_millis(millis)), age, "{millis}");
    }
}

#[test]
fn what_was_found_out_about_this_very_call_speaks_of_no_earlier_one() {
    let prefix = prefix();
    for dialect in DIALECTS {
        for (name, said) in everything(&voice(&prefix, dialect, false)) {
            if name.starts_with("found out") {
                let text = texts(&said).remove(0);
                assert!(text.starts_with("`write_query` was sent"), "{text}");
                assert!(!text.contains("earlier"), "{text}");
                assert!(!text.contains("Nothing was done"), "{text}");
            }
        }
    }
}

#[test]
fn a_failure_of_anything_else_says_what_happened() {
    let mut golden = String::new();
    let request = Id::from_json("\"a\"").unwrap();
    for is_modern in [false, true] {
        for failure in [
            Failure::NotSent("connection refused".to_owned()),
            Failure::Unauthorized("HTTP 401".to_owned()),
            Failure::Lost("the process ended".repeat(80)),
        ] {
            let text = failed(&request, is_modern, &failure);
            let text = std::str::from_utf8(&text).unwrap();
            let value: Value = serde_json::from_str(text).unwrap();
            let words = value["error"]["message"].as_str().unwrap();
            assert!(words.split_whitespace().count() < WORDS_MAX, "{words}");
            writeln!(golden, "{text}").unwrap();
        }
    }
    let gone = client_gone(&Id::from_json("7").unwrap());
    golden.push_str(std::str::from_utf8(&gone).unwrap());
    insta::assert_snapshot!("failed", golden);
}

#[test]
fn what_the_upstream_said_keeps_every_other_byte() {
    let prefix = prefix();
    let voice = voice(&prefix, Dialect::Argument, false);
    let Said::Result(text) = voice.answer(&ran(RESULT), None) else {
        panic!("no result");
    };
    let added = format!(",\"dev.counterfoil/operation-id\":\"{}\"", id());
    assert_eq!(text.matches(&added).count(), 1, "{text}");
    assert_eq!(text.replace(&added, ""), RESULT);

    let answer = replayed(ERROR_TYPE, 400, RPC_ERROR);
    let Said::Error(text) = voice.answer(&answer, None) else {
        panic!("no error");
    };
    let added = format!(",\"dev.counterfoil/replayed\":true{added}");
    assert_eq!(text.replace(&added, ""), RPC_ERROR);
}

#[test]
fn one_text_is_added_at_the_end_of_the_content() {
    let prefix = prefix();
    let voice = voice(&prefix, Dialect::Argument, false);
    let content = |text: &str| {
        let said = voice.answer(&replayed(RESULT_TYPE, 422, text), None);
        value(&said)["content"].clone()
    };
    let note = text_block(
        &voice
            .note(Manner {
                is_stored_failure: true,
                is_recorded: true,
                ..Manner::default()
            })
            .unwrap(),
    );
    let note: Value = serde_json::from_str(&note).unwrap();
    assert_eq!(content("{}"), json!([note]));
    assert_eq!(content(r#"{"content":[ ]}"#), json!([note]));
    assert_eq!(
        content(r#"{"content":[{"type":"text","text":"]"}]}"#),
        json!([{"type": "text", "text": "]"}, note])
    );
    // What is no list of blocks is not ours to mend.
    assert_eq!(content(r#"{"content":"x"}"#), json!("x"));
    // A question and a task are no results for a model.
    assert_eq!(content(r#"{"resultType":"input_required"}"#), Value::Null);
}

#[test]
fn facts_go_into_meta_whatever_is_there() {
    let prefix = prefix();
    let voice = voice(&prefix, Dialect::None, false);
    let meta = |text: &str| value(&voice.answer(&ran(text), None))["_meta"].clone();
    let own = json!({"dev.counterfoil/operation-id": id().to_string()});
    for text in [
        "{}",
        r#"{"_meta":{}}"#,
        r#"{"_meta":null}"#,
        r#"{"_meta":[]}"#,
    ] {
        assert_eq!(meta(text), own, "{text}");
    }
    // An upstream that is guarded itself says its own operation; the caller asks this proxy.
    let text = r#"{"_meta":{"dev.counterfoil/operation-id":"op_x","y":1}}"#;
    assert_eq!(
        meta(text),
        json!({"dev.counterfoil/operation-id": id().to_string(), "y": 1})
    );
    // What is no object has no room for them.
    assert_eq!(
        voice.answer(&ran("[1, 2]"), None),
        Said::Result("[1, 2]".to_owned())
    );
}

#[test]
fn an_upstream_s_error_is_given_back_as_it_was() {
    let prefix = prefix();
    let voice = voice(&prefix, Dialect::Argument, true);
    let said = |text: &str| voice.answer(&replayed(ERROR_TYPE, 400, text), None);
    let facts = json!({
        "dev.counterfoil/replayed": true,
        "dev.counterfoil/operation-id": id().to_string(),
    });
    let bare = value(&said(r#"{"code":-32000,"message":"m"}"#));
    assert_eq!(bare, json!({"code": -32000, "message": "m", "data": facts}));
    // Its data is of a form of its own.
    let text = r#"{"code":1,"message":"m","data":"text"}"#;
    assert_eq!(said(text), Said::Error(text.to_owned()));
}

#[test]
fn the_newer_era_gets_a_result_type_and_the_older_loses_nothing() {
    let prefix = prefix();
    let result = |text: &str, is_modern| {
        value(&voice(&prefix, Dialect::None, is_modern).answer(&ran(text), None))
    };
    let kind = |text: &str, is_modern| result(text, is_modern)["resultType"].clone();
    assert_eq!(kind("{}", true), json!("complete"));
    assert_eq!(kind("{}", false), Value::Null);
    for is_modern in [false, true] {
        assert_eq!(kind(r#"{"resultType":"task"}"#, is_modern), json!("task"));
    }
}

#[test]
fn a_replaced_key_is_told() {
    let prefix = prefix();
    let mut voice = voice(&prefix, Dialect::Meta, false);
    voice.is_key_replaced = true;
    for (name, said) in everything(&voice) {
        let told = match &said {
            Said::Result(_) => value(&said)["_meta"]["dev.counterfoil/key-replaced"].clone(),
            Said::Error(_) => continue,
        };
        assert_eq!(told, json!(true), "{name}");
    }
}

#[test]
fn refusals_are_where_the_contract_puts_them() {
    let prefix = prefix();
    for dialect in DIALECTS {
        for (is_modern, refused_code) in [(false, -32001), (true, -31001)] {
            for (name, said) in everything(&voice(&prefix, dialect, is_modern)) {
                let value = value(&said);
                let argument = dialect == Dialect::Argument;
                let rpc = match name {
                    "conflict" | "expired" if argument => Some(refused_code),
                    "key required" => Some(-32602),
                    "replayed error" => Some(-32603),
                    _ => None,
                };
                assert_eq!(value["code"].as_i64(), rpc, "{name}");
                if matches!(said, Said::Result(_)) {
                    assert!(value.get("structuredContent").is_none(), "{name}");
                }
            }
        }
    }
}

#[test]
fn codes_are_those_of_the_dialect() {
    let prefix = prefix();
    let code = |dialect, wanted: &str| {
        let all = everything(&voice(&prefix, dialect, false));
        let (_, said) = all.into_iter().find(|(name, _)| *name == wanted).unwrap();
        let value = value(&said);
        let code = match &said {
            Said::Result(_) => &value["_meta"]["dev.counterfoil/error"]["code"],
            Said::Error(_) => &value["data"]["code"],
        };
        code.as_str().unwrap().to_owned()
    };
    for (name, plain, meta) in [
        ("conflict", "idempotency_conflict", "IDEMPOTENCY_KEY_REUSED"),
        (
            "in progress",
            "idempotency_in_progress",
            "IDEMPOTENCY_IN_PROGRESS",
        ),
        (
            "expired",
            "idempotency_key_expired",
            "IDEMPOTENCY_RESULT_UNAVAILABLE",
        ),
        (
            "unknown, retry",
            "outcome_unknown",
            "IDEMPOTENCY_ATTEMPT_STALLED",
        ),
        (
            "possible duplicate, done",
            "possible_duplicate",
            "possible_duplicate",
        ),
        ("invalid arguments", "invalid", "invalid"),
        (
            "key required",
            "idempotency_key_required",
            "idempotency_key_required",
        ),
        ("not sent", "unavailable", "unavailable"),
        ("credentials refused", "unauthorized", "unauthorized"),
        ("quota", "quota_exceeded", "quota_exceeded"),
    ] {
        assert_eq!(code(Dialect::Argument, name), plain);
        assert_eq!(code(Dialect::None, name), plain);
        assert_eq!(code(Dialect::Meta, name), meta);
    }
}

#[test]
fn a_damaged_row_is_a_refusal() {
    let prefix = prefix();
    let voice = voice(&prefix, Dialect::Argument, false);
    let mut broken = upstream(RESULT_TYPE, 200, "");
    broken.body = Bytes::from_static(b"\xff");
    for reply in [broken, upstream("text/plain", 200, "x")] {
        let answer = Answer::Ran {
            reply,
            operation_id: id(),
        };
        let said = value(&voice.answer(&answer, None));
        assert_eq!(said["isError"], json!(true));
        assert_eq!(said["_meta"]["dev.counterfoil/error"]["code"], "internal");
    }
}

#[test]
fn a_whole_message_has_its_id() {
    let request = Id::from_json("\"q\\u0031\"").unwrap();
    let result = Said::Result("{ }".to_owned()).message(&request);
    assert_eq!(
        &result[..],
        br#"{"jsonrpc":"2.0","id":"q\u0031","result":{ }}"#
    );
    let error = Said::Error("{ \"code\":1}".to_owned()).message(&request);
    assert_eq!(
        &error[..],
        br#"{"jsonrpc":"2.0","id":"q\u0031","error":{ "code":1}}"#
    );
}
