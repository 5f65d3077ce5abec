use std::time::Duration;

use counterfoil_core::Retention;

/// What every mutating route and tool says of its key (contract §11): when to make one, when to
/// reuse it, how long it is good for, and with `look` how to look at an uncertain outcome.
pub(crate) fn key_guidance(retention: &Retention, look: &str) -> String {
    let replay = shown(retention.replay_for);
    let after = if retention.tombstone_for > retention.replay_for {
        format!(
            "until {} after that end the key is then refused, never run as new",
            shown(retention.tombstone_for)
        )
    } else {
        "after that the key is forgotten, and the same call is a new action".to_owned()
    };
    format!(
        "Make a key when you form the intention to act, and keep it before the first attempt. \
         Reuse it unchanged for every retry of that intention; another intention gets another key. \
         The answer is replayed for {replay} from the end of the operation; {after}. \
         If the outcome is uncertain, {look}."
    )
}

/// A duration in days, or in the units it was written in.
fn shown(duration: Duration) -> String {
    const DAY: u64 = 86_400;
    let seconds = duration.as_secs();
    if seconds >= 3 * DAY && seconds.is_multiple_of(DAY) && duration.subsec_nanos() == 0 {
        return format!("{} days", seconds / DAY);
    }
    if seconds >= 3600 && seconds.is_multiple_of(3600) && duration.subsec_nanos() == 0 {
        return format!("{}h", seconds / 3600);
    }
    humantime::format_duration(duration).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_windows_are_those_in_force() {
        let text = key_guidance(&Retention::default(), "look");
        assert!(text.contains("48h") && text.contains("30 days"), "{text}");
        let none = Retention {
            replay_for: Duration::from_secs(90),
            tombstone_for: Duration::ZERO,
        };
        let equal = Retention {
            tombstone_for: none.replay_for,
            ..none
        };
        assert_eq!(key_guidance(&equal, "look"), key_guidance(&none, "look"));
        let text = key_guidance(&none, "look");
        assert!(
            text.contains("1m 30s") && text.contains("new action"),
            "{text}"
        );
    }
}
