//! Nodes as on machines of their own: each has its own folder, all have one database.

use std::sync::Arc;

use counterfoil_e2e::{Base, Folder, Http, Server};

/// Running nodes.
pub(crate) struct Nodes {
    pub(crate) base: Arc<Base>,
    pub(crate) folders: Vec<Folder>,
    pub(crate) servers: Vec<Server>,
    /// The first agent key, which the first node made.
    pub(crate) key: String,
}

impl Nodes {
    /// Starts `count` nodes on a database, the first one before the others.
    pub(crate) fn start(base: Arc<Base>, count: usize, more: &[&str]) -> Self {
        let folders: Vec<_> = (0..count).map(|_| Folder::on(&base)).collect();
        let first = Server::with(&folders[0], more);
        let key = folders[0].key();
        let mut servers = vec![first];
        let others: Vec<_> = folders[1..]
            .iter()
            .map(|folder| Server::launch(folder, more))
            .collect();
        servers.extend(others);
        for server in &mut servers {
            server.wait_until_ready();
        }
        Self {
            base,
            folders,
            servers,
            key,
        }
    }

    /// A client of each node, all with the same credential.
    pub(crate) fn clients(&self) -> Vec<Http> {
        let servers = self.servers.iter();
        servers.map(|server| server.http_as(&self.key)).collect()
    }
}
