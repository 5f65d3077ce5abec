//! No credential is in the database, nor in what the server prints while it works.

use counterfoil_e2e::{Folder, Server};

/// Every secret that the calls below bring about.
fn work(folder: &Folder, server: &Server) -> Vec<String> {
    let mut secrets = vec![folder.key()];
    let (id, key) = folder.issue("from the command line");
    secrets.push(key);
    let rotated = folder.json(&["keys", "rotate", &id]);
    secrets.push(rotated["key"].as_str().unwrap().to_owned());
    for idempotency_key in [Some("issue"), None] {
        let mut request = server.http().request("POST", "/api/v1/agent-keys");
        if let Some(key) = idempotency_key {
            request = request.header("Idempotency-Key", key);
        }
        let issued = request
            .json(r#"{"name":"over REST"}"#)
            .send()
            .unwrap()
            .value();
        secrets.push(issued["key"].as_str().unwrap().to_owned());
        let id = issued["id"].as_str().unwrap();
        let request = server
            .http()
            .request("POST", &format!("/api/v1/agent-keys/{id}/rotate"));
        let request = request.header("Idempotency-Key", "rotate");
        let rotated = request.send().unwrap().value();
        secrets.push(rotated["key"].as_str().unwrap().to_owned());
    }
    secrets
}

#[test]
fn field_09_no_credential_is_in_the_database_or_its_log() {
    let folder = Folder::new();
    let server = Server::start(&folder);
    let secrets = work(&folder, &server);
    let note = server
        .http()
        .note(Some("k"), r#"{"body":"findable"}"#)
        .send()
        .unwrap();
    assert_eq!(note.status, 201);
    for when in ["while it runs", "after it stopped"] {
        let files = folder.bytes();
        let found = |needle: &str| {
            let needle = needle.as_bytes();
            let mut files = files.iter();
            files.any(|(_, bytes)| bytes.windows(needle.len()).any(|part| part == needle))
        };
        assert!(found("findable"), "{when}: the search itself works");
        for secret in &secrets {
            assert!(!found(secret), "{when}: a credential is in the data folder");
            let tail = &secret[secret.len() - 16..];
            assert!(
                !found(tail),
                "{when}: part of a credential is in the data folder"
            );
        }
        if when == "while it runs" {
            server.terminate();
            counterfoil_e2e::until("the end", std::time::Duration::from_secs(60), || {
                (!server.is_ready()).then_some(())
            });
        }
    }
    assert!(server.ended().success());
}

#[test]
fn field_09_nothing_a_caller_sent_is_printed() {
    let folder = Folder::new();
    let server = Server::start(&folder);
    let before = server.printed().len();
    let mut secrets = work(&folder, &server);
    let http = server.http();
    for body in [
        r#"{"body":"private words"}"#,
        r#"{"body":"other private words"}"#,
    ] {
        let _ = http
            .note(Some("private-idempotency-key"), body)
            .send()
            .unwrap();
    }
    let _ = http
        .note(Some("private-idempotency-key"), "{\"body\":\"private")
        .send()
        .unwrap();
    secrets.extend(["private words", "private-idempotency-key"].map(str::to_owned));
    let printed = server.printed();
    for secret in &secrets {
        assert!(!printed[before..].contains(secret.as_str()), "{printed}");
    }
}
