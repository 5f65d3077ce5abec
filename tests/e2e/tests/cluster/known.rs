//! What the callers know: which keys they used, and which answers they saw.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use counterfoil_e2e::Random;

use crate::calls::{Got, Intent, Way};
use crate::fleet::{Fleet, NODES};

/// Of ten calls, how many are about a key that was used before.
const RETRIES_IN_TEN: u64 = 5;
/// How long a caller waits that got no answer, or is told to come again.
const BACK_OFF: Duration = Duration::from_millis(50);
/// Of twelve keys, how many are for guarded calls.
const GUARDED_IN_TWELVE: u64 = 2;
/// Longest a guarded call takes, in milliseconds.
const GUARDED_MS_MAX: u64 = 60;
/// Longest until a call is answered at last: a lease has to lapse.
const PATIENCE: Duration = Duration::from_secs(90);
const COMPARERS: usize = 12;

#[derive(Default)]
struct Seen {
    intents: Vec<Intent>,
    acknowledged: HashMap<String, Vec<u8>>,
    /// The handles of those that were in doubt on every node at the end.
    unknown: HashMap<String, String>,
    in_time: u64,
    compared: u64,
    lost: u64,
    later: u64,
    not_recorded: u64,
    doubted: u64,
    calls: u64,
}

/// Shared by all callers.
pub(crate) struct Known {
    keys: u64,
    seen: Mutex<Seen>,
}

impl Known {
    pub(crate) fn new(keys: u64) -> Self {
        Self {
            keys,
            seen: Mutex::default(),
        }
    }

    /// Whether every key was used at least once.
    pub(crate) fn all_begun(&self) -> bool {
        self.seen.lock().unwrap().intents.len() as u64 == self.keys
    }

    /// One call to any node: of a new intent, or again of an old one.
    pub(crate) fn step(&self, fleet: &Fleet, random: &mut Random) {
        let (intent, acknowledged) = self.choose(random);
        let node = usize::try_from(random.below(NODES as u64)).unwrap();
        let got = intent.call(&fleet.http(intent.way, node));
        let mut seen = self.seen.lock().unwrap();
        match got {
            Got::Answer(bytes) => seen.saw(&intent, bytes),
            Got::Unknown(_) => {
                seen.doubted += 1;
                intent.must_be_new(acknowledged);
            }
            Got::NotRecorded => seen.not_recorded += 1,
            Got::Later | Got::Lost => {
                match got {
                    Got::Lost => seen.lost += 1,
                    Got::Later | Got::Answer(_) | Got::Unknown(_) | Got::NotRecorded => {
                        seen.later += 1;
                    }
                }
                drop(seen);
                thread::sleep(BACK_OFF);
            }
        }
    }

    /// What to call, and whether it was acknowledged before.
    fn choose(&self, random: &mut Random) -> (Intent, bool) {
        let mut seen = self.seen.lock().unwrap();
        seen.calls += 1;
        let used = seen.intents.len() as u64;
        if used == self.keys || (used > 0 && random.below(10) < RETRIES_IN_TEN) {
            // Mostly the youngest: those whose answer was just lost.
            let span = if random.below(2) == 0 {
                used.min(32)
            } else {
                used
            };
            let at = used - 1 - random.below(span);
            let intent = seen.intents[usize::try_from(at).unwrap()].clone();
            let acknowledged = seen.acknowledged.contains_key(&intent.key);
            return (intent, acknowledged);
        }
        let way = match random.below(12) {
            n if n < GUARDED_IN_TWELVE => Way::Guarded,
            n if n < 6 => Way::Mcp,
            _ => Way::Rest,
        };
        let intent = Intent {
            key: format!("{used:06}-{:016x}", random.bits()),
            way,
            ms: random.below(GUARDED_MS_MAX),
        };
        seen.intents.push(intent.clone());
        (intent, false)
    }

    /// Every intent once more on every node, until each says something definite: the same
    /// everywhere, and what was acknowledged before.
    pub(crate) fn compare(&self, fleet: &Fleet) {
        let intents = {
            let mut seen = self.seen.lock().unwrap();
            seen.in_time = seen.acknowledged.len() as u64;
            seen.intents.clone()
        };
        let next = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..COMPARERS {
                scope.spawn(|| {
                    while let Some(intent) = intents.get(next.fetch_add(1, Ordering::Relaxed)) {
                        for node in 0..NODES {
                            self.settle(fleet, intent, node);
                        }
                    }
                });
            }
        });
    }

    fn settle(&self, fleet: &Fleet, intent: &Intent, node: usize) {
        let http = fleet.http(intent.way, node);
        let started = Instant::now();
        loop {
            let acknowledged = self
                .seen
                .lock()
                .unwrap()
                .acknowledged
                .contains_key(&intent.key);
            match intent.call(&http) {
                Got::Answer(bytes) => {
                    let mut seen = self.seen.lock().unwrap();
                    assert!(
                        !seen.unknown.contains_key(&intent.key),
                        "{}: unknown on another node",
                        intent.key
                    );
                    return seen.saw(intent, bytes);
                }
                Got::Unknown(handle) => {
                    assert_eq!(intent.way, Way::Guarded, "{}", intent.key);
                    assert!(handle.starts_with("op_"), "{}", intent.key);
                    intent.must_be_new(acknowledged);
                    let mut seen = self.seen.lock().unwrap();
                    let known = seen.unknown.entry(intent.key.clone());
                    assert_eq!(*known.or_insert_with(|| handle.clone()), handle);
                    return;
                }
                Got::Later | Got::NotRecorded | Got::Lost => {}
            }
            assert!(
                started.elapsed() < PATIENCE,
                "{} ({:?}): no definite answer from node {node}",
                intent.key,
                intent.way
            );
            thread::sleep(BACK_OFF);
        }
    }

    /// No key has two effects, and every acknowledged one has one.
    pub(crate) fn check_effects(&self, fleet: &Fleet) {
        let mut effects: HashMap<String, u64> = HashMap::new();
        let notes = "SELECT body, count(*) FROM notes GROUP BY body";
        for row in fleet.base().database().psql(notes).lines() {
            let (body, count) = row.split_once('|').expect("two columns");
            effects.insert(body.to_owned(), count.parse().unwrap());
        }
        for line in fleet.effects().lines() {
            *effects.entry(line.to_owned()).or_default() += 1;
        }
        let twice: Vec<_> = effects.iter().filter(|(_, count)| **count > 1).collect();
        assert!(twice.is_empty(), "more than one effect: {twice:?}");
        let seen = self.seen.lock().unwrap();
        for key in seen.acknowledged.keys() {
            assert!(
                effects.contains_key(key),
                "{key}: acknowledged, and no effect"
            );
        }
        let mut intended = seen.intents.iter().map(|intent| intent.key.as_str());
        let intended: std::collections::HashSet<_> = intended.by_ref().collect();
        for key in effects.keys() {
            assert!(intended.contains(key.as_str()), "{key}: nobody's effect");
        }
    }

    /// How many are in doubt for good.
    pub(crate) fn unknown(&self) -> u64 {
        self.seen.lock().unwrap().unknown.len() as u64
    }

    pub(crate) fn calls(&self) -> u64 {
        self.seen.lock().unwrap().calls
    }

    pub(crate) fn figures(&self) -> String {
        let seen = self.seen.lock().unwrap();
        let guarded = seen.intents.iter().filter(|one| one.way == Way::Guarded);
        format!(
            "{} keys guarded; {} keys acknowledged under load, {} answers lost, {} calls told to \
             come again, {} answers not recorded, {} told as unknown; {} replays compared, {} keys \
             in doubt at the end",
            guarded.count(),
            seen.in_time,
            seen.lost,
            seen.later,
            seen.not_recorded,
            seen.doubted,
            seen.compared,
            seen.unknown.len()
        )
    }

    /// The run was worth something.
    pub(crate) fn assert_disturbed(&self) {
        let seen = self.seen.lock().unwrap();
        assert!(seen.in_time > 0 && seen.lost > 0, "the kills met calls");
        assert!(seen.compared >= 2 * (self.keys - seen.unknown.len() as u64));
    }
}

impl Seen {
    fn saw(&mut self, intent: &Intent, bytes: Vec<u8>) {
        if let Some(first) = self.acknowledged.get(&intent.key) {
            assert_eq!(
                String::from_utf8_lossy(first),
                String::from_utf8_lossy(&bytes),
                "{} ({:?}): an acknowledged answer changed",
                intent.key,
                intent.way
            );
            self.compared += 1;
            return;
        }
        self.acknowledged.insert(intent.key.clone(), bytes);
    }
}

impl Intent {
    /// What was answered once is not forgotten again.
    fn must_be_new(&self, acknowledged: bool) {
        assert!(
            !acknowledged,
            "{} ({:?}): acknowledged, and now unknown",
            self.key, self.way
        );
    }
}
