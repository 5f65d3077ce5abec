//! What is measured.

pub(crate) mod growth;
pub(crate) mod postgres;
pub(crate) mod proxy;
pub(crate) mod rest;
pub(crate) mod single;
pub(crate) mod start;
pub(crate) mod store;
pub(crate) mod tools;

use std::path::{Path, PathBuf};

use crate::{Error, child::Server, scale::Scale};

/// Where a run finds and leaves things.
pub(crate) struct Bench {
    /// How much is measured.
    pub(crate) scale: Scale,
    /// How the PostgreSQL store is opened.
    pub(crate) postgres: counterfoil_postgres::Options,
    /// The release binary.
    pub(crate) binary: PathBuf,
    /// A folder on a real disk, gone after the run.
    pub(crate) folder: PathBuf,
    /// The build folder, which stays.
    pub(crate) target: PathBuf,
}

/// The release binary, running, and the credential of its first agent key.
pub(crate) struct Product {
    pub(crate) server: Server,
    pub(crate) credential: String,
    pub(crate) ready_after: std::time::Duration,
}

impl Bench {
    /// A new folder of its own.
    pub(crate) fn new_folder(&self, name: &str) -> Result<PathBuf, Error> {
        let folder = self.folder.join(name);
        std::fs::create_dir_all(&folder).map_err(Error::io("creating a folder"))?;
        Ok(folder)
    }

    /// Starts the release binary on this data folder, with bounds that do not stop a load.
    pub(crate) fn product(&self, data: &Path) -> Result<Product, Error> {
        let (server, ready_after) = Server::of_product(&self.binary, data, &self.config()?, None)?;
        Ok(Product {
            server,
            credential: first_agent_key(data)?,
            ready_after,
        })
    }

    /// The same as a node on a database that it shares with `others`: the first one of them has
    /// the agent key.
    pub(crate) fn node(
        &self,
        data: &Path,
        store: &str,
        others: Option<&Product>,
    ) -> Result<Product, Error> {
        let (server, ready_after) =
            Server::of_product(&self.binary, data, &self.config()?, Some(store))?;
        Ok(Product {
            server,
            credential: match others {
                Some(first) => first.credential.clone(),
                None => first_agent_key(data)?,
            },
            ready_after,
        })
    }

    fn config(&self) -> Result<PathBuf, Error> {
        let config = self.folder.join("counterfoil.toml");
        std::fs::write(&config, CONFIG).map_err(Error::io("writing the configuration"))?;
        Ok(config)
    }
}

fn first_agent_key(data: &Path) -> Result<String, Error> {
    let key = std::fs::read_to_string(data.join("agent-key"))
        .map_err(Error::io("reading the first agent key"))?;
    Ok(key.trim().to_owned())
}

/// The limit per principal is for real callers; a load is one principal.
const CONFIG: &str = "[limits]\nrate_per_second = 1000000\nrate_burst = 1000000\n";

/// The database of a data folder.
pub(crate) fn database_in(data: &Path) -> Result<PathBuf, Error> {
    std::fs::read_dir(data)
        .map_err(Error::io("reading a data folder"))?
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|end| end == "db"))
        .ok_or(Error::Form("the data folder: it holds no .db file"))
}

/// For reading: bytes in units of 10^6.
#[allow(clippy::cast_precision_loss, reason = "a figure for reading")]
pub(crate) fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}
