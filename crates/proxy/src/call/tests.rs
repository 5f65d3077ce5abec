use counterfoil_core::Key;
use counterfoil_mcp::{Issue, MetaPrefix};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{key::TakenKey, *};

fn tool(schema: Value) -> Tool {
    Tool::read(&json!({"name": "t", "inputSchema": schema}).to_string()).unwrap()
}

fn plain() -> Tool {
    tool(json!({"type": "object"}))
}

/// A tool with a parameter for a key of its own.
fn owner() -> Tool {
    tool(json!({"properties": {"idempotencyKey": {"type": "string"}, "n": {"type": "number"}}}))
}

fn take(params: &str, tool: &Tool) -> Result<Option<TakenKey>, RpcError> {
    let params = CallParams::read(params).unwrap();
    params.take_key(tool, &MetaPrefix::default(), Elsewhere::default())
}

fn key(params: &str, tool: &Tool) -> (String, Place, bool) {
    let taken = take(params, tool).unwrap().unwrap();
    (taken.key.as_str().to_owned(), taken.place, taken.replaced)
}

/// The message of a refusal for a key.
fn refused(params: &str, tool: &Tool) -> String {
    let error = take(params, tool).unwrap_err();
    assert_eq!(error.code, -32602);
    assert_eq!(error.data.as_deref(), Some(&json!({"code": "invalid_key"})));
    error.message.into_owned()
}

#[test]
fn parameters_are_read() {
    let text = r#" {"name":"\u0074","arguments":{"a":1},"_meta":{"progressToken":1.0,"x":[]},"task":{"ttl":1},"requestState":"s","inputResponses":{}} "#;
    let params = CallParams::read(text).unwrap();
    assert_eq!(params.name, "t");
    assert_eq!(params.arguments(), Some("{\"a\":1}"));
    assert_eq!(params.progress_token(), Some("1.0"));
    assert_eq!(params.meta("x"), Some("[]"));
    assert_eq!(params.request_state(), Some("\"s\""));
    assert_eq!(params.input_responses(), Some("{}"));

    let least = CallParams::read("{\"name\":\"t\",\"_meta\":{\"progressToken\":null}}").unwrap();
    assert_eq!(least.progress_token(), None);
    assert_eq!(least.arguments(), None);
    for wrong in [
        "[]",
        "{}",
        r#"{"name":7}"#,
        r#"{"name":"t","arguments":[]}"#,
        r#"{"name":"t","arguments":null}"#,
        r#"{"name":"t","_meta":"x"}"#,
        r#"{"name":"read","name":"write"}"#,
        r#"{"name":"t","arguments":{},"\u0061rguments":{}}"#,
    ] {
        assert_eq!(CallParams::read(wrong).unwrap_err().code, -32602, "{wrong}");
    }
}

#[test]
fn a_key_is_found_in_each_of_its_places() {
    let tool = plain();
    let meta = r#""_meta":{"dev.counterfoil/idempotency-key":"m"}"#;
    let argument = r#""arguments":{"idempotency_key":"a"}"#;
    let beside = r#""idempotencyKey":"a""#;
    let call = |parts: &[&str]| format!("{{\"name\":\"t\",{}}}", parts.join(","));
    assert_eq!(
        key(&call(&[meta]), &tool),
        ("m".to_owned(), Place::Meta, false)
    );
    assert_eq!(
        key(&call(&[argument]), &tool),
        ("a".to_owned(), Place::Argument, false)
    );
    assert_eq!(
        key(&call(&[beside]), &tool),
        ("a".to_owned(), Place::Beside, false)
    );
    // Both, and the same, however it is spelled.
    let escaped = r#""idempotencyKey":"\u0061""#;
    assert_eq!(key(&call(&[argument, escaped]), &tool).1, Place::Argument);
    // `_meta` wins, whatever the others are.
    for other in [
        argument,
        beside,
        r#""arguments":{"idempotency_key":7}"#,
        r#""idempotencyKey":"""#,
    ] {
        assert_eq!(key(&call(&[meta, other]), &tool).1, Place::Meta);
    }
    assert_eq!(take(r#"{"name":"t","arguments":{"a":1}}"#, &tool), Ok(None));
    assert_eq!(take(r#"{"name":"t"}"#, &tool), Ok(None));
    // Another prefix.
    let text = r#"{"name":"t","_meta":{"assay/idempotency-key":"m"}}"#;
    let params = CallParams::read(text).unwrap();
    let assay = MetaPrefix::new("assay").unwrap();
    let taken = params
        .take_key(&tool, &assay, Elsewhere::default())
        .unwrap();
    assert_eq!(taken.unwrap().key.as_str(), "m");
}

#[test]
fn field_16_a_malformed_or_misplaced_key_is_refused_not_ignored() {
    let tool = plain();
    let long = format!(
        r#"{{"name":"t","arguments":{{"idempotency_key":"{}"}}}}"#,
        "k".repeat(201)
    );
    let mut told = vec![refused(&long, &tool)];
    for params in [
        r#"{"name":"t","arguments":{"idempotency_key":""}}"#,
        r#"{"name":"t","arguments":{"idempotency_key":7}}"#,
        r#"{"name":"t","arguments":{"idempotency_key":null}}"#,
        r#"{"name":"t","arguments":{"idempotency_key":"a\u0007"}}"#,
        r#"{"name":"t","idempotencyKey":["k"]}"#,
        r#"{"name":"t","idempotencyKey":"b","arguments":{"idempotency_key":"a"}}"#,
        r#"{"name":"t","arguments":{"idempotencyKey":"k"}}"#,
        r#"{"name":"t","arguments":{"Idempotency-Key":"k"}}"#,
        r#"{"name":"t","idempotency_key":"k"}"#,
        r#"{"name":"t","_meta":{"other/idempotency-key":"k"}}"#,
        r#"{"name":"t","_meta":{"dev.counterfoil/idempotency_key":"k"}}"#,
        r#"{"name":"t","_meta":{"idempotencyKey":"k"}}"#,
    ] {
        told.push(refused(params, &tool));
    }
    told.push(refused(
        r#"{"name":"t","arguments":{"idempotency_key":"k"}}"#,
        &owner(),
    ));
    let params = CallParams::read(r#"{"name":"t"}"#).unwrap();
    let elsewhere = |elsewhere| {
        let refused = params.take_key(&tool, &MetaPrefix::default(), elsewhere);
        refused.unwrap_err().message.into_owned()
    };
    let envelope = ["jsonrpc2".to_owned(), "idempotencyKey".to_owned()];
    told.push(elsewhere(Elsewhere {
        envelope: &envelope,
        outside: None,
    }));
    told.push(elsewhere(Elsewhere {
        envelope: &[],
        outside: Some("in the HTTP header `Idempotency-Key`"),
    }));
    insta::assert_snapshot!("refused-keys", told.join("\n"));
}

#[test]
fn what_is_there_twice_is_refused() {
    for params in [
        r#"{"name":"t","arguments":{"a":1,"a":1}}"#,
        r#"{"name":"t","_meta":{"dev.counterfoil/idempotency-key":"a","dev.counterfoil/idempotency-key":"b"}}"#,
    ] {
        assert_eq!(take(params, &plain()).unwrap_err().code, -32602);
    }
    let deep = CallParams::read(r#"{"name":"t","arguments":{"o":{"a":1,"a":2}}}"#).unwrap();
    assert_eq!(deep.canonical(&plain()).unwrap_err().code, -32602);
}

#[test]
fn an_invalid_key_in_meta_is_replaced_by_one_made_from_it() {
    let tool = plain();
    let of = |value: &str| {
        let params =
            format!(r#"{{"name":"t","_meta":{{"dev.counterfoil/idempotency-key":{value}}}}}"#);
        let (key, place, replaced) = key(&params, &tool);
        assert_eq!((place, replaced), (Place::Meta, true), "{value}");
        assert_eq!(uuid::Uuid::parse_str(&key).unwrap().get_version_num(), 8);
        key
    };
    let long = format!("\"{}\"", "k".repeat(129));
    let values = [
        "\"\"",
        "\"é\"",
        "\"a\\nb\"",
        &long,
        "7",
        "true",
        "[]",
        "{\"a\":1}",
        "\"\\ud800\"",
    ];
    let keys: std::collections::HashSet<String> = values.into_iter().map(of).collect();
    assert_eq!(keys.len(), values.len());
    // The same one is the same retry, however it is spelled.
    assert_eq!(of("\"é\""), of("\"\\u00e9\""));
    assert_eq!(of("7"), of("7.0"));
    // Pinned: a key that was replaced yesterday is a retry today.
    assert_eq!(of("7"), "ef8b947e-6681-8124-9303-1ce86b48fc38");
    // None at all.
    let null = r#"{"name":"t","_meta":{"dev.counterfoil/idempotency-key":null}}"#;
    assert_eq!(take(null, &tool), Ok(None));
}

#[test]
fn a_parameter_of_the_tools_own_is_its_key() {
    let tool = owner();
    let with = |value: &str| format!(r#"{{"name":"t","arguments":{{"idempotencyKey":{value}}}}}"#);
    assert_eq!(
        key(&with("\"k\""), &tool),
        ("k".to_owned(), Place::Argument, false)
    );
    for none in ["null", "\"\""] {
        assert_eq!(take(&with(none), &tool), Ok(None));
    }
    // Longer than ours may be, and good for the tool: it is told by what is made from it.
    let long = with(&format!("\"{}\"", "k".repeat(255)));
    let (made, place, replaced) = key(&long, &tool);
    assert_eq!((place, replaced, made.len()), (Place::Argument, true, 36));
    // A second one that the tool declares is the tool's.
    let two = super::tests::tool(json!({"properties": {
        "idempotency_key": {"type": "string"},
        "idempotencyKey": {"type": "string"},
    }}));
    let both = r#"{"name":"t","arguments":{"idempotencyKey":"x","idempotency_key":"y"}}"#;
    assert_eq!(key(both, &two).0, "y");
}

#[test]
fn the_key_does_not_count_in_the_fingerprint() {
    let canonical = |arguments: &str, tool: &Tool| {
        let text = format!(r#"{{"name":"t","arguments":{arguments}}}"#);
        CallParams::read(&text).unwrap().canonical(tool).unwrap()
    };
    let base = canonical(r#"{"b":1,"a":"é"}"#, &plain());
    assert_eq!(base, br#"{"a":"\u00e9","b":1}"#);
    assert_eq!(
        canonical(
            r#"{ "a":"\u00e9", "idempotency_key":"k", "b":1.0 }"#,
            &plain()
        ),
        base
    );
    assert_eq!(
        canonical(r#"{"idempotencyKey":"k","b":1,"a":"é"}"#, &owner()),
        base
    );
    assert_ne!(
        canonical(r#"{"o":{"idempotency_key":"k"},"b":1,"a":"é"}"#, &plain()),
        base
    );
    let none = CallParams::read(r#"{"name":"t"}"#).unwrap();
    assert_eq!(none.canonical(&plain()).unwrap(), b"{}");

    let of = |place| fingerprint(place, "t", &base);
    assert_eq!(of(Some(Place::Argument)), of(None));
    assert_eq!(of(Some(Place::Beside)), of(None));
    assert_ne!(of(Some(Place::Meta)), of(None));
    assert_ne!(
        of(Some(Place::Meta)),
        fingerprint(Some(Place::Meta), "u", &base)
    );
    assert_eq!(operation(Some(Place::Meta), "t"), "*");
    assert_eq!(operation(Some(Place::Beside), "t"), "MCP t");
    assert_eq!(operation(None, "t"), "MCP t");
}

#[test]
fn what_cannot_be_compared_is_refused_without_its_value() {
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(300), "]".repeat(300));
    for arguments in [r#"{"secret":"\ud800"}"#, r#"{"secret":1e999}"#, &deep] {
        let text = format!(r#"{{"name":"t","arguments":{arguments}}}"#);
        let error = CallParams::read(&text)
            .unwrap()
            .canonical(&plain())
            .unwrap_err();
        assert_eq!(error.code, -32602);
        assert!(!error.message.contains("secret"), "{}", error.message);
    }
}

#[test]
fn rounds_are_told_by_their_inputs() {
    let inputs = |rest: &str| {
        let text = format!(r#"{{"name":"t"{rest}}}"#);
        CallParams::read(&text).unwrap().inputs().unwrap()
    };
    assert_eq!(inputs(""), None);
    let all = [
        r#","requestState":"s""#,
        r#","inputResponses":"s""#,
        r#","requestState":"s","inputResponses":{"a":1}"#,
        r#","requestState":"s","inputResponses":{"a":2}"#,
        r#","requestState":null"#,
    ]
    .map(inputs);
    let different: std::collections::HashSet<_> = all.into_iter().collect();
    assert_eq!(different.len(), all.len());
    assert!(!different.contains(&None));
    assert_eq!(
        inputs(r#","inputResponses":{ "a":1.0 },"requestState":"\u0073""#),
        all[2]
    );
}

#[test]
fn i5_identical_calls_are_told_by_all_that_they_are() {
    let base = ["w", "p", "u", "c", "t", "{}"];
    let of = |parts: [&str; 6]| {
        let [workspace, principal, upstream, client, tool, canonical] = parts;
        call_digest(
            workspace,
            principal,
            upstream,
            client,
            tool,
            canonical.as_bytes(),
        )
    };
    assert_eq!(of(base), of(base));
    let mut all = vec![
        of(base),
        of(["wp", "", "u", "c", "t", "{}"]),
        of(["w", "p", "u", "ct", "", "{}"]),
    ];
    for index in 0..base.len() {
        let mut other = base;
        other[index] = "other";
        all.push(of(other));
    }
    let different: std::collections::HashSet<_> = all.iter().collect();
    assert_eq!(different.len(), all.len());
}

fn sent(request: &str, guarded: Guarded<'_>) -> String {
    let changes = Outgoing {
        guarded: Some(guarded),
        ..Outgoing::default()
    };
    outgoing(request, &changes).unwrap()
}

#[test]
fn a_request_goes_out_with_only_its_own_parts_changed() {
    let request = r#"{ "jsonrpc":"2.0","future":1.0, "params" : {"name":"t", "idempotencyKey":"k" ,"arguments":{"n":1.50, "idempotency_key":"k", "s":"\u00e9"},"task":{},"_meta":{"dev.counterfoil/idempotency-key":"k","progressToken":7, "traceparent":"x"}},"method":"tools/call" ,"id":7}"#;
    let tool = plain();
    let guarded = Guarded {
        tool: &tool,
        key: None,
        provider: None,
    };
    let stripped = request
        .replace(r#", "idempotencyKey":"k""#, "")
        .replace(r#", "idempotency_key":"k""#, "");
    assert_eq!(sent(request, guarded), stripped);
    let all = Outgoing {
        id: Some("\"9\""),
        progress_token: Some("\"p\""),
        guarded: Some(Guarded {
            provider: Some(("dedupe", "op\"1")),
            ..guarded
        }),
    };
    let expected = stripped
        .replace(r#""id":7"#, r#""id":"9""#)
        .replace(r#""progressToken":7"#, r#""progressToken":"p""#)
        .replace(r#""s":"\u00e9"}"#, r#""s":"\u00e9","dedupe":"op\"1"}"#);
    assert_eq!(outgoing(request, &all).unwrap(), expected);
    assert_eq!(outgoing(request, &Outgoing::default()).unwrap(), request);
    // A progress token is not made where there was none, and any method may be renamed.
    let renamed = Outgoing {
        id: Some("1"),
        progress_token: Some("2"),
        guarded: None,
    };
    for (from, to) in [
        (r#"{"id":0,"method":"x"}"#, r#"{"id":1,"method":"x"}"#),
        (r#"{"id":0,"params":[ 1 ]}"#, r#"{"id":1,"params":[ 1 ]}"#),
        (
            r#"{"id":0,"params":{"_meta":{}}}"#,
            r#"{"id":1,"params":{"_meta":{}}}"#,
        ),
        (
            r#"{"id":0,"params":{"_meta":{"progressToken" : "a"}}}"#,
            r#"{"id":1,"params":{"_meta":{"progressToken" : 2}}}"#,
        ),
    ] {
        assert_eq!(outgoing(from, &renamed).unwrap(), to);
    }
}

#[test]
fn a_request_that_cannot_be_rewritten_is_not_sent() {
    let tool = plain();
    let changes = Outgoing {
        guarded: Some(Guarded {
            tool: &tool,
            key: None,
            provider: None,
        }),
        ..Outgoing::default()
    };
    for request in [
        "",
        "[]",
        r#"{"id":1}"#,
        r#"{"params":[]}"#,
        r#"{"params":{"arguments":[]}}"#,
    ] {
        assert_eq!(
            outgoing(request, &changes).unwrap_err().code,
            -32603,
            "{request}"
        );
    }
}

#[test]
fn a_tool_with_a_parameter_for_a_key_gets_the_key() {
    let (tool, key) = (owner(), Key::new("k\"1").unwrap());
    let call = |arguments: &str| format!(r#"{{"id":1,"params":{{"name":"t"{arguments}}}}}"#);
    let guarded = Guarded {
        tool: &tool,
        key: Some(&key),
        provider: None,
    };
    let inserted = r#","arguments":{"n":1,"idempotencyKey":"k\"1"}"#;
    assert_eq!(
        sent(&call(r#","arguments":{"n":1}"#), guarded),
        call(inserted)
    );
    assert_eq!(
        sent(&call(""), guarded),
        call(r#","arguments":{"idempotencyKey":"k\"1"}"#)
    );
    // What the caller gave it stays.
    for given in [
        r#","arguments":{"idempotencyKey" : "x"}"#,
        r#","arguments":{"idempotencyKey":null}"#,
    ] {
        assert_eq!(sent(&call(given), guarded), call(given));
    }
    // A key that is configured for the parameter is the one.
    let configured = Guarded {
        provider: Some(("idempotencyKey", "op")),
        ..guarded
    };
    assert_eq!(
        sent(
            &call(r#","arguments":{"idempotencyKey" : "x"}"#),
            configured
        ),
        call(r#","arguments":{"idempotencyKey" : "op"}"#)
    );
    assert_eq!(
        sent(&call(""), configured),
        call(r#","arguments":{"idempotencyKey":"op"}"#)
    );
    // Nothing is made where nothing is to be put.
    let nothing = Guarded {
        key: None,
        ..guarded
    };
    assert_eq!(sent(&call(""), nothing), call(""));
    // A parameter of that name which takes no string is the tool's.
    let flag = super::tests::tool(json!({"properties": {"idempotency_key": {"type": "boolean"}}}));
    let guarded = Guarded {
        tool: &flag,
        key: Some(&key),
        provider: None,
    };
    let given = call(r#","arguments":{"idempotency_key":true}"#);
    assert_eq!(sent(&given, guarded), given);
}

#[test]
fn arguments_are_judged_as_they_are_sent() {
    let strict = tool(json!({
        "type": "object",
        "properties": {
            "n": {"type": "integer", "maximum": 9},
            "color": {"enum": ["red", "blue"]},
            "dedupe": {"type": "string", "maxLength": 3},
        },
        "required": ["n", "dedupe"],
        "additionalProperties": false,
    }));
    let guarded = Guarded {
        tool: &strict,
        key: None,
        provider: None,
    };
    let told = |given: Option<&str>, provider: Option<&str>| {
        let issues = guarded.issues(given, provider);
        (!issues.is_empty()).then(|| Issue::told(&issues))
    };
    // The proxy's own argument is not there, the key that is made later is.
    let fine = r#"{"n":1,"idempotency_key":"k"}"#;
    assert_eq!(told(Some(fine), Some("dedupe")), None);
    insta::assert_snapshot!(
        "invalid-arguments",
        [
            told(None, None),
            told(Some(fine), None),
            told(Some(r#"{"n":"hunter2","dedupe":"x","extra":1}"#), None),
            told(Some(r#"{"n":123456,"color":"hunter2"}"#), Some("dedupe")),
        ]
        .map(Option::unwrap)
        .join("\n")
    );
    let many: Vec<String> = (0..50)
        .map(|n| format!("\"p{n}\":{{\"type\":\"null\"}}"))
        .collect();
    let many: Value =
        serde_json::from_str(&format!("{{\"properties\":{{{}}}}}", many.join(","))).unwrap();
    let wrong: Vec<String> = (0..50).map(|n| format!("\"p{n}\":1")).collect();
    let tool = super::tests::tool(many);
    let guarded = Guarded {
        tool: &tool,
        ..guarded
    };
    let issues = guarded.issues(Some(&format!("{{{}}}", wrong.join(","))), None);
    assert_eq!(issues.len(), Issue::MAX);
    // What cannot be judged is not refused.
    for schema in [json!({"$ref": "https://example.com/x"}), json!(null)] {
        let tool = super::tests::tool(schema);
        let guarded = Guarded {
            tool: &tool,
            ..guarded
        };
        assert_eq!(guarded.issues(Some("{\"n\":1}"), None), []);
    }
}

#[test]
fn a_pattern_that_takes_too_long_judges_nothing() {
    let slow =
        tool(json!({"properties": {"s": {"type": "string", "pattern": "^(a|b|ab)*(?=c)c$"}}}));
    let guarded = Guarded {
        tool: &slow,
        key: None,
        provider: None,
    };
    let given = format!("{{\"s\":\"{}\"}}", "ab".repeat(60));
    assert_eq!(guarded.issues(Some(&given), None), []);
}

#[test]
fn annotated_arguments_travel_as_headers() {
    let tool = tool(json!({"properties": {
        "region": {"type": "string", "x-mcp-header": "Region"},
        "n": {"type": "integer", "x-mcp-header": "N"},
        "flag": {"type": "boolean", "x-mcp-header": "Flag"},
        "o": {"properties": {"zone": {"type": "string", "x-mcp-header": "Zone"}}},
    }}));
    let of = |arguments: &str| {
        let headers = param_headers(&tool, Some(arguments));
        let told: Vec<String> = headers
            .iter()
            .map(|(name, value)| format!("{name}: {value}"))
            .collect();
        told.join("\n")
    };
    assert_eq!(
        of(r#"{"region":"us-\u0077est","n":7,"flag":true,"o":{"zone":"z\u00fcrich"}}"#),
        "mcp-param-region: us-west\nmcp-param-n: 7\nmcp-param-flag: true\nmcp-param-zone: =?base64?esO8cmljaA==?="
    );
    for (n, value) in [
        ("7.0", "7"),
        ("1e2", "100"),
        ("-3", "-3"),
        ("1.5", "1.5"),
        ("-0.0", "-0"),
        ("12345678901234567890", "12345678901234567890"),
    ] {
        assert_eq!(
            of(&format!("{{\"n\":{n}}}")),
            format!("mcp-param-n: {value}")
        );
    }
    assert_eq!(of(r#"{"region":null,"n":[],"flag":{},"o":7}"#), "");
    assert_eq!(param_headers(&tool, None), []);
    assert_eq!(
        of(r#"{"region":"a\r\nb: c"}"#),
        "mcp-param-region: =?base64?YQ0KYjogYw==?="
    );
}

#[test]
fn headers_of_annotated_arguments_must_say_the_same() {
    let tool = tool(json!({"properties": {
        "region": {"type": "string", "x-mcp-header": "Region"},
        "n": {"type": "integer", "x-mcp-header": "N"},
    }}));
    let agree = |arguments: &str, headers: &[(&str, &str)]| {
        let headers: Vec<(String, String)> = headers
            .iter()
            .map(|(name, value)| (format!("mcp-param-{name}"), (*value).to_owned()))
            .collect();
        let arguments = (!arguments.is_empty()).then_some(arguments);
        check_param_headers(&tool, arguments, &headers).map_err(|error| error.code)
    };
    for (arguments, headers) in [
        ("", &[][..]),
        ("{}", &[("unknown", "x")]),
        (r#"{"region":null}"#, &[]),
        (r#"{"region":"us-\u0077est"}"#, &[("region", "us-west")]),
        (r#"{"region":"é"}"#, &[("region", "=?base64?w6k=?=")]),
        (r#"{"n":1e2}"#, &[("n", "100")]),
        (r#"{"n":100}"#, &[("n", "100.0")]),
    ] {
        assert_eq!(agree(arguments, headers), Ok(()), "{arguments} {headers:?}");
    }
    for (arguments, headers) in [
        (r#"{"region":"us-west"}"#, &[][..]),
        (r#"{"region":"us-west"}"#, &[("region", "US-WEST")]),
        (r#"{"region":"é"}"#, &[("region", "=?base64?w6k?=")]),
        (r#"{"region":"100"}"#, &[("region", "1e2")]),
        (r#"{"n":1}"#, &[("n", "2")]),
        ("{}", &[("region", "us-west")]),
        ("", &[("n", "1")]),
    ] {
        assert_eq!(
            agree(arguments, headers),
            Err(-32020),
            "{arguments} {headers:?}"
        );
    }
}

proptest! {
    #[test]
    fn nothing_but_the_key_leaves_the_arguments(
        values in prop::collection::vec(prop::sample::select(vec!["1.0", "\"\\u00e9\"", "{ }", "[1 ,2]", "null"]), 0..6),
        at in 0..7_usize,
        space in prop::sample::select(vec!["", " ", "\n  "]),
    ) {
        let mut members: Vec<String> = values
            .iter()
            .enumerate()
            .map(|(n, value)| format!("{space}\"a{n}\"{space}:{value}"))
            .collect();
        let before = format!("{{{}}}", members.join(","));
        members.insert(at.min(values.len()), format!("{space}\"idempotency_key\":\"k\""));
        let with_key = format!("{{{}}}", members.join(","));
        let tool = plain();
        let guarded = Guarded { tool: &tool, key: None, provider: None };
        let sent = guarded.arguments(Some(&with_key)).unwrap().unwrap();
        let value = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        prop_assert_eq!(value(&sent), value(&before));
        let sent = Object::read(&sent).unwrap();
        let plain = Object::read(&before).unwrap();
        for (left, right) in sent.members().iter().zip(plain.members()) {
            prop_assert_eq!(left.value, right.value);
        }
        prop_assert_eq!(guarded.arguments(Some(&before)).unwrap().unwrap(), before);
    }
}
