//! Spans over OTLP/HTTP, with the feature `otlp`.

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    time::Duration,
};

use crate::process::{Place, Server};

/// Reads one export whole, and answers it.
fn export(mut stream: TcpStream) -> Vec<u8> {
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let (mut bytes, mut part) = (Vec::new(), [0; 4096]);
    let whole = |bytes: &[u8]| {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
        let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
        let length = head.split("content-length: ").nth(1)?.lines().next()?;
        Some(bytes.len() >= end + 4 + length.trim().parse::<usize>().ok()?)
    };
    while whole(&bytes) != Some(true) {
        let read = stream.read(&mut part).unwrap();
        assert!(read > 0, "the export broke off");
        bytes.extend_from_slice(&part[..read]);
    }
    let answer =
        b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n";
    stream.write_all(answer).unwrap();
    bytes
}

#[test]
fn spans_are_exported_without_bodies_keys_or_credentials() {
    let place = Place::new();
    let collector = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}/v1/traces", collector.local_addr().unwrap());
    let text = format!("[telemetry]\notlp_endpoint = \"{endpoint}\"\nlog = \"trace\"\n");
    std::fs::write(place.path("own.toml"), text).unwrap();
    let server = Server::start(&place, &["--config", "own.toml"]);
    let key = place.agent_key();
    let note = server
        .note(&key, "key-of-the-caller", "body-of-the-note")
        .json();
    let reader = std::thread::spawn(move || export(collector.accept().unwrap().0));
    assert!(server.terminate());
    let export = String::from_utf8_lossy(&reader.join().unwrap()).into_owned();
    assert!(export.starts_with("POST /v1/traces"), "{export}");
    assert!(export.contains("http_request") && export.contains("/api/v1/notes"));
    assert!(export.contains(note["operation_id"].as_str().unwrap()));
    let secret = key.rsplit('_').next().unwrap();
    for hidden in ["key-of-the-caller", "body-of-the-note", secret] {
        assert!(!export.contains(hidden), "{hidden}");
    }
}
