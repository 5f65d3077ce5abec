//! Six processes on one database: three of the binary, three of the fixture. What dies is started
//! again, as a supervisor would.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use counterfoil_e2e::{Base, Fixture, Folder, Http, Random, Server};

use crate::calls::Way;

pub(crate) const NODES: usize = 3;

enum Process {
    Node(Server),
    Fixture(Fixture),
}

/// Where one of them runs; its address changes when it is started again.
struct Place {
    folder: Folder,
    running: Mutex<Option<Process>>,
    http: Mutex<Http>,
}

pub(crate) struct Fleet {
    base: Arc<Base>,
    key: String,
    /// What the guarded calls did, a line each.
    effects: PathBuf,
    /// The nodes first, then as many fixtures.
    places: Vec<Place>,
}

impl Fleet {
    pub(crate) fn start() -> Self {
        let base = Base::with_server();
        let folders: Vec<_> = (0..2 * NODES).map(|_| Folder::on(&base)).collect();
        // Once alone: it makes the first agent key and the tables.
        Server::start(&folders[0]).stop();
        let key = folders[0].key();
        let effects = folders[NODES].root().join("effects");
        let mut fleet = Self {
            base,
            key,
            effects,
            places: Vec::new(),
        };
        for (at, folder) in folders.into_iter().enumerate() {
            let (process, http) = fleet.launch(at, &folder);
            fleet.places.push(Place {
                folder,
                running: Mutex::new(Some(process)),
                http: Mutex::new(http),
            });
        }
        counterfoil_e2e::until("all are up", std::time::Duration::from_secs(60), || {
            fleet.all_ready().then_some(())
        });
        fleet
    }

    pub(crate) const fn base(&self) -> &Arc<Base> {
        &self.base
    }

    /// A client of the `n`th node for calls of this way.
    pub(crate) fn http(&self, way: Way, n: usize) -> Http {
        let at = match way {
            Way::Rest | Way::Mcp => n,
            Way::Guarded => NODES + n,
        };
        self.places[at].http.lock().unwrap().clone()
    }

    /// Kills one at random and starts it again at once.
    pub(crate) fn kill_one(&self, random: &mut Random) {
        let at = usize::try_from(random.below(2 * NODES as u64)).unwrap();
        let killed = self.places[at].running.lock().unwrap().take();
        match killed {
            Some(Process::Node(server)) => server.kill(),
            Some(Process::Fixture(fixture)) => fixture.kill(),
            None => {}
        }
        self.again(at);
    }

    /// Starts again what ended by itself, such as one that found no database at its start.
    pub(crate) fn tend(&self) {
        for at in 0..self.places.len() {
            let ended = match self.places[at].running.lock().unwrap().as_mut() {
                Some(Process::Node(server)) => server.has_ended(),
                Some(Process::Fixture(fixture)) => fixture.has_ended(),
                None => true,
            };
            if ended {
                self.again(at);
            }
        }
    }

    pub(crate) fn all_ready(&self) -> bool {
        self.places.iter().all(|place| {
            let http = place.http.lock().unwrap().clone();
            match &*place.running.lock().unwrap() {
                Some(Process::Node(server)) => server.is_ready(),
                Some(Process::Fixture(_)) => std::net::TcpStream::connect(http.address()).is_ok(),
                None => false,
            }
        })
    }

    /// What the guarded calls did.
    pub(crate) fn effects(&self) -> String {
        std::fs::read_to_string(&self.effects).unwrap_or_default()
    }

    fn again(&self, at: usize) {
        let place = &self.places[at];
        let (process, http) = self.launch(at, &place.folder);
        *place.running.lock().unwrap() = Some(process);
        *place.http.lock().unwrap() = http;
    }

    fn launch(&self, at: usize, folder: &Folder) -> (Process, Http) {
        if at < NODES {
            let server = Server::launch(folder, &[]);
            let http = server.http_as(&self.key);
            (Process::Node(server), http)
        } else {
            let effects = self.effects.display().to_string();
            let fixture = Fixture::launch(folder, &["--effects", &effects]);
            let http = fixture.http();
            (Process::Fixture(fixture), http)
        }
    }
}
