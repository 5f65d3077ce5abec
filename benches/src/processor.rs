//! How much of the processor who takes, from `/proc`.

use std::{collections::BTreeMap, time::Instant};

use crate::{
    Error,
    report::{Figure, Report, median},
};

/// Ticks per second of the times in `/proc`: the same on every Linux.
const TICKS: f64 = 100.0;

/// Whose time is counted.
#[derive(Clone, Debug)]
pub(crate) enum Whose {
    /// One process.
    Process(u32),
    /// A process, those it started, and those of them that have ended.
    Family(u32),
}

/// Processor time since a moment, by name.
pub(crate) struct Watch {
    begun: Instant,
    whose: Vec<(&'static str, Vec<Whose>)>,
    before: Vec<f64>,
    machine_before: f64,
}

/// How many cores each of them kept busy, and how many were busy in all.
pub(crate) struct Shares {
    pub(crate) cores: BTreeMap<&'static str, f64>,
    pub(crate) busy: f64,
}

/// The shares of several rounds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rounds(BTreeMap<&'static str, Vec<f64>>);

impl Rounds {
    pub(crate) fn add(&mut self, shares: Shares) {
        for (who, cores) in shares.cores {
            self.0.entry(who).or_default().push(cores);
        }
        self.0.entry("all").or_default().push(shares.busy);
    }

    /// Says how many cores were busy, and what of each a call took.
    pub(crate) fn tell(&self, report: &mut Report, figure: &Figure) {
        for (who, cores) in &self.0 {
            let cores = median(cores.iter().copied()).unwrap_or_default();
            report.quantity(format!("  cores busy: {who}"), cores, "cores");
            let micros = cores * 1e6 / figure.per_second.max(1.0);
            report.quantity(format!("  for each call: {who}"), micros, "us");
        }
    }
}

impl Watch {
    pub(crate) fn new(whose: Vec<(&'static str, Vec<Whose>)>) -> Result<Self, Error> {
        let before: Result<Vec<f64>, Error> =
            whose.iter().map(|(_, who)| seconds_of(who)).collect();
        Ok(Self {
            before: before?,
            machine_before: busy_seconds()?,
            whose,
            begun: Instant::now(),
        })
    }

    pub(crate) fn shares(&self) -> Result<Shares, Error> {
        let elapsed = self.begun.elapsed().as_secs_f64();
        let mut cores = BTreeMap::new();
        for ((name, whose), before) in self.whose.iter().zip(&self.before) {
            cores.insert(*name, (seconds_of(whose)? - before) / elapsed);
        }
        Ok(Shares {
            cores,
            busy: (busy_seconds()? - self.machine_before) / elapsed,
        })
    }
}

fn seconds_of(whose: &[Whose]) -> Result<f64, Error> {
    let mut seconds = 0.0;
    for who in whose {
        seconds += match who {
            Whose::Process(id) => times(*id).ok_or(Error::Form("/proc/PID/stat"))?.own,
            Whose::Family(id) => {
                let head = times(*id).ok_or(Error::Form("/proc/PID/stat"))?;
                head.own + head.of_ended + children(*id)?
            }
        };
    }
    Ok(seconds)
}

struct Times {
    parent: u32,
    own: f64,
    of_ended: f64,
}

/// `None` if it has ended.
fn times(id: u32) -> Option<Times> {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The name before it may hold blanks.
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at)?.parse::<f64>().ok();
    Some(Times {
        parent: fields.get(1)?.parse().ok()?,
        own: (ticks(11)? + ticks(12)?) / TICKS,
        of_ended: (ticks(13)? + ticks(14)?) / TICKS,
    })
}

fn children(parent: u32) -> Result<f64, Error> {
    let entries = std::fs::read_dir("/proc").map_err(Error::io("reading /proc"))?;
    Ok(entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(times)
        .filter(|times| times.parent == parent)
        .map(|times| times.own)
        .sum())
}

/// The process that started another one.
pub(crate) fn parent_of(id: u32) -> Result<u32, Error> {
    times(id)
        .map(|times| times.parent)
        .ok_or(Error::Form("/proc/PID/stat"))
}

/// Seconds in which a core did something, of all cores.
fn busy_seconds() -> Result<f64, Error> {
    let stat = std::fs::read_to_string("/proc/stat").map_err(Error::io("reading /proc"))?;
    let fields: Vec<f64> = stat
        .lines()
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .skip(1)
        .filter_map(|field| field.parse().ok())
        .collect();
    // user, nice, system, idle, iowait, irq, softirq; the rest is counted in these or stolen.
    let busy = [0, 1, 2, 5, 6].map(|at| fields.get(at).copied().unwrap_or(0.0));
    Ok(busy.iter().sum::<f64>() / TICKS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_this_process_is_found() {
        let own = std::process::id();
        let begun = times(own).unwrap();
        let mut sum = 0_u64;
        while times(own).unwrap().own <= begun.own {
            sum = sum.wrapping_add(std::hint::black_box(1));
        }
        assert!(busy_seconds().unwrap() > 0.0);
        assert!(times(begun.parent).is_some());
    }
}
