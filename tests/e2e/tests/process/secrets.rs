//! No credential is in the database, nor in what the server prints while it works.

use counterfoil_e2e::{Folder, Server};

use crate::STORE;

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
    let folder = crate::readable();
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
            let needle = memchr::memmem::Finder::new(needle);
            files.iter().any(|(_, bytes)| needle.find(bytes).is_some())
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
    let folder = Folder::new(STORE);
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

const SEALED: &str = "[sealing]\nkey_file = \"ring\"\nnotes = true\n";

/// Writes a ring of keys, the first one active; each is a number and the byte that it is made of.
fn ring(folder: &Folder, keys: &[(u32, u8)]) {
    let lines = keys.iter().map(|(id, letter)| {
        // 32 bytes in base64: 42 letters that stand for the same bits, and an end.
        let letters = String::from_utf8(vec![*letter; 42]).unwrap();
        format!("{id} {letters}A=\n")
    });
    std::fs::write(folder.root().join("ring"), lines.collect::<String>()).unwrap();
}

/// A sealed result cannot be read in the file, and its replay is usable: also after the ring has
/// got another active key, and no longer once its key is gone from the ring.
#[test]
fn field_09_a_sealed_result_is_unreadable_in_the_database_and_usable_on_replay() {
    let folder = Folder::new(STORE);
    let config = folder.config(SEALED);
    let start = || Server::with(&folder, &["--config", &config]);
    let note = |server: &Server| {
        server
            .http()
            .note(Some("k"), r#"{"body":"one"}"#)
            .send()
            .unwrap()
    };
    ring(&folder, &[(1, b'Q')]);
    let server = start();
    let first = note(&server);
    let id = first.note_id();
    assert_eq!(note(&server).body, first.body);
    server.stop();
    let stored = folder.outside().stored_result();
    assert!(!stored.is_empty());
    let found = |needle: &[u8]| stored.windows(needle.len()).any(|part| part == needle);
    assert!(
        !found(id.as_bytes()) && !found(b"note_id"),
        "the stored result is sealed"
    );

    ring(&folder, &[(2, b'g'), (1, b'Q')]);
    let server = start();
    assert_eq!(note(&server).body, first.body, "an older key still reads");
    let second = server
        .http()
        .note(Some("second"), r#"{"body":"two"}"#)
        .send()
        .unwrap();
    server.stop();

    ring(&folder, &[(2, b'g')]);
    let server = start();
    let gone = note(&server);
    assert!(gone.status >= 400, "its key is gone: {}", gone.text());
    assert!(!gone.code().is_empty(), "{}", gone.text());
    let again = server
        .http()
        .note(Some("second"), r#"{"body":"two"}"#)
        .send()
        .unwrap();
    assert_eq!(again.body, second.body);
    assert_eq!(server.http().notes().len(), 2, "nothing ran again");
}
