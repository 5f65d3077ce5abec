use axum::http::Method;
use counterfoil_server::{Rate, Role, Settings};
use serde_json::{Value, json};

use crate::fixture::{App, On, id_of, workspace};

on_both! {
    field_08_one_key_of_two_principals_is_two_calls,
    only_a_valid_bearer_credential_gets_in,
    i4_a_revoked_principal_gets_no_replay_whichever_process_revoked_it,
    a_principal_survives_the_rotation_of_its_secret,
    field_09_an_issued_key_is_in_the_first_answer_only_and_nowhere_on_disk,
    a_lost_key_is_found_again_by_rotation,
    an_admin_cannot_lock_itself_out_by_rotating_its_own_key,
    two_credentials_in_one_request_are_none,
    field_10_a_kept_refusal_of_a_key_says_that_it_is_kept,
    only_an_admin_handles_keys_and_only_those_of_its_workspace,
    revoking_is_for_good_and_may_be_repeated,
    names_and_roles_of_keys_are_checked,
    a_rate_limit_refuses_before_a_receipt_is_touched,
    failed_authentications_are_limited,
}

async fn field_08_one_key_of_two_principals_is_two_calls(on: On) {
    let app = App::new(on).await;
    let second = app.issue("default", Role::Member).await;
    let mine = app.note("k", "hello").await;
    let theirs = app
        .post("/api/v1/notes")
        .bearer(&second)
        .key("k")
        .body(json!({"body": "hello"}).to_string())
        .send()
        .await;
    assert_eq!(theirs.status, 201);
    assert!(!theirs.is_replay());
    assert_ne!(mine.json()["note_id"], theirs.json()["note_id"]);
    assert_eq!(theirs.json()["author"], id_of(&second));
    assert_eq!(app.notes().await, 2);
}

async fn only_a_valid_bearer_credential_gets_in(on: On) {
    let app = App::new(on).await;
    let wrong_secret = format!("{}0000", &app.admin[..app.admin.len() - 4]);
    let unknown = format!("cfk_{}_{}", "0".repeat(32), "0".repeat(64));
    let headers = [
        None,
        Some(String::new()),
        Some("Bearer".to_owned()),
        Some(format!("Basic {}", app.admin)),
        Some(app.admin.clone()),
        Some(format!("Bearer {wrong_secret}")),
        Some(format!("Bearer {unknown}")),
        Some(format!("Bearer {}x", app.admin)),
    ];
    for header in headers {
        let mut asking = app.ask(Method::GET, "/api/v1/notes");
        if let Some(header) = &header {
            asking = asking.header("authorization", header.clone());
        }
        let answer = asking.send().await;
        answer.problem(401, "unauthorized");
        assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
    }
}

async fn i4_a_revoked_principal_gets_no_replay_whichever_process_revoked_it(on: On) {
    let app = App::new(on).await;
    let other_process = app.beside(Settings::default()).await;
    let member = app.issue("default", Role::Member).await;
    let send = || {
        app.post("/api/v1/notes")
            .bearer(&member)
            .key("k")
            .body(json!({"body": "hello"}).to_string())
            .send()
    };
    assert_eq!(send().await.status, 201);
    assert!(send().await.is_replay());
    let keys = other_process.application.agent_keys();
    let revoked = keys
        .revoke(&workspace("default"), &id_of(&member))
        .await
        .unwrap();
    assert!(revoked.revoked_at.is_some());
    send().await.problem(401, "unauthorized");
}

async fn a_principal_survives_the_rotation_of_its_secret(on: On) {
    let app = App::new(on).await;
    let old = app.issue("default", Role::Member).await;
    let send = |credential: &str| {
        app.post("/api/v1/notes")
            .bearer(credential)
            .key("k")
            .body(json!({"body": "hello"}).to_string())
            .send()
    };
    let first = send(&old).await;
    let path = format!("/api/v1/agent-keys/{}/rotate", id_of(&old));
    let rotated = app.post(&path).bearer(&app.admin).key("r").send().await;
    assert_eq!(rotated.status, 200);
    let new = rotated.json()["key"].as_str().unwrap().to_owned();
    send(&old).await.problem(401, "unauthorized");
    let again = send(&new).await;
    assert!(again.is_replay());
    assert_eq!(again.body, first.body);
}

async fn field_09_an_issued_key_is_in_the_first_answer_only_and_nowhere_on_disk(on: On) {
    let app = App::new(on).await;
    let issue = || {
        app.post("/api/v1/agent-keys")
            .bearer(&app.admin)
            .key("k")
            .body(r#"{"name":"worker"}"#)
            .send()
    };
    let first = issue().await;
    assert_eq!(first.status, 201);
    let body = first.json();
    let key = body["key"].as_str().unwrap().to_owned();
    assert_eq!(body["role"], "member");
    assert_eq!(body["id"], id_of(&key));
    let again = issue().await;
    assert!(again.is_replay());
    assert_eq!(again.status, 201);
    let mut expected = body.clone();
    expected["key"] = Value::Null;
    assert_eq!(again.json(), expected);
    let way_back = again.json()["next_action"].as_str().unwrap().to_owned();
    assert!(way_back.contains(&format!("/api/v1/agent-keys/{}/rotate", id_of(&key))));
    let operation = body["operation_id"].as_str().unwrap();
    let shown = app
        .get(&format!("/api/v1/operations/{operation}"))
        .send()
        .await;
    assert_eq!(shown.json()["result"]["body"]["key"], Value::Null);
    let secret = key.rsplit('_').next().unwrap();
    let stored = app.place.kept();
    let lies_there = |text: &str| {
        let parts = |bytes: &Vec<u8>| {
            bytes
                .windows(text.len())
                .any(|part| part == text.as_bytes())
        };
        stored.iter().any(parts)
    };
    assert!(!lies_there(secret));
    assert!(lies_there(&id_of(&key)), "the check finds what is there");
    let works = app
        .ask(Method::GET, "/api/v1/notes")
        .bearer(&key)
        .send()
        .await;
    assert_eq!(works.status, 200);
}

async fn a_lost_key_is_found_again_by_rotation(on: On) {
    let app = App::new(on).await;
    let member = app.issue("default", Role::Member).await;
    let path = format!("/api/v1/agent-keys/{}/rotate", id_of(&member));
    let rotate = |key: &'static str| app.post(&path).bearer(&app.admin).key(key).send();
    let first = rotate("r1").await;
    let lost = rotate("r1").await;
    assert!(lost.is_replay());
    assert_eq!(lost.json()["key"], Value::Null);
    let second = rotate("r2").await.json();
    assert_ne!(second["key"], first.json()["key"]);
    let key = second["key"].as_str().unwrap();
    let works = app
        .ask(Method::GET, "/api/v1/notes")
        .bearer(key)
        .send()
        .await;
    assert_eq!(works.status, 200);
}

async fn an_admin_cannot_lock_itself_out_by_rotating_its_own_key(on: On) {
    let app = App::new(on).await;
    let path = format!("/api/v1/agent-keys/{}/rotate", id_of(&app.admin));
    let refused = app.post(&path).bearer(&app.admin).key("r").send().await;
    let problem = refused.problem(422, "invalid");
    assert!(
        problem.to_string().contains("counterfoil keys rotate"),
        "{problem}"
    );
    let list = |credential: &str| {
        app.ask(Method::GET, "/api/v1/notes")
            .bearer(credential)
            .send()
    };
    assert_eq!(list(&app.admin).await.status, 200, "nothing was changed");
    let other = app.issue("default", Role::Admin).await;
    let rotated = app.post(&path).bearer(&other).key("r").send().await;
    assert_eq!(rotated.status, 200);
    let new = rotated.json()["key"].as_str().unwrap().to_owned();
    list(&app.admin).await.problem(401, "unauthorized");
    assert_eq!(list(&new).await.status, 200);
}

async fn two_credentials_in_one_request_are_none(on: On) {
    let app = App::new(on).await;
    for other in ["junk", app.admin.as_str()] {
        let asked = app.ask(Method::GET, "/api/v1/notes").bearer(&app.admin);
        asked
            .bearer(other)
            .send()
            .await
            .problem(401, "unauthorized");
    }
}

async fn field_10_a_kept_refusal_of_a_key_says_that_it_is_kept(on: On) {
    let app = App::new(on).await;
    let member = app.issue("default", Role::Member).await;
    let path = format!("/api/v1/agent-keys/{}", id_of(&member));
    let revoke = app.ask(Method::DELETE, &path).bearer(&app.admin);
    assert_eq!(revoke.send().await.status, 200);
    let unknown = format!("/api/v1/agent-keys/ak_{}/rotate", "0".repeat(32));
    for (path, status, code) in [
        (format!("{path}/rotate"), 422, "invalid"),
        (unknown, 404, "not_found"),
    ] {
        let rotate = || app.post(&path).bearer(&app.admin).key(code).send();
        let (first, again) = (rotate().await, rotate().await);
        assert!(again.is_replay() && again.body == first.body);
        for answer in [first, again] {
            let problem = answer.problem(status, code);
            let action = problem["next_action"].as_str().unwrap();
            assert!(action.contains("a new attempt needs a new key"), "{action}");
            assert!(!action.contains("not used up"), "{action}");
        }
    }
}

async fn only_an_admin_handles_keys_and_only_those_of_its_workspace(on: On) {
    let app = App::new(on).await;
    let member = app.issue("default", Role::Member).await;
    let foreign = app.issue("other", Role::Member).await;
    let as_member = app
        .post("/api/v1/agent-keys")
        .bearer(&member)
        // A malformed key: the role is judged first.
        .key("")
        .body(r#"{"name":"x"}"#)
        .send()
        .await;
    as_member.problem(403, "forbidden");
    for id in [id_of(&foreign), "ak_nothing".to_owned()] {
        let path = format!("/api/v1/agent-keys/{id}");
        let revoke = app
            .ask(Method::DELETE, &path)
            .bearer(&app.admin)
            .send()
            .await;
        revoke.problem(404, "not_found");
        let rotate = app
            .post(&format!("{path}/rotate"))
            .bearer(&app.admin)
            .send()
            .await;
        rotate.problem(404, "not_found");
    }
    let works = app
        .ask(Method::GET, "/api/v1/notes")
        .bearer(&foreign)
        .send()
        .await;
    assert_eq!(works.status, 200);
}

async fn revoking_is_for_good_and_may_be_repeated(on: On) {
    let app = App::new(on).await;
    let member = app.issue("default", Role::Member).await;
    let path = format!("/api/v1/agent-keys/{}", id_of(&member));
    let revoke = |key: &'static str| {
        app.ask(Method::DELETE, &path)
            .bearer(&app.admin)
            .key(key)
            .send()
    };
    let first = revoke("d1").await;
    assert_eq!(first.status, 200);
    assert!(revoke("d1").await.is_replay());
    let second = revoke("d2").await;
    assert_eq!(second.json()["revoked_at"], first.json()["revoked_at"]);
    let rotate = app
        .post(&format!("{path}/rotate"))
        .bearer(&app.admin)
        .send()
        .await;
    rotate.problem(422, "invalid");
    let own = format!("/api/v1/agent-keys/{}", id_of(&app.admin));
    let refused = app
        .ask(Method::DELETE, &own)
        .bearer(&app.admin)
        .send()
        .await;
    refused.problem(422, "invalid");
}

async fn names_and_roles_of_keys_are_checked(on: On) {
    let app = App::new(on).await;
    let long = json!({"name": "x".repeat(101)}).to_string();
    for (body, field) in [
        (r#"{}"#, "/name"),
        (r#"{"name":""}"#, "/name"),
        (long.as_str(), "/name"),
        (r#"{"name":"a\nb"}"#, "/name"),
        (r#"{"name":"a","role":"owner"}"#, "/role"),
        (r#"{"name":"a","workspace":"other"}"#, "/workspace"),
    ] {
        let answer = app
            .post("/api/v1/agent-keys")
            .bearer(&app.admin)
            .key("k")
            .body(body)
            .send()
            .await;
        let problem = answer.problem(422, "invalid");
        assert_eq!(problem["issues"][0]["field"], field, "{body}");
    }
    assert_eq!(app.operations().await, 0);
}

async fn a_rate_limit_refuses_before_a_receipt_is_touched(on: On) {
    let app = App::with(
        on,
        Settings {
            rate: Rate {
                per_second: 1,
                burst: 3,
            },
            ..Settings::default()
        },
    )
    .await;
    let other = app.issue("default", Role::Member).await;
    for n in 0..3 {
        assert_eq!(app.note(&format!("k{n}"), "x").await.status, 201);
    }
    let answer = app.note("k9", "x").await;
    let problem = answer.problem(429, "rate_limited");
    assert_eq!(problem["retryable"], true);
    let seconds: u64 = answer.header("retry-after").unwrap().parse().unwrap();
    assert_eq!(seconds, 1);
    // A replay is limited too, and another principal is not.
    app.note("k0", "x").await.problem(429, "rate_limited");
    let theirs = app
        .ask(Method::GET, "/api/v1/notes")
        .bearer(&other)
        .send()
        .await;
    assert_eq!(theirs.json()["notes"].as_array().unwrap().len(), 3);
}

async fn failed_authentications_are_limited(on: On) {
    let app = App::new(on).await;
    assert_eq!(app.get("/api/v1/notes").send().await.status, 200);
    let mut refused = Vec::new();
    for _ in 0..80 {
        let answer = app
            .ask(Method::GET, "/api/v1/notes")
            .bearer("wrong")
            .send()
            .await;
        refused.push(answer.status.as_u16());
    }
    assert!(refused.contains(&401));
    assert!(refused.contains(&429), "{refused:?}");
    // Whoever was let in before is not locked out by others at the same address.
    assert_eq!(app.get("/api/v1/notes").send().await.status, 200);
}
