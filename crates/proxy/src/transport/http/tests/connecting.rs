//! What is known to have been sent, and what is not.

use std::process::Command;

use rustls::{
    RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};
use tokio_rustls::TlsAcceptor;

use super::{
    server::{Act, Server, Told, json},
    *,
};
use crate::transport::http::client;

fn why_not_sent(told: &Told) -> &str {
    let Told::Failed(failed, Failure::NotSent(why)) = told else {
        panic!("{told:?}")
    };
    assert_eq!(*failed, id("7"));
    why
}

#[tokio::test]
async fn i3_a_refused_connection_and_an_unknown_name_sent_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let line = Line::to(&format!("http://{address}/mcp?key=s3cret"));
    let told = line.outcome(request(None)).await;
    let why = why_not_sent(&told);
    assert!(why.contains("refused") && !why.contains("s3cret"), "{why}");
    let why = line.transport.send(notification("a")).await.unwrap_err();
    assert!(matches!(why, Failure::NotSent(_)), "{why}");

    let told = Line::to("http://counterfoil.invalid/mcp")
        .outcome(request(None))
        .await;
    why_not_sent(&told);
}

#[tokio::test]
async fn i3_a_connection_that_ends_before_an_answer_may_have_sent_it() {
    let server = Server::start(|_| vec![Act::Close]).await;
    let told = Line::to(&server.url()).outcome(request(None)).await;
    why_lost(&told);
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn i3_field_17_what_comes_on_a_kept_connection_that_ends_is_not_sent_again() {
    let server = Server::start(|seen| match seen.body.contains("\"id\":1,") {
        true => vec![Act::Send(json(
            200,
            &ANSWER.replace("\"id\":7", "\"id\":1"),
        ))],
        false => vec![Act::Close],
    })
    .await;
    let line = Line::to(&server.url());
    line.told(request_as("1", None)).await;
    let told = line.outcome(request(None)).await;
    why_lost(&told);
    let connections: Vec<usize> = server.seen().iter().map(|seen| seen.connection).collect();
    assert_eq!(
        connections,
        [0, 0],
        "the connection was kept, and the request sent once"
    );
}

#[tokio::test]
async fn i3_a_tls_handshake_that_fails_sent_nothing() {
    for greeting in [b"".as_slice(), b"HTTP/1.1 400 Bad Request\r\n\r\n"] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut hello = [0; 16];
            stream.read_exact(&mut hello).await.unwrap();
            stream.write_all(greeting).await.unwrap();
            hello
        });
        let told = Line::to(&format!("https://{address}/mcp"))
            .outcome(request(None))
            .await;
        why_not_sent(&told);
        assert_eq!(task.await.unwrap()[0], 22, "a handshake, and nothing else");
    }
}

/// A certificate for `localhost` that vouches for itself.
fn certificate() -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
    let folder = tempfile::tempdir().unwrap();
    let (key, certificate) = (
        folder.path().join("key.pem"),
        folder.path().join("cert.pem"),
    );
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
        ])
        .args(["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"])
        .args(["-addext", "subjectAltName=DNS:localhost"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE", "-keyout"])
        .arg(&key)
        .arg("-out")
        .arg(&certificate)
        .output()
        .unwrap();
    assert!(
        made.status.success(),
        "{}",
        String::from_utf8_lossy(&made.stderr)
    );
    (
        CertificateDer::from_pem_file(&certificate).unwrap(),
        PrivateKeyDer::from_pem_file(&key).unwrap(),
    )
}

#[tokio::test]
async fn i3_a_certificate_that_nobody_vouches_for_sent_nothing_and_a_good_one_works() {
    let (certificate, key) = certificate();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let server = Server::start_over(
        |_| vec![Act::Send(json(200, ANSWER))],
        move |stream| {
            let acceptor = acceptor.clone();
            async move { acceptor.accept(stream).await.ok() }
        },
    )
    .await;
    let url = format!("https://localhost:{}/mcp", server.address.port());

    let told = Line::to(&url).outcome(request(None)).await;
    assert!(why_not_sent(&told).contains("certificate"), "{told:?}");
    assert!(server.seen().is_empty());

    let mut roots = RootCertStore::empty();
    roots.add(certificate).unwrap();
    let ear = Ear::new();
    let transport = HttpTransport::with_client(
        client::client(roots).unwrap(),
        client::endpoint(&url).unwrap(),
        &[],
        BYTES_MAX,
        ear.sink(),
    )
    .unwrap();
    let line = Line { ear, transport };
    assert_eq!(line.outcome(request(None)).await, answered());
}
