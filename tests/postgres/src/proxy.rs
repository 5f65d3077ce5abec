//! A TCP proxy in front of a PostgreSQL server that knows a commit when it sees one.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};

use crate::connection::Connection;
use crate::plan::{Active, Applied, Armed, Plan};
use crate::programs;

/// Longest that opening or closing the door may take.
const LIMIT: Duration = Duration::from_secs(10);
const CONNECT: Duration = Duration::from_secs(5);

/// What went through a proxy so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections it took.
    pub connections: u64,
    /// Messages the clients sent.
    pub from_client: u64,
    /// Messages the server sent.
    pub from_server: u64,
    /// Commits the clients sent, whatever became of them.
    pub commits: u64,
}

/// A proxy on a port of its own, in front of a PostgreSQL server, without TLS.
///
/// It passes everything on as it is until it is told otherwise. A [`Plan`] applies to the next
/// commits of any connection: a simple query with a statement that begins with `COMMIT` or `END`,
/// or the execution of a prepared one, pipelined or not. With several plans, the one set first
/// that wants a commit gets it. Ends, with all its connections, when it is dropped.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    door: Option<JoinHandle<()>>,
}

/// What the door is to be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Door {
    Open,
    Refusing,
    Gone,
}

pub(crate) struct Shared {
    upstream: SocketAddr,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    wanted: Door,
    listening: bool,
    silent: bool,
    plans: Vec<Arc<Active>>,
    counts: Counts,
    connections: HashMap<u64, Arc<Connection>>,
}

impl Proxy {
    /// Starts it in front of a server, such as [`Server::address`](crate::Server::address) or
    /// [`Database::address`](crate::Database::address).
    ///
    /// # Panics
    /// If no port can be had.
    #[must_use]
    pub fn start(upstream: SocketAddr) -> Self {
        let (listener, address) = listen();
        let shared = Arc::new(Shared {
            upstream,
            state: Mutex::new(State {
                wanted: Door::Open,
                listening: true,
                silent: false,
                plans: Vec::new(),
                counts: Counts::default(),
                connections: HashMap::new(),
            }),
            changed: Condvar::new(),
        });
        let door = Arc::clone(&shared);
        let door = thread::spawn(move || keep_door(&door, address, listener));
        Self {
            address,
            shared,
            door: Some(door),
        }
    }

    /// Where clients connect to.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets a plan.
    pub fn apply(&self, plan: Plan) -> Applied {
        let active = Active::new(plan);
        self.shared.state().plans.push(Arc::clone(&active));
        Applied(active)
    }

    /// The next commit, of any transaction: see [`Plan::cut_after_commit`].
    pub fn cut_after_commit(&self) -> Applied {
        self.apply(Plan::cut_after_commit())
    }

    /// The next commit, of any transaction: see [`Plan::cut_before_commit`].
    pub fn cut_before_commit(&self) -> Applied {
        self.apply(Plan::cut_before_commit())
    }

    /// The next commit, of any transaction: see [`Plan::hold_commit`].
    pub fn hold_commit(&self, hold: Duration) -> Applied {
        self.apply(Plan::hold_commit(hold))
    }

    /// Forgets every plan. Commits that one has taken already are still cut.
    pub fn clear(&self) {
        self.shared.state().plans.clear();
    }

    /// Cuts every connection there is, in both directions.
    pub fn cut_now(&self) {
        let connections: Vec<_> = self.shared.state().connections.drain().collect();
        for (_, connection) in connections {
            connection.cut();
        }
    }

    /// While true, nobody listens on the port: new connections are refused, those that are open
    /// go on. In force when this returns.
    ///
    /// # Panics
    /// If somebody else took the port meanwhile.
    pub fn refuse(&self, refuse: bool) {
        self.want(if refuse { Door::Refusing } else { Door::Open });
    }

    /// While true, bytes are swallowed in both directions, connections seem to open, and no side
    /// learns that the other has gone. A connection that lost a byte or an end this way is lost
    /// for good: it stays half open until [`Proxy::cut_now`], or until the proxy ends. Others go
    /// on when it is over.
    pub fn silent(&self, silent: bool) {
        self.shared.state().silent = silent;
    }

    /// What went through so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.shared.state().counts
    }

    /// How many connections are open, lost ones included.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.state().connections.len()
    }

    fn want(&self, door: Door) {
        self.shared.state().wanted = door;
        self.shared.changed.notify_all();
        // Wakes the thread that waits for a client.
        let _ = TcpStream::connect_timeout(&self.address, CONNECT);
        let asked = Instant::now();
        let mut state = self.shared.state();
        while state.listening != (door == Door::Open) {
            let left = LIMIT.saturating_sub(asked.elapsed());
            assert!(
                !left.is_zero(),
                "the proxy's port is taken, or its thread hangs"
            );
            let waited = self.shared.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.state().wanted = Door::Gone;
        self.shared.changed.notify_all();
        let _ = TcpStream::connect_timeout(&self.address, CONNECT);
        if let Some(door) = self.door.take() {
            let _ = door.join();
        }
        self.cut_now();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_silent(&self) -> bool {
        self.state().silent
    }

    pub(crate) fn count(&self, what: impl FnOnce(&mut Counts)) {
        what(&mut self.state().counts);
    }

    /// The plan that wants this transaction's commit.
    pub(crate) fn armed(&self, transaction: &[u8]) -> Option<Armed> {
        let plans = self.state().plans.clone();
        plans.iter().find_map(|plan| plan.take(transaction))
    }

    fn keep(self: &Arc<Self>, client: TcpStream) {
        let silent = self.is_silent();
        let server = if silent {
            None
        } else {
            match TcpStream::connect_timeout(&self.upstream, CONNECT) {
                Ok(server) => Some(server),
                // The client is told as by a server that goes down just now.
                Err(_) => return,
            }
        };
        let connection = Arc::new(Connection::new(client, server));
        let id = programs::random();
        {
            let mut state = self.state();
            state.counts.connections += 1;
            state.connections.insert(id, Arc::clone(&connection));
        }
        connection.carry(self);
        if !connection.is_lost() {
            self.state().connections.remove(&id);
        }
    }
}

/// Takes clients while the door is open.
fn keep_door(shared: &Arc<Shared>, address: SocketAddr, listener: TcpListener) {
    let mut listener = Some(listener);
    loop {
        let mut state = shared.state();
        match state.wanted {
            Door::Gone => return,
            Door::Refusing => {
                listener = None;
                state.listening = false;
                shared.changed.notify_all();
                let waited = shared
                    .changed
                    .wait_while(state, |state| state.wanted == Door::Refusing);
                drop(waited);
                continue;
            }
            Door::Open if listener.is_none() => {
                drop(state);
                match TcpListener::bind(address) {
                    Ok(bound) => {
                        listener = Some(bound);
                        shared.state().listening = true;
                        shared.changed.notify_all();
                    }
                    Err(_) => sleep(Duration::from_millis(20)),
                }
                continue;
            }
            Door::Open => drop(state),
        }
        let accepted = listener.as_ref().map(TcpListener::accept);
        let Some(Ok((client, _))) = accepted else {
            continue;
        };
        if shared.state().wanted == Door::Open {
            let shared = Arc::clone(shared);
            thread::spawn(move || shared.keep(client));
        }
    }
}

fn listen() -> (TcpListener, SocketAddr) {
    for _ in 0..20 {
        let address = (Ipv4Addr::LOCALHOST, programs::free_port()).into();
        if let Ok(listener) = TcpListener::bind(address) {
            return (listener, address);
        }
    }
    panic!("twenty free ports were taken before the proxy had one");
}
