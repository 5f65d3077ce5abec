use counterfoil_core::Identity;
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

/// How many bytes of the locator of a UUIDv7 key come from its time, in units of 256 ms, so that
/// rows of one time lie on the same pages of the index.
const TIME_BYTES: usize = 5;

/// Where one identity is found and locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Locator {
    /// The value of the unique index.
    pub(crate) id: Uuid,
    /// The advisory lock that whoever decides on it holds.
    pub(crate) lock: i64,
}

/// By the scope's digest, not its number, so that an identity is found in the same place whatever
/// a failover or a copy makes of the numbers. The secret keeps callers from making collisions up; a
/// row that is found is compared whole.
pub(crate) fn locate(
    secret: &[u8; 32],
    scope: Uuid,
    parameters: Option<&str>,
    identity: &Identity,
) -> Locator {
    let key = identity.key.as_str();
    let parameters = parameters.unwrap_or_default();
    let mut hash = Sha256::new();
    hash.update(secret);
    hash.update(scope.as_bytes());
    let length = u64::try_from(parameters.len()).unwrap_or(u64::MAX);
    hash.update(length.to_be_bytes());
    hash.update(parameters);
    hash.update(key);
    let digest: [u8; 32] = hash.finalize().into();
    let mut id = [0; 16];
    id.copy_from_slice(&digest[..16]);
    if let Some(millis) = millis_of_uuid7(key) {
        id[..TIME_BYTES].copy_from_slice(&(millis >> 8).to_be_bytes()[3..]);
    }
    let mut lock = [0; 8];
    lock.copy_from_slice(&digest[16..24]);
    Locator {
        id: Uuid::from_bytes(id),
        lock: i64::from_be_bytes(lock),
    }
}

/// The milliseconds in a UUIDv7 in its canonical form.
fn millis_of_uuid7(key: &str) -> Option<u64> {
    let uuid = Uuid::try_parse(key).ok()?;
    let canonical = uuid.get_version_num() == 7 && uuid.hyphenated().to_string() == key;
    canonical
        .then(|| u64::from_be_bytes(*uuid.as_bytes().first_chunk::<8>().unwrap_or(&[0; 8])) >> 16)
}

#[cfg(test)]
mod tests {
    use counterfoil_core::{Key, PrincipalId, Target, WorkspaceId};

    use super::{Identity, Uuid, locate, millis_of_uuid7};

    const SECRET: [u8; 32] = [7; 32];

    fn identity(key: &str) -> Identity {
        Identity {
            workspace: WorkspaceId::new("w".to_owned()).unwrap(),
            principal: PrincipalId::new("p".to_owned()).unwrap(),
            target: Target {
                operation: "o".to_owned(),
                parameters: Vec::new(),
                upstream: String::new(),
            },
            key: Key::new(key.to_owned()).unwrap(),
        }
    }

    #[test]
    fn the_time_of_a_uuid7_key_orders_its_locators() {
        let at = |scope, key| locate(&SECRET, Uuid::from_u128(scope), None, &identity(key)).id;
        let earlier = at(1, "01932c07-209c-7f2e-8c3d-2f6b1f0a9d11");
        let later = at(9, "01932c07-4000-7001-8c3d-000000000000");
        assert!(earlier < later);
        assert_eq!(
            millis_of_uuid7("01932c07-209c-7f2e-8c3d-2f6b1f0a9d11"),
            Some(0x0193_2c07_209c)
        );
        assert_eq!(
            millis_of_uuid7("01932C07-209c-7f2e-8c3d-2f6b1f0a9d11"),
            None
        );
        assert_eq!(
            millis_of_uuid7("01932c07-209c-4f2e-8c3d-2f6b1f0a9d11"),
            None
        );
    }

    #[test]
    fn every_part_and_the_secret_count() {
        let k = identity("k");
        let base = locate(&SECRET, Uuid::from_u128(1), Some("[\"a\"]"), &k);
        assert_eq!(
            base,
            locate(&SECRET, Uuid::from_u128(1), Some("[\"a\"]"), &k)
        );
        for other in [
            locate(&SECRET, Uuid::from_u128(2), Some("[\"a\"]"), &k),
            locate(&SECRET, Uuid::from_u128(1), None, &k),
            locate(&SECRET, Uuid::from_u128(1), Some("[\"a\"]"), &identity("l")),
            locate(&[8; 32], Uuid::from_u128(1), Some("[\"a\"]"), &k),
        ] {
            assert_ne!(base.id, other.id);
            assert_ne!(base.lock, other.lock);
        }
    }
}
