use std::thread::sleep;
use std::time::{Duration, Instant};

/// Between two looks.
const POLL: Duration = Duration::from_millis(15);

/// Looks until there is something to see, and hands it over.
///
/// # Panics
/// If there is nothing after `limit`.
pub fn until<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(started.elapsed() < limit, "{what}: not within {limit:?}");
        sleep(POLL);
    }
}
