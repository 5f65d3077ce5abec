//! The database goes away and comes back.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use axum::http::Method;
use counterfoil_server::{Role, Settings};
use counterfoil_test_postgres::{Database, Mode, Server};

use crate::fixture::{App, Place, postgres};

/// How soon an absence is told.
const TOLD_WITHIN: Duration = Duration::from_secs(3);
/// How soon everything works again.
const BACK_WITHIN: Duration = Duration::from_secs(20);

async fn on(server: &Server) -> App {
    let database = Arc::new(Database::on(server));
    let store = Arc::new(postgres(database.url()).await);
    let mut app = App::on(store, Place::Postgres(database), Settings::default()).await;
    app.admin = app.issue("default", Role::Admin).await;
    app
}

async fn readiness(app: &App) -> crate::fixture::Answer {
    app.ask(Method::GET, "/readyz").send().await
}

/// Asks until `/readyz` says `status`, which it must within `bound`.
async fn until(app: &App, status: u16, bound: Duration) -> crate::fixture::Answer {
    let begun = Instant::now();
    loop {
        let answer = readiness(app).await;
        assert!(
            begun.elapsed() < bound,
            "{answer:?} after {:?}",
            begun.elapsed()
        );
        if answer.status == status {
            return answer;
        }
    }
}

/// What is said while the database is away: red with a reason, nothing of where it is, calls
/// refused with a time to come back, and the process lives.
async fn check_away(app: &App, server: &Server) {
    let red = until(app, 503, TOLD_WITHIN).await;
    let problem = red.problem(503, "unavailable");
    assert!(problem["detail"].is_string());
    assert_eq!(app.ask(Method::GET, "/healthz").send().await.status, 200);
    for key in ["k", "new"] {
        let answer = app.note(key, "x").await;
        assert_eq!(answer.status, 503, "{answer:?}");
        let code = answer.json()["code"].clone();
        assert!(code == "unavailable" || code == "busy", "{code}");
        assert_eq!(answer.json()["retryable"], true);
        let wait: u64 = answer.header("retry-after").unwrap().parse().unwrap();
        assert!(wait >= 1);
    }
    let port = server.port().to_string();
    let said = String::from_utf8(red.body).unwrap();
    assert!(
        !said.contains(&port) && !said.contains("postgres://"),
        "{said}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn i2_field_22_a_database_that_is_stopped_is_told_and_comes_back_by_itself() {
    let server = Server::start();
    for mode in [Mode::Fast, Mode::Immediate] {
        let app = on(&server).await;
        let first = app.note("k", "x").await;
        assert_eq!(first.status, 201);
        assert_eq!(readiness(&app).await.status, 200);
        server.stop(mode);
        check_away(&app, &server).await;
        server.start_again();
        until(&app, 200, BACK_WITHIN).await;
        let again = app.note("k", "x").await;
        assert!(again.is_replay());
        assert_eq!(again.body, first.body);
        assert_eq!(app.note("new", "x").await.status, 201);
        assert_eq!(app.notes().await, 2);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn i2_field_22_a_database_that_answers_nothing_is_told_and_comes_back_by_itself() {
    let server = Server::start();
    let app = on(&server).await;
    let first = app.note("k", "x").await;
    assert_eq!(first.status, 201);
    server.pause();
    let red = until(&app, 503, TOLD_WITHIN).await;
    red.problem(503, "unavailable");
    assert_eq!(app.ask(Method::GET, "/healthz").send().await.status, 200);
    server.resume();
    until(&app, 200, BACK_WITHIN).await;
    let again = app.note("k", "x").await;
    assert!(again.is_replay());
    assert_eq!(again.body, first.body);
}
