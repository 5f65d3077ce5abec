use std::{
    collections::HashMap,
    net::IpAddr,
    str::FromStr as _,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use counterfoil_store::Error;
use futures_util::future::poll_fn;
use tokio::{sync::mpsc, task::AbortHandle};
use tokio_postgres::{
    AsyncMessage, Client, Config, Row, Socket, Statement,
    config::{Host, SslMode},
    error::SqlState,
    tls::{MakeTlsConnect, NoTls},
    types::{ToSql, Type},
};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::{
    OpenError, Options,
    error::{Done, Fault},
    hosts::Hosts,
};

/// A statement with the types of its parameters, so that it can be sent without being prepared.
#[derive(Debug)]
pub(crate) struct Text {
    pub(crate) sql: &'static str,
    pub(crate) types: &'static [Type],
}

impl Text {
    fn typed<'a>(&self, parameters: &[Parameter<'a>]) -> Vec<(Parameter<'a>, Type)> {
        let types = self.types.iter().cloned();
        parameters.iter().copied().zip(types).collect()
    }
}

/// A statement that can be sent at once, without a round trip before it.
#[derive(Clone, Debug)]
pub(crate) enum Ready {
    Named(Statement),
    Inline(&'static Text),
}

pub(crate) type Parameter<'a> = &'a (dyn ToSql + Sync);

static KNOWN: Text = Text {
    sql: "SELECT (SELECT value FROM counterfoil_meta WHERE name = 'locator_secret'),
            current_setting('plan_cache_mode') = 'force_generic_plan'
              AND current_setting('synchronous_commit') = 'on'",
    types: &[],
};

/// Most statements of the application that one connection keeps prepared.
const PREPARED_MAX: usize = 256;
/// How much longer than the database's own time-out an answer may take. A host that is frozen, or a
/// way that swallows everything, never says that a time-out has struck.
const GRACE: Duration = SECOND;
/// The kernel counts the seconds between its probes, and refuses none at all.
const SECOND: Duration = Duration::from_secs(1);
/// Each statement sees what was committed before it, whatever the database's default is.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED";
const BEGIN_READING: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";

/// Opens connections, each with its settings checked.
#[derive(Clone)]
pub(crate) struct Connector {
    /// What the database was known by when the store was opened.
    secret: Arc<OnceLock<[u8; 32]>>,
    hosts: Hosts,
    tls: Option<MakeRustlsConnect>,
    pub(crate) pooler: bool,
    timeout: Duration,
}

/// One connection. Requests are sent in the order in which they are first polled, without waiting
/// for the answers of earlier ones.
pub(crate) struct Session {
    client: Client,
    /// The task that drives the connection.
    driver: AbortHandle,
    /// Longest that an answer may take.
    limit: Duration,
    pooler: bool,
    begin: String,
    begin_reading: String,
    prepared: Mutex<HashMap<(String, Vec<Type>), Statement>>,
    /// A transaction was begun and is not known to have ended.
    open: AtomicBool,
    /// An answer did not come in time, or what was prepared here is of no use any more.
    broken: AtomicBool,
}

/// What a connection is told besides the answers to its requests.
pub(crate) type Notes = mpsc::Receiver<(String, String)>;

impl Connector {
    pub(crate) fn new(address: &str, options: &Options) -> Result<Self, OpenError> {
        let mut config =
            Config::from_str(address).map_err(|error| OpenError::Address(error.to_string()))?;
        if config.get_hosts().is_empty() {
            return Err(OpenError::Address("it names no host".to_owned()));
        }
        let timeout = options.database_timeout;
        config
            .tcp_user_timeout(timeout)
            .keepalives(true)
            .keepalives_idle((timeout / 2).max(SECOND))
            .keepalives_interval((timeout / 4).max(SECOND))
            .keepalives_retries(2);
        if config.get_application_name().is_none() {
            config.application_name("counterfoil");
        }
        let millis = timeout.as_millis();
        if !options.pooler {
            // A pooler that was not announced refuses these, or drops them, which is then seen.
            // Statements are planned once a connection, perhaps while the tables are small: a plan
            // must never come to mean reading a table through. A bitmap costs more than the few
            // rows it is made for.
            let given = config.get_options().unwrap_or_default();
            config.options(format!(
                "{given} -c statement_timeout={millis} -c lock_timeout={millis} \
                 -c idle_in_transaction_session_timeout={millis} -c synchronous_commit=on \
                 -c plan_cache_mode=force_generic_plan -c enable_seqscan=off \
                 -c enable_bitmapscan=off -c jit=off"
            ));
        }
        let undecided =
            config.get_ssl_mode() == SslMode::Prefer && options.root_certificates.is_none();
        if undecided && is_this_machine(&config) {
            // Nobody listens in between, and the certificate that a package made for itself is
            // vouched for by nobody.
            config.ssl_mode(SslMode::Disable);
        }
        let tls = if config.get_ssl_mode() == SslMode::Disable {
            None
        } else {
            Some(MakeRustlsConnect::new(tls_config(options)?))
        };
        Ok(Self {
            secret: Arc::default(),
            hosts: Hosts::new(&config, options.patience)?,
            tls,
            pooler: options.pooler,
            timeout,
        })
    }

    /// A new connection, and what is notified on it if somebody listens.
    pub(crate) async fn connect(&self) -> Done<(Session, Notes)> {
        let tls = &self.tls;
        let connecting = self.hosts.first(move |config| async move {
            match tls {
                None => start(&config, NoTls).await,
                Some(tls) => start(&config, tls.clone()).await,
            }
            .map_err(unconnected)
        });
        let (client, driver, notes) = connecting.await?;
        let millis = self.timeout.as_millis();
        // What the others are told when they connect.
        let settings = if self.pooler {
            format!(
                "; SET LOCAL statement_timeout = {millis}; SET LOCAL lock_timeout = {millis}; \
                 SET LOCAL idle_in_transaction_session_timeout = {millis}; \
                 SET LOCAL synchronous_commit = on"
            )
        } else {
            String::new()
        };
        let session = Session {
            client,
            driver,
            limit: self.timeout + GRACE,
            pooler: self.pooler,
            begin: format!("{BEGIN}{settings}"),
            begin_reading: format!("{BEGIN_READING}{settings}"),
            prepared: Mutex::default(),
            open: AtomicBool::new(false),
            broken: AtomicBool::new(false),
        };
        if let Some(secret) = self.secret.get() {
            check(&session, secret).await?;
        }
        Ok((session, notes))
    }

    /// From now on only connections to this database are made.
    pub(crate) fn remember(&self, secret: [u8; 32]) {
        let _ = self.secret.set(secret);
    }
}

/// Why there is no connection. Whatever the server says to that, it says of no statement.
fn unconnected(error: tokio_postgres::Error) -> Fault {
    match Fault::from(error) {
        Fault::Said(Error::Statement(why)) | Fault::Lost(why) if why.contains("TLS handshake") => {
            Fault::Said(Error::Unavailable(format!(
                "{why}; the server must offer TLS with a certificate of one of the system's \
                 authorities, or of the one that is named (store_ca), for the host in the address"
            )))
        }
        Fault::Said(Error::Statement(why)) => Fault::Said(Error::Unavailable(format!(
            "PostgreSQL does not take the connection: {why}"
        ))),
        fault @ (Fault::Lost(_)
        | Fault::Deadlock
        | Fault::Locked
        | Fault::Stale
        | Fault::Said(_)) => fault,
    }
}

/// Refuses a connection that leads elsewhere: to another database under the same name (dropped and
/// made anew), where every key would run again, or through a pooler that drops what it is told.
async fn check(session: &Session, secret: &[u8; 32]) -> Done<()> {
    let refuse = |why: &str| Err(Fault::Lost(why.to_owned()));
    let rows = session.ask(&KNOWN, &[]).await?;
    let Some(row) = rows.first() else {
        return refuse("it does not say what it is");
    };
    if row.try_get::<_, Option<&[u8]>>(0)? != Some(secret.as_slice()) {
        return refuse(
            "it is another database than before; start this node again if that is right",
        );
    }
    if !session.pooler && !row.try_get::<_, bool>(1)? {
        return refuse("a pooler in front of it drops the settings of our sessions");
    }
    Ok(())
}

fn is_this_machine(config: &Config) -> bool {
    let by_name = |host: &Host| match host {
        Host::Tcp(name) => {
            name == "localhost" || name.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
        }
        Host::Unix(_) => true,
    };
    config.get_hosts().iter().all(by_name) && config.get_hostaddrs().iter().all(IpAddr::is_loopback)
}

fn tls_config(options: &Options) -> Result<rustls::ClientConfig, OpenError> {
    let mut roots = rustls::RootCertStore::empty();
    for certificate in rustls_native_certs::load_native_certs().certs {
        // One unreadable certificate of the system says nothing about the others.
        let _ = roots.add(certificate);
    }
    if let Some(path) = &options.root_certificates {
        use rustls::pki_types::{CertificateDer, pem::PemObject as _};
        let refuse = |why: String| OpenError::Certificates {
            path: path.clone(),
            why,
        };
        let found = CertificateDer::pem_file_iter(path).map_err(|why| refuse(why.to_string()))?;
        let mut count = 0;
        for certificate in found {
            let certificate = certificate.map_err(|why| refuse(why.to_string()))?;
            roots
                .add(certificate)
                .map_err(|why| refuse(why.to_string()))?;
            count += 1;
        }
        if count == 0 {
            return Err(refuse("there is no certificate in it".to_owned()));
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    Ok(rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| OpenError::Address(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth())
}

/// Connects, and drives the connection on a task of its own until it ends.
async fn start<T>(
    config: &Config,
    tls: T,
) -> Result<(Client, AbortHandle, Notes), tokio_postgres::Error>
where
    T: MakeTlsConnect<Socket>,
    T::Stream: Send + 'static,
{
    let (client, mut connection) = config.connect(tls).await?;
    let (tell, notes) = mpsc::channel(1024);
    let driver = tokio::spawn(async move {
        loop {
            match poll_fn(|context| connection.poll_message(context)).await {
                Some(Ok(AsyncMessage::Notification(note))) => {
                    // A listener that falls behind polls all the same.
                    let _ = tell.try_send((note.channel().to_owned(), note.payload().to_owned()));
                }
                Some(Ok(_)) => {}
                // Every request that waits is told by the client.
                Some(Err(_)) | None => return,
            }
        }
    });
    Ok((client, driver.abort_handle(), notes))
}

impl Drop for Session {
    fn drop(&mut self) {
        // The task would wait for the answers that are still owed, for as long as the way to the
        // database is silent.
        if self.broken.load(Ordering::Acquire) || self.open.load(Ordering::Acquire) {
            self.driver.abort();
        }
    }
}

impl Session {
    /// The connection is gone, or of no use any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.client.is_closed() || self.broken.load(Ordering::Acquire)
    }

    /// Waits for an answer, but not longer than the database itself would have gone on.
    async fn within<T>(
        &self,
        limit: Duration,
        asking: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Done<T> {
        let fault = match tokio::time::timeout(limit, asking).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => {
                // A session that was begun while the database took no writes, or that leads to a
                // standby, stays so.
                if error.code() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION) {
                    self.broken.store(true, Ordering::Release);
                }
                Fault::from(error)
            }
            Err(_) => {
                self.broken.store(true, Ordering::Release);
                Fault::Lost("it did not answer in time".to_owned())
            }
        };
        if matches!(fault, Fault::Stale) {
            self.broken.store(true, Ordering::Release);
        }
        Err(fault)
    }

    /// Behind a pooler nothing but a transaction has settings of its own.
    pub(crate) const fn is_pooled(&self) -> bool {
        self.pooler
    }

    /// Ends the connection at once, and with it what it has begun.
    pub(crate) fn end(&self) {
        self.broken.store(true, Ordering::Release);
        self.driver.abort();
    }

    /// Fit to be used by somebody else.
    pub(crate) fn is_clean(&self) -> bool {
        !self.is_closed() && !self.open.load(Ordering::Acquire)
    }

    /// Makes a statement ready. Do it before a flight: preparing is a round trip of its own.
    pub(crate) async fn ready(&self, text: &'static Text) -> Done<Ready> {
        if self.pooler {
            return Ok(Ready::Inline(text));
        }
        self.prepare(text.sql, text.types).await.map(Ready::Named)
    }

    async fn prepare(&self, sql: &str, types: &[Type]) -> Done<Statement> {
        let name = (sql.to_owned(), types.to_vec());
        let known = self
            .prepared
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&name)
            .cloned();
        if let Some(statement) = known {
            return Ok(statement);
        }
        let preparing = self.client.prepare_typed(sql, types);
        let statement = self.within(self.limit, preparing).await?;
        let mut prepared = self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
        if prepared.len() >= PREPARED_MAX {
            prepared.clear();
        }
        prepared.insert(name, statement.clone());
        Ok(statement)
    }

    /// Runs a statement that is ready.
    pub(crate) async fn query(
        &self,
        ready: &Ready,
        parameters: &[Parameter<'_>],
    ) -> Done<Vec<Row>> {
        match ready {
            Ready::Named(statement) => {
                let asking = self.client.query(statement, parameters);
                self.within(self.limit, asking).await
            }
            Ready::Inline(text) => {
                let typed = text.typed(parameters);
                let asking = self.client.query_typed(text.sql, &typed);
                self.within(self.limit, asking).await
            }
        }
    }

    /// Runs a statement whose rows are not wanted; how many it changed.
    pub(crate) async fn execute(&self, ready: &Ready, parameters: &[Parameter<'_>]) -> Done<u64> {
        match ready {
            Ready::Named(statement) => {
                let asking = self.client.execute(statement, parameters);
                self.within(self.limit, asking).await
            }
            Ready::Inline(text) => {
                let typed = text.typed(parameters);
                let asking = self.client.execute_typed(text.sql, &typed);
                self.within(self.limit, asking).await
            }
        }
    }

    /// Makes a statement ready and runs it.
    pub(crate) async fn ask(
        &self,
        text: &'static Text,
        parameters: &[Parameter<'_>],
    ) -> Done<Vec<Row>> {
        let ready = self.ready(text).await?;
        self.query(&ready, parameters).await
    }

    /// The same, for a statement that may take much longer than others. Its transaction must allow
    /// that too.
    pub(crate) async fn ask_for(
        &self,
        limit: Duration,
        text: &'static Text,
        parameters: &[Parameter<'_>],
    ) -> Done<Vec<Row>> {
        let typed: Vec<_> = parameters
            .iter()
            .copied()
            .zip(text.types.iter().cloned())
            .collect();
        let asking = self.client.query_typed(text.sql, &typed);
        self.within(limit + GRACE, asking).await
    }

    /// Makes a statement ready and runs it; how many rows it changed.
    pub(crate) async fn tell(
        &self,
        text: &'static Text,
        parameters: &[Parameter<'_>],
    ) -> Done<u64> {
        let ready = self.ready(text).await?;
        self.execute(&ready, parameters).await
    }

    /// Runs a statement of the application. The types are of its values, so that it means the same
    /// with and without a pooler.
    pub(crate) async fn query_for(
        &self,
        sql: &str,
        parameters: &[(Parameter<'_>, Type)],
    ) -> Done<Vec<Row>> {
        if self.pooler {
            let asking = self.client.query_typed(sql, parameters);
            return self.within(self.limit, asking).await;
        }
        let (values, types): (Vec<_>, Vec<_>) = parameters.iter().cloned().unzip();
        let statement = self.prepare(sql, &types).await?;
        let asking = self.client.query(&statement, &values);
        self.within(self.limit, asking).await
    }

    /// The same; how many rows it changed.
    pub(crate) async fn execute_for(
        &self,
        sql: &str,
        parameters: &[(Parameter<'_>, Type)],
    ) -> Done<u64> {
        if self.pooler {
            let asking = self.client.execute_typed(sql, parameters);
            return self.within(self.limit, asking).await;
        }
        let (values, types): (Vec<_>, Vec<_>) = parameters.iter().cloned().unzip();
        let statement = self.prepare(sql, &types).await?;
        let asking = self.client.execute(&statement, &values);
        self.within(self.limit, asking).await
    }

    /// Statements without parameters or rows.
    pub(crate) async fn run(&self, sql: &str) -> Done<()> {
        self.within(self.limit, self.client.batch_execute(sql))
            .await
    }

    /// The same, for statements that may take much longer than others.
    pub(crate) async fn run_for(&self, limit: Duration, sql: &str) -> Done<()> {
        self.within(limit + GRACE, self.client.batch_execute(sql))
            .await
    }

    /// Begins a transaction. READ COMMITTED: each statement sees what was committed before it.
    pub(crate) async fn begin(&self) -> Done<()> {
        self.open.store(true, Ordering::Release);
        self.run(&self.begin).await
    }

    /// Begins a transaction that cannot write and sees one state of the database.
    pub(crate) async fn begin_reading(&self) -> Done<()> {
        self.open.store(true, Ordering::Release);
        self.run(&self.begin_reading).await
    }

    /// Ends a transaction well. [`Fault::Lost`] says nothing about whether it was committed.
    pub(crate) async fn commit(&self) -> Done<()> {
        self.run("COMMIT").await?;
        self.open.store(false, Ordering::Release);
        Ok(())
    }

    /// Undoes a transaction. A connection that cannot is not used again.
    pub(crate) async fn rollback(&self) {
        if self.run("ROLLBACK").await.is_ok() {
            self.open.store(false, Ordering::Release);
        }
    }
}
