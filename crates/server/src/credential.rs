use std::fmt;

use counterfoil_engine::Engine;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

const PREFIX: &str = "cfk_";
const ID_PREFIX: &str = "ak_";
const ID_HEX_CHARS: usize = 32;
const SECRET_BYTES: usize = 32;

/// An agent key as its holder presents it: `cfk_<32 hex of its id>_<64 hex of its secret>`. The id
/// part finds the row, the secret is compared with the hash in it.
pub struct Credential {
    id: String,
    secret: Zeroizing<[u8; SECRET_BYTES]>,
}

/// The SHA-256 of a secret: all that is stored of it. The secret has 256 random bits, so a fast
/// hash without salt is enough.
pub(crate) type SecretHash = [u8; 32];

impl Credential {
    /// Reads a credential; `None` if it does not have the form.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (id, secret) = text.strip_prefix(PREFIX)?.split_once('_')?;
        let fits = |hex: &str, chars: usize| {
            let digit = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
            hex.len() == chars && hex.bytes().all(digit)
        };
        if !fits(id, ID_HEX_CHARS) || !fits(secret, 2 * SECRET_BYTES) {
            return None;
        }
        let mut bytes = Zeroizing::new([0; SECRET_BYTES]);
        for (byte, pair) in bytes.iter_mut().zip(secret.as_bytes().chunks_exact(2)) {
            let pair = std::str::from_utf8(pair).ok()?;
            *byte = u8::from_str_radix(pair, 16).ok()?;
        }
        Some(Self {
            id: format!("{ID_PREFIX}{id}"),
            secret: bytes,
        })
    }

    /// A new secret for `id`; `None` without randomness, or if `id` is no agent key's.
    pub(crate) fn generate(id: &str, engine: &Engine) -> Option<Self> {
        let hex = id.strip_prefix(ID_PREFIX)?;
        if hex.len() != ID_HEX_CHARS {
            return None;
        }
        let mut secret = Zeroizing::new([0; SECRET_BYTES]);
        engine.random(secret.as_mut_slice()).then(|| Self {
            id: id.to_owned(),
            secret,
        })
    }

    /// The id of the agent key, `ak_…`.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The text to hand over, once.
    #[must_use]
    pub fn reveal(&self) -> Zeroizing<String> {
        let hex = self.id.strip_prefix(ID_PREFIX).unwrap_or_default();
        let mut text = Zeroizing::new(String::with_capacity(PREFIX.len() + 97));
        text.push_str(PREFIX);
        text.push_str(hex);
        text.push('_');
        for byte in self.secret.iter() {
            for half in [byte >> 4, byte & 15] {
                text.push(char::from_digit(u32::from(half), 16).unwrap_or('0'));
            }
        }
        text
    }

    pub(crate) fn hash(&self) -> SecretHash {
        Sha256::digest(self.secret.as_slice()).into()
    }

    /// In constant time.
    pub(crate) fn matches(&self, hash: &[u8]) -> bool {
        self.hash().as_slice().ct_eq(hash).into()
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credential({}, ..)", self.id)
    }
}

/// The credential of an `Authorization` header: the scheme `Bearer`, in any case.
pub(crate) fn bearer(header: &str) -> Option<&str> {
    let (scheme, rest) = header.split_once(' ')?;
    scheme
        .eq_ignore_ascii_case("bearer")
        .then(|| rest.trim_matches(' '))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text() -> String {
        format!("cfk_{}_{}", "0af1".repeat(8), "9b".repeat(32))
    }

    #[test]
    fn what_is_read_is_what_was_written() {
        let credential = Credential::parse(&text()).unwrap();
        assert_eq!(credential.id(), format!("ak_{}", "0af1".repeat(8)));
        assert_eq!(*credential.reveal(), text());
        assert!(credential.matches(&credential.hash()));
        assert!(!credential.matches(&[0; 32]));
        assert!(!credential.matches(&[]));
        assert!(!format!("{credential:?}").contains("9b9b"));
    }

    #[test]
    fn other_texts_are_no_credential() {
        let good = text();
        for bad in [
            "",
            "cfk_",
            &good[4..],
            &good[..good.len() - 1],
            &good.to_uppercase(),
            &good.replace("9b", "+b"),
            &format!("{good}0"),
            &good.replacen('_', "-", 1),
        ] {
            assert!(Credential::parse(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn only_bearer_is_a_credential() {
        assert_eq!(bearer("Bearer abc"), Some("abc"));
        assert_eq!(bearer("bearer  abc "), Some("abc"));
        assert_eq!(bearer("Basic abc"), None);
        assert_eq!(bearer("Bearer"), None);
    }
}
