use std::{
    hash::{BuildHasher as _, Hash, RandomState},
    net::IpAddr,
    num::NonZeroU32,
    time::Duration,
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

type Buckets = RateLimiter<u16, DashMapStateStore<u16>, DefaultClock>;

/// Limits by principal, and failed authentications by remote address. Both are hashed into 65,536
/// buckets with a seed of this process, so that memory is bounded by construction and nobody can
/// aim for somebody else's bucket.
pub(crate) struct Limiter {
    principals: Option<Buckets>,
    failures: Option<Buckets>,
    seed: RandomState,
    clock: DefaultClock,
}

impl Limiter {
    pub(crate) fn new(rate: Rate) -> Self {
        Self {
            principals: buckets(rate),
            failures: buckets(FAILURES),
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
        // Whoever has one IPv6 address has the whole network of 64 bits.
        let network = remote.map(|address| match address {
            IpAddr::V4(v4) => u128::from(v4.to_bits()),
            IpAddr::V6(v6) => v6.to_bits() >> 64 << 64,
        });
        self.check(self.failures.as_ref(), &network)
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
    }
}
