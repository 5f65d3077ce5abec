use axum::body::Body;
use http::Request;
use serde_json::{Value, json};

use crate::support::{Client, Era, Got, MODERN, Server};

async fn post(client: &Client, headers: &[(&str, &str)], body: Value) -> Got {
    let mut request = Request::post("/mcp")
        .header("host", "localhost")
        .header("authorization", "Bearer alice")
        .header("content-type", "application/json");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    client
        .send(request.body(Body::from(body.to_string())).unwrap())
        .await
}

#[tokio::test]
async fn an_older_client_negotiates_its_revision() {
    let server = Server::new();
    let client = server.client(Era::Legacy);
    for (wanted, got) in [
        ("2025-11-25", "2025-11-25"),
        ("2025-06-18", "2025-06-18"),
        ("2025-03-26", "2025-03-26"),
        ("2026-07-28", "2025-11-25"),
        ("1999-01-01", "2025-11-25"),
    ] {
        let answer = client
            .ask("initialize", json!({"protocolVersion": wanted}))
            .await;
        assert_eq!(answer.result()["protocolVersion"], json!(got));
        assert!(answer.headers.contains_key("mcp-session-id"));
    }
    assert_eq!(
        client.ask("initialize", json!({})).await.error()["code"],
        json!(-32602)
    );
    assert_eq!(client.ask("ping", json!({})).await.result(), json!({}));
    let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    assert_eq!(client.raw(initialized.to_string()).await.status, 202);
    // Not declared, so not there; a 404 would end the session.
    let unknown = client.ask("resources/list", json!({})).await;
    assert_eq!(
        (unknown.status.as_u16(), unknown.error()["code"].clone()),
        (200, json!(-32601))
    );
}

#[tokio::test]
async fn an_unknown_version_in_the_header_is_refused() {
    let server = Server::new();
    let client = server.client(Era::Legacy);
    let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});
    for (headers, status) in [
        (&[("mcp-protocol-version", "1999-01-01")][..], 400),
        (&[("mcp-protocol-version", "2025-06-18")], 200),
        (&[], 200),
    ] {
        assert_eq!(post(&client, headers, ping.clone()).await.status, status);
    }
}

#[tokio::test]
async fn the_newer_era_says_everything_in_every_request() {
    let server = Server::new();
    let client = server.client(Era::Modern);
    let version = json!({"io.modelcontextprotocol/protocolVersion": MODERN});
    let capabilities = json!({"io.modelcontextprotocol/clientCapabilities": {}});
    for meta in [Value::Null, json!({}), version, capabilities] {
        let headers = [
            ("mcp-protocol-version", MODERN),
            ("mcp-method", "tools/list"),
        ];
        let params = if meta.is_null() {
            json!({})
        } else {
            json!({"_meta": meta})
        };
        let body = json!({"jsonrpc": "2.0", "id": 3, "method": "tools/list", "params": params});
        let got = post(&client, &headers, body).await;
        assert_eq!(
            (got.status.as_u16(), got.error()["code"].clone()),
            (400, json!(-32602))
        );
        assert_eq!(got.json()["id"], json!(3));
    }
    let mut body = client.body("tools/list", json!({}));
    body["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!("2031-01-01");
    let headers = [
        ("mcp-protocol-version", "2031-01-01"),
        ("mcp-method", "tools/list"),
    ];
    let got = post(&client, &headers, body).await;
    assert_eq!(got.status, 400);
    assert_eq!(got.error()["code"], json!(-32022));
    assert_eq!(
        got.error()["data"],
        json!({"supported": [MODERN], "requested": "2031-01-01"})
    );
    for method in ["ping", "initialize", "logging/setLevel", "prompts/list"] {
        let got = client.ask(method, json!({})).await;
        assert_eq!(
            (got.status.as_u16(), got.error()["code"].clone()),
            (404, json!(-32601)),
            "{method}"
        );
    }
    let listed = client.ask("tools/list", json!({})).await.result();
    assert_eq!(
        (&listed["ttlMs"], &listed["cacheScope"]),
        (&json!(60_000), &json!("public"))
    );
}

#[tokio::test]
async fn headers_of_the_newer_era_must_match_the_body() {
    let server = Server::new();
    let client = server.client(Era::Modern);
    let body = client.body(
        "tools/call",
        json!({"name": "send", "arguments": {"idempotency_key": "k"}}),
    );
    let version = ("mcp-protocol-version", MODERN);
    let method = ("mcp-method", "tools/call");
    for headers in [
        &[method, ("mcp-name", "send")][..],
        &[
            ("mcp-protocol-version", "2025-11-25"),
            method,
            ("mcp-name", "send"),
        ],
        &[version, ("mcp-name", "send")],
        &[version, ("mcp-method", "Tools/Call"), ("mcp-name", "send")],
        &[version, method],
        &[version, method, ("mcp-name", "large")],
        &[version, method, ("mcp-name", "=?base64?!!?=")],
    ] {
        let got = post(&client, headers, body.clone()).await;
        assert_eq!(
            (got.status.as_u16(), got.error()["code"].clone()),
            (400, json!(-32020)),
            "{headers:?}"
        );
    }
    assert_eq!(server.sent(), 0);
    let wrapped = [version, method, ("mcp-name", "=?base64?c2VuZA==?=")];
    assert_eq!(
        post(&client, &wrapped, body).await.result()["isError"],
        json!(false)
    );
}

#[tokio::test]
async fn batches_belong_to_one_revision() {
    let server = Server::new();
    let client = server.client(Era::Legacy);
    let call = |id: u32, key: &str| {
        let arguments = json!({"idempotency_key": key});
        json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": "send", "arguments": arguments}})
    };
    let note = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    let batch = json!([call(1, "k"), note, call(2, "k"), {"jsonrpc": "1.0"}]);
    for headers in [&[][..], &[("mcp-protocol-version", "2025-03-26")]] {
        let got = post(&client, headers, batch.clone()).await.json();
        assert_eq!(
            got[0]["result"]["structuredContent"],
            got[1]["result"]["structuredContent"]
        );
        assert_eq!(got[2]["error"]["code"], json!(-32600));
        assert_eq!(got.as_array().unwrap().len(), 3);
    }
    assert_eq!(post(&client, &[], json!([note])).await.status, 202);
    assert_eq!(server.sent(), 1);
    for (headers, body) in [
        (&[("mcp-protocol-version", "2025-06-18")][..], batch.clone()),
        (&[("mcp-protocol-version", MODERN)], batch),
        (&[], json!([])),
        (&[], Value::Array(vec![call(1, "k"); 33])),
    ] {
        let got = post(&client, headers, body).await;
        assert_eq!(
            (got.status.as_u16(), got.error()["code"].clone()),
            (400, json!(-32600))
        );
    }
}

#[tokio::test]
async fn annotated_arguments_must_be_mirrored_in_headers() {
    use counterfoil_mcp::{Output, Tool};
    let tool = Tool::read(
        "query",
        "Queries.",
        json!({"type": "object", "properties": {
            "region": {"type": "string", "x-mcp-header": "Region"},
            "limit": {"type": "integer", "x-mcp-header": "Limit"},
        }}),
        |request| async move { Ok(Output::Json(request.arguments)) },
    );
    let server = Server::with(|builder| builder.tool(tool));
    let client = server.client(Era::Modern);
    let params = json!({"name": "query", "arguments": {"region": "zürich", "limit": 42}});
    for (region, limit, fits) in [
        ("=?base64?esO8cmljaA==?=", "42", true),
        ("=?base64?esO8cmljaA==?=", "42.0", true),
        ("=?base64?esO8cmljaA==?=", "43", false),
        ("zurich", "42", false),
        ("=?base64?%?=", "42", false),
    ] {
        let client = client
            .clone()
            .with("mcp-param-region", region)
            .with("mcp-param-limit", limit);
        let got = client.call(params.clone()).await;
        assert_eq!(got.status, if fits { 200 } else { 400 }, "{region} {limit}");
    }
    let missing = client.call(params).await;
    assert_eq!(missing.error()["code"], json!(-32020));
    let none = client.call(json!({"name": "query", "arguments": {}})).await;
    assert_eq!(none.status, 200);
}
