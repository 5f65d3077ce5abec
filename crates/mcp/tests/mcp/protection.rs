use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{body::Body, extract::ConnectInfo};
use counterfoil_engine::{Caller, store::BoxFuture};
use counterfoil_mcp::{AuthError, Authenticate, HttpOptions};
use http::{HeaderMap, Method, Request};
use serde_json::{Value, json};

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

/// A request with these lines as well, two of a name if there are two.
fn with_lines(target: &str, lines: &[(&str, &str)]) -> Request<Body> {
    let mut request = request(&[("host", "")]);
    *request.uri_mut() = target.parse().unwrap();
    for (name, value) in lines {
        let name: http::HeaderName = name.parse().unwrap();
        request.headers_mut().append(name, value.parse().unwrap());
    }
    request
}

#[tokio::test]
async fn a_request_names_one_host_and_at_most_one_origin() {
    let server = Server::new();
    let client = server.client(Era::Legacy);
    let local = ("host", "localhost");
    let origin = ("origin", "http://localhost");
    for (target, lines, status) in [
        ("/mcp", &[local][..], 200),
        ("/mcp", &[local, ("host", "evil.example")], 403),
        ("/mcp", &[local, local], 403),
        ("/mcp", &[local, origin], 200),
        (
            "/mcp",
            &[local, origin, ("origin", "http://evil.example")],
            403,
        ),
        ("/mcp", &[local, origin, origin], 403),
        ("http://localhost/mcp", &[local], 200),
        ("http://LOCALHOST:80/mcp", &[local], 200),
        ("http://localhost:81/mcp", &[local], 403),
        ("http://evil.example/mcp", &[local], 403),
        ("http://evil@localhost/mcp", &[local], 403),
        ("http://evil.example/mcp", &[], 403),
        ("http://localhost:9/mcp", &[], 200),
    ] {
        let got = client.send(with_lines(target, lines)).await;
        assert_eq!(got.status, status, "{target} {lines:?}");
    }
}

#[tokio::test]
async fn allowed_hosts_and_origins_are_what_they_say() {
    let server = Server::new();
    let texts = |entries: &[&str]| entries.iter().map(|e| (*e).to_owned()).collect();
    let options = |hosts: &[&str], origins: &[&str]| HttpOptions {
        allowed_hosts: texts(hosts),
        allowed_origins: texts(origins),
        ..HttpOptions::default()
    };
    let router = |options| {
        server
            .endpoint
            .router(Arc::new(server.stage.clone()), options)
    };
    let mut client = server.client(Era::Legacy);
    client.router = router(options(
        &[
            "MCP.example:8443",
            "any.example",
            "[2001:DB8:0::1]:9",
            "web.example:443",
        ],
        &[
            "HTTPS://App.example/",
            "vscode-webview://panel",
            "http://x.example:80",
        ],
    ))
    .unwrap();
    for (headers, status) in [
        (&[("host", "mcp.example:8443")][..], 200),
        (&[("host", "mcp.example")], 403),
        (&[("host", "mcp.example:8444")], 403),
        (&[("host", "any.example")], 200),
        (&[("host", "any.example:1")], 200),
        (&[("host", "[2001:db8::1]:9")], 200),
        (&[("host", "[2001:db8::1]")], 403),
        (&[("host", "web.example")], 200),
        (&[("host", "web.example:444")], 403),
        (&[("origin", "https://mcp.example:8443")], 200),
        (&[("origin", "https://mcp.example")], 403),
        (&[("origin", "https://app.example")], 200),
        (&[("origin", "https://APP.example:443")], 200),
        (&[("origin", "http://app.example")], 403),
        (&[("origin", "https://app.example:444")], 403),
        (&[("origin", "https://app.example/x")], 403),
        (&[("origin", "vscode-webview://panel")], 200),
        (&[("origin", "http://x.example")], 200),
    ] {
        let got = client.send(request(headers)).await;
        assert_eq!(got.status, status, "{headers:?}");
    }
    let told = |options| router(options).err().map(|error| error.to_string());
    for (host, why) in [
        ("*", "no wildcards"),
        ("*.example", "no wildcards"),
        ("a.example,b.example", "it is a list"),
        ("a.example b.example", "it is a list"),
        ("https://a.example", "without scheme"),
        ("a.example:99999", "must be a host name"),
        ("::1", "must be a host name"),
        ("me@a.example", "must be a host name"),
        ("", "must be a host name"),
    ] {
        let error = told(options(&[host], &[])).expect(host);
        assert!(error.contains(why) && error.contains(host), "{error}");
    }
    for (origin, why) in [
        ("*", "no wildcards"),
        ("https://a.example, https://b.example", "it is a list"),
        ("a.example", "a scheme and a host"),
        ("null", "a scheme and a host"),
        ("https://a.example/app", "a scheme and a host"),
        ("https://me@a.example", "a scheme and a host"),
        ("https://", "a scheme and a host"),
    ] {
        let error = told(options(&[], &[origin])).expect(origin);
        assert!(error.contains(why) && error.contains(origin), "{error}");
    }
}

#[tokio::test]
async fn the_other_end_of_the_connection_is_told_to_the_authentication() {
    struct Remote(Mutex<Vec<Option<SocketAddr>>>);
    impl Authenticate for Remote {
        fn authenticate<'a>(
            &'a self,
            _: &'a HeaderMap,
            remote: Option<SocketAddr>,
        ) -> BoxFuture<'a, Result<Caller, AuthError>> {
            self.0.lock().unwrap().push(remote);
            Box::pin(async { Err(AuthError::Missing) })
        }
    }
    let server = Server::new();
    let remote = Arc::new(Remote(Mutex::default()));
    let mut client = server.client(Era::Legacy);
    let routes = server
        .endpoint
        .router(Arc::clone(&remote) as _, HttpOptions::default());
    client.router = routes.unwrap();
    let address: SocketAddr = "192.0.2.7:9".parse().unwrap();
    let mut asked = request(&[]);
    asked.extensions_mut().insert(ConnectInfo(address));
    assert_eq!(client.send(asked).await.status, 401);
    assert_eq!(client.send(request(&[])).await.status, 401);
    assert_eq!(*remote.0.lock().unwrap(), [Some(address), None]);
}

#[tokio::test]
async fn every_request_of_a_batch_is_counted() {
    let left = Arc::new(AtomicU64::new(2));
    let server = Server::with(|builder| {
        let left = Arc::clone(&left);
        builder.limiter(move |caller| {
            assert_eq!(caller.principal.as_str(), "alice");
            let take = |n: u64| n.checked_sub(1);
            let taken = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take);
            taken.map(|_| ()).map_err(|_| Duration::from_millis(1500))
        })
    });
    let client = server.client(Era::Legacy);
    let call = |id: u32, meta: Value| {
        let mut params = json!({"name": "send", "arguments": {}, "_meta": meta});
        if meta == json!({}) {
            params["arguments"]["idempotency_key"] = json!(id.to_string());
        }
        json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})
    };
    let host = json!({"dev.counterfoil/idempotency-key": "h"});
    let ping = json!({"jsonrpc": "2.0", "id": 9, "method": "ping"});
    let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {}});
    let batch = json!([
        cancel,
        call(1, json!({})),
        call(2, json!({})),
        cancel,
        call(3, json!({})),
        call(4, json!({})),
        call(5, host),
        ping
    ]);
    let mut asked = request(&[]);
    *asked.body_mut() = Body::from(batch.to_string());
    let answers = client.send(asked).await.json();
    let answers = answers.as_array().unwrap();
    assert_eq!((answers.len(), server.sent()), (6, 3));
    for refused in &answers[3..5] {
        let facts = &refused["result"]["structuredContent"];
        assert_eq!(refused["result"]["isError"], json!(true));
        assert_eq!(facts["code"], json!("rate_limited"));
        assert_eq!(facts["retryable"], json!(true));
        assert_eq!(facts["retry_after_ms"], json!(1500));
        let next = facts["next_action"].as_str().unwrap();
        assert!(next.contains("the same key"), "{next}");
    }
    assert_eq!(
        answers[4]["result"]["_meta"]["dev.counterfoil/error"],
        json!({"code": "rate_limited", "retryAfter": 2})
    );
    let data = &answers[5]["error"]["data"];
    assert_eq!(data["code"], json!("rate_limited"));
    assert_eq!(
        (&data["retryable"], &data["retry_after_ms"]),
        (&json!(true), &json!(1500))
    );
    // A request of its own was counted when it was authenticated.
    let alone = client.keyed("send", "a", json!({})).await;
    assert_eq!(alone.result()["isError"], json!(false));
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
        let told = &got.error()["data"]["retryable"];
        assert_eq!(*told == json!(true), matches!(status, 429 | 503));
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
