use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::{Keyless, Settings, Target, ToolPolicy};

fn settings() -> Settings {
    Settings::new(Target::Command {
        program: "server".to_owned(),
        arguments: Vec::new(),
        environment: Vec::new(),
        folder: None,
    })
}

fn with_policy(tool: &str, policy: ToolPolicy) -> Settings {
    let mut settings = settings();
    settings.tools.insert(tool.to_owned(), policy);
    settings
}

fn page(tools: &[Value], next: Option<&str>) -> String {
    let mut page = json!({"tools": tools});
    if let Some(next) = next {
        page["nextCursor"] = json!(next);
    }
    page.to_string()
}

fn tool(name: &str, read_only: Option<bool>) -> Value {
    let mut tool = json!({"name": name, "inputSchema": {"type": "object"}});
    if let Some(read_only) = read_only {
        tool["annotations"] = json!({"readOnlyHint": read_only, "idempotentHint": true});
    }
    tool
}

fn catalog(tools: &[Value]) -> Catalog {
    let mut catalog = Catalog::default();
    assert_eq!(
        catalog.take_page(&page(tools, None), Some(catalog.changes())),
        Page::Last
    );
    catalog
}

fn read(tool: &Value) -> Tool {
    Tool::read(&tool.to_string()).unwrap()
}

#[test]
fn a_tool_is_mutating_unless_it_says_that_it_reads() {
    let plain = settings();
    for (hint, mutating) in [(None, true), (Some(false), true), (Some(true), false)] {
        let tool = read(&tool("t", hint));
        assert_eq!(tool.is_mutating(&plain), mutating);
        assert_eq!(tool.annotated, hint.is_some());
        // What is configured counts more, both ways, for one tool or for all.
        for name in ["t", "*"] {
            for read_only in [true, false] {
                let policy = ToolPolicy {
                    read_only: Some(read_only),
                    ..ToolPolicy::default()
                };
                assert_eq!(tool.is_mutating(&with_policy(name, policy)), !read_only);
            }
        }
    }
    // A hint that is no boolean is none.
    for hint in [json!("true"), json!(1), Value::Null] {
        let odd = json!({"name": "t", "annotations": {"readOnlyHint": hint}});
        assert!(read(&odd).is_mutating(&plain) && !read(&odd).annotated);
    }
    let twice = r#"{"name":"t","annotations":{"readOnlyHint":true,"readOnlyHint":false}}"#;
    assert!(Tool::read(twice).unwrap().is_mutating(&plain));
    assert!(Tool::unknown("t").is_mutating(&plain));
}

#[test]
fn a_parameter_for_a_key_is_known_by_its_letters_and_takes_a_string() {
    let own = |properties: Value| {
        let tool = read(&json!({"name": "t", "inputSchema": {"properties": properties}}));
        (tool.own_key, tool.called_like_a_key)
    };
    let string = json!({"type": "string"});
    for name in [
        "idempotency_key",
        "idempotencyKey",
        "Idempotency-Key",
        "x/IDEMPOTENCY_KEY",
    ] {
        let (own, all) = own(json!({"a": string, name: string}));
        assert_eq!((own.as_deref(), all), (Some(name), vec![name.to_owned()]));
    }
    assert_eq!(own(json!({"idempotent": string, "key": string})).1.len(), 0);
    // Ours by name before others.
    let both = own(json!({"idempotencyKey": string, "idempotency_key": string}));
    assert_eq!(both.0.as_deref(), Some("idempotency_key"));
    assert_eq!(both.1.len(), 2);
    for (schema, takes) in [
        (json!({}), true),
        (json!(true), true),
        (json!(false), false),
        (json!({"type": ["string", "null"]}), true),
        (
            json!({"anyOf": [{"type": "string"}, {"type": "null"}]}),
            true,
        ),
        (
            json!({"anyOf": [{"type": "integer"}, {"type": "null"}]}),
            false,
        ),
        (json!({"type": "boolean"}), false),
        (json!({"type": ["integer"]}), false),
    ] {
        let (own, all) = own(json!({"idempotency_key": schema.clone()}));
        assert_eq!((own.is_some(), all.len()), (takes, 1), "{schema}");
    }
}

#[test]
fn schemas_are_compiled_by_their_draft_and_nothing_is_fetched() {
    let judge = |schema: Value, arguments: &Value| {
        let tool = read(&json!({"name": "t", "inputSchema": schema}));
        tool.validator()
            .map(|validator| validator.is_valid(arguments))
    };
    let number = json!({"n": 1});
    let prefix = |draft: Value| {
        let mut schema = json!({"properties": {"n": {"type": "string"}}, "prefixItems": 1});
        schema["$schema"] = draft;
        schema
    };
    assert_eq!(judge(json!({"type": "object"}), &number), Some(true));
    assert_eq!(
        judge(json!({"properties": {"n": {"type": "string"}}}), &number),
        Some(false)
    );
    // Not a word of draft 7, so it is not looked at there; malformed in 2020-12, the default.
    let draft_7 = json!("http://json-schema.org/draft-07/schema#");
    assert_eq!(judge(prefix(draft_7), &number), Some(false));
    let newest = json!("https://json-schema.org/draft/2020-12/schema");
    assert_eq!(judge(prefix(newest), &number), None);
    for schema in [
        json!({"$ref": "https://example.com/schema.json"}),
        json!({"$ref": "file:///etc/hostname"}),
        json!({"$ref": "#/nowhere"}),
        json!({"type": 7}),
        json!("object"),
        Value::Null,
    ] {
        assert_eq!(judge(schema.clone(), &number), None, "{schema}");
    }
    assert!(read(&json!({"name": "t"})).validator().is_none());
    // Formats are notes.
    let format = json!({"properties": {"n": {"type": "string", "format": "email"}}});
    assert_eq!(judge(format, &json!({"n": "no address"})), Some(true));
    // A schema that is nothing but itself ends.
    judge(json!({"$ref": "#"}), &number);
    judge(json!({"allOf": [{"$ref": "#"}]}), &number);
}

#[test]
fn annotated_parameters_have_their_header() {
    let tool = read(&json!({"name": "t", "inputSchema": {"properties": {
        "region": {"type": "string", "x-mcp-header": "Region"},
        "at": {"properties": {"zone": {"type": "string", "x-mcp-header": "Zone-2"}}},
        "bad": {"type": "string", "x-mcp-header": "a b\r\n"},
        "empty": {"type": "string", "x-mcp-header": ""},
    }}}));
    assert_eq!(
        tool.param_headers,
        [
            ("mcp-param-region".to_owned(), vec!["region".to_owned()]),
            (
                "mcp-param-zone-2".to_owned(),
                vec!["at".to_owned(), "zone".to_owned()]
            ),
        ]
    );
}

#[test]
fn malformed_entries_are_skipped_and_unknown_members_ignored() {
    let list = r#"{"tools":[1,{},{"name":7},{"name":"a","name":"b"},"x",{"name":"ok","future":{"a":[1e999]}}],"x":1}"#;
    let mut catalog = Catalog::default();
    assert_eq!(catalog.take_page(list, Some(catalog.changes())), Page::Last);
    assert!(catalog.get("ok").is_some() && catalog.get("a").is_none());
    for unreadable in [
        "",
        "[]",
        "{}",
        r#"{"tools":{}}"#,
        r#"{"tools":[],"tools":[]}"#,
    ] {
        assert_eq!(
            catalog.take_page(unreadable, Some(catalog.changes())),
            Page::Unreadable
        );
        assert!(catalog.get("ok").is_some() && !catalog.is_stale());
    }
}

#[test]
fn a_new_list_counts_when_it_is_complete() {
    let mut catalog = Catalog::default();
    assert!(catalog.is_stale());
    let first = page(&[tool("a", Some(true)), tool("b", Some(true))], Some("2"));
    assert_eq!(
        catalog.take_page(&first, Some(catalog.changes())),
        Page::More("\"2\"".to_owned())
    );
    // Before any list is complete, what was read is better than nothing.
    assert!(catalog.get("a").is_some() && catalog.is_stale());
    assert_eq!(
        catalog.take_page(&page(&[tool("c", None)], None), None),
        Page::Last
    );
    assert!(!catalog.is_stale() && catalog.get("c").is_some());

    catalog.list_changed();
    assert!(catalog.is_stale() && catalog.get("a").is_some());
    catalog.take_page(
        &page(&[tool("a", Some(false))], Some("2")),
        Some(catalog.changes()),
    );
    // The old ones stay, but what has become mutating is so at once.
    assert_eq!(catalog.get("a").unwrap().read_only_hint, Some(false));
    assert!(catalog.get("c").is_some() && catalog.is_stale());
    assert_eq!(catalog.take_page(&page(&[], None), None), Page::Last);
    assert!(catalog.get("c").is_none() && !catalog.is_stale());

    // It changed while it was read.
    catalog.take_page(
        &page(&[tool("a", None)], Some("2")),
        Some(catalog.changes()),
    );
    catalog.list_changed();
    catalog.take_page(&page(&[], None), None);
    assert!(catalog.is_stale());
}

#[test]
fn a_page_that_continues_nothing_takes_nothing_away() {
    let mut catalog = catalog(&[tool("a", None), tool("b", None)]);
    catalog.list_changed();
    assert_eq!(
        catalog.take_page(&page(&[tool("c", None)], None), None),
        Page::Last
    );
    for name in ["a", "b", "c"] {
        assert!(catalog.get(name).is_some(), "{name}");
    }
    assert!(catalog.is_stale());
}

#[test]
fn no_cursor_is_spelled_in_three_ways() {
    for (list, expected) in [
        (r#"{"tools":[]}"#, Page::Last),
        (r#"{"tools":[],"nextCursor":null}"#, Page::Last),
        (r#"{"tools":[],"nextCursor":""}"#, Page::Last),
        (
            r#"{"tools":[],"nextCursor":"\u0061"}"#,
            Page::More(r#""\u0061""#.to_owned()),
        ),
    ] {
        assert_eq!(Catalog::default().take_page(list, Some(0)), expected);
    }
}

#[test]
fn of_two_tools_of_one_name_the_stricter_reading_counts() {
    for hints in [
        [Some(true), Some(false)],
        [Some(false), Some(true)],
        [Some(true), None],
        [None, Some(true)],
    ] {
        let tools = hints.map(|hint| tool("t", hint));
        let both = catalog(&tools).get("t").unwrap();
        assert!(both.is_mutating(&settings()), "{hints:?}");
        assert_eq!(both.annotated, hints.iter().all(Option::is_some));
        assert!(both.validator().is_some());
        // On two pages as on one.
        let mut paged = Catalog::default();
        let [first, second] = &tools;
        paged.take_page(
            &page(std::slice::from_ref(first), Some("2")),
            Some(paged.changes()),
        );
        paged.take_page(&page(std::slice::from_ref(second), None), None);
        assert_eq!(*paged.get("t").unwrap(), *both);
    }
    let with = |properties: Value| json!({"name": "t", "inputSchema": {"properties": properties}});
    let differing = catalog(&[
        with(json!({"idempotency_key": {"type": "string"}})),
        with(json!({"idempotencyKey": {"type": "string"}})),
    ]);
    let both = differing.get("t").unwrap();
    assert!(both.validator().is_none() && both.own_key.is_none());
    assert_eq!(
        both.called_like_a_key,
        ["idempotency_key", "idempotencyKey"]
    );
}

#[test]
fn a_list_is_bounded() {
    let many: Vec<Value> = (0..TOOLS_MAX + 5)
        .map(|n| tool(&format!("t{n}"), None))
        .collect();
    let catalog = catalog(&many);
    assert!(catalog.get(&format!("t{}", TOOLS_MAX - 1)).is_some());
    assert!(catalog.get(&format!("t{TOOLS_MAX}")).is_none());

    let mut endless = Catalog::default();
    let mut pages = 0;
    let mut first = Some(0);
    while let Page::More(_) = endless.take_page(&page(&[tool("t", None)], Some("on")), first) {
        pages += 1;
        first = None;
        assert!(pages < PAGES_MAX);
    }
    assert_eq!(pages, PAGES_MAX - 1);
    assert!(!endless.is_stale());
}

#[test]
fn what_was_compiled_is_kept_while_the_tool_is_the_same() {
    let list = page(&[tool("same", None), tool("other", None)], None);
    let mut catalog = Catalog::default();
    catalog.take_page(&list, Some(catalog.changes()));
    let (same, other) = (catalog.get("same").unwrap(), catalog.get("other").unwrap());
    catalog.take_page(&list.replace("other", "another"), Some(catalog.changes()));
    assert!(Arc::ptr_eq(&same, &catalog.get("same").unwrap()));
    assert!(catalog.get("other").is_none());
    drop(other);
}

#[test]
fn field_15_a_description_never_makes_a_model_mint_a_key_for_a_retry() {
    let mut all = Vec::new();
    for (own_tools, replay_for) in [
        (
            Some("counterfoil_".to_owned()),
            Duration::from_secs(48 * 3600),
        ),
        (None, Duration::from_secs(30 * 86_400)),
    ] {
        let mut settings = settings();
        settings.own_tools = own_tools;
        settings.replay_for = replay_for;
        let text = listing::how_to_use(&settings);
        assert!(text.split_whitespace().count() <= 60, "{text}");
        let lower = text.to_lowercase();
        for word in [
            "unique",
            "every request",
            "each request",
            "every call",
            "each call",
        ] {
            assert!(!lower.contains(word), "{text}");
        }
        for word in [
            "make one when",
            "keep it",
            "same key",
            "every retry",
            "good for",
            "uncertain",
        ] {
            assert!(lower.contains(word), "{text}");
        }
        all.push(text);
    }
    insta::assert_snapshot!("how-to-use-a-key", all.join("\n\n"));
}

/// Spelled in a way that no serializer would choose.
const LIST: &str = r#"{ "ttlMs": 1.50e3,  "tools" : [
  {"name":"read","description":"Reads \u00e9.","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true},"future":[1.0]},
  { "name" : "write", "description":"Writes \u00e9.", "inputSchema": {"type":"object", "properties":{ "n":{"type":"number","default":1.0} }, "required":["n"] , "additionalProperties":false}, "x":{} },
  {"inputSchema":{"type":"object"},"name":"bare"},
  {"name":"own","description":"","inputSchema":{"type":"object","properties":{"idempotencyKey":{"type":"string"}}}},
  {"name":"schemaless"},
  {"name":"closed","inputSchema":{"type":"object","allOf":[{"properties":{},"additionalProperties":false}]}},
  {"name":"scalar","inputSchema":{"type":"string"}},
  {"name":7}
] , "_meta":{"a":1} }"#;

fn rewritten(list: &str, settings: &Settings, own: &[String]) -> String {
    let mut catalog = Catalog::default();
    catalog.take_page(list, Some(catalog.changes()));
    catalog.rewrite_list(list, settings, own)
}

#[test]
fn a_list_as_a_client_sees_it() {
    let own = [r#"{"name":"counterfoil_get_operation"}"#.to_owned()];
    insta::assert_snapshot!("list-attach", rewritten(LIST, &settings(), &own));
    let mut strict = settings();
    strict.keyless = Keyless::Require;
    strict.own_tools = None;
    insta::assert_snapshot!("list-require", rewritten(LIST, &strict, &[]));
}

#[test]
fn what_is_added_is_all_that_changes() {
    let mut settings = settings();
    settings.keyless = Keyless::Require;
    let got = rewritten(LIST, &settings, &[]);
    let key = json!("idempotency_key");
    let mut list: Value = serde_json::from_str(&got).unwrap();
    for tool in list["tools"].as_array_mut().unwrap() {
        let added = tool["name"] == "write" || tool["name"] == "bare";
        if !added {
            continue;
        }
        let schema = &mut tool["inputSchema"];
        let properties = schema["properties"].as_object_mut().unwrap();
        let property = properties.shift_remove("idempotency_key").unwrap();
        assert_eq!(property["type"], "string");
        assert_eq!(
            (&property["minLength"], &property["maxLength"]),
            (&json!(1), &json!(200))
        );
        let required = schema["required"].as_array_mut().unwrap();
        assert_eq!(required.pop(), Some(key.clone()));
        if tool["name"] == "bare" {
            let schema = tool["inputSchema"].as_object_mut().unwrap();
            schema.shift_remove("required");
            schema.shift_remove("properties");
            tool.as_object_mut()
                .unwrap()
                .shift_remove("description")
                .unwrap();
        } else {
            assert!(
                tool["description"]
                    .as_str()
                    .unwrap()
                    .starts_with("Writes é.\n\nidempotency_key: ")
            );
            tool["description"] = json!("Writes é.");
        }
    }
    let before: Value = serde_json::from_str(LIST).unwrap();
    assert_eq!(list, before);
    // And the bytes of what is not touched are there.
    for line in LIST
        .lines()
        .filter(|line| !line.contains("\"write\"") && !line.contains("\"bare\""))
    {
        assert!(got.contains(line), "{line}");
    }
    assert!(got.contains(r#""description":"Writes \u00e9.\n\nidempotency_key"#));
    assert!(got.contains(r#""n":{"type":"number","default":1.0},"idempotency_key""#));
}

#[test]
fn a_list_without_mutating_tools_stays_byte_for_byte() {
    let mut settings = settings();
    settings.own_tools = None;
    let read_only =
        page(&[tool("a", Some(true)), tool("b", Some(true))], None).replace(',', " ,\n");
    assert_eq!(rewritten(&read_only, &settings, &[]), read_only);
    for odd in [
        "",
        "[]",
        "{}",
        r#"{"tools":1}"#,
        r#"{"tools":[],"tools":[]}"#,
        r#"{"tools":[{"name":"a","name":"b","inputSchema":{}}]}"#,
    ] {
        assert_eq!(rewritten(odd, &settings, &[]), odd);
    }
    let all_read = ToolPolicy {
        read_only: Some(true),
        ..ToolPolicy::default()
    };
    assert_eq!(rewritten(LIST, &with_policy("*", all_read), &[]), LIST);
}

#[test]
fn require_is_said_per_tool() {
    let lists = page(&[tool("a", None), tool("b", None)], None);
    let policy = ToolPolicy {
        keyless: Some(Keyless::Require),
        ..ToolPolicy::default()
    };
    let got: Value =
        serde_json::from_str(&rewritten(&lists, &with_policy("b", policy), &[])).unwrap();
    assert!(got["tools"][0]["inputSchema"].get("required").is_none());
    assert_eq!(
        got["tools"][1]["inputSchema"]["required"],
        json!(["idempotency_key"])
    );
}

#[test]
fn schemas_that_would_refuse_one_more_property_stay_as_they_are() {
    for part in [
        json!({"$ref": "#/$defs/a"}),
        json!({"maxProperties": 2}),
        json!({"propertyNames": {"maxLength": 3}}),
        json!({"patternProperties": {".*": {"type": "number"}}}),
        json!({"anyOf": [{"$ref": "#/$defs/a"}]}),
        json!({"oneOf": [{"unevaluatedProperties": false}]}),
        json!({"properties": []}),
        json!({"type": ["object", "null"]}),
    ] {
        let mut schema = json!({"type": "object"});
        schema
            .as_object_mut()
            .unwrap()
            .extend(part.as_object().unwrap().clone());
        let list = page(
            &[json!({"name": "t", "description": "d", "inputSchema": schema})],
            None,
        );
        assert_eq!(rewritten(&list, &settings(), &[]), list);
    }
    let open = json!({"name": "t", "inputSchema": {"type": "object", "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}});
    let list = page(&[open], None);
    assert!(rewritten(&list, &settings(), &[]).contains("idempotency_key"));
}

#[test]
fn own_tools_stand_at_the_end_of_the_last_page_unless_their_name_is_taken() {
    let own = [
        r#"{"name":"x_get"}"#.to_owned(),
        r#"{"name":"x_list"}"#.to_owned(),
    ];
    let read = tool("x_list", Some(true));
    let settings = settings();
    let mut catalog = Catalog::default();
    let first = page(std::slice::from_ref(&read), Some("2"));
    catalog.take_page(&first, Some(catalog.changes()));
    assert_eq!(catalog.rewrite_list(&first, &settings, &own), first);
    // The name was on an earlier page.
    let last = r#"{"tools": [ ] }"#;
    catalog.take_page(last, None);
    assert_eq!(
        catalog.rewrite_list(last, &settings, &own),
        r#"{"tools": [{"name":"x_get"} ] }"#
    );
    let one = r#"{"tools":[{"name":"a","annotations":{"readOnlyHint":true}} ]}"#;
    assert_eq!(
        rewritten(one, &settings, &own),
        r#"{"tools":[{"name":"a","annotations":{"readOnlyHint":true}},{"name":"x_get"},{"name":"x_list"} ]}"#
    );
}

#[test]
fn a_list_that_cannot_be_read_whole_leaves_no_tool_out_unnoticed() {
    let whole = catalog(&[tool("a", None)]);
    assert!(whole.knows_all());
    let mut catalog = whole;
    // Which of the two names counts is for each reader to say.
    let twice = r#"{"tools":[{"name":"a"},{"name":"pay","name":"b"}]}"#;
    assert_eq!(
        catalog.take_page(twice, Some(catalog.changes())),
        Page::Last
    );
    assert!(!catalog.is_stale());
    assert!(catalog.get("pay").is_none() && !catalog.knows_all());
    let many: Vec<Value> = (0..=TOOLS_MAX)
        .map(|number| json!({"name": format!("t{number}")}))
        .collect();
    assert_eq!(
        catalog.take_page(&page(&many, None), Some(catalog.changes())),
        Page::Last
    );
    assert!(!catalog.knows_all());
    assert_eq!(
        catalog.take_page(&page(&many[1..], None), Some(catalog.changes())),
        Page::Last
    );
    assert!(catalog.knows_all());
}

#[test]
fn a_change_that_overtakes_a_list_makes_it_stale() {
    let mut catalog = Catalog::default();
    let asked = catalog.changes();
    catalog.list_changed();
    catalog.take_page(&page(&[tool("t", Some(true))], None), Some(asked));
    assert!(catalog.is_stale());
    let asked = catalog.changes();
    catalog.take_page(&page(&[tool("t", Some(true))], None), Some(asked));
    assert!(!catalog.is_stale());
}
