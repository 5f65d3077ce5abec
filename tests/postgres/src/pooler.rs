//! PgBouncer in transaction mode, in front of a server.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::programs::{self, Failure};
use crate::watchdog::Watchdog;

/// Longest it may take to take connections.
const LIMIT: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(5);

/// PgBouncer with `pool_mode = transaction` and otherwise its defaults, on a port of its own.
/// Everybody is `postgres`; `SHOW` commands work in the database `pgbouncer`. Ends when it is
/// dropped, and with the process that started it.
pub struct Pooler {
    port: u16,
    child: Child,
    _watchdog: Watchdog,
}

impl Pooler {
    /// Starts it in front of a server.
    ///
    /// # Panics
    /// If PgBouncer is not here (Debian's package `pgbouncer`) or does not start.
    #[must_use]
    pub fn start(upstream: SocketAddr) -> Self {
        Self::make(upstream).unwrap_or_else(|why| panic!("{why}"))
    }

    fn make(upstream: SocketAddr) -> Result<Self, Failure> {
        let owner = programs::owner()?;
        let folder = programs::new_folder(owner)?;
        let watchdog = Watchdog::start(&folder)?;
        let port = programs::free_port();
        let settings = folder.join("pgbouncer.ini");
        fs::write(&settings, text(upstream, port)).map_err(|why| programs::at(&settings, &why))?;
        let log = folder.join("log");
        let out = fs::File::create(&log).map_err(|why| programs::at(&log, &why))?;
        let child = programs::command(&program(), &folder, owner)
            .arg(&settings)
            .stdout(Stdio::null())
            .stderr(out)
            .spawn()
            .map_err(|why| {
                Failure(format!(
                    "pgbouncer does not start: {why}. Install Debian's package `pgbouncer`."
                ))
            })?;
        let mut pooler = Self {
            port,
            child,
            _watchdog: watchdog,
        };
        let started = Instant::now();
        while TcpStream::connect(pooler.address()).is_err() {
            let ended = !matches!(pooler.child.try_wait(), Ok(None));
            if ended || started.elapsed() > LIMIT {
                let said = fs::read_to_string(&log).unwrap_or_default();
                return Err(Failure(format!("pgbouncer takes no connections: {said}")));
            }
            sleep(POLL);
        }
        Ok(pooler)
    }

    /// Where clients connect to; see [`Database::url_at`](crate::Database::url_at).
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn text(upstream: SocketAddr, port: u16) -> String {
    let (host, upstream) = (upstream.ip(), upstream.port());
    format!(
        "[databases]
* = host={host} port={upstream} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
admin_users = postgres
pool_mode = transaction
max_client_conn = 500
"
    )
}

fn program() -> PathBuf {
    let debian = Path::new("/usr/sbin/pgbouncer");
    if debian.is_file() {
        debian.to_owned()
    } else {
        PathBuf::from("pgbouncer")
    }
}
