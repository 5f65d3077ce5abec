use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::*;

fn edited(text: &str, change: impl FnOnce(&mut Edit<'_, '_>)) -> String {
    let object = Object::read(text).unwrap();
    let mut edit = Edit::of(&object);
    change(&mut edit);
    edit.text().unwrap()
}

#[test]
fn members_are_read_where_they_stand() {
    let text = " { \"a\" : [1, {\"b\":2}] ,\n\t\"\\u0062\\\"\": 1.50 , \"\":\"x\" } ";
    let object = Object::read(text).unwrap();
    let members: Vec<(&str, &str)> = object
        .members()
        .iter()
        .map(|member| (&*member.name, member.value))
        .collect();
    assert_eq!(
        members,
        [("a", "[1, {\"b\":2}]"), ("b\"", "1.50"), ("", "\"x\"")]
    );
    let spans: Vec<&str> = object
        .members()
        .iter()
        .map(|member| &text[member.at.clone()])
        .collect();
    assert_eq!(
        spans,
        [
            "\"a\" : [1, {\"b\":2}]",
            "\"\\u0062\\\"\": 1.50",
            "\"\":\"x\""
        ]
    );
    assert_eq!(object.repeated(), None);
    assert!(object.has("b\"") && !object.has("b"));
}

#[test]
fn what_is_no_object_is_not_read() {
    for text in [
        "",
        "1",
        "[]",
        "null",
        "{",
        "{\"a\":1",
        "{\"a\":1,}",
        "{} {}",
        "{\"a\"}",
        "{1:2}",
        "{\"\\ud800\":1}",
        "{\"a\nb\":1}",
    ] {
        assert!(Object::read(text).is_none(), "{text}");
    }
    // Inside a value nothing is looked at but where it ends.
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(50_000), "]".repeat(50_000));
    assert!(Object::read(&deep).is_some());
    assert!(Object::read("{\"a\":\"\\ud800\",\"b\":1e999}").is_some());
}

#[test]
fn a_name_that_is_there_twice_is_found_however_it_is_spelled() {
    let repeated = |text: &str| Object::read(text).unwrap().repeated().map(str::to_owned);
    assert_eq!(repeated(r#"{"a":1,"b":2,"a":1}"#), Some("a".to_owned()));
    assert_eq!(repeated(r#"{"a":1,"\u0061":2}"#), Some("a".to_owned()));
    assert_eq!(repeated(r#"{"a":{"a":1},"A":2}"#), None);
    let first = Object::read(r#"{"a":1,"a":2}"#).unwrap();
    assert_eq!(first.get("a"), Some("1"));
}

#[test]
fn strings_are_decoded() {
    assert!(matches!(string("\"é a\""), Some(Cow::Borrowed("é a"))));
    assert_eq!(string(r#""\u00e9\"""#).as_deref(), Some("é\""));
    for other in [
        "a",
        "\"",
        "",
        "1",
        "\"a\"b\"",
        r#""\ud800""#,
        "\"\n\"",
        "null",
    ] {
        assert_eq!(string(other), None, "{other}");
    }
}

#[test]
fn members_are_put_in_taken_out_and_replaced() {
    let text = "{ \"a\" : 1 , \"b\":2,\n  \"c\": 3 }";
    let removed = |names: &[&str]| {
        edited(text, |edit| {
            for name in names {
                assert!(edit.remove(name));
            }
        })
    };
    assert_eq!(removed(&["a"]), "{ \"b\":2,\n  \"c\": 3 }");
    assert_eq!(removed(&["b"]), "{ \"a\" : 1,\n  \"c\": 3 }");
    assert_eq!(removed(&["c"]), "{ \"a\" : 1 , \"b\":2 }");
    assert_eq!(removed(&["a", "b"]), "{ \"c\": 3 }");
    assert_eq!(removed(&["b", "c"]), "{ \"a\" : 1 }");
    assert_eq!(removed(&["c", "a"]), "{ \"b\":2 }");
    assert_eq!(removed(&["a", "b", "c"]), "{  }");
    assert_eq!(removed(&[]), text);

    let put = edited(text, |edit| {
        edit.insert_first("x", "[]");
        edit.insert_last("y\"", "{}");
        edit.set("b", "true");
        edit.set("z", "0");
        assert!(!edit.remove("nothing"));
    });
    assert_eq!(
        put,
        "{ \"x\":[],\"a\" : 1 , \"b\":true,\n  \"c\": 3,\"y\\\"\":{},\"z\":0 }"
    );
    let moved = edited("{\"a\":1}", |edit| {
        edit.remove("a");
        edit.insert_last("c", "3");
        edit.insert_first("b", "2");
    });
    assert_eq!(moved, "{\"b\":2,\"c\":3}");
    for empty in ["{}", " { } "] {
        let both = edited(empty, |edit| {
            edit.insert_last("b", "2");
            edit.insert_first("a", "1");
        });
        assert_eq!(both, empty.replacen('{', "{\"a\":1,\"b\":2", 1));
    }
    // A repeated name cannot hide a member.
    let all = edited(r#"{"a":1,"b":2,"\u0061":3}"#, |edit| {
        edit.remove("a");
    });
    assert_eq!(all, "{\"b\":2}");
}

#[test]
fn splices_that_overlap_are_refused() {
    let apply = |list: &[(Range<usize>, &str)]| {
        let mut splices = Splices::default();
        for (range, text) in list {
            splices.put(range.clone(), *text);
        }
        splices.apply("abcdef")
    };
    let ok = apply(&[
        (4..5, "E"),
        (0..0, "<"),
        (6..6, ">"),
        (1..1, "1"),
        (1..1, "2"),
        (1..3, ""),
    ]);
    assert_eq!(ok.as_deref(), Some("<a12dEf>"));
    assert_eq!(apply(&[(0..3, "x"), (2..4, "y")]), None);
    assert_eq!(apply(&[(5..7, "x")]), None);
    let mut inside = Splices::default();
    inside.put(1..1, "x");
    assert_eq!(inside.apply("é"), None);
}

#[test]
fn a_slice_is_found_and_nothing_else_is() {
    let whole = String::from("abcabc");
    assert_eq!(place_in(&whole, &whole[3..5]), Some(3..5));
    assert_eq!(place_in(&whole[1..4], &whole[3..5]), None);
    assert_eq!(place_in(&whole[2..], &whole[..1]), None);
}

fn space() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["", " ", "\n\t", "  \r\n"]).prop_map(str::to_owned)
}

fn value() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "1",
        "-0.50e+1",
        "\"x\"",
        "\"a,}\\\"{\\u00e9\"",
        "{ \"a\" : [ ] }",
        "[1 ,\t2]",
        "null",
        "{}",
    ])
    .prop_map(str::to_owned)
}

/// An object's text, with names a0, a1, …, some of them spelled with an escape.
fn object() -> impl Strategy<Value = String> {
    let member = (space(), any::<bool>(), space(), space(), value(), space());
    (space(), prop::collection::vec(member, 0..7), space()).prop_map(|(before, members, after)| {
        let members: Vec<String> = members
            .into_iter()
            .enumerate()
            .map(|(n, (a, escaped, b, c, value, d))| {
                let name = if escaped { "\\u0061" } else { "a" };
                format!("{a}\"{name}{n}\"{b}:{c}{value}{d}")
            })
            .collect();
        format!("{before}{{{}}}{after}", members.join(","))
    })
}

#[derive(Clone, Debug)]
enum Step {
    Remove(usize),
    Set(usize, String),
    First(usize, String),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..8_usize).prop_map(Step::Remove),
        (0..9_usize, value()).prop_map(|(n, value)| Step::Set(n, value)),
        (20..25_usize, value()).prop_map(|(n, value)| Step::First(n, value)),
    ]
}

proptest! {
    #[test]
    fn an_edit_is_the_edit_of_the_value_and_touches_nothing_else(
        text in object(),
        steps in prop::collection::vec(step(), 0..5),
    ) {
        let object = Object::read(&text).unwrap();
        let mut edit = Edit::of(&object);
        let before: Map<String, Value> = serde_json::from_str(&text).unwrap();
        // The last word on each name counts; a name is put in at most once.
        let mut words: BTreeMap<String, Step> = BTreeMap::new();
        for step in steps {
            let (Step::Remove(n) | Step::Set(n, _) | Step::First(n, _)) = &step;
            words.insert(format!("a{n}"), step);
        }
        let (mut expected, mut first) = (before.clone(), Vec::new());
        for (name, word) in &words {
            match word {
                Step::Remove(_) => {
                    prop_assert_eq!(edit.remove(name), expected.shift_remove(name).is_some());
                }
                Step::Set(_, value) => {
                    edit.set(name, value);
                    expected.insert(name.clone(), serde_json::from_str(value).unwrap());
                }
                Step::First(_, value) => {
                    edit.insert_first(name, value);
                    first.push((name.clone(), serde_json::from_str::<Value>(value).unwrap()));
                }
            }
        }
        let changes_nothing = words.iter().all(|(name, word)| {
            matches!(word, Step::Remove(_)) && !before.contains_key(name)
        });
        prop_assert_eq!(edit.is_empty(), changes_nothing);
        let after = edit.text().unwrap();
        if changes_nothing {
            prop_assert_eq!(&after, &text);
        }
        // The same members in the same order.
        let order: Vec<(String, Value)> = first.into_iter().chain(expected).collect();
        let got: Map<String, Value> = serde_json::from_str(&after).unwrap();
        prop_assert_eq!(got.into_iter().collect::<Vec<_>>(), order);
        // Each member that nobody spoke of is there as it was spelled.
        let reread = Object::read(&after).unwrap();
        for member in object.members() {
            if words.contains_key(&*member.name) {
                continue;
            }
            let same = reread.members().iter().find(|other| other.name == member.name).unwrap();
            prop_assert_eq!(&after[same.at.clone()], &text[member.at.clone()]);
        }
        // And so is what stands around the object.
        let outside = |text: &str| {
            let (head, tail) = (text.find('{').unwrap(), text.rfind('}').unwrap());
            (text[..head].to_owned(), text[tail..].to_owned())
        };
        prop_assert_eq!(outside(&after), outside(&text));
    }

    #[test]
    fn reading_never_panics(text in "[{}\\[\\]\":,a\\\\u0-9 \\n]{0,40}") {
        if let Some(object) = Object::read(&text) {
            let value: Value = serde_json::from_str(&text).unwrap_or(json!({}));
            prop_assert!(value.is_object());
            prop_assert_eq!(Edit::of(&object).text().unwrap(), text);
        }
    }
}
