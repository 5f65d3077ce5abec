use std::{
    collections::hash_map::RandomState,
    hash::BuildHasher as _,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio_postgres::{
    Config,
    config::{Host, LoadBalanceHosts, TargetSessionAttrs},
};

use crate::{
    OpenError,
    error::{Done, Fault},
};

/// No connection is given less: it may be a handshake over a long way, whatever a caller's patience.
const LEAST: Duration = Duration::from_secs(2);
/// Most addresses of one name that are tried.
const ADDRESSES_MAX: usize = 16;
const PORT: u16 = 5432;

/// Where the database may be. Each address has a limit of its own for the whole handshake, so that
/// one that swallows everything does not use up the time of the next one.
#[derive(Clone)]
pub(crate) struct Hosts {
    /// The address without its hosts.
    bare: Config,
    hosts: Vec<Place>,
    limit: Duration,
    /// Which one answered last. Only of use if one answer is as good as another.
    last: Option<Arc<AtomicUsize>>,
}

#[derive(Clone)]
struct Place {
    host: Option<Host>,
    address: Option<IpAddr>,
    port: u16,
}

impl Hosts {
    pub(crate) fn new(config: &Config, patience: Duration) -> Result<Self, OpenError> {
        let (names, addresses, ports) = (
            config.get_hosts(),
            config.get_hostaddrs(),
            config.get_ports(),
        );
        let count = names.len().max(addresses.len());
        if !names.is_empty() && !addresses.is_empty() && names.len() != addresses.len() {
            return Err(OpenError::Address(
                "it names more hosts than hostaddrs, or fewer".to_owned(),
            ));
        }
        if ports.len() > 1 && ports.len() != count {
            return Err(OpenError::Address(
                "it names more ports than hosts, or fewer".to_owned(),
            ));
        }
        let hosts = (0..count).map(|index| Place {
            host: names.get(index).cloned(),
            address: addresses.get(index).copied(),
            port: *ports.get(index).or(ports.first()).unwrap_or(&PORT),
        });
        let share = u32::try_from(count.max(1)).unwrap_or(u32::MAX);
        let limit = (patience / share).max(LEAST);
        let mut bare = bare(config);
        bare.connect_timeout(limit);
        // With no wish, the first host is preferred for ever; with this one, only one host will do.
        let one = config.get_target_session_attrs() == TargetSessionAttrs::ReadWrite;
        Ok(Self {
            bare,
            hosts: hosts.collect(),
            limit,
            last: one.then(Arc::default),
        })
    }

    /// What the first address that does not fail comes to; what the last one said if all fail.
    pub(crate) async fn first<T, F>(&self, connect: impl Fn(Config) -> F) -> Done<T>
    where
        F: Future<Output = Done<T>>,
    {
        let mut order: Vec<usize> = (0..self.hosts.len()).collect();
        if self.bare.get_load_balance_hosts() == LoadBalanceHosts::Random {
            let random = RandomState::new();
            order.sort_by_cached_key(|index| random.hash_one(index));
        } else if let Some(last) = &self.last {
            let last = last.load(Ordering::Relaxed);
            order.sort_by_key(|index| *index != last);
        }
        let mut failed = Fault::Lost("the address has no host".to_owned());
        for index in order {
            let Some(place) = self.hosts.get(index) else {
                continue;
            };
            let configs = match self.within(self.resolve(place)).await {
                Ok(configs) => configs,
                Err(fault) => {
                    failed = fault;
                    continue;
                }
            };
            for config in configs {
                match self.within(Box::pin(connect(config))).await {
                    Ok(done) => {
                        if let Some(last) = &self.last {
                            last.store(index, Ordering::Relaxed);
                        }
                        return Ok(done);
                    }
                    Err(fault) => failed = fault,
                }
            }
        }
        Err(failed)
    }

    async fn within<T>(&self, step: impl Future<Output = Done<T>>) -> Done<T> {
        tokio::time::timeout(self.limit, step)
            .await
            .unwrap_or_else(|_| Err(Fault::Lost("it did not answer in time".to_owned())))
    }

    /// One configuration for each address of a host, which TLS still checks by its name.
    async fn resolve(&self, place: &Place) -> Done<Vec<Config>> {
        let mut named = self.bare.clone();
        named.port(place.port);
        match (&place.host, place.address) {
            (Some(Host::Unix(path)), _) => {
                named.host_path(path);
                return Ok(vec![named]);
            }
            (Some(Host::Tcp(name)), _) => drop(named.host(name)),
            (None, _) => {}
        }
        let addresses: Vec<IpAddr> = match (place.address, &place.host) {
            (Some(address), _) => vec![address],
            (None, Some(Host::Tcp(name))) => {
                let found = tokio::net::lookup_host((name.as_str(), place.port)).await;
                let found = found.map_err(|error| {
                    Fault::Lost(format!("the host {name} cannot be looked up: {error}"))
                })?;
                found
                    .map(|address| address.ip())
                    .take(ADDRESSES_MAX)
                    .collect()
            }
            (None, Some(Host::Unix(_)) | None) => Vec::new(),
        };
        let configs = addresses.into_iter().map(|address| {
            let mut config = named.clone();
            config.hostaddr(address);
            config
        });
        Ok(configs.collect())
    }
}

/// The same without its hosts, which nothing takes out again.
fn bare(config: &Config) -> Config {
    let mut bare = Config::new();
    if let Some(user) = config.get_user() {
        bare.user(user);
    }
    if let Some(password) = config.get_password() {
        bare.password(password);
    }
    if let Some(database) = config.get_dbname() {
        bare.dbname(database);
    }
    if let Some(options) = config.get_options() {
        bare.options(options);
    }
    if let Some(name) = config.get_application_name() {
        bare.application_name(name);
    }
    if let Some(timeout) = config.get_tcp_user_timeout() {
        bare.tcp_user_timeout(*timeout);
    }
    if let Some(interval) = config.get_keepalives_interval() {
        bare.keepalives_interval(interval);
    }
    if let Some(retries) = config.get_keepalives_retries() {
        bare.keepalives_retries(retries);
    }
    bare.keepalives(config.get_keepalives())
        .keepalives_idle(config.get_keepalives_idle())
        .ssl_mode(config.get_ssl_mode())
        .ssl_negotiation(config.get_ssl_negotiation())
        .target_session_attrs(config.get_target_session_attrs())
        .channel_binding(config.get_channel_binding())
        .load_balance_hosts(config.get_load_balance_hosts());
    bare
}
