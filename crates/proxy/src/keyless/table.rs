//! The table of deliveries: one row for each call whose answer was handed out, with what became of
//! the latest time. Written behind the calls; a claim is the one write that somebody waits for.

use counterfoil_core::{Key, Timestamp};
use counterfoil_store::{Error, Migration, Row, Sql, Value};

use super::{CallDigest, Channel, judge::Handing};

/// Under which name the version of the table is kept in the store.
pub(super) const COMPONENT: &str = "proxy";

/// Rows that are not settled and looked at for one call; beyond it, it asks.
pub(super) const UNSETTLED_MAX: usize = 64;
/// Rows that one step of pruning removes.
const PRUNED_MAX: i64 = 500;

/// Who holds a row that was written for a call of which nothing but its receipt was found.
pub(super) const NOBODY: Holder = Holder([0; 16]);

/// `serial` is the number in a key that was made here, 0 for callers' own keys. `delivery` is a
/// [`Handing`], 4 being `Confirmed`. Times are milliseconds since the Unix epoch.
pub(super) const MIGRATIONS: &[Migration] = &[Migration {
    version: 1,
    sqlite: "
CREATE TABLE proxy_deliveries (
    call_digest BLOB NOT NULL,
    serial INTEGER NOT NULL,
    operation TEXT NOT NULL,
    call_key TEXT NOT NULL,
    generation INTEGER NOT NULL,
    holder BLOB NOT NULL,
    paired INTEGER NOT NULL,
    channel BLOB NOT NULL,
    delivery INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    evidence_at INTEGER NOT NULL,
    touched_at INTEGER NOT NULL,
    PRIMARY KEY (call_digest, serial, operation, call_key)
) STRICT, WITHOUT ROWID;
CREATE INDEX proxy_deliveries_unsettled ON proxy_deliveries (call_digest) WHERE delivery <> 4;
CREATE INDEX proxy_deliveries_touched ON proxy_deliveries (touched_at);
",
    postgres: "
CREATE TABLE proxy_deliveries (
    call_digest BYTEA NOT NULL,
    serial BIGINT NOT NULL,
    operation TEXT COLLATE \"C\" NOT NULL,
    call_key TEXT COLLATE \"C\" NOT NULL,
    generation BIGINT NOT NULL,
    holder BYTEA NOT NULL,
    paired BIGINT NOT NULL,
    channel BYTEA NOT NULL,
    delivery BIGINT NOT NULL,
    started_at BIGINT NOT NULL,
    evidence_at BIGINT NOT NULL,
    touched_at BIGINT NOT NULL,
    PRIMARY KEY (call_digest, serial, operation, call_key)
);
CREATE INDEX proxy_deliveries_unsettled ON proxy_deliveries (call_digest) WHERE delivery <> 4;
CREATE INDEX proxy_deliveries_touched ON proxy_deliveries (touched_at);
",
}];

/// Names one handing out of an answer, over all processes. Never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Holder(pub(super) [u8; 16]);

/// Whose row: the call, the target's operation and the key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub(super) digest: CallDigest,
    pub(super) operation: String,
    pub(super) key: Key,
}

/// What is known of the latest handing out of a call's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) place: Place,
    pub(super) holder: Holder,
    pub(super) paired: bool,
    pub(super) channel: Channel,
    pub(super) handing: Handing,
    pub(super) started_at: Timestamp,
}

/// How a handing out comes into the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum First {
    /// As the first of its call: what is there already is somebody's who knows better.
    Fresh,
    /// After whatever is there: a caller's own key, whose row nobody read.
    Next,
    /// It is there already.
    There,
}

/// What a claim expects to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Expected {
    /// A handing out of this process, whatever the row says of it.
    pub(super) own: Option<Holder>,
    /// The row as it was read; of nobody if there was none.
    pub(super) row: (Holder, Handing),
}

impl Place {
    /// The number in a key that was made here for this call; 0 for a caller's own.
    pub(super) fn serial(&self) -> u32 {
        if self.operation == "*" {
            return 0;
        }
        let digits = self
            .key
            .as_str()
            .strip_prefix(super::prefix(self.digest).as_str());
        digits
            .filter(|digits| !digits.starts_with(['0', '+']))
            .and_then(|digits| digits.parse().ok())
            .unwrap_or(0)
    }
}

const COLUMNS: &str = "serial, operation, call_key, holder, paired, channel, delivery, started_at, \
                       evidence_at";

/// The rows of a call that are not settled and touched since, the latest ones if there are more
/// than [`UNSETTLED_MAX`] (then one more), and the highest number of its keys.
pub(super) async fn read(
    sql: &mut dyn Sql,
    digest: CallDigest,
    since: Timestamp,
) -> Result<(Vec<Known>, u32), Error> {
    let limit = i64::try_from(UNSETTLED_MAX + 1).unwrap_or(i64::MAX);
    let rows = sql
        .query(
            &format!(
                "SELECT {COLUMNS} FROM proxy_deliveries
                 WHERE call_digest = $1 AND delivery <> 4 AND touched_at > $2
                 ORDER BY started_at DESC LIMIT $3"
            ),
            &[blob(&digest.0), since.as_millis().into(), limit.into()],
        )
        .await?;
    let known = rows
        .iter()
        .map(|row| decode(row, digest))
        .collect::<Result<_, _>>()?;
    let highest = sql
        .query(
            "SELECT serial FROM proxy_deliveries WHERE call_digest = $1
             ORDER BY serial DESC LIMIT 1",
            &[blob(&digest.0)],
        )
        .await?;
    let highest = highest.first().map_or(Ok(0), |row| row.int(0))?;
    let highest = u32::try_from(highest)
        .map_err(|_| Error::Corrupt(format!("a delivery has the number {highest}")))?;
    Ok((known, highest))
}

/// The row of one place.
pub(super) async fn read_one(sql: &mut dyn Sql, place: &Place) -> Result<Option<Known>, Error> {
    let rows = sql
        .query(
            &format!(
                "SELECT {COLUMNS} FROM proxy_deliveries WHERE call_digest = $1 AND serial = $2
                 AND operation = $3 AND call_key = $4"
            ),
            &named(place),
        )
        .await?;
    rows.first()
        .map(|row| decode(row, place.digest))
        .transpose()
}

/// Writes what is known of a handing out. One that another has followed is left alone.
pub(super) async fn write(sql: &mut dyn Sql, known: &Known, first: First) -> Result<(), Error> {
    let mut values = every(known);
    match first {
        First::There => {
            let mut values = named(&known.place);
            values.extend(dated(known));
            values.push(blob(&known.holder.0));
            sql.execute(
                "UPDATE proxy_deliveries SET delivery = $5, evidence_at = $6, touched_at = $7
                 WHERE call_digest = $1 AND serial = $2 AND operation = $3 AND call_key = $4
                 AND holder = $8",
                &values,
            )
            .await?;
        }
        First::Fresh => {
            values.push(blob(&NOBODY.0));
            sql.execute(
                &upsert(
                    "1",
                    "proxy_deliveries.generation",
                    "proxy_deliveries.holder IN ($6, $12)",
                ),
                &values,
            )
            .await?;
        }
        First::Next => {
            // A claim that is being handed out at this moment stays: it was made by a call that
            // has no other way to its answer.
            sql.execute(
                &upsert(
                    "1",
                    "CASE WHEN proxy_deliveries.holder = $6 THEN proxy_deliveries.generation
                          ELSE proxy_deliveries.generation + 1 END",
                    "proxy_deliveries.holder = $6
                     OR NOT (proxy_deliveries.paired = 1 AND proxy_deliveries.delivery = 0)",
                ),
                &values,
            )
            .await?;
        }
    }
    Ok(())
}

/// Makes `claim` the latest handing out, if what is there is what was expected; whether it is.
/// May be repeated after a commit whose answer was lost.
pub(super) async fn claim(
    sql: &mut dyn Sql,
    claim: &Known,
    expected: &Expected,
) -> Result<bool, Error> {
    let (holder, handing) = expected.row;
    let mut values = every(claim);
    values.push(blob(&expected.own.unwrap_or(claim.holder).0));
    values.push(blob(&holder.0));
    values.push(encode(handing).0.into());
    let changed = sql
        .execute(
            &upsert(
                "2",
                "CASE WHEN proxy_deliveries.holder = $6 THEN proxy_deliveries.generation
                      ELSE proxy_deliveries.generation + 1 END",
                "proxy_deliveries.holder IN ($6, $12)
                 OR (proxy_deliveries.holder = $13 AND proxy_deliveries.delivery = $14)",
            ),
            &values,
        )
        .await?;
    Ok(changed > 0)
}

/// Removes up to [`PRUNED_MAX`] rows that nobody asks about any more; how many. The row with the
/// highest number of a call stays while receipts are kept, so that no number is given twice.
pub(super) async fn prune(
    sql: &mut dyn Sql,
    asked_since: Timestamp,
    kept_since: Timestamp,
) -> Result<u64, Error> {
    sql.execute(
        "DELETE FROM proxy_deliveries WHERE (call_digest, serial, operation, call_key) IN (
             SELECT o.call_digest, o.serial, o.operation, o.call_key FROM proxy_deliveries AS o
             WHERE o.touched_at < $1 AND (
                 o.serial = 0 OR o.touched_at < $2 OR EXISTS (
                     SELECT 1 FROM proxy_deliveries AS n
                     WHERE n.call_digest = o.call_digest AND n.serial > o.serial
                 )
             ) LIMIT $3
         )",
        &[
            asked_since.as_millis().into(),
            kept_since.as_millis().into(),
            PRUNED_MAX.into(),
        ],
    )
    .await
}

fn upsert(generation: &str, next: &str, only_if: &str) -> String {
    format!(
        "INSERT INTO proxy_deliveries (call_digest, serial, operation, call_key, generation,
             holder, paired, channel, delivery, evidence_at, touched_at, started_at)
         VALUES ($1, $2, $3, $4, {generation}, $6, $7, $8, $5, $9, $10, $11)
         ON CONFLICT (call_digest, serial, operation, call_key) DO UPDATE SET
             generation = {next}, holder = excluded.holder, paired = excluded.paired,
             channel = excluded.channel, delivery = excluded.delivery,
             evidence_at = excluded.evidence_at, touched_at = excluded.touched_at,
             started_at = excluded.started_at
         WHERE {only_if}"
    )
}

/// `$1` to `$4`.
fn named(place: &Place) -> Vec<Value> {
    vec![
        blob(&place.digest.0),
        i64::from(place.serial()).into(),
        place.operation.as_str().into(),
        place.key.as_str().into(),
    ]
}

/// `$1` to `$11`.
fn every(known: &Known) -> Vec<Value> {
    let [delivery, evidence_at, touched_at] = dated(known);
    let mut values = named(&known.place);
    values.push(delivery);
    values.push(blob(&known.holder.0));
    values.push(i64::from(known.paired).into());
    values.push(blob(&known.channel.0));
    values.push(evidence_at);
    values.push(touched_at);
    values.push(known.started_at.as_millis().into());
    values
}

fn dated(known: &Known) -> [Value; 3] {
    let (delivery, evidence_at) = encode(known.handing);
    let touched_at = evidence_at.max(known.started_at.as_millis());
    [delivery.into(), evidence_at.into(), touched_at.into()]
}

fn blob(bytes: &[u8]) -> Value {
    bytes.to_vec().into()
}

const fn encode(handing: Handing) -> (i64, i64) {
    match handing {
        Handing::Open => (0, 0),
        Handing::Undelivered { since } => (1, since.as_millis()),
        Handing::Told { at } => (2, at.as_millis()),
        Handing::Presumed { at } => (3, at.as_millis()),
        Handing::Confirmed { at } => (4, at.as_millis()),
        Handing::Doubted { at } => (5, at.as_millis()),
    }
}

fn decode(row: &Row, digest: CallDigest) -> Result<Known, Error> {
    let at = Timestamp::from_millis(row.int(8)?);
    let handing = match row.int(6)? {
        0 => Handing::Open,
        1 => Handing::Undelivered { since: at },
        2 => Handing::Told { at },
        3 => Handing::Presumed { at },
        4 => Handing::Confirmed { at },
        5 => Handing::Doubted { at },
        other => return Err(Error::Corrupt(format!("no delivery has the state {other}"))),
    };
    Ok(Known {
        place: Place {
            digest,
            operation: row.text(1)?.to_owned(),
            key: Key::new(row.text(2)?)
                .map_err(|error| Error::Corrupt(format!("the key of a delivery: {error}")))?,
        },
        holder: Holder(sixteen(row.blob(3)?)?),
        paired: row.int(4)? != 0,
        channel: Channel(sixteen(row.blob(5)?)?),
        handing,
        started_at: Timestamp::from_millis(row.int(7)?),
    })
}

fn sixteen(bytes: &[u8]) -> Result<[u8; 16], Error> {
    bytes
        .try_into()
        .map_err(|_| Error::Corrupt(format!("{} bytes instead of 16", bytes.len())))
}
