use std::time::Duration;

/// How a store is opened, and its bounds. [`Options::default`] suits one server on one machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Most callers waiting for the writer, completions not counted; beyond it
    /// [`counterfoil_store::Error::Busy`]. Default 4,096.
    pub queue_max: usize,
    /// Most reservations whose completion is not recorded yet, in this process; beyond it an
    /// admission is `Busy`. Default 16,384.
    pub slots_max: usize,
    /// Most callers in one transaction. Default 256.
    pub batch_max: usize,
    /// Most unresolved receipts of one workspace; beyond it new runs are refused with
    /// [`counterfoil_store::Error::Quota`]. Default 100,000.
    pub unresolved_max: u64,
    /// How long to wait for a lock of another process: at the start, and for steps that bring no
    /// patience of their own. Default 5 s.
    pub lock_patience: Duration,
    /// How long to try to find out whether a COMMIT took effect whose answer was an I/O error;
    /// then [`counterfoil_store::Error::CommitUnknown`]. Default 10 s.
    pub settle_for: Duration,
    /// How long the statements of one atomic handler may run, while nobody else can write; then
    /// they are interrupted. Default 5 s.
    pub handler_limit: Duration,
    /// Most connections for reading. Opened when needed. Default 8.
    pub readers_max: usize,
    /// The writer's page cache, in KiB. Default 65,536.
    pub cache_kib: u32,
    /// The page cache of each reading connection, in KiB. Default 4,096.
    pub reader_cache_kib: u32,
    /// Most interned scopes (workspace, principal, operation) held in memory. Default 16,384.
    pub scopes_max: usize,
    /// Opens for reading only: receipts already there can be looked at, every write is refused as
    /// `Unavailable`. For a read-only file or folder. Default `false`.
    pub read_only: bool,
    /// The file must hold receipts already: nothing is created. For a caller that knows of receipts
    /// which a new and empty file would not have. Default `false`.
    pub must_exist: bool,
    /// Adds the receipt tables to a database that already holds tables of somebody else's. Without
    /// it such a file is refused, because a wrong path is the likelier reason. Default `false`.
    pub adopt: bool,
    /// Does not look at the kind of file system. The locks SQLite depends on are not reliable on
    /// network file systems: two machines may then both run one key. Default `false`.
    pub any_file_system: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            queue_max: 4096,
            slots_max: 16_384,
            batch_max: 256,
            unresolved_max: 100_000,
            lock_patience: Duration::from_secs(5),
            settle_for: Duration::from_secs(10),
            handler_limit: Duration::from_secs(5),
            readers_max: 8,
            cache_kib: 65_536,
            reader_cache_kib: 4096,
            scopes_max: 16_384,
            read_only: false,
            must_exist: false,
            adopt: false,
            any_file_system: false,
        }
    }
}
