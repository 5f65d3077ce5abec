use counterfoil_core::Timestamp;
use counterfoil_engine::Engine;
use uuid::{Builder, Uuid};

/// A new UUIDv7 by the engine's clock and randomness; `None` without randomness.
fn uuid_v7(engine: &Engine) -> Option<Uuid> {
    let mut random = [0; 10];
    if !engine.random(&mut random) {
        return None;
    }
    let millis = u64::try_from(engine.now().as_millis()).unwrap_or(0);
    Some(Builder::from_unix_timestamp_millis(millis, &random).into_uuid())
}

/// `ak_` and a UUIDv7 without hyphens.
pub(crate) fn agent_key_id(engine: &Engine) -> Option<String> {
    uuid_v7(engine).map(|id| format!("ak_{}", id.simple()))
}

/// `note_` and a UUIDv7: the newer one sorts after the older one.
pub(crate) fn note_id(engine: &Engine) -> Option<String> {
    uuid_v7(engine).map(|id| format!("note_{}", id.hyphenated()))
}

/// Whether `text` has the form of a note's id.
pub(crate) fn is_note_id(text: &str) -> bool {
    let rest = text.strip_prefix("note_").filter(|rest| rest.len() == 36);
    rest.is_some_and(|rest| {
        Uuid::try_parse(rest).is_ok_and(|id| id.hyphenated().to_string() == rest)
    })
}

/// RFC 3339 in UTC, to the millisecond, as every surface shows times.
#[must_use]
pub fn rfc3339(at: Timestamp) -> String {
    // What lies before 1970 or after 9999 cannot be written so; such a clock is shown as the end.
    const LAST_SECOND: u64 = 253_402_300_799;
    let millis = u64::try_from(at.as_millis()).unwrap_or(0);
    let millis = millis.min(LAST_SECOND * 1000);
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_millis(millis);
    humantime::format_rfc3339_millis(time).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rfc3339() {
        let shown = |millis| rfc3339(Timestamp::from_millis(millis));
        assert_eq!(shown(1_700_000_000_123), "2023-11-14T22:13:20.123Z");
        assert_eq!(shown(-5), "1970-01-01T00:00:00.000Z");
        assert_eq!(shown(i64::MAX), "9999-12-31T23:59:59.000Z");
    }

    #[test]
    fn note_ids_have_one_spelling() {
        let id = "note_0192f0c4-7a00-7000-8000-0123456789ab";
        assert!(is_note_id(id));
        assert!(!is_note_id(&id.to_uppercase()));
        assert!(!is_note_id(&id.replace('-', "")));
        assert!(!is_note_id(&id[5..]));
        assert!(!is_note_id("note_"));
    }
}
