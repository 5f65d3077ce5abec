use std::{sync::Arc, time::Duration};

use counterfoil_core::{Pointer, Policy, Retention};
use counterfoil_engine::{KeyRing, Limits, Operation};
use counterfoil_mcp::HttpOptions;

use crate::{Error, Rate};

/// What can be set about the application. [`Settings::default`] suits one server on one machine.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How long receipts are good for. Default 48 h and 30 days.
    pub retention: Retention,
    /// The prefix of our names in `_meta`. Default `dev.counterfoil/`.
    pub meta_prefix: String,
    /// `Host` headers the MCP endpoint takes beside loopback names.
    pub allowed_hosts: Vec<String>,
    /// `Origin` headers the MCP endpoint takes; a request without one is always taken.
    pub allowed_origins: Vec<String>,
    /// The operation `create_note` keeps its stored results sealed. Needs a key ring. Default off.
    pub seal_notes: bool,
    /// The keys that stored results are sealed with.
    pub key_ring: Option<Arc<KeyRing>>,
    /// Largest request body, in bytes. Default 1 MiB.
    pub body_bytes_max: usize,
    /// How many calls one principal may make.
    pub rate: Rate,
    /// How long the end of a client's stream waits for its calls under way. Default 10 s.
    pub drain_for: Duration,
    /// Bounds of the engine.
    pub limits: Limits,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            retention: Retention::default(),
            meta_prefix: "dev.counterfoil/".to_owned(),
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            seal_notes: false,
            key_ring: None,
            body_bytes_max: 1024 * 1024,
            rate: Rate::default(),
            drain_for: Duration::from_secs(10),
            limits: Limits::default(),
        }
    }
}

impl Settings {
    /// Whether [`crate::Application::start`] takes them, as far as can be said without a store.
    ///
    /// # Errors
    /// [`Error::Settings`] says what is wrong.
    pub fn check(&self) -> Result<(), Error> {
        let options = HttpOptions {
            allowed_hosts: self.allowed_hosts.clone(),
            allowed_origins: self.allowed_origins.clone(),
            ..HttpOptions::default()
        };
        options
            .check()
            .map_err(|error| Error::Settings(error.to_string()))?;
        Operations::new(self).map(drop)
    }
}

/// The declared operations of the application, all of them atomic: their effects lie in the
/// receipt's own database.
#[derive(Clone, Debug)]
pub(crate) struct Operations {
    pub(crate) create_note: Arc<Operation>,
    /// Issuing and rotating: the key is not in the stored answer.
    pub(crate) hand_out_key: Arc<Operation>,
    pub(crate) revoke_key: Arc<Operation>,
}

impl Operations {
    pub(crate) fn new(settings: &Settings) -> Result<Self, Error> {
        let policy = Policy {
            retention: settings.retention,
            ..Policy::atomic()
        };
        let key = Pointer::new("/key").map_err(|error| Error::Settings(error.to_string()))?;
        let declare =
            |policy| Operation::new(1, policy).map_err(|error| Error::Settings(error.to_string()));
        Ok(Self {
            create_note: declare(Policy {
                seal: settings.seal_notes,
                ..policy.clone()
            })?,
            hand_out_key: declare(Policy {
                redact: vec![key],
                ..policy.clone()
            })?,
            revoke_key: declare(policy)?,
        })
    }
}
