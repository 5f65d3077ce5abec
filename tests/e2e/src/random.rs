use std::time::SystemTime;

/// A small seeded generator (SplitMix64): the same seed gives the same choices.
pub struct Random(u64);

impl Random {
    /// Starts from a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The seed that `E2E_SEED` names, else one from the clock.
    ///
    /// # Panics
    /// If `E2E_SEED` is not a number.
    #[must_use]
    pub fn seed() -> u64 {
        match std::env::var("E2E_SEED") {
            Ok(seed) => seed.parse().expect("E2E_SEED is a number"),
            Err(_) => SystemTime::now()
                .duration_since(SystemTime::UNIX_EPOCH)
                .map_or(1, |since| {
                    since.as_secs() << 20 ^ u64::from(since.subsec_nanos())
                }),
        }
    }

    /// The next 64 bits.
    pub const fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`.
    pub const fn below(&mut self, end: u64) -> u64 {
        self.bits() % end
    }
}
