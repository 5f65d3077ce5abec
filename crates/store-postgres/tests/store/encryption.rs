//! TLS: what is trusted, and what is refused.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use counterfoil_postgres::{OpenError, Options, PostgresStore};
use counterfoil_test_postgres::{Database, Server};
use tempfile::TempDir;

use crate::scene::{finish, guarded, run, until};

fn openssl(folder: &Path, words: &[&str]) {
    let done = Command::new("openssl")
        .current_dir(folder)
        .args(words)
        .stdin(Stdio::null())
        .output()
        .expect("openssl (Debian's package `openssl`)");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "openssl {words:?}: {said}");
}

const KEY: [&str; 5] = [
    "-newkey",
    "ec",
    "-pkeyopt",
    "ec_paramgen_curve:prime256v1",
    "-nodes",
];

/// An authority, and a certificate of it for this machine.
fn make_certificates(folder: &Path) {
    let authority = [
        &[
            "req",
            "-x509",
            "-days",
            "2",
            "-subj",
            "/CN=An authority of our own",
        ],
        KEY.as_slice(),
        &["-addext", "basicConstraints=critical,CA:TRUE"],
        &["-keyout", "authority.key", "-out", "authority.pem"],
    ];
    openssl(folder, &authority.concat());
    let request = [
        &["req", "-new", "-subj", "/CN=127.0.0.1"],
        KEY.as_slice(),
        &["-keyout", "server.key", "-out", "server.csr"],
    ];
    openssl(folder, &request.concat());
    fs::write(
        folder.join("names"),
        "subjectAltName=IP:127.0.0.1,DNS:localhost\n",
    )
    .unwrap();
    let signed = [
        "x509",
        "-req",
        "-days",
        "2",
        "-in",
        "server.csr",
        "-CA",
        "authority.pem",
        "-CAkey",
        "authority.key",
        "-CAcreateserial",
        "-extfile",
        "names",
        "-out",
        "server.pem",
    ];
    openssl(folder, &signed);
}

/// A server that speaks TLS, and the folder with its authority.
fn encrypted() -> (Server, Database, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    make_certificates(folder.path());
    let server = Server::start();
    let data = server.folder().join("data");
    let owner = fs::metadata(&data).unwrap();
    for name in ["server.key", "server.pem"] {
        let file = data.join(name);
        fs::copy(folder.path().join(name), &file).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        chown(&file, Some(owner.uid()), Some(owner.gid())).unwrap();
    }
    let database = Database::on(&server);
    for setting in [
        "ssl_cert_file = 'server.pem'",
        "ssl_key_file = 'server.key'",
        "ssl = on",
    ] {
        database.psql(&format!("ALTER SYSTEM SET {setting}"));
    }
    server.restart(counterfoil_test_postgres::Mode::Fast);
    assert_eq!(database.psql("SHOW ssl"), "on");
    (server, database, folder)
}

fn trusting(authority: PathBuf) -> Options {
    Options {
        root_certificates: Some(authority),
        ..Options::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_authority_of_our_own_is_trusted_if_it_is_named() {
    let (server, database, folder) = encrypted();
    let address = server.address();
    let name = database.name();
    for host in [address.to_string(), format!("localhost:{}", address.port())] {
        let url = format!("postgres://postgres@{host}/{name}?sslmode=require");
        let options = trusting(folder.path().join("authority.pem"));
        let store = PostgresStore::open(&url, options).await.unwrap();
        let granted = run(&store, guarded(&host)).await;
        finish(&store, granted.fence, "done").await;
        let outside = crate::scene::outsider(&database).await;
        until(
            &outside,
            "SELECT count(*) > 3 AND bool_and(s.ssl) FROM pg_stat_ssl AS s
             JOIN pg_stat_activity AS a USING (pid)
             WHERE a.application_name = 'counterfoil' AND a.datname = current_database()",
        )
        .await;
        store.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_that_nobody_vouches_for_is_refused() {
    let (server, database, folder) = encrypted();
    let url = format!("{}?sslmode=require", server.url(database.name()));
    let error = PostgresStore::open(&url, Options::default()).await;
    let error = error.expect_err("nobody vouches for it");
    assert!(matches!(error, OpenError::Refused(_)), "{error}");
    assert!(error.to_string().contains("store_ca"), "{error}");
    // Another authority vouches for nothing of this one.
    let other = tempfile::tempdir().unwrap();
    make_certificates(other.path());
    let options = trusting(other.path().join("authority.pem"));
    let error = PostgresStore::open(&url, options).await;
    assert!(matches!(error, Err(OpenError::Refused(_))), "{error:?}");
    // It is for another host.
    let elsewhere = format!(
        "host=elsewhere.invalid hostaddr=127.0.0.1 port={} user=postgres dbname={} sslmode=require",
        server.port(),
        database.name()
    );
    let options = trusting(folder.path().join("authority.pem"));
    let error = PostgresStore::open(&elsewhere, options).await;
    let error = error.expect_err("it is for another host");
    assert!(error.to_string().contains("certificate"), "{error}");
}

/// What a package makes for itself at its installation is vouched for by nobody: on this machine
/// nothing is asked of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_on_this_machine_needs_no_certificate() {
    let (server, database, _folder) = encrypted();
    let url = server.url(database.name());
    let store = PostgresStore::open(&url, Options::default()).await.unwrap();
    run(&store, guarded("here")).await;
    store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_tls_is_refused_if_it_is_required() {
    let database = Database::new();
    let url = format!("{}?sslmode=require", database.url());
    let error = PostgresStore::open(&url, Options::default()).await;
    let error = error.expect_err("the server has no TLS");
    assert!(matches!(error, OpenError::Refused(_)), "{error}");
    assert!(error.to_string().contains("must offer TLS"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_that_cannot_be_used_are_named() {
    let database = Database::new();
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("empty.pem");
    fs::write(&empty, "no certificate\n").unwrap();
    let broken = folder.path().join("broken.pem");
    let text = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    fs::write(&broken, text).unwrap();
    for path in [folder.path().join("missing.pem"), empty, broken] {
        let error = PostgresStore::open(database.url(), trusting(path.clone())).await;
        match error {
            Err(OpenError::Certificates { path: named, .. }) => assert_eq!(named, path),
            other => panic!("{path:?}: {other:?}"),
        }
    }
}
