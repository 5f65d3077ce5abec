use std::{
    fs::OpenOptions,
    io::{Seek as _, SeekFrom, Write as _},
    path::Path,
    time::Instant,
};

use crate::{
    Error,
    keys::{Kind, Series},
    parts::{Bench, proxy},
    piped::{Call, Peer},
    report::{Figure, Report, Run, alternating, median},
};

/// What a commit writes at least: a page and its head.
const PAGE_BYTES: usize = 4096 + 24;
const PAGES: u64 = 256;
/// Flushes in one round.
const FLUSHES: usize = 200;

/// Calls of a tool that writes: two commits each, whatever their key.
pub(super) fn measure(bench: &Bench, report: &mut Report) -> Result<(), Error> {
    let (mut direct, _) = proxy::direct(bench)?;
    let (mut same, _) = proxy::proxied(bench, "proxy same")?;
    let (mut different, _) = proxy::proxied(bench, "proxy different")?;
    let (mut keyed, _) = proxy::proxied(bench, "proxy keyed")?;
    let keys = Call::Keyed(Series::new(Kind::TimeOrdered)?);
    let plain = Plain::open(&bench.folder.join("plain.db"))?;
    for in_flight in [1, 64] {
        let mut flushes_us = Vec::new();
        let mut runs = vec![
            writing("direct", &mut direct, Call::Different, in_flight, bench),
            writing(
                "no key, other arguments",
                &mut different,
                Call::Different,
                in_flight,
                bench,
            ),
            writing("UUIDv7 keys", &mut keyed, keys, in_flight, bench),
        ];
        if in_flight == 1 {
            // Many of these at once are judged one after the other, and beyond a bound asked about:
            // that is no load to measure.
            runs.push(writing(
                "no key, the same arguments",
                &mut same,
                Call::Same,
                in_flight,
                bench,
            ));
        }
        let guarded = runs.len();
        runs.push(Run::new("fdatasync of a page, beside these", || {
            flushes(&bench.folder, &mut flushes_us)
        }));
        runs.push(Run::new("plain commit of a row, beside these", || {
            plain.commits()
        }));
        let figures = alternating(&mut runs, &bench.scale)?;
        drop(runs);
        for figure in &figures {
            report.figure(figure);
        }
        if let (Some(calls), Some(commit)) = (figures.get(..guarded), figures.last()) {
            judge(calls, in_flight, &flushes_us, commit, report)?;
        }
    }
    Ok(())
}

fn writing<'a>(
    name: &str,
    peer: &'a mut Peer,
    call: Call,
    in_flight: usize,
    bench: &'a Bench,
) -> Run<'a> {
    Run::new(
        format!("writing, {name}, {in_flight} in flight"),
        move || proxy::round(peer, call, in_flight, bench),
    )
}

fn judge(
    figures: &[Figure],
    in_flight: usize,
    flushes_us: &[u32],
    commit: &Figure,
    report: &mut Report,
) -> Result<(), Error> {
    let [direct, guarded @ ..] = figures else {
        return Ok(());
    };
    let flush_ms = median(flushes_us.iter().map(|micros| f64::from(*micros) / 1000.0))
        .ok_or(Error::Form("the number of flushes"))?;
    for figure in guarded {
        let name = &figure.name;
        if in_flight == 1 {
            let (p50, p99) = (figure.p50_ms - direct.p50_ms, figure.p99_ms - direct.p99_ms);
            report.quantity(format!("{name}: p50 added"), p50 * 1000.0, "us");
            report.quantity(format!("{name}: p99 added"), p99 * 1000.0, "us");
            report.quantity(
                format!("{name}: p50 added, in plain commits"),
                p50 / commit.p50_ms,
                "times",
            );
            report.at_most(
                // Short enough for its column.
                &format!(
                    "proxy, {}, added / fdatasync",
                    name.trim_end_matches(", 1 in flight")
                ),
                2.0,
                p50 / flush_ms,
                true,
            );
        } else {
            let part = figure.per_second / direct.per_second;
            report.quantity(format!("{name}: of direct"), part * 100.0, "%");
        }
    }
    Ok(())
}

/// What a durable commit of one row costs in the same kind of database, with nothing around it.
struct Plain(rusqlite::Connection);

impl Plain {
    fn open(path: &Path) -> Result<Self, Error> {
        let connection = rusqlite::Connection::open(path)?;
        connection.execute_batch(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
             CREATE TABLE rows (id INTEGER PRIMARY KEY, text TEXT NOT NULL) STRICT;",
        )?;
        Ok(Self(connection))
    }

    fn commits(&self) -> Result<crate::load::Round, Error> {
        let begun = Instant::now();
        let mut latencies_us = Vec::with_capacity(FLUSHES);
        for _ in 0..FLUSHES {
            let start = Instant::now();
            self.0
                .prepare_cached("INSERT INTO rows (text) VALUES (?1)")?
                .execute([crate::piped::WORDS])?;
            latencies_us.push(u32::try_from(start.elapsed().as_micros()).unwrap_or(u32::MAX));
        }
        crate::load::Round::from_latencies(latencies_us, begun.elapsed())
    }
}

/// Pages written and flushed one after the other, over a file that has its size already, as the
/// log of a database has after a while.
fn flushes(folder: &Path, all_us: &mut Vec<u32>) -> Result<crate::load::Round, Error> {
    let page = [0x5a; PAGE_BYTES];
    let path = folder.join("flushed");
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .map_err(Error::io("opening a file to flush"))?;
    let length = PAGES * PAGE_BYTES as u64;
    if file
        .metadata()
        .map_err(Error::io("looking at a file"))?
        .len()
        < length
    {
        for _ in 0..PAGES {
            file.write_all(&page).map_err(Error::io("writing a page"))?;
        }
        file.sync_all().map_err(Error::io("flushing a file"))?;
    }
    let begun = Instant::now();
    let mut latencies_us = Vec::with_capacity(FLUSHES);
    let mut at = 0;
    for _ in 0..FLUSHES {
        let start = Instant::now();
        file.seek(SeekFrom::Start(at))
            .map_err(Error::io("seeking"))?;
        file.write_all(&page).map_err(Error::io("writing a page"))?;
        file.sync_data().map_err(Error::io("flushing a page"))?;
        latencies_us.push(u32::try_from(start.elapsed().as_micros()).unwrap_or(u32::MAX));
        at = (at + PAGE_BYTES as u64) % length;
    }
    all_us.extend_from_slice(&latencies_us);
    crate::load::Round::from_latencies(latencies_us, begun.elapsed())
}
