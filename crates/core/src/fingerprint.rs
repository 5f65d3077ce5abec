use sha2::{Digest, Sha256};

/// By which rule a fingerprint was taken. A retry is compared by the rule of the stored one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// The query string and the body, byte for byte.
    Raw1,
    /// Canonical JSON, version 1.
    Canonical1,
}

impl Rule {
    /// The byte a store keeps.
    #[must_use]
    pub const fn to_byte(self) -> u8 {
        match self {
            Self::Raw1 => 1,
            Self::Canonical1 => 2,
        }
    }

    /// From the byte a store kept.
    #[must_use]
    pub const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Raw1),
            2 => Some(Self::Canonical1),
            _ => None,
        }
    }
}

/// SHA-256 of a request, with the rule it was taken by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fingerprint {
    /// The rule.
    pub rule: Rule,
    /// The digest.
    pub digest: [u8; 32],
}

impl Fingerprint {
    /// Of raw bytes: another field order is another request.
    #[must_use]
    pub fn raw(query: &str, body: &[u8]) -> Self {
        Self::over(Rule::Raw1, &[query.as_bytes(), body])
    }

    /// Of canonical JSON ([`crate::Json::canonical`]). `subject` is the tool's name where the
    /// target does not say it (target `*`), otherwise empty.
    #[must_use]
    pub fn canonical(subject: &str, canonical: &[u8]) -> Self {
        Self::over(Rule::Canonical1, &[subject.as_bytes(), canonical])
    }

    /// The bytes a store keeps: the rule, then the digest.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 33] {
        let mut bytes = [0; 33];
        bytes[0] = self.rule.to_byte();
        bytes[1..].copy_from_slice(&self.digest);
        bytes
    }

    /// From the bytes a store kept; `None` if they are not such bytes.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (rule, digest) = bytes.split_first()?;
        Some(Self {
            rule: Rule::from_byte(*rule)?,
            digest: digest.try_into().ok()?,
        })
    }

    fn over(rule: Rule, parts: &[&[u8]]) -> Self {
        let mut hash = Sha256::new();
        hash.update([rule.to_byte()]);
        for part in parts {
            hash.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
            hash.update(part);
        }
        Self {
            rule,
            digest: hash.finalize().into(),
        }
    }
}
