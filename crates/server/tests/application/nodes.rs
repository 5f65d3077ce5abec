//! Several processes on one store.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::http::Method;
use counterfoil_engine::{KeyRing, SystemEntropy};
use counterfoil_postgres::PostgresStore;
use counterfoil_server::{Application, Credential, NewAgentKey, Role, Settings};
use counterfoil_test_postgres::Database;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
};

use crate::fixture::{App, On, Place, id_of, postgres, workspace};

on_both! {
    field_05_first_calls_on_three_nodes_run_once,
    i4_a_key_that_one_node_revokes_is_refused_by_the_others_at_once,
    a_key_that_one_node_issues_works_on_the_others,
    of_ten_first_keys_drafted_at_once_one_is_stored,
    nodes_that_mean_different_keys_by_one_id_do_not_start,
}

async fn field_05_first_calls_on_three_nodes_run_once(on: On) {
    let one = App::new(on).await;
    let nodes = [
        one.beside(Settings::default()).await,
        one.beside(Settings::default()).await,
        one,
    ];
    let calls = tokio::join!(
        nodes[0].note("k", "hello"),
        nodes[1].note("k", "hello"),
        nodes[2].note("k", "hello"),
    );
    let mut bodies = Vec::new();
    for (first, node) in [calls.0, calls.1, calls.2].into_iter().zip(&nodes) {
        let mut answer = first;
        while answer.status != 201 {
            let code = answer.json()["code"].clone();
            assert!(
                code == "idempotency_in_progress" || code == "busy",
                "{code}"
            );
            answer = node.note("k", "hello").await;
        }
        bodies.push(answer.body);
    }
    assert!(bodies.iter().all(|body| *body == bodies[0]));
    assert_eq!(nodes[0].notes().await, 1);
}

async fn i4_a_key_that_one_node_revokes_is_refused_by_the_others_at_once(on: On) {
    let one = App::new(on).await;
    let other = one.beside(Settings::default()).await;
    for n in 0..20 {
        let member = one.issue("default", Role::Member).await;
        let send = || {
            other
                .post("/api/v1/notes")
                .bearer(&member)
                .key("k")
                .body(json!({"body": n.to_string()}).to_string())
                .send()
        };
        assert_eq!(send().await.status, 201);
        let path = format!("/api/v1/agent-keys/{}", id_of(&member));
        let revoke = one.ask(Method::DELETE, &path).bearer(&one.admin).key(&path);
        assert_eq!(revoke.send().await.status, 200);
        send().await.problem(401, "unauthorized");
    }
}

async fn a_key_that_one_node_issues_works_on_the_others(on: On) {
    let one = App::new(on).await;
    let other = one.beside(Settings::default()).await;
    let member = one.issue("default", Role::Member).await;
    let asked = other.ask(Method::GET, "/api/v1/notes").bearer(&member);
    assert_eq!(asked.send().await.status, 200);
}

async fn of_ten_first_keys_drafted_at_once_one_is_stored(on: On) {
    let app = App::new(on).await;
    let other = app.beside(Settings::default()).await;
    let nodes = [app.application.agent_keys(), other.application.agent_keys()];
    let new = |n: usize| NewAgentKey {
        workspace: workspace("empty"),
        name: format!("first {n}"),
        role: Role::Admin,
    };
    let drafts: Vec<_> = (0..10)
        .map(|n| nodes[n % 2].draft(new(n)).unwrap())
        .collect();
    let mut asked = tokio::task::JoinSet::new();
    for (n, draft) in drafts.into_iter().enumerate() {
        let keys = nodes[n % 2].clone();
        asked.spawn(async move {
            let first = loop {
                match keys.issue_first(&draft).await {
                    Ok(first) => break first,
                    Err(error) => assert!(error.to_string().contains("busy"), "{error}"),
                }
            };
            // Whoever asks again is told the same.
            assert_eq!(keys.issue_first(&draft).await.unwrap(), first);
            (first, draft)
        });
    }
    let told = asked.join_all().await;
    let (first, _) = &told[0];
    assert!(told.iter().all(|(other, _)| other.id == first.id));
    let stored = nodes[0].list(&workspace("empty")).await.unwrap();
    assert_eq!(stored.len(), 1);
    for (_, draft) in &told {
        let credential = Credential::parse(&draft.credential.reveal()).unwrap();
        let valid = nodes[1].authenticate(&credential).await.unwrap().is_some();
        assert_eq!(valid, draft.agent_key.id == first.id);
    }
}

async fn nodes_that_mean_different_keys_by_one_id_do_not_start(on: On) {
    let line = |id| KeyRing::generate(id, &SystemEntropy).unwrap();
    let with = |ring: &str| Settings {
        seal_notes: true,
        key_ring: Some(Arc::new(KeyRing::parse(ring).unwrap())),
        ..Settings::default()
    };
    let (old, new) = (line(1), line(2));
    let app = App::with(on, with(&old)).await;
    let first = app.note("k", "x").await;
    let rotated = app.beside(with(&format!("{new}{old}"))).await;
    assert_eq!(rotated.note("k", "x").await.body, first.body);
    for ring in [line(1), format!("{new}{}", line(1))] {
        let refused = Application::start(app.place.open().await, with(&ring)).await;
        let said = refused.err().unwrap().to_string();
        assert!(said.contains("sealing key 1 is another key"), "{said}");
    }
}

/// How far away the database is, there or back.
const AWAY: Duration = Duration::from_millis(60);

/// A database that is far away: whatever is sent arrives later, in both directions.
async fn far_away(database: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect(database).await.unwrap();
            client.set_nodelay(true).unwrap();
            server.set_nodelay(true).unwrap();
            let (from_client, to_client) = client.into_split();
            let (from_server, to_server) = server.into_split();
            tokio::spawn(later(from_client, to_server));
            tokio::spawn(later(from_server, to_client));
        }
    });
    address
}

async fn later(mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
    let (send, mut sent) = tokio::sync::mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    tokio::spawn(async move {
        while let Some((at, bytes)) = sent.recv().await {
            tokio::time::sleep_until((at + AWAY).into()).await;
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
    });
    let mut buffer = vec![0; 65_536];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let _ = send.send((Instant::now(), buffer[..count].to_vec()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_credential_is_checked_in_one_round_trip() {
    let database = Arc::new(Database::new());
    let near = postgres(database.url()).await;
    let place = Place::Postgres(Arc::clone(&database));
    let mut app = App::on(Arc::new(near), place.clone(), Settings::default()).await;
    app.admin = app.issue("default", Role::Admin).await;
    let address = far_away(database.address()).await;
    let options = counterfoil_postgres::Options::default();
    let far = PostgresStore::open(&database.url_at(address), options).await;
    let far = App::on(Arc::new(far.unwrap()), place, Settings::default()).await;
    let keys = far.application.agent_keys();
    let credential = Credential::parse(&app.admin).unwrap();
    let mut fastest = Duration::MAX;
    for _ in 0..10 {
        let begun = Instant::now();
        assert!(keys.authenticate(&credential).await.unwrap().is_some());
        fastest = fastest.min(begun.elapsed());
    }
    assert!(fastest >= 2 * AWAY, "{fastest:?}: it is far away");
    assert!(
        fastest < 4 * AWAY,
        "{fastest:?} is more than one round trip"
    );
}
