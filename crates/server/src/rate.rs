use std::{
    hash::{BuildHasher as _, Hash, RandomState},
    net::IpAddr,
    num::NonZeroU32,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use governor::{
    Quota, RateLimiter,
    clock::{Clock as _, DefaultClock},
    state::keyed::DashMapStateStore,
};

/// How many calls one principal may make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Calls per second in the long run; 0: no limit. Default 2,000.
    pub per_second: u32,
    /// Calls at once after a pause. Default 10,000.
    pub burst: u32,
}

impl Default for Rate {
    fn default() -> Self {
        Self {
            per_second: 2_000,
            burst: 10_000,
        }
    }
}

/// Failed authentications of one remote address: a handful a second.
const FAILURES: Rate = Rate {
    per_second: 5,
    burst: 50,
};

/// How many buckets there are for addresses that fail, and for credentials that were valid.
const SLOTS: usize = 16_384;

type Buckets = RateLimiter<u16, DashMapStateStore<u16>, DefaultClock>;

/// Limits by principal, and failed authentications by remote address. Both are hashed into 65,536
/// buckets with a seed of this process, so that memory is bounded by construction and nobody can
/// aim for somebody else's bucket.
pub(crate) struct Limiter {
    principals: Option<Buckets>,
    failures: Option<Buckets>,
    /// Until when an address has failed enough, in milliseconds since the start.
    barred: Box<[AtomicU64]>,
    /// A hash of the last valid credential of each bucket, never the credential.
    known: Box<[AtomicU64]>,
    seed: RandomState,
    start: Instant,
    clock: DefaultClock,
}

impl Limiter {
    pub(crate) fn new(rate: Rate) -> Self {
        Self {
            principals: buckets(rate),
            failures: buckets(FAILURES),
            barred: slots(),
            known: slots(),
            start: Instant::now(),
            seed: RandomState::new(),
            clock: DefaultClock::default(),
        }
    }

    /// Counts a call of `principal`; `Err` says when to try again.
    pub(crate) fn call(&self, principal: &str) -> Result<(), Duration> {
        self.check(self.principals.as_ref(), &principal)
    }

    /// Counts a failed authentication; `Err` says when to try again.
    pub(crate) fn failure(&self, remote: Option<IpAddr>) -> Result<(), Duration> {
        let network = network(remote);
        let counted = self.check(self.failures.as_ref(), &network);
        if let Err(wait) = counted {
            let until = self.millis().saturating_add(millis(wait));
            let barred = slot(&self.barred, self.seed.hash_one(network));
            barred.fetch_max(until, Ordering::Relaxed);
        }
        counted
    }

    /// Whether an address may fail once more, without counting anything; `Err` says when.
    pub(crate) fn may_fail(&self, remote: Option<IpAddr>) -> Result<(), Duration> {
        let barred = slot(&self.barred, self.seed.hash_one(network(remote)));
        let left = barred.load(Ordering::Relaxed).saturating_sub(self.millis());
        if left == 0 {
            Ok(())
        } else {
            Err(Duration::from_millis(left))
        }
    }

    /// Whether this very credential was valid when it was last seen.
    pub(crate) fn is_known(&self, credential: &str) -> bool {
        let hash = self.seed.hash_one(credential);
        slot(&self.known, hash).load(Ordering::Relaxed) == hash
    }

    /// Remembers that a credential is valid.
    pub(crate) fn know(&self, credential: &str) {
        let hash = self.seed.hash_one(credential);
        slot(&self.known, hash).store(hash, Ordering::Relaxed);
    }

    /// It is valid no more.
    pub(crate) fn forget(&self, credential: &str) {
        let hash = self.seed.hash_one(credential);
        let slot = slot(&self.known, hash);
        let _ = slot.compare_exchange(hash, 0, Ordering::Relaxed, Ordering::Relaxed);
    }

    fn millis(&self) -> u64 {
        millis(self.start.elapsed())
    }

    fn check(&self, buckets: Option<&Buckets>, who: &impl Hash) -> Result<(), Duration> {
        let Some(buckets) = buckets else {
            return Ok(());
        };
        let hash = self.seed.hash_one(who);
        let bucket = u16::try_from(hash & 0xffff).unwrap_or(0);
        buckets
            .check_key(&bucket)
            .map_err(|not_until| not_until.wait_time_from(self.clock.now()))
    }
}

/// Whoever has one IPv6 address has the whole network of 64 bits.
fn network(remote: Option<IpAddr>) -> Option<u128> {
    remote.map(|address| match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits()),
        IpAddr::V6(v6) => v6.to_bits() >> 64 << 64,
    })
}

fn slot(slots: &[AtomicU64], hash: u64) -> &AtomicU64 {
    let place = usize::try_from(hash % SLOTS as u64).unwrap_or(0);
    &slots[place]
}

fn slots() -> Box<[AtomicU64]> {
    std::iter::repeat_with(|| AtomicU64::new(0))
        .take(SLOTS)
        .collect()
}

/// Whole milliseconds, rounded up.
fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros().div_ceil(1000)).unwrap_or(u64::MAX)
}

fn buckets(rate: Rate) -> Option<Buckets> {
    let per_second = NonZeroU32::new(rate.per_second)?;
    let burst = NonZeroU32::new(rate.burst).unwrap_or(per_second);
    Some(RateLimiter::dashmap(
        Quota::per_second(per_second).allow_burst(burst),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_principal_is_limited_and_another_one_is_not() {
        let limiter = Limiter::new(Rate {
            per_second: 1,
            burst: 2,
        });
        assert!(limiter.call("a").is_ok());
        assert!(limiter.call("a").is_ok());
        let wait = limiter.call("a").unwrap_err();
        assert!(wait > Duration::ZERO && wait <= Duration::from_secs(1));
        assert!(limiter.call("b").is_ok());
    }

    #[test]
    fn zero_is_no_limit() {
        let limiter = Limiter::new(Rate {
            per_second: 0,
            burst: 0,
        });
        assert!((0..100_000).all(|_| limiter.call("a").is_ok()));
    }

    #[test]
    fn failures_are_limited_by_network() {
        let limiter = Limiter::new(Rate::default());
        let address = |text: &str| Some(text.parse().unwrap());
        let first = (0..100)
            .filter(|n| limiter.failure(address(&format!("2001:db8::{n}"))).is_ok())
            .count();
        assert!((50..60).contains(&first), "{first}");
        assert!(limiter.failure(address("192.0.2.1")).is_ok());
        // It is known before anything is read, and only of that network.
        assert!(limiter.may_fail(address("2001:db8::7")).is_err());
        assert!(limiter.may_fail(address("192.0.2.1")).is_ok());
        assert!(limiter.may_fail(None).is_ok());
    }

    #[test]
    fn a_credential_is_known_until_it_fails() {
        let limiter = Limiter::new(Rate::default());
        assert!(!limiter.is_known("Bearer a"));
        limiter.know("Bearer a");
        assert!(limiter.is_known("Bearer a") && !limiter.is_known("Bearer b"));
        limiter.forget("Bearer b");
        assert!(limiter.is_known("Bearer a"));
        limiter.forget("Bearer a");
        assert!(!limiter.is_known("Bearer a"));
    }
}
