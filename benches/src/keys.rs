use counterfoil_engine::{Clock as _, SystemClock};
use uuid::Builder;

use crate::Error;

/// The length of a key, in bytes.
pub(crate) const KEY_BYTES: usize = 36;

/// Keys made up in one millisecond of a series of time-ordered keys: about what one server takes.
const KEYS_PER_MILLI: u64 = 20;

/// What the keys of a series look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// UUIDv4: nothing but randomness.
    Random,
    /// UUIDv7: in the order of their making.
    TimeOrdered,
}

impl Kind {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Random => "random keys",
            Self::TimeOrdered => "UUIDv7 keys",
        }
    }
}

/// Keys that can be made again from their index, so that a replay needs no list of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Series {
    kind: Kind,
    seed: u64,
    start_millis: u64,
}

impl Series {
    pub(crate) fn new(kind: Kind) -> Result<Self, Error> {
        let seed = getrandom::u64().map_err(|_| Error::Randomness)?;
        let now = SystemClock::new().now().as_millis();
        Ok(Self {
            kind,
            seed,
            start_millis: u64::try_from(now).unwrap_or(0),
        })
    }

    /// Sixteen bytes that look random and depend on the index only.
    pub(crate) fn bytes(&self, index: u64, purpose: u64) -> [u8; 16] {
        let first = mix(self.seed ^ mix(index ^ (purpose << 56)));
        let second = mix(first ^ index);
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&first.to_be_bytes());
        bytes[8..].copy_from_slice(&second.to_be_bytes());
        bytes
    }

    /// Writes the key with this index.
    pub(crate) fn write(&self, index: u64, into: &mut [u8; KEY_BYTES]) {
        let random = self.bytes(index, 0);
        let builder = match self.kind {
            Kind::Random => Builder::from_random_bytes(random),
            Kind::TimeOrdered => {
                let millis = self.start_millis + index / KEYS_PER_MILLI;
                let mut ten = [0; 10];
                ten.copy_from_slice(&random[..10]);
                Builder::from_unix_timestamp_millis(millis, &ten)
            }
        };
        builder.into_uuid().hyphenated().encode_lower(into);
    }

    /// The key with this index.
    pub(crate) fn key(&self, index: u64) -> String {
        let mut text = [0; KEY_BYTES];
        self.write(index, &mut text);
        text.iter().copied().map(char::from).collect()
    }
}

/// SplitMix64's finalizer: cheap, and without visible patterns.
const fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_uuids_of_their_kind_and_can_be_made_again() {
        for (kind, version) in [(Kind::Random, '4'), (Kind::TimeOrdered, '7')] {
            let series = Series::new(kind).unwrap();
            let keys: std::collections::HashSet<_> = (0..10_000).map(|i| series.key(i)).collect();
            assert_eq!(keys.len(), 10_000);
            assert!(keys.iter().all(|key| key.chars().nth(14) == Some(version)));
            assert_eq!(series.key(77), series.key(77));
        }
    }

    #[test]
    fn time_ordered_keys_are_in_order() {
        let series = Series::new(Kind::TimeOrdered).unwrap();
        assert!(series.key(0)[..13] < series.key(1000)[..13]);
    }
}
