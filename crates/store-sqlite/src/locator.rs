use sha2::{Digest as _, Sha256};

/// How many low bits of the locator of a UUIDv7 key come from the hash. The 40 bits above them are
/// its time in units of 256 ms, so that rows of one time lie on the same pages of the index.
const HASH_BITS: u32 = 24;

/// Where the index looks for an identity. Found rows are compared whole, so that a collision costs
/// a comparison and nothing else. The secret keeps callers from making collisions up.
pub(crate) fn locate(secret: &[u8; 32], scope: i64, parameters: Option<&str>, key: &str) -> i64 {
    let mut hash = Sha256::new();
    hash.update(secret);
    hash.update(scope.to_be_bytes());
    let parameters = parameters.unwrap_or_default();
    hash.update(
        u64::try_from(parameters.len())
            .unwrap_or(u64::MAX)
            .to_be_bytes(),
    );
    hash.update(parameters);
    hash.update(key);
    let digest: [u8; 32] = hash.finalize().into();
    let mut first = [0; 8];
    first.copy_from_slice(&digest[..8]);
    let hashed = u64::from_be_bytes(first);
    let located = match millis_of_uuid7(key) {
        Some(millis) => {
            let low = (1 << HASH_BITS) - 1;
            ((millis >> 8) << HASH_BITS) | (hashed & low)
        }
        None => hashed,
    };
    i64::from_be_bytes(located.to_be_bytes())
}

/// The milliseconds in a UUIDv7 in its canonical form.
fn millis_of_uuid7(key: &str) -> Option<u64> {
    let bytes: &[u8; 36] = key.as_bytes().try_into().ok()?;
    let fits = |(index, byte): (usize, &u8)| match index {
        8 | 13 | 18 | 23 => *byte == b'-',
        14 => *byte == b'7',
        19 => matches!(byte, b'8' | b'9' | b'a' | b'b'),
        _ => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
    };
    if !bytes.iter().enumerate().all(fits) {
        return None;
    }
    u64::from_str_radix(key.get(..8)?, 16)
        .ok()?
        .checked_shl(16)?
        .checked_add(u64::from_str_radix(key.get(9..13)?, 16).ok()?)
}

#[cfg(test)]
mod tests {
    use super::{locate, millis_of_uuid7};

    const SECRET: [u8; 32] = [7; 32];

    #[test]
    fn the_time_of_a_uuid7_key_orders_its_locators() {
        let earlier = locate(&SECRET, 1, None, "01932c07-209c-7f2e-8c3d-2f6b1f0a9d11");
        let later = locate(&SECRET, 9, None, "01932c07-4000-7001-8c3d-000000000000");
        assert!(earlier < later);
        assert_eq!(
            millis_of_uuid7("01932c07-209c-7f2e-8c3d-2f6b1f0a9d11"),
            Some(0x0193_2c07_209c)
        );
    }

    #[test]
    fn only_the_canonical_form_of_version_7_counts() {
        for key in [
            "01932C07-209c-7f2e-8c3d-2f6b1f0a9d11",
            "01932c07-209c-4f2e-8c3d-2f6b1f0a9d11",
            "01932c07-209c-7f2e-cc3d-2f6b1f0a9d11",
            "01932c07209c7f2e8c3d2f6b1f0a9d11",
            "é1932c07-209c-7f2e-8c3d-2f6b1f0a9d1",
        ] {
            assert_eq!(millis_of_uuid7(key), None, "{key}");
        }
    }

    #[test]
    fn every_part_of_the_identity_and_the_secret_count() {
        let base = locate(&SECRET, 1, Some("[\"a\"]"), "k");
        assert_eq!(base, locate(&SECRET, 1, Some("[\"a\"]"), "k"));
        assert_ne!(base, locate(&SECRET, 2, Some("[\"a\"]"), "k"));
        assert_ne!(base, locate(&SECRET, 1, None, "k"));
        assert_ne!(base, locate(&SECRET, 1, Some("[\"a\"]"), "l"));
        assert_ne!(base, locate(&[8; 32], 1, Some("[\"a\"]"), "k"));
    }
}
