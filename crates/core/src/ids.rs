use std::{fmt, str::FromStr};

use uuid::{Builder, Uuid};

use crate::{Timestamp, identity::InvalidId};

/// The public handle of an operation: `op_` and a UUIDv7. Stable over all attempts, never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OperationId(Uuid);

impl OperationId {
    /// A new id from the clock and ten random bytes.
    #[must_use]
    pub fn new(now: Timestamp, random: [u8; 10]) -> Self {
        let millis = u64::try_from(now.as_millis()).unwrap_or(0);
        Self(Builder::from_unix_timestamp_millis(millis, &random).into_uuid())
    }

    /// The sixteen bytes a store keeps.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0.into_bytes()
    }

    /// From the sixteen bytes a store kept.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(Uuid::from_bytes(bytes))
    }
}

impl fmt::Display for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "op_{}", self.0.hyphenated())
    }
}

impl fmt::Debug for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for OperationId {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let uuid = text
            .strip_prefix("op_")
            .filter(|rest| rest.len() == 36)
            .and_then(|rest| Uuid::try_parse(rest).ok())
            .ok_or(InvalidId::Operation)?;
        Ok(Self(uuid))
    }
}

/// What a caller of `admit` makes up beforehand, so that a reservation whose answer was lost on
/// the way back is recognized as its own. Sixteen random bytes, new for every admission.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token([u8; 16]);

impl Token {
    /// From sixteen random bytes.
    #[must_use]
    pub const fn new(random: [u8; 16]) -> Self {
        Self(random)
    }

    /// The bytes a store keeps.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}
