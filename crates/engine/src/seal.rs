use std::collections::HashMap;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use chacha20poly1305::{
    KeyInit, XChaCha20Poly1305, XNonce,
    aead::{Aead, Payload},
};
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use crate::Entropy;

const FORMAT: u8 = 1;
const NONCE_BYTES: usize = 24;
const HEAD_BYTES: usize = 1 + 4 + NONCE_BYTES;

/// The keys that stored results are sealed with (XChaCha20-Poly1305): one active key, and older
/// ones for reading. A sealed body is `version(1) ‖ key id(4) ‖ nonce(24) ‖ ciphertext`; its
/// associated data binds it to the key id and the identity of its row.
pub struct KeyRing {
    active: u32,
    keys: HashMap<u32, Zeroizing<[u8; 32]>>,
}

/// Why a key file is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidKeyRing {
    /// No key in it.
    #[error(
        "the key file holds no key; write one line `1 <32 bytes in base64>` (for instance from `openssl rand -base64 32`)"
    )]
    Empty,
    /// A line that is no key.
    #[error("line {line} of the key file is not `<id> <32 bytes in base64>`")]
    Line {
        /// Which, from 1.
        line: usize,
    },
    /// The same id twice.
    #[error("line {line} of the key file repeats an id")]
    Repeated {
        /// Which, from 1.
        line: usize,
    },
}

impl KeyRing {
    /// Reads a key file: one `<id> <32 bytes in base64>` a line, `#` begins a comment. The first
    /// key is the active one, the others are for reading.
    ///
    /// # Errors
    /// [`InvalidKeyRing`] names the line.
    pub fn parse(text: &str) -> Result<Self, InvalidKeyRing> {
        let mut keys = HashMap::new();
        let mut active = None;
        for (index, line) in text.lines().enumerate() {
            let line_number = index + 1;
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let (id, key) = key_line(line).ok_or(InvalidKeyRing::Line { line: line_number })?;
            if keys.insert(id, key).is_some() {
                return Err(InvalidKeyRing::Repeated { line: line_number });
            }
            active.get_or_insert(id);
        }
        let active = active.ok_or(InvalidKeyRing::Empty)?;
        Ok(Self { active, keys })
    }

    /// A key file with one new key under `id`; `None` without randomness.
    #[must_use]
    pub fn generate(id: u32, entropy: &dyn Entropy) -> Option<String> {
        let mut key = Zeroizing::new([0; 32]);
        entropy
            .fill(key.as_mut_slice())
            .then(|| format!("{id} {}\n", STANDARD.encode(key.as_slice())))
    }

    /// A digest of each key, by its id, in the order of ids. It tells one key from another and
    /// nothing about either: processes that share a store find out by it whether they mean the same
    /// key by the same id.
    #[must_use]
    pub fn digests(&self) -> Vec<(u32, [u8; 16])> {
        let mut digests: Vec<_> = self
            .keys
            .iter()
            .map(|(id, key)| (*id, digest(key)))
            .collect();
        digests.sort_unstable();
        digests
    }

    /// Seals a body. `None` without randomness.
    pub(crate) fn seal(
        &self,
        row: &[u8],
        plain: &[u8],
        entropy: &dyn Entropy,
    ) -> Option<(u32, Bytes)> {
        let mut nonce = [0; NONCE_BYTES];
        if !entropy.fill(&mut nonce) {
            return None;
        }
        let cipher =
            XChaCha20Poly1305::new_from_slice(self.keys.get(&self.active)?.as_slice()).ok()?;
        let aad = associated(self.active, row);
        let payload = Payload {
            msg: plain,
            aad: &aad,
        };
        let ciphertext = cipher.encrypt(&XNonce::from(nonce), payload).ok()?;
        let mut sealed = Vec::with_capacity(HEAD_BYTES + ciphertext.len());
        sealed.push(FORMAT);
        sealed.extend_from_slice(&self.active.to_be_bytes());
        sealed.extend_from_slice(&nonce);
        sealed.extend_from_slice(&ciphertext);
        Some((self.active, Bytes::from(sealed)))
    }

    /// Opens a sealed body; fails closed on an unknown key id, another row, or any change.
    pub(crate) fn open(&self, row: &[u8], sealed: &[u8]) -> Option<Bytes> {
        let (head, ciphertext) = sealed.split_at_checked(HEAD_BYTES)?;
        let (format, rest) = head.split_first()?;
        let (id, nonce) = rest.split_at_checked(4)?;
        let id = u32::from_be_bytes(id.try_into().ok()?);
        let nonce: [u8; NONCE_BYTES] = nonce.try_into().ok()?;
        let key = self.keys.get(&id).filter(|_| *format == FORMAT)?;
        let cipher = XChaCha20Poly1305::new_from_slice(key.as_slice()).ok()?;
        let aad = associated(id, row);
        let payload = Payload {
            msg: ciphertext,
            aad: &aad,
        };
        cipher
            .decrypt(&XNonce::from(nonce), payload)
            .ok()
            .map(Bytes::from)
    }
}

impl std::fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "KeyRing(active {}, {} keys)",
            self.active,
            self.keys.len()
        )
    }
}

fn digest(key: &[u8; 32]) -> [u8; 16] {
    let mut hash = Sha256::new();
    hash.update(b"counterfoil: which sealing key\0");
    hash.update(key);
    let whole = hash.finalize();
    let mut short = [0; 16];
    short.copy_from_slice(&whole[..16]);
    short
}

fn key_line(line: &str) -> Option<(u32, Zeroizing<[u8; 32]>)> {
    let (id, encoded) = line.split_once(char::is_whitespace)?;
    let bytes = Zeroizing::new(STANDARD.decode(encoded.trim()).ok()?);
    let key: [u8; 32] = bytes.as_slice().try_into().ok()?;
    Some((id.parse().ok()?, Zeroizing::new(key)))
}

fn associated(key_id: u32, row: &[u8]) -> Vec<u8> {
    let mut aad = Vec::with_capacity(4 + row.len());
    aad.extend_from_slice(&key_id.to_be_bytes());
    aad.extend_from_slice(row);
    aad
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SystemEntropy;

    fn ring(text: &str) -> KeyRing {
        KeyRing::parse(text).unwrap()
    }

    fn line(id: u32) -> String {
        KeyRing::generate(id, &SystemEntropy).unwrap()
    }

    #[test]
    fn sealed_opens_only_for_its_own_row() {
        let ring = ring(&line(1));
        let (id, sealed) = ring.seal(b"row", b"secret", &SystemEntropy).unwrap();
        assert_eq!(id, 1);
        assert!(!sealed.windows(6).any(|part| part == b"secret"));
        assert_eq!(ring.open(b"row", &sealed).unwrap(), "secret");
        assert_eq!(ring.open(b"other row", &sealed), None);
        for at in 0..sealed.len() {
            let mut changed = sealed.to_vec();
            changed[at] ^= 1;
            assert_eq!(ring.open(b"row", &changed), None, "byte {at} changed");
        }
        assert_eq!(ring.open(b"row", &sealed[..20]), None);
    }

    #[test]
    fn rotation_reads_old_and_writes_new_and_an_unknown_key_fails_closed() {
        let (old, new) = (line(1), line(2));
        let (_, sealed) = ring(&old).seal(b"row", b"secret", &SystemEntropy).unwrap();
        let rotated = ring(&format!("{new}{old}"));
        assert_eq!(rotated.open(b"row", &sealed).unwrap(), "secret");
        assert_eq!(rotated.seal(b"row", b"x", &SystemEntropy).unwrap().0, 2);
        assert_eq!(ring(&new).open(b"row", &sealed), None);
    }

    #[test]
    fn a_digest_tells_keys_apart_whatever_their_ids() {
        let (one, other) = (line(1), line(1));
        let again = ring(&format!("{}{}", line(7), one)).digests();
        assert_eq!(again[0], ring(&one).digests()[0]);
        assert_ne!(ring(&one).digests(), ring(&other).digests());
    }

    #[test]
    fn key_files_are_checked() {
        assert_eq!(
            KeyRing::parse("# none\n").unwrap_err(),
            InvalidKeyRing::Empty
        );
        assert_eq!(
            KeyRing::parse("1 abc").unwrap_err(),
            InvalidKeyRing::Line { line: 1 }
        );
        let one = line(1);
        let twice = format!("{one}{one}");
        assert_eq!(
            KeyRing::parse(&twice).unwrap_err(),
            InvalidKeyRing::Repeated { line: 2 }
        );
    }
}
