//! Who may call, and what the headers must say.

use counterfoil_mcp::InvalidHttpOptions;
use http::Method;
use serde_json::{Value, json};

use super::{
    super::Unready,
    support::{Proxy, front, modern, plain, post, request, settings},
};
use crate::InvalidSettings;

#[tokio::test]
async fn only_known_hosts_and_origins_get_through() {
    let mut settings = settings();
    settings.listening.allowed_hosts = vec!["mcp.example".to_owned()];
    settings.listening.allowed_origins = vec!["https://app.example".to_owned()];
    let mut proxy = Proxy::with(settings, |_| {}).await;
    let mut connection = proxy.connect().await;
    for (header, passes) in [
        (("host", "127.0.0.1:8080"), true),
        (("host", "mcp.example"), true),
        (("host", "evil.example"), false),
        (("origin", "https://app.example"), true),
        (("origin", "http://localhost:3000"), true),
        (("origin", "https://evil.example"), false),
        (("origin", "null"), false),
    ] {
        let note = json!({"jsonrpc": "2.0", "method": "notifications/x"});
        let got = connection.ask(post(&[header], &note)).await;
        assert_eq!(got.status, if passes { 202 } else { 403 }, "{header:?}");
        if passes {
            proxy.message().await;
        }
        for method in [Method::GET, Method::DELETE] {
            let got = connection.ask(plain(method, &[header], "".into())).await;
            assert_eq!(got.status == 403, !passes, "{header:?}");
        }
    }
    proxy.assert_quiet();
}

#[tokio::test]
async fn settings_that_cannot_be_meant_are_refused() {
    let mut wrong = settings();
    wrong.listening.allowed_hosts = vec!["*".to_owned()];
    let refused = front(&wrong, |_| {}).map(drop).unwrap_err();
    assert!(matches!(
        refused,
        Unready::Options(InvalidHttpOptions::Host { .. })
    ));
    let mut wrong = settings();
    wrong.listening.clients = vec![("a".to_owned(), String::new())];
    let refused = front(&wrong, |_| {}).map(drop).unwrap_err();
    assert_eq!(
        refused,
        Unready::Settings(InvalidSettings::Client("a".to_owned()))
    );
}

#[tokio::test]
async fn i4_only_configured_clients_call_under_their_names() {
    let mut proxy = Proxy::clients(&[("ann", "t-ann"), ("bob", "t-bob")]).await;
    let mut connection = proxy.connect().await;
    let note = json!({"jsonrpc": "2.0", "method": "notifications/x"});
    for (token, name) in [("Bearer t-ann", "ann"), ("bearer t-bob", "bob")] {
        let got = connection
            .ask(post(&[("authorization", token)], &note))
            .await;
        assert_eq!(got.status, 202);
        assert_eq!(proxy.message().await.principal, name);
    }
    for headers in [
        &[][..],
        &[("authorization", "Bearer t-eve")],
        &[("authorization", "Basic t-ann")],
    ] {
        for method in [Method::POST, Method::GET, Method::DELETE] {
            let body = note.to_string();
            let got = connection.ask(plain(method, headers, body.into())).await;
            assert_eq!(got.status, 401);
            assert_eq!(got.headers["www-authenticate"], "Bearer");
            assert_eq!(got.json()["error"]["data"]["code"], json!("unauthorized"));
        }
    }
    proxy.assert_quiet();
}

#[tokio::test]
async fn i4_without_configured_clients_each_credential_is_a_client() {
    let mut proxy = Proxy::start().await;
    let mut connection = proxy.connect().await;
    let note = json!({"jsonrpc": "2.0", "method": "notifications/x"});
    let mut seen = Vec::new();
    for headers in [
        &[][..],
        &[("authorization", "Bearer a")],
        &[("authorization", "Bearer b")],
        &[("authorization", "Bearer a")],
    ] {
        assert_eq!(connection.ask(post(headers, &note)).await.status, 202);
        let message = proxy.message().await;
        seen.push((message.principal.clone(), message.conversation));
    }
    assert_eq!(seen[0].0, "local");
    assert_eq!(seen[1], seen[3]);
    assert_ne!(seen[1].0, seen[2].0);
    let conversations: Vec<_> = seen.iter().map(|(_, number)| *number).collect();
    assert_eq!(conversations, [0, 1, 2, 1]);
}

#[tokio::test]
async fn headers_of_the_newer_era_must_match_the_body() {
    let mut proxy = Proxy::start().await;
    let mut connection = proxy.connect().await;
    let call = modern(1, "tools/call", json!({"name": "send"}));
    let version = ("mcp-protocol-version", "2026-07-28");
    let method = ("mcp-method", "tools/call");
    let name = ("mcp-name", "send");
    for headers in [
        &[method, name][..],
        &[("mcp-protocol-version", "2025-11-25"), method, name],
        &[version, name],
        &[version, ("mcp-method", "Tools/Call"), name],
        &[version, method],
        &[version, method, ("mcp-name", "other")],
        &[version, method, ("mcp-name", "=?base64?!!?=")],
    ] {
        let got = connection.ask(post(headers, &call)).await;
        assert_eq!(got.refusal(), (400, -32020), "{headers:?}");
        assert_eq!(got.json()["id"], json!(1));
    }
    let task = modern(1, "tasks/get", json!({"taskId": "t-1"}));
    let method_of_task = ("mcp-method", "tasks/get");
    for headers in [
        &[version, method_of_task][..],
        &[version, method_of_task, ("mcp-name", "t-2")],
    ] {
        let got = connection.ask(post(headers, &task)).await;
        assert_eq!(got.refusal(), (400, -32020), "{headers:?}");
    }
    // Two readers could take two names from this.
    let twice =
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"send","name":"drop"}}"#;
    let headers = [version, method, name];
    let got = connection
        .ask(plain(Method::POST, &headers, twice.into()))
        .await;
    assert_eq!(got.refusal(), (400, -32602));
    proxy.assert_quiet();

    let future = "2027-03-01";
    let mut later = call.clone();
    later["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!(future);
    let read = modern(1, "resources/read", json!({"uri": "file:///a"}));
    for (headers, body) in [
        (
            &[version, method, ("mcp-name", "=?base64?c2VuZA==?=")][..],
            &call,
        ),
        (&[version, method, name, ("mcp-param-unknown", "x")], &call),
        (&[("mcp-protocol-version", future), method, name], &later),
        // What a later revision leaves out is its own affair.
        (&[("mcp-protocol-version", future)], &later),
        (
            &[
                version,
                ("mcp-method", "resources/read"),
                ("mcp-name", "file:///a"),
            ],
            &read,
        ),
        (&[version, method_of_task, ("mcp-name", "t-1")], &task),
    ] {
        connection.ready().await;
        let pending = connection.send(post(headers, body));
        let message = proxy.message().await;
        assert_eq!(message.json(), *body);
        message.result(json!({})).await;
        assert_eq!(pending.got().await.status, 200, "{headers:?}");
    }
    let other = ("mcp-name", "other");
    let got = connection
        .ask(post(&[("mcp-protocol-version", future), other], &later))
        .await;
    assert_eq!(got.refusal(), (400, -32020));
}

#[tokio::test]
async fn what_the_upstream_can_judge_is_left_to_it() {
    let mut proxy = Proxy::start().await;
    let mut connection = proxy.connect().await;
    let without_meta = request(1, "tools/list", json!({}));
    let mut without_capabilities = modern(1, "tools/list", json!({}));
    let meta = without_capabilities["params"]["_meta"]
        .as_object_mut()
        .unwrap();
    meta.remove("io.modelcontextprotocol/clientCapabilities");
    let old = request(1, "a/method/of/its/own", json!([1, 2]));
    let unknown: Value = request(1, "tools/list", json!({}));
    for (headers, body) in [
        (
            &[
                ("mcp-protocol-version", "2026-07-28"),
                ("mcp-method", "tools/list"),
            ][..],
            &without_meta,
        ),
        (
            &[
                ("mcp-protocol-version", "2026-07-28"),
                ("mcp-method", "tools/list"),
            ],
            &without_capabilities,
        ),
        (&[("mcp-protocol-version", "2025-11-25")], &old),
        (&[("mcp-protocol-version", "1999-01-01")], &unknown),
    ] {
        connection.ready().await;
        let pending = connection.send(post(headers, body));
        let message = proxy.message().await;
        assert_eq!(message.json(), *body);
        message.result(json!({})).await;
        assert_eq!(pending.got().await.status, 200, "{headers:?}");
    }
}
