use std::{
    io::Write,
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

use axum::http::Method;
use counterfoil_engine::Limits;
use counterfoil_server::{Role, Settings};
use tracing_subscriber::fmt::MakeWriter;

use crate::fixture::{App, On};

on_both! {
    traces_hold_no_bodies_arguments_or_credentials,
}

#[derive(Clone, Default)]
struct Captured(Arc<Mutex<Vec<u8>>>);

impl Write for Captured {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Captured {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// What this process traces. Of the whole process, so that other threads and tasks are heard too.
fn captured() -> &'static Captured {
    static CAPTURED: OnceLock<Captured> = OnceLock::new();
    CAPTURED.get_or_init(|| {
        let captured = Captured::default();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_ansi(false)
            .with_writer(captured.clone())
            .finish();
        tracing::subscriber::set_global_default(subscriber).unwrap();
        captured
    })
}

/// Nothing of what is secret or somebody's content is in any trace, at any level.
async fn traces_hold_no_bodies_arguments_or_credentials(on: On) {
    let captured = captured();
    let app = App::with(
        on,
        Settings {
            limits: Limits {
                patience: Duration::from_millis(50),
                ..Limits::default()
            },
            ..Settings::default()
        },
    )
    .await;
    let member = app.issue("default", Role::Member).await;
    let first = app.note("key-of-the-caller", "body-of-the-note").await;
    app.note("key-of-the-caller", "body-of-the-note").await;
    app.note("key-of-the-caller", "other-body-of-the-note")
        .await;
    app.note("key-of-the-caller", "").await;
    let arguments = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"create_note","arguments":{"body":"body-of-the-note","idempotency_key":"key-of-the-caller"}}}"#;
    app.post("/mcp")
        .header("host", "localhost")
        .bearer(&app.admin)
        .body(arguments)
        .send()
        .await;
    let issued = app
        .post("/api/v1/agent-keys")
        .bearer(&app.admin)
        .key("key-of-the-caller")
        .body(r#"{"name":"worker"}"#)
        .send()
        .await;
    let new_key = issued.json()["key"].as_str().unwrap().to_owned();
    app.ask(Method::GET, "/api/v1/notes")
        .bearer("cfk_wrong-credential")
        .send()
        .await;
    let rival = app.place.lock().await;
    let busy = app
        .note("another-key-of-the-caller", "body-of-the-note")
        .await;
    assert_eq!(busy.status, 503);
    rival.let_go().await;
    let text = String::from_utf8(captured.0.lock().unwrap().clone()).unwrap();
    let operation_id = first.header("operation-id").unwrap();
    assert!(text.contains(&format!("operation_id={operation_id} attempt=1")));
    let secret = |credential: &str| credential.rsplit('_').next().unwrap().to_owned();
    for hidden in [
        "body-of-the-note",
        "key-of-the-caller",
        "cfk_wrong-credential",
        &secret(&app.admin),
        &secret(&member),
        &secret(&new_key),
    ] {
        assert!(!text.contains(hidden), "{hidden} in:\n{text}");
    }
}
