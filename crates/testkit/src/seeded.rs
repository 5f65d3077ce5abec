/// A small seeded generator (SplitMix64): the same seed gives the same history, everywhere.
#[derive(Clone, Debug)]
pub struct Seeded(u64);

impl Seeded {
    /// From a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 if the bound is 0.
    pub const fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.next() % bound }
    }

    /// True in `percent` of a hundred cases.
    pub const fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of these.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        let bound = u64::try_from(of.len()).unwrap_or(u64::MAX);
        of.get(usize::try_from(self.below(bound)).unwrap_or(0))
    }
}
