//! What the tests of this crate stand on: an upstream that keeps what is sent, a client that passes
//! on what it is told.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use counterfoil_engine::Engine;
use counterfoil_mcp::framing::Id;
use counterfoil_sqlite::SqliteStore;
use counterfoil_store::BoxFuture;
use serde_json::Value;
use tokio::sync::mpsc;

use crate::{
    Proxy, Settings,
    settings::Target,
    wire::{Client, Failure, Handed, Outbound, Ticket, Transport},
};

/// Keeps what is sent.
#[derive(Default)]
pub(crate) struct Wire(Mutex<Vec<Bytes>>, AtomicBool);

impl Wire {
    /// What was sent since the last look.
    pub(crate) fn sent(&self) -> Vec<Bytes> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// There is no room any more: what is to be sent waits for ever.
    pub(crate) fn fill(&self) {
        self.1.store(true, Ordering::Release);
    }
}

impl Transport for Wire {
    fn send(&self, message: Outbound) -> BoxFuture<'_, Result<(), Failure>> {
        if self.1.load(Ordering::Acquire) {
            return Box::pin(std::future::pending());
        }
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(message.text);
        Box::pin(async { Ok(()) })
    }

    fn forget(&self, _id: &Id) {}

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}

/// Passes on what it is told.
pub(crate) struct Ear(mpsc::UnboundedSender<(Option<Ticket>, Value)>);

impl Client for Ear {
    fn tell(&self, about: Option<Ticket>, text: Bytes) -> BoxFuture<'_, ()> {
        let _ = self.0.send((about, serde_json::from_slice(&text).unwrap()));
        Box::pin(async {})
    }

    fn answer(&self, ticket: Ticket, text: Bytes) -> BoxFuture<'_, Handed> {
        let _ = self
            .0
            .send((Some(ticket), serde_json::from_slice(&text).unwrap()));
        Box::pin(async { Handed::Over })
    }

    fn silence(&self, _ticket: Ticket) {}
}

/// What a client was told.
pub(crate) struct Told(mpsc::UnboundedReceiver<(Option<Ticket>, Value)>);

impl Told {
    /// The next thing.
    pub(crate) async fn next(&mut self) -> (Option<Ticket>, Value) {
        let heard = tokio::time::timeout(Duration::from_secs(5), self.0.recv());
        heard.await.unwrap().unwrap()
    }

    /// There is nothing.
    pub(crate) fn is_silent(&mut self) {
        let heard = self.0.try_recv();
        assert!(heard.is_err(), "{heard:?}");
    }
}

/// A client, and what it is told.
pub(crate) fn client() -> (Arc<Ear>, Told) {
    let (tell, told) = mpsc::unbounded_channel();
    (Arc::new(Ear(tell)), Told(told))
}

/// A proxy of a command that is never started, on a store of its own.
pub(crate) async fn proxy() -> (Proxy, tempfile::TempDir) {
    proxy_with(|_| {}).await
}

/// The same with other settings.
pub(crate) async fn proxy_with(set: impl FnOnce(&mut Settings)) -> (Proxy, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(folder.path().join("counterfoil.db"), Default::default());
    let engine = Engine::new(Arc::new(store.unwrap()));
    let mut settings = Settings::new(Target::Command {
        program: "none".to_owned(),
        arguments: Vec::new(),
        environment: Vec::new(),
        folder: None,
    });
    set(&mut settings);
    (Proxy::start(engine, settings).await.unwrap(), folder)
}
