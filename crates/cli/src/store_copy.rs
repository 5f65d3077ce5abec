//! `counterfoil store copy`: everything of one store into another, and the proof that it is there.

mod report;
mod rows;
mod steady;

use std::sync::Mutex;

use counterfoil_core::State;
use counterfoil_server::{Application, CopiedRows, CopyError, RowsDigest, copy_rows, digest_rows};
use counterfoil_sqlite::{Options, SqliteStore};
use counterfoil_store::{Census, Clash, Damaged, Imported, Part, Store};

use self::{
    report::Report,
    rows::{Rows, Tally, differ},
    steady::{Telling, export, may_pass, steadily},
};
use crate::{
    address::Address,
    args::Copy,
    config::Config,
    exit::{Exit, Failure},
    folder::{Folder, NOTE},
    open::{self, Mode, Opened, not_migrated, open, runtime},
    output::{print, print_json},
};

/// Under which name the target remembers how far the copy has come.
const PLACE: &str = "copy_place";
/// Under which name the target remembers that not everything is in it yet: keys that are missing
/// would run again.
const UNFINISHED: &str = "copy_unfinished";

/// Whether a copy into this store was begun and has not been brought to its end.
pub(crate) async fn is_unfinished(store: &dyn Store) -> Result<bool, Failure> {
    let noted = store.note(UNFINISHED).await?;
    Ok(noted.is_some_and(|noted| !noted.is_empty()))
}

pub(crate) fn run(copy: &Copy) -> Result<(), Failure> {
    let from = Config::load(&copy.flags("--from", copy.from.as_ref()))?;
    let to = Config::load(&copy.flags("--to", copy.to.as_ref()))?;
    if is_same(&from, &to) {
        return Err(
            Failure::new(Exit::Usage, format!("{} is both sides", from.store))
                .hint("name the other store with --to (or --from)"),
        );
    }
    let report = runtime()?.block_on(copied(copy, &from, &to))?;
    if copy.reading.json {
        print_json(&report.json(&from, &to))
    } else {
        print(&report.text(&from, &to))
    }
}

fn is_same(from: &Config, to: &Config) -> bool {
    match (&from.store, &to.store) {
        (Address::Sqlite(_), Address::Sqlite(_)) => {
            let file = |config: &Config| Folder::at(config).database().canonicalize().ok();
            file(from).is_some() && file(from) == file(to)
        }
        (from, to) => from == to,
    }
}

async fn copied(copy: &Copy, from: &Config, to: &Config) -> Result<Report, Failure> {
    let folder = open::folder(from, Mode::Reading)?;
    let source = open(from, &folder, Mode::Reading).await?;
    let done = async {
        check_tables(from, &source).await?;
        let census = source.shared().census().await?;
        check_running(copy, from, &census)?;
        if copy.dry_run {
            return dry_run(copy, from, source.shared().as_ref(), census).await;
        }
        let target = target(to).await?;
        let done = Copying {
            from: source.shared().as_ref(),
            to: target.shared().as_ref(),
            names: (&from.store, &to.store),
            page: copy.page,
        }
        .run(census)
        .await;
        target.close().await;
        done
    };
    let done = done.await;
    source.close().await;
    done
}

/// The source must have the tables that are copied.
async fn check_tables(config: &Config, source: &Opened) -> Result<(), Failure> {
    let found = source.component_version(Application::COMPONENT).await?;
    let known = Application::SCHEMA_VERSION;
    if found == known {
        return Ok(());
    }
    Err(not_migrated(config, found, known))
}

/// An attempt that runs is completed where it began.
fn check_running(copy: &Copy, from: &Config, census: &Census) -> Result<(), Failure> {
    let running = running(census);
    if running == 0 || copy.with_running {
        return Ok(());
    }
    Err(Failure::new(
        Exit::Store,
        format!(
            "{running} attempts are running in {}, and whoever runs them will complete them there",
            from.store
        ),
    )
    .hint("stop its servers; once the leases have lapsed (2 minutes), `counterfoil sweep` records what was cut off as in doubt. Or copy them as they are with --with-running"))
}

fn running(census: &Census) -> u64 {
    census.in_state(State::Running) + census.in_state(State::CancelRequested)
}

/// Opens the target, with tables of the newest version.
async fn target(to: &Config) -> Result<Opened, Failure> {
    let target = match &to.store {
        // The agent key of the data folder may be the source's: it says nothing of this file.
        Address::Sqlite(file) => {
            let folder = Folder::at(to);
            if file.is_none() {
                folder.create()?;
            }
            Opened::Sqlite(SqliteStore::open(folder.database(), options(to))?)
        }
        Address::Postgres(_) => open(to, &Folder::at(to), Mode::Migrating).await?,
    };
    match Application::migrate(target.shared().as_ref()).await {
        Ok(()) => Ok(target),
        Err(error) => {
            target.close().await;
            Err(error.into())
        }
    }
}

#[allow(
    clippy::field_reassign_with_default,
    reason = "the options have a private field"
)]
fn options(config: &Config) -> Options {
    let mut options = Options::default();
    options.queue_max = config.queue_max;
    options.lock_patience = config.lock_patience;
    options
}

/// How far a copy has come: behind the receipt in this place of the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    after: i64,
    operation: [u8; 16],
}

impl Place {
    const BEGINNING: Self = Self {
        after: 0,
        operation: [0; 16],
    };

    fn to_bytes(self) -> Vec<u8> {
        [self.after.to_be_bytes().as_slice(), &self.operation].concat()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (after, operation) = bytes.split_first_chunk()?;
        Some(Self {
            after: i64::from_be_bytes(*after),
            operation: operation.try_into().ok()?,
        })
    }
}

struct Copying<'a> {
    from: &'a dyn Store,
    to: &'a dyn Store,
    names: (&'a Address, &'a Address),
    page: u32,
}

impl Copying<'_> {
    async fn run(&self, census: Census) -> Result<Report, Failure> {
        let total = census.total();
        let mut telling = Telling::new();
        let (from, to) = self.names;
        telling.say(&format!("copying {total} receipts from {from} to {to}"));
        let place = self.begin(&mut telling).await?;
        // First what answers speak of: no answer is replayed that names what is not there.
        let telling_rows = Mutex::new(&mut telling);
        let rows = steadily(
            async || {
                copy_rows(self.from, self.to, |rows| {
                    let count = rows.new + rows.same;
                    if let Ok(mut telling) = telling_rows.lock() {
                        telling.maybe(|| format!("{count} rows of the application"));
                    }
                })
                .await
            },
            |error| matches!(error, CopyError::Store(error) if may_pass(error)),
        )
        .await
        .map_err(|error| self.clash(error))?;
        self.first_key().await?;
        let imported = self.receipts(place, total, &mut telling).await?;
        telling.say("comparing both sides");
        let verified = self.verify(&mut telling).await?;
        if let Some(why) = verified.difference {
            // Whatever was skipped this time is read again the next time.
            self.set_place(Place::BEGINNING).await?;
            return Err(Failure::new(Exit::Failure, format!("not verified: {why}")).hint(
                "stop every server on both stores and run this again. If the target was used on its own, give an empty one",
            ));
        }
        self.set_unfinished(false).await?;
        Ok(Report {
            census,
            rows,
            imported,
            verified: verified.source,
            application: verified.application,
            is_dry: false,
        })
    }

    /// Where to begin: at the beginning, or where a copy was cut off.
    async fn begin(&self, telling: &mut Telling) -> Result<Place, Failure> {
        let noted = self.to.note(PLACE).await?;
        let there = self.to.census().await?.total();
        let Some(noted) = noted else {
            let rows = digest_rows(self.to).await?.rows;
            if there > 0 || rows > 0 {
                return Err(Failure::new(
                    Exit::Store,
                    format!(
                        "{} is not empty: it holds {there} receipts and {rows} rows of the application that no copy has brought",
                        self.names.1
                    ),
                )
                .hint("give an empty database or a new file; a server that was started on it, if only once, has made its own agent key there"));
            }
            self.set_unfinished(true).await?;
            self.set_place(Place::BEGINNING).await?;
            return Ok(Place::BEGINNING);
        };
        let place = Place::from_bytes(&noted).unwrap_or(Place::BEGINNING);
        let is_there = place.after > 0 && {
            let part = self.from.export(place.after - 1, 1).await?;
            let first = part.rows.first();
            first.is_some_and(|whole| whole.receipt.operation_id.to_bytes() == place.operation)
        };
        let place = if is_there { place } else { Place::BEGINNING };
        telling.say(&format!(
            "going on with a copy that was begun; {there} receipts are there"
        ));
        Ok(place)
    }

    async fn set_unfinished(&self, unfinished: bool) -> Result<(), Failure> {
        let value = if unfinished { vec![1] } else { Vec::new() };
        let set = async || self.to.set_note(UNFINISHED, value.clone()).await;
        Ok(steadily(set, may_pass).await?)
    }

    async fn set_place(&self, place: Place) -> Result<(), Failure> {
        let set = async || self.to.set_note(PLACE, place.to_bytes()).await;
        Ok(steadily(set, may_pass).await?)
    }

    /// Which agent key was the first one.
    async fn first_key(&self) -> Result<(), Failure> {
        if let Some(noted) = self.from.note(NOTE).await?
            && self.to.note(NOTE).await?.is_none()
        {
            self.to.set_note(NOTE, noted).await?;
        }
        Ok(())
    }

    async fn receipts(
        &self,
        place: Place,
        total: u64,
        telling: &mut Telling,
    ) -> Result<Imported, Failure> {
        let mut sum = Imported::default();
        let mut part = export(self.from, place.after, self.page).await?;
        loop {
            check_damaged(self.names.0, &part)?;
            let last = part.rows.last().map(|whole| whole.receipt.operation_id);
            let after = part.next;
            let exporting = async {
                match after {
                    Some(after) => export(self.from, after, self.page).await.map(Some),
                    None => Ok(None),
                }
            };
            let importing = async || self.to.import(part.rows.clone()).await;
            let importing = steadily(importing, may_pass);
            let (imported, exported) = tokio::join!(importing, exporting);
            let imported = imported?.map_err(|clash| self.taken(clash))?;
            sum.new += imported.new;
            sum.same += imported.same;
            if let (Some(after), Some(last)) = (after, last) {
                let operation = last.to_bytes();
                self.set_place(Place { after, operation }).await?;
            }
            telling.maybe(|| format!("{} of {total} receipts", sum.new + sum.same));
            match exported? {
                Some(next) => part = next,
                None => return Ok(sum),
            }
        }
    }

    fn taken(&self, clash: Clash) -> Failure {
        Failure::new(
            Exit::Store,
            format!("{clash}: {} was used, or holds another store's receipts", self.names.1),
        )
        .hint("nothing of this part was written. Give an empty target; if it was used, it is the newer one, and there is no way to join two histories of one key")
    }

    fn clash(&self, error: CopyError) -> Failure {
        match error {
            CopyError::Store(error) => error.into(),
            CopyError::Differs { .. } => Failure::new(
                Exit::Store,
                format!(
                    "{error}: {} was used, or holds another store's rows",
                    self.names.1
                ),
            )
            .hint("give an empty target"),
        }
    }

    /// Reads both sides, in step, and compares everything.
    async fn verify(&self, telling: &mut Telling) -> Result<Verified, Failure> {
        let mut source = Rows::new(self.from, self.page);
        let mut target = Rows::new(self.to, self.page);
        let mut difference = None;
        loop {
            let (one, other) = tokio::join!(source.next(), target.next());
            let (one, other) = (one?, other?);
            if one.is_none() && other.is_none() {
                break;
            }
            if difference.is_none() {
                difference = differ(one, other);
            }
            telling.maybe(|| format!("compared {} receipts", source.tally.receipts));
        }
        for (name, rows) in [(self.names.0, &source), (self.names.1, &target)] {
            if let Some(damaged) = rows.damaged.first() {
                difference = Some(format!("in {name} {}", show_damaged(damaged)));
            }
        }
        let application = digest_rows(self.from).await?;
        let there = digest_rows(self.to).await?;
        if application != there {
            difference.get_or_insert(format!(
                "the rows of the application (workspaces, agent keys, notes) differ: {} here, {} there",
                application.rows, there.rows
            ));
        }
        let (here, there) = (source.tally, target.tally);
        if let Some(difference) = &mut difference {
            difference.push_str(&format!(
                " ({} receipts in the source, {} in the target)",
                here.receipts, there.receipts
            ));
        }
        Ok(Verified {
            source: here,
            application,
            difference,
        })
    }
}

struct Verified {
    source: Tally,
    application: RowsDigest,
    difference: Option<String>,
}

fn check_damaged(from: &Address, part: &Part) -> Result<(), Failure> {
    let Some(first) = part.damaged.first() else {
        return Ok(());
    };
    Err(Failure::new(
        Exit::Store,
        format!("{from} is damaged: {}", show_damaged(first)),
    )
    .hint("`counterfoil store check` names every such row; restore a copy that has none"))
}

pub(crate) fn show_damaged(damaged: &Damaged) -> String {
    match damaged.operation_id {
        Some(id) => format!("{id}: {}", damaged.why),
        None => damaged.why.clone(),
    }
}

/// Reads everything of the source, as a copy would.
async fn dry_run(
    copy: &Copy,
    from: &Config,
    source: &dyn Store,
    census: Census,
) -> Result<Report, Failure> {
    let mut telling = Telling::new();
    let mut rows = Rows::new(source, copy.page);
    while rows.next().await?.is_some() {
        telling.maybe(|| format!("read {} receipts", rows.tally.receipts));
    }
    let tally = rows.tally;
    let damaged = Part {
        damaged: rows.damaged,
        ..Part::default()
    };
    check_damaged(&from.store, &damaged)?;
    Ok(Report {
        census,
        rows: CopiedRows::default(),
        imported: Imported::default(),
        verified: tally,
        application: digest_rows(source).await?,
        is_dry: true,
    })
}

#[cfg(test)]
mod tests {
    use super::Place;

    #[test]
    fn a_place_is_read_as_it_was_written() {
        let place = Place {
            after: i64::MAX,
            operation: [7; 16],
        };
        let bytes = place.to_bytes();
        assert_eq!(Place::from_bytes(&bytes), Some(place));
        assert_eq!(Place::from_bytes(&bytes[1..]), None);
        assert_eq!(Place::from_bytes(&[]), None);
    }
}
