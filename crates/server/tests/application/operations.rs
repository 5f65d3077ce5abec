use std::time::Duration;

use axum::http::Method;
use counterfoil_core::Retention;
use counterfoil_server::{Role, Settings};
use serde_json::{Value, json};

use crate::fixture::{Answer, App, On};

on_both! {
    field_13_a_result_can_be_fetched_by_its_operation_id,
    i4_a_result_goes_to_its_own_principal_only,
    operations_are_paged_and_filtered,
    past_its_window_an_operation_is_shown_as_expired,
    field_21_operations_in_doubt_come_first,
}

async fn show(app: &App, credential: &str, id: &str) -> Answer {
    app.ask(Method::GET, &format!("/api/v1/operations/{id}"))
        .bearer(credential)
        .send()
        .await
}

async fn field_13_a_result_can_be_fetched_by_its_operation_id(on: On) {
    let app = App::new(on).await;
    let created = app.note("k", "hello").await;
    let id = created.json()["operation_id"].as_str().unwrap().to_owned();
    let view = show(&app, &app.admin, &id).await.json();
    assert_eq!(view["operation_id"], id);
    assert_eq!(view["state"], "succeeded");
    assert_eq!(view["effect"], "happened");
    assert_eq!(view["attempts"], 1);
    assert_eq!(view["version"], 1);
    assert_eq!(view["mode"], "atomic");
    assert_eq!(view["target"], "POST /api/v1/notes");
    assert_eq!(view["result_kept"], "stored");
    assert_eq!(view["result"]["status"], 201);
    assert_eq!(view["result"]["body"], created.json());
    assert!(view["replay_until"].as_str() < view["tombstone_until"].as_str());
    let events = view["events"].as_array().unwrap();
    assert_eq!(events.last().unwrap()["to"], "succeeded");
    assert!(!view.to_string().contains("\"k\""), "the key is not shown");
}

async fn i4_a_result_goes_to_its_own_principal_only(on: On) {
    let app = App::new(on).await;
    let member = app.issue("default", Role::Member).await;
    let bystander = app.issue("default", Role::Member).await;
    let foreign = app.issue("other", Role::Admin).await;
    let created = app
        .post("/api/v1/notes")
        .bearer(&member)
        .key("k")
        .body(r#"{"body":"hello"}"#)
        .send()
        .await;
    let id = created.json()["operation_id"].as_str().unwrap().to_owned();
    assert_ne!(show(&app, &member, &id).await.json()["result"], Value::Null);
    let by_admin = show(&app, &app.admin, &id).await.json();
    assert_eq!(by_admin["state"], "succeeded");
    assert_eq!(by_admin["result"], Value::Null);
    assert!(!by_admin.to_string().contains("hello"));
    show(&app, &bystander, &id).await.problem(404, "not_found");
    show(&app, &foreign, &id).await.problem(404, "not_found");
    let nothing = "op_01890000-0000-7000-8000-000000000000";
    for id in [nothing, "op_x", "note_1"] {
        show(&app, &app.admin, id).await.problem(404, "not_found");
    }
    let list = |credential: String| {
        let app = &app;
        async move {
            let answer = app
                .ask(Method::GET, "/api/v1/operations")
                .bearer(&credential)
                .send()
                .await;
            answer.json()["operations"].as_array().unwrap().len()
        }
    };
    assert_eq!(list(member).await, 1);
    assert_eq!(list(app.admin.clone()).await, 1);
    assert_eq!(list(bystander).await, 0);
    assert_eq!(list(foreign).await, 0);
}

async fn operations_are_paged_and_filtered(on: On) {
    let app = App::new(on).await;
    for n in 0..5 {
        app.note(&format!("k{n}"), "x").await;
    }
    let mut seen = Vec::new();
    let mut path = "/api/v1/operations?limit=2&state=succeeded".to_owned();
    loop {
        let page = app.get(&path).send().await.json();
        for operation in page["operations"].as_array().unwrap() {
            seen.push(operation["operation_id"].as_str().unwrap().to_owned());
        }
        match page["next_cursor"].as_str() {
            Some(cursor) => {
                path = format!("/api/v1/operations?limit=2&state=succeeded&cursor={cursor}")
            }
            None => break,
        }
    }
    seen.dedup();
    assert_eq!(seen.len(), 5);
    let none = app
        .get("/api/v1/operations?state=outcome_unknown")
        .send()
        .await;
    assert_eq!(none.json(), json!({"operations": [], "next_cursor": null}));
    for (query, field) in [
        ("state=nonsense", "/state"),
        ("state=free", "/state"),
        ("limit=0", "/limit"),
        ("limit=101", "/limit"),
        ("cursor=zz", "/cursor"),
        ("principal=x", "/query"),
    ] {
        let answer = app.get(&format!("/api/v1/operations?{query}")).send().await;
        let problem = answer.problem(422, "invalid");
        assert_eq!(problem["issues"][0]["field"], field, "{query}");
    }
    let notes = app.get("/api/v1/notes?limit=2").send().await.json();
    let cursor = notes["next_cursor"].as_str().unwrap();
    let answer = app
        .get(&format!("/api/v1/operations?cursor={cursor}"))
        .send()
        .await;
    answer.problem(422, "invalid");
}

async fn past_its_window_an_operation_is_shown_as_expired(on: On) {
    let app = App::with(
        on,
        Settings {
            retention: Retention {
                replay_for: Duration::ZERO,
                tombstone_for: Duration::from_secs(3600),
            },
            ..Settings::default()
        },
    )
    .await;
    let id = app.note("k", "hello").await.json()["operation_id"]
        .as_str()
        .unwrap()
        .to_owned();
    let view = show(&app, &app.admin, &id).await.json();
    assert_eq!(view["state"], "expired");
    assert_eq!(view["effect"], "happened");
    assert_eq!(view["result_kept"], "expired");
    assert_eq!(view["result"], Value::Null);
    for (state, count) in [("expired", 1), ("succeeded", 0), ("outcome_unknown", 0)] {
        let path = format!("/api/v1/operations?state={state}");
        let list = app.get(&path).send().await.json();
        assert_eq!(
            list["operations"].as_array().unwrap().len(),
            count,
            "{state}"
        );
        assert_eq!(list["next_cursor"], Value::Null);
    }
}

async fn field_21_operations_in_doubt_come_first(on: On) {
    use counterfoil_core::{Fingerprint, Key, Policy, PrincipalId, Target};
    use counterfoil_engine::{Call, Operation, Outcome};
    let app = App::new(on).await;
    let principal = crate::fixture::id_of(&app.admin);
    let identity = counterfoil_core::Identity {
        workspace: crate::fixture::workspace("default"),
        principal: PrincipalId::new(principal).unwrap(),
        target: Target::new("elsewhere"),
        key: Key::new("doubt").unwrap(),
    };
    let operation = Operation::new(1, Policy::default()).unwrap();
    let call = Call::new(identity, Fingerprint::raw("", b""), operation);
    let lost = |_| async { Outcome::Lost { timed_out: true } };
    app.application.engine().run(call, lost).await;
    for n in 0..3 {
        app.note(&format!("k{n}"), "x").await;
    }
    let mut states = Vec::new();
    let mut path = "/api/v1/operations?limit=1".to_owned();
    loop {
        let page = app.get(&path).send().await.json();
        for operation in page["operations"].as_array().unwrap() {
            states.push(operation["state"].as_str().unwrap().to_owned());
        }
        match page["next_cursor"].as_str() {
            Some(cursor) => path = format!("/api/v1/operations?limit=1&cursor={cursor}"),
            None => break,
        }
    }
    assert_eq!(
        states,
        ["outcome_unknown", "succeeded", "succeeded", "succeeded"]
    );
}
