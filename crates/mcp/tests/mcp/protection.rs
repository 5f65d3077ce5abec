use axum::body::Body;
use http::{Method, Request};
use serde_json::json;

use crate::support::{Era, Server};

const PING: &str = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;

fn request(headers: &[(&str, &str)]) -> Request<Body> {
    let mut request = Request::post("/mcp");
    let has = |name: &str| headers.iter().any(|(given, _)| *given == name);
    for (name, value) in [
        ("host", "localhost:1"),
        ("authorization", "Bearer alice"),
        ("content-type", "application/json"),
    ] {
        if !has(name) {
            request = request.header(name, value);
        }
    }
    for (name, value) in headers.iter().filter(|(_, value)| !value.is_empty()) {
        request = request.header(*name, *value);
    }
    request.body(Body::from(PING)).unwrap()
}

#[tokio::test]
async fn only_known_hosts_and_origins_get_through() {
    let server = Server::new();
    let client = server.client(Era::Legacy);
    for (headers, status) in [
        (&[("host", "127.0.0.1:8080")][..], 200),
        (&[("host", "[::1]:8080")], 200),
        (&[("host", "[::1]")], 200),
        (&[("host", "LocalHost")], 200),
        (&[("host", "mcp.example")], 200),
        (&[("host", "evil.example")], 403),
        (&[("host", "localhost.evil.example")], 403),
        (&[("host", "evil.example:localhost")], 403),
        (&[("host", "")], 403),
        (&[("origin", "http://localhost:3000")], 200),
        (&[("origin", "https://mcp.example")], 200),
        (&[("origin", "http://evil.example")], 403),
        (&[("origin", "http://localhost@evil.example")], 403),
        (&[("origin", "null")], 403),
        (&[("origin", "file://localhost")], 403),
    ] {
        let got = client.send(request(headers)).await;
        assert_eq!(got.status, status, "{headers:?}");
        if status == 403 {
            assert_eq!(got.error()["data"]["code"], json!("forbidden"));
        }
    }
}

#[tokio::test]
async fn credentials_are_asked_for_before_anything_else() {
    let server = Server::new();
    let client = server.client(Era::Legacy);
    for (token, status, code) in [
        ("", 401, "unauthorized"),
        ("Bearer stolen", 401, "unauthorized"),
        ("Bearer narrow", 403, "forbidden"),
        ("Bearer limited", 429, "rate_limited"),
        ("Bearer down", 503, "unavailable"),
    ] {
        let got = client
            .send(request(&[
                ("authorization", token),
                ("content-type", "text/plain"),
            ]))
            .await;
        assert_eq!(
            (got.status.as_u16(), got.error()["data"]["code"].clone()),
            (status, json!(code))
        );
        let challenge = got
            .headers
            .get("www-authenticate")
            .map(|v| v.to_str().unwrap());
        let invalid = if token.is_empty() {
            ""
        } else {
            "error=\"invalid_token\", "
        };
        let wanted = format!(
            "Bearer {invalid}resource_metadata=\"http://localhost:1/.well-known/oauth-protected-resource/mcp\""
        );
        assert_eq!(challenge, (status == 401).then_some(wanted.as_str()));
        let retry = got.headers.get("retry-after").map(|v| v.to_str().unwrap());
        assert_eq!(retry, matches!(status, 429 | 503).then_some("2"));
    }
}

#[tokio::test]
async fn the_metadata_names_the_resource() {
    let server = Server::new();
    let client = server.client(Era::Legacy);
    for path in [
        "/.well-known/oauth-protected-resource",
        "/.well-known/oauth-protected-resource/mcp",
    ] {
        let get = |host: &str| {
            Request::get(path)
                .header("host", host)
                .body(Body::empty())
                .unwrap()
        };
        let facts = client.send(get("localhost:1")).await;
        assert_eq!(
            facts.json(),
            json!({
                "resource": "http://localhost:1/mcp",
                "bearer_methods_supported": ["header"],
                "resource_name": "test",
            })
        );
        assert_eq!(client.send(get("evil.example")).await.status, 403);
    }
}

#[tokio::test]
async fn what_is_not_served_says_so() {
    let server = Server::new();
    let client = server.client(Era::Legacy);
    for method in [Method::GET, Method::DELETE, Method::PUT] {
        let mut asked = request(&[("accept", "text/event-stream")]);
        *asked.method_mut() = method;
        let got = client.send(asked).await;
        assert_eq!(
            (got.status.as_u16(), got.headers["allow"].to_str().unwrap()),
            (405, "POST")
        );
    }
    for (headers, status) in [
        (&[("content-type", "text/plain")][..], 415),
        (&[("content-type", "")], 415),
        (&[("content-type", "application/json; charset=utf-8")], 200),
        (&[("accept", "text/html")], 406),
        (&[("accept", "application/json;q=0")], 406),
        (&[("accept", "*/*")], 200),
        (&[("accept", "application/json")], 200),
    ] {
        assert_eq!(
            client.send(request(headers)).await.status,
            status,
            "{headers:?}"
        );
    }
    let stream = client
        .send(request(&[("accept", "text/event-stream")]))
        .await;
    assert_eq!(stream.headers["content-type"], "text/event-stream");
    assert_eq!(
        stream.text,
        "event: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n"
    );
}
