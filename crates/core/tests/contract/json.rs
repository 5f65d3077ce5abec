//! Properties of the JSON reader and of canonical JSON.

use counterfoil_core::{Json, JsonLimits, Pointer, parse_json};
use proptest::prelude::*;

fn read(text: &str) -> Json {
    parse_json(text.as_bytes(), JsonLimits::default())
        .unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn literal() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<i64>().prop_map(|n| n.to_string()),
        (-30_i64..30).prop_map(|n| n.to_string()),
        (
            "-?(0|[1-9][0-9]{0,30})",
            "(\\.[0-9]{1,20})?",
            "([eE][+-]?[0-9]{1,2})?"
        )
            .prop_map(|(whole, fraction, exponent)| format!("{whole}{fraction}{exponent}")),
    ]
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-c]{0,2}",
        any::<String>(),
        "[\\x00-\\x7f]{0,6}",
        "[\u{d7ff}\u{e000}\u{ffff}\u{10000}]{1,3}"
    ]
}

fn value() -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::Bool),
        literal().prop_map(Json::Number),
        text().prop_map(Json::String),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        let members = prop::collection::btree_map(text(), inner.clone(), 0..6);
        prop_oneof![
            prop::collection::vec(inner, 0..6).prop_map(Json::Array),
            members.prop_map(|members| Json::Object(members.into_iter().collect())),
        ]
    })
}

/// A small deterministic source of choices.
struct Choices(u64);

impl Choices {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        usize::try_from(self.0 >> 33).unwrap() % bound
    }
}

/// Some text of the value: members in any order, any white space, any escapes, numbers respelled.
fn spell(value: &Json, choices: &mut Choices, out: &mut String) {
    let space = |choices: &mut Choices, out: &mut String| {
        out.push_str(["", "", " ", "\n\t", "\r"][choices.below(5)]);
    };
    space(choices, out);
    match value {
        Json::Null => out.push_str("null"),
        Json::Bool(value) => out.push_str(&value.to_string()),
        Json::Number(literal) => out.push_str(&respell(literal, choices)),
        Json::String(text) => spell_string(text, choices, out),
        Json::Array(elements) => {
            out.push('[');
            for (index, element) in elements.iter().enumerate() {
                out.push_str(if index > 0 { "," } else { "" });
                spell(element, choices, out);
            }
            out.push(']');
        }
        Json::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            for index in (1..members.len()).rev() {
                members.swap(index, choices.below(index + 1));
            }
            out.push('{');
            for (index, (name, value)) in members.into_iter().enumerate() {
                out.push_str(if index > 0 { "," } else { "" });
                space(choices, out);
                spell_string(name, choices, out);
                space(choices, out);
                out.push(':');
                spell(value, choices, out);
            }
            out.push('}');
        }
    }
    space(choices, out);
}

fn spell_string(text: &str, choices: &mut Choices, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        let must = c < ' ' || c == '"' || c == '\\';
        match choices.below(3) {
            0 if !must => out.push(c),
            1 => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04X}"));
                }
            }
            _ => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
        }
    }
    out.push('"');
}

/// The same number, spelled another way.
fn respell(literal: &str, choices: &mut Choices) -> String {
    let (mantissa, exponent) = literal.split_once(['e', 'E']).unwrap_or((literal, "0"));
    let exponent: i64 = exponent.parse().unwrap();
    let (sign, mantissa) = match mantissa.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", mantissa),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    match choices.below(5) {
        0 => literal.to_owned(),
        // Trailing zeros of the fraction.
        1 => format!("{sign}{whole}.{fraction}000e{exponent}"),
        // Everything behind the point.
        2 => format!(
            "{sign}0.{whole}{fraction}E{:+}",
            exponent + whole.len() as i64
        ),
        // Nothing behind the point.
        3 => {
            let digits = format!("{whole}{fraction}");
            let digits = digits.trim_start_matches('0');
            let digits = if digits.is_empty() { "0" } else { digits };
            format!("{sign}{digits}e{}", exponent - fraction.len() as i64)
        }
        _ => {
            let zeros = choices.below(4);
            format!(
                "{sign}{whole}{}{}e{}",
                if fraction.is_empty() { "" } else { "." },
                fraction,
                if exponent < 0 {
                    format!("-{}{}", "0".repeat(zeros), -exponent)
                } else {
                    format!("+{}{exponent}", "0".repeat(zeros))
                }
            )
        }
    }
}

/// JSON texts, most of them spoilt a little.
fn nearly_json() -> impl Strategy<Value = Vec<u8>> {
    let spoil = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..4_u8), 0..3);
    (value(), any::<u64>(), spoil).prop_map(|(value, seed, spoils)| {
        let mut out = String::new();
        spell(&value, &mut Choices(seed), &mut out);
        let mut bytes = out.into_bytes();
        let useful = b"{}[]\",:\\u0d8e+-. \n";
        for (place, byte, how) in spoils {
            let at = place.index(bytes.len() + 1);
            match how {
                0 if at < bytes.len() => {
                    bytes.remove(at);
                }
                1 => bytes.insert(at, byte),
                2 => bytes.insert(at, useful[usize::from(byte) % useful.len()]),
                _ if at < bytes.len() => bytes[at] = useful[usize::from(byte) % useful.len()],
                _ => bytes.truncate(at),
            }
        }
        bytes
    })
}

/// The same, but that serde_json reads numbers as doubles that may be off by a bit (ours are the
/// nearest), and integers of any spelling are integers here.
fn same(ours: &serde_json::Value, theirs: &serde_json::Value) -> bool {
    use serde_json::Value;
    match (ours, theirs) {
        (Value::Number(ours), Value::Number(theirs)) => {
            let (ours, theirs) = (ours.as_f64().unwrap(), theirs.as_f64().unwrap());
            (ours - theirs).abs() <= ours.abs() * 1e-15
        }
        (Value::Array(ours), Value::Array(theirs)) => {
            ours.len() == theirs.len() && ours.iter().zip(theirs).all(|(a, b)| same(a, b))
        }
        (Value::Object(ours), Value::Object(theirs)) => {
            let found = |(key, value)| theirs.get(key).is_some_and(|theirs| same(value, theirs));
            ours.len() == theirs.len() && ours.iter().all(found)
        }
        (ours, theirs) => ours == theirs,
    }
}

fn config() -> ProptestConfig {
    ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(2000)
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn canonical_is_idempotent_and_blind_to_spelling(value in value(), seed in any::<u64>()) {
        let canonical = value.canonical();
        prop_assert!(canonical.is_ascii());
        let mut text = String::new();
        spell(&value, &mut Choices(seed), &mut text);
        prop_assert_eq!(&read(&text).canonical(), &canonical, "{}", text);
        let again = read(std::str::from_utf8(&canonical).unwrap());
        prop_assert_eq!(again.canonical(), canonical);
        // One fingerprint, one argument: a handler cannot tell the spellings apart either.
        prop_assert_eq!(again.to_value(), value.to_value());
        prop_assert_eq!(read(&text).to_value(), value.to_value());
    }

    #[test]
    fn canonical_tells_different_integers_apart(a in any::<i64>(), b in any::<i64>()) {
        let canonical = |n: i64| Json::Number(n.to_string()).canonical();
        prop_assert_eq!(canonical(a) == canonical(b), a == b);
        prop_assert_ne!(canonical(a), canonical(a ^ 1));
    }

    #[test]
    fn canonical_tells_different_values_apart(a in value(), b in value()) {
        // Values that look different to a handler never share a canonical text.
        if a.to_value() != b.to_value() {
            prop_assert_ne!(a.canonical(), b.canonical());
        }
    }

    /// What is accepted is what serde_json accepts, but for duplicate keys and the bound on depth.
    #[test]
    fn the_reader_agrees_with_serde_json(text in nearly_json()) {
        let ours = parse_json(&text, JsonLimits::default());
        let theirs = serde_json::from_slice::<serde_json::Value>(&text);
        match (&ours, &theirs) {
            (Ok(ours), Ok(theirs)) => prop_assert!(same(&ours.to_value(), theirs), "{:?}", ours),
            (Err(_), Err(_)) => {}
            (Err(error), Ok(_)) => prop_assert_eq!(error.what, "a duplicate object key"),
            (Ok(_), Err(error)) => prop_assert!(false, "only we accept: {}", error),
        }
    }

    #[test]
    fn the_reader_never_panics(text in prop::collection::vec(any::<u8>(), 0..60)) {
        if let Err(error) = parse_json(&text, JsonLimits::default()) {
            prop_assert!(error.at <= text.len());
        }
    }

    #[test]
    fn without_removes_what_get_found(value in value(), name in "[a-c]{0,2}") {
        let pointer = Pointer::new(format!("/{name}")).unwrap();
        let left = value.without(&[pointer]);
        if value.get(&name).is_some() {
            prop_assert_eq!(left.get(&name), None);
        } else if matches!(value, Json::Object(_)) {
            prop_assert_eq!(left, value);
        }
    }
}
