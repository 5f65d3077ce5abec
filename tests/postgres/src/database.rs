//! A database for one test.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use crate::programs::{self, Failure, client, program};
use crate::server::Server;

/// The variable that names the server for tests: `postgres://postgres@127.0.0.1:PORT`.
/// `cargo xtask test` sets it.
pub const VARIABLE: &str = "COUNTERFOIL_TEST_POSTGRES";

/// Longest a statement from outside may take.
const LIMIT: Duration = Duration::from_secs(60);

/// A new, empty database. Dropped, with whoever is connected to it, when this is.
pub struct Database {
    base: String,
    name: String,
    url: String,
}

impl Database {
    /// On the server that [`VARIABLE`] names; without it, on one that this process starts once and
    /// that ends with it.
    ///
    /// # Panics
    /// If there is no server, or it refuses.
    #[must_use]
    pub fn new() -> Self {
        static OWN: OnceLock<Server> = OnceLock::new();
        match std::env::var(VARIABLE) {
            Ok(base) => Self::at(base.trim_end_matches('/')),
            Err(_) => Self::on(OWN.get_or_init(Server::start)),
        }
    }

    /// On this server.
    ///
    /// # Panics
    /// If it refuses.
    #[must_use]
    pub fn on(server: &Server) -> Self {
        Self::at(&server.base())
    }

    fn at(base: &str) -> Self {
        let name = format!("t_{:016x}", programs::random());
        let url = format!("{base}/{name}");
        // Of template0: nobody can be connected to it, so nobody is in the way.
        run(
            &format!("{base}/postgres"),
            &format!("CREATE DATABASE {name} TEMPLATE template0"),
        )
        .unwrap_or_else(|why| panic!("no database at {base}: {why}"));
        Self {
            base: base.to_owned(),
            name,
            url,
        }
    }

    /// Its address, as the program takes it.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Its address through somebody else, such as a [`Proxy`](crate::Proxy) or a pooler.
    #[must_use]
    pub fn url_at(&self, address: SocketAddr) -> String {
        format!("postgres://postgres@{address}/{}", self.name)
    }

    /// Its name on the server.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where its server listens.
    ///
    /// # Panics
    /// If [`VARIABLE`] is not of the form it should have.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        let host = self.base.rsplit(['@', '/']).next().unwrap_or_default();
        let found = host.to_socket_addrs().ok().and_then(|mut all| all.next());
        found.unwrap_or_else(|| panic!("{VARIABLE}={}: no host and port in it", self.base))
    }

    /// Runs statements from outside and hands back what they print: one line a row, columns apart
    /// by `|`, without headings. Several statements are one transaction, unless they say otherwise.
    ///
    /// # Panics
    /// If one fails.
    pub fn psql(&self, sql: &str) -> String {
        self.try_psql(sql).unwrap_or_else(|why| panic!("{why}"))
    }

    /// As [`Database::psql`].
    ///
    /// # Errors
    /// What `psql` said.
    pub fn try_psql(&self, sql: &str) -> Result<String, Failure> {
        run(&self.url, sql)
    }
}

impl Default for Database {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // Its server may be gone already, and the database with it.
        let sql = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
        let _ = run(&format!("{}/postgres", self.base), &sql);
    }
}

/// Statements at an address.
fn run(url: &str, sql: &str) -> Result<String, Failure> {
    let mut command: Command = client(&program("psql"));
    command
        .env("PGCONNECT_TIMEOUT", "10")
        .env("PGAPPNAME", "outside")
        .args(["-X", "-A", "-t", "-q", "-w", "-v", "ON_ERROR_STOP=1"])
        .args(["-d", url, "-c", sql]);
    let done = programs::output(&mut command, LIMIT)?;
    if done.status.success() {
        return Ok(String::from_utf8_lossy(&done.stdout).trim_end().to_owned());
    }
    let said = String::from_utf8_lossy(&done.stderr);
    Err(Failure(format!("psql: {}\nin: {sql}", said.trim())))
}
