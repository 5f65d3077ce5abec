//! Golden samples of the stored formats. They were computed by another implementation (Python's
//! `json.dumps` and `hashlib`). A change here means that receipts already stored no longer match
//! their retries: never change a line, add a rule with a new version instead.

use counterfoil_core::{
    Attempts, Code, Effect, Fingerprint, InvalidId, Json, JsonLimits, Kept, Knowledge, Mode,
    OperationId, PrincipalId, Rule, State, Timestamp, parse_json,
};

fn canonical(text: &str) -> String {
    let value: Json = parse_json(text.as_bytes(), JsonLimits::default()).unwrap();
    String::from_utf8(value.canonical()).unwrap()
}

fn hex(fingerprint: Fingerprint) -> String {
    fingerprint
        .digest
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[test]
fn canonical_json_1() {
    for (text, wanted) in [
        // Words and empty things.
        (r"null", "null"),
        (r" true ", "true"),
        (r"false", "false"),
        (r#""""#, r#""""#),
        (r"[ ]", "[]"),
        (r"{ }", "{}"),
        (r#"{"":{"":[]}}"#, r#"{"":{"":[]}}"#),
        // Members are sorted, elements are not.
        (r#"{"b": 2, "a": 1}"#, r#"{"a":1,"b":2}"#),
        (r#"{"a": 1, "b": 2}"#, r#"{"a":1,"b":2}"#),
        (
            r#"{"z": [3, {"y": 1, "x": [ ]}, 2], "a": null}"#,
            r#"{"a":null,"z":[3,{"x":[],"y":1},2]}"#,
        ),
        // Keys by code point: U+FF5E is before U+1F600, though UTF-16 has it the other way.
        (
            r#"{"～":1,"😀":2,"z":3,"é":4,"":5,"A":6,"a":7,"aa":8}"#,
            r#"{"":5,"A":6,"a":7,"aa":8,"z":3,"\u00e9":4,"\uff5e":1,"\ud83d\ude00":2}"#,
        ),
        // Sorted by what a key is, not by how it is escaped: `\"` (U+0022) is before `0`, U+007F
        // after `~`.
        (
            "{\"~\":1,\"\u{7f}\":2,\"\\u0001\":3,\"0\":4,\"\\\"\":5,\"\\\\\":6}",
            r#"{"\u0001":3,"\"":5,"0":4,"\\":6,"~":1,"\u007f":2}"#,
        ),
        // Strings as json.dumps has them.
        (
            "\"\\u0000\\u0001\\u001f\\b\\f\\n\\r\\t\u{7f}\u{80}é\u{2028}\u{ffff}😀\u{10ffff}\\\"\\\\\\/<>&'\"",
            r#""\u0000\u0001\u001f\b\f\n\r\t\u007f\u0080\u00e9\u2028\uffff\ud83d\ude00\udbff\udfff\"\\/<>&'""#,
        ),
        (r#""\u0041\u00E9\uD83D\uDE00""#, r#""A\u00e9\ud83d\ude00""#),
        // Composed and decomposed stay what they are.
        ("[\"é\",\"e\u{301}\"]", r#"["\u00e9","e\u0301"]"#),
        // One number, one spelling.
        (r"[1, 1.0, 1e0, 10e-1, 0.1E+1]", "[1,1,1,1,1]"),
        (r"[0, -0, 0.0, -0e7, 0E-7]", "[0,0,0,0,0]"),
        (r"[100, 1e2, 120, -10]", "[1e2,1e2,12e1,-1e1]"),
        (r"[1.5, 15e-1, 0.001, -2.50]", "[15e-1,15e-1,1e-3,-25e-1]"),
        (
            r"[9007199254740992, 9007199254740993]",
            "[9007199254740992,9007199254740993]",
        ),
        (
            r"[123456789012345678901234567890, 0.1000000000000000055]",
            "[12345678901234567890123456789e1,1000000000000000055e-19]",
        ),
        (
            r"[1.7976931348623157e308, 5e-324, 1e-400]",
            "[17976931348623157e292,5e-324,1e-400]",
        ),
        (
            r"[1e-999999999, 1e-1000000000, 10e-1000000000]",
            "[1e-999999999,1e-1000000000,1e-999999999]",
        ),
    ] {
        assert_eq!(canonical(text), wanted, "{text}");
    }
}

#[test]
fn fingerprints_of_raw_bytes_1() {
    let every_byte: Vec<u8> = (0..=255).collect();
    for (query, body, wanted) in [
        (
            "",
            &b""[..],
            "f0d278eacbee4eeac1f3cc75d5efda8dc5dff129bed3da9ad3b0e11fc64ae910",
        ),
        (
            "",
            br#"{"a":1,"b":2}"#,
            "713e96fb7cb1773bdd8eac43ad0916ee3cc302023ecae4f1a1a83c8df4f75817",
        ),
        // Another field order is another body (row 1 of FIELD.md).
        (
            "",
            br#"{"b":2,"a":1}"#,
            "7acbf1c08efeb9b942d7793694f1073af65198ce76d6c480c07401ee9fd7115d",
        ),
        // What is query and what is body counts.
        (
            "a=1",
            b"",
            "9189a0eb4df428d3c249c098960046a04e5ae762a37b9a1350f4e4e9d7de3a34",
        ),
        (
            "a",
            b"=1",
            "d13ddcf6c2e64dec147bd9e7da10d2276246263728cd362f5422f99fd220ba71",
        ),
        (
            "page=2&x=%C3%A9",
            "{\"body\":\"Grüße\"}".as_bytes(),
            "d2f46b7f2b107017c89e2ca6f799b7a572b704cfe32587307303f7c24e1e646b",
        ),
        (
            "",
            &every_byte,
            "02331577d37c6f8cc91b27ceeb2a3748016ddfe2ea4f4bd37e84a55de2bafe63",
        ),
    ] {
        let fingerprint = Fingerprint::raw(query, body);
        assert_eq!(fingerprint.rule, Rule::Raw1);
        assert_eq!(hex(fingerprint), wanted, "{query} {body:?}");
    }
}

#[test]
fn fingerprints_of_canonical_json_1() {
    for (subject, text, wanted) in [
        (
            "",
            "{}",
            "1bf295aa527cc9d278fcd58616b3282f02af2656af616d99917c6c3cec2f9284",
        ),
        (
            "",
            "null",
            "d6d11685c3eb724b46f53512a2ded2e9a63fbfd896ba9f27a9b17ae078bf95b1",
        ),
        // Field order and the spelling of numbers do not count (row 1 of FIELD.md).
        (
            "",
            r#"{"a":1,"b":2}"#,
            "9259b94eb2fe4af19daed56dfc5d43a2cbdadd033e97f257c0f406b5877ad51d",
        ),
        (
            "",
            r#"{"b": 2.0, "a": 1e0}"#,
            "9259b94eb2fe4af19daed56dfc5d43a2cbdadd033e97f257c0f406b5877ad51d",
        ),
        (
            "create_note",
            r#"{"a":1,"b":2}"#,
            "079546e8e790982cbb79792e83a6843d8e92ca6decddc4a0dd4d1eb1f31047be",
        ),
        (
            "",
            "{\"body\":\"Grüße 😀\u{7f}\u{2028}\\\"\\\\/\"}",
            "ae9d160ac76c33d184e90117d3bab4fd8d6a3b3ba2b6cd084f6883bbf339aae6",
        ),
    ] {
        let fingerprint = Fingerprint::canonical(subject, canonical(text).as_bytes());
        assert_eq!(fingerprint.rule, Rule::Canonical1);
        assert_eq!(hex(fingerprint), wanted, "{subject} {text}");
    }
    // Where the subject ends counts.
    assert_eq!(
        hex(Fingerprint::canonical("create_not", br#"e{"a":1,"b":2}"#)),
        "88695a7069e91019716ade593095bf4c54f2640c1a1ed2dfaa3dd5e2a6b46459"
    );
}

#[test]
fn the_bytes_a_store_keeps() {
    let states = [
        (State::Free, "free"),
        (State::Accepted, "accepted"),
        (State::Running, "running"),
        (State::CancelRequested, "cancel_requested"),
        (State::InputRequired, "input_required"),
        (State::Succeeded, "succeeded"),
        (State::Failed, "failed"),
        (State::Cancelled, "cancelled"),
        (State::OutcomeUnknown, "outcome_unknown"),
    ];
    for (byte, (state, word)) in (0..).zip(states) {
        assert_eq!((state.to_byte(), state.as_str()), (byte, word));
        assert_eq!(State::from_byte(byte), Some(state));
        assert_eq!(State::from_word(word), Some(state));
    }
    assert_eq!(
        State::all().collect::<Vec<_>>(),
        states.map(|(state, _)| state)
    );
    assert_eq!(State::from_byte(9), None);
    assert_eq!(State::from_word("expired"), None);

    let kept = [
        Kept::Nothing,
        Kept::Stored,
        Kept::TooLarge,
        Kept::AnswerLost,
    ];
    for (byte, kept) in (0..).zip(kept) {
        assert_eq!((kept.to_byte(), Kept::from_byte(byte)), (byte, Some(kept)));
    }
    assert_eq!(Kept::from_byte(5), None);

    for (byte, rule) in [(1, Rule::Raw1), (2, Rule::Canonical1)] {
        assert_eq!((rule.to_byte(), Rule::from_byte(byte)), (byte, Some(rule)));
    }
    assert_eq!((Rule::from_byte(0), Rule::from_byte(3)), (None, None));

    let every: Vec<u8> = (0..9).collect();
    let attempts = Attempts::from_bytes(&every).unwrap();
    let known = [
        Knowledge::Open,
        Knowledge::NotApplied,
        Knowledge::MaybeSent,
        Knowledge::Asked,
        Knowledge::AskedUnknown,
        Knowledge::RefusedUnknown,
        Knowledge::RefusedNone,
        Knowledge::Stopped,
        Knowledge::Happened,
    ];
    assert_eq!(attempts.iter().collect::<Vec<_>>(), known);
    assert_eq!(Knowledge::all().collect::<Vec<_>>(), known);
    assert_eq!(attempts.to_bytes(), every);
    assert_eq!(
        (attempts.latest(), attempts.get(0), attempts.get(10)),
        (9, None, None)
    );
    assert_eq!(Attempts::from_bytes(&[9]), None);
}

/// The codes are public and permanent (contract §6).
#[test]
fn the_words_on_the_wire() {
    let codes: Vec<&str> = Code::all().map(Code::as_str).collect();
    assert_eq!(
        codes,
        [
            "idempotency_key_required",
            "invalid_key",
            "idempotency_conflict",
            "idempotency_in_progress",
            "idempotency_committed",
            "idempotency_result_unavailable",
            "idempotency_key_expired",
            "outcome_unknown",
            "possible_duplicate",
            "busy",
            "unavailable",
            "quota_exceeded",
            "rate_limited",
            "unauthorized",
            "forbidden",
            "not_found",
            "method_not_allowed",
            "invalid",
            "malformed_request",
            "too_large",
            "unsupported_media_type",
            "internal",
        ]
    );
    for (code, word) in [
        (Code::IdempotencyKeyRequired, "idempotency_key_required"),
        (Code::IdempotencyConflict, "idempotency_conflict"),
        (Code::OutcomeUnknown, "outcome_unknown"),
        (Code::Internal, "internal"),
    ] {
        assert_eq!(code.as_str(), word);
    }
    let effects = [Effect::Happened, Effect::None, Effect::Unknown];
    assert_eq!(effects.map(Effect::as_str), ["happened", "none", "unknown"]);
    let modes = [Mode::Atomic, Mode::Guarded, Mode::Dispatched];
    assert_eq!(modes.map(Mode::as_str), ["atomic", "guarded", "dispatched"]);
}

#[test]
fn operation_ids() {
    let now = Timestamp::from_millis(1_700_000_000_000);
    let id = OperationId::new(now, [0xff; 10]);
    let text = "op_018bcfe5-6800-7fff-bfff-ffffffffffff";
    assert_eq!(id.to_string(), text);
    assert_eq!(format!("{id:?}"), text);
    assert_eq!(text.parse(), Ok(id));
    assert_eq!(OperationId::from_bytes(id.to_bytes()), id);
    // Sorted by the time they were made.
    let later = OperationId::new(Timestamp::from_millis(1_700_000_000_001), [0; 10]);
    assert!(id < later && id.to_string() < later.to_string());
    for bad in [
        "",
        "op_",
        "018bcfe5-6800-7fff-bfff-ffffffffffff",
        "op_018bcfe568007fffbfffffffffffffff",
        "op_018bcfe5-6800-7fff-bfff-fffffffffff",
        "op_018bcfe5-6800-7fff-bfff-fffffffffffg",
        "OP_018bcfe5-6800-7fff-bfff-ffffffffffff",
        " op_018bcfe5-6800-7fff-bfff-ffffffffffff",
    ] {
        assert_eq!(
            bad.parse::<OperationId>(),
            Err(InvalidId::Operation),
            "{bad}"
        );
    }
}

#[test]
fn i4_ids_of_principals_have_one_spelling() {
    for good in ["a", "A-z_0.9", &"k".repeat(128)] {
        assert_eq!(PrincipalId::new(good).unwrap().as_str(), good);
    }
    for bad in ["", " a", "a/b", "é", "a\0", &"k".repeat(129)] {
        assert_eq!(PrincipalId::new(bad), Err(InvalidId::Name), "{bad}");
    }
}
