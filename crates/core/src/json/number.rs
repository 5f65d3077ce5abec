/// The largest exponent, either way, that is reckoned with. Beyond it the literal counts.
const EXPONENT_MAX: i64 = 999_999_999;

/// A number read off its literal: `digits × 10^exponent`, without floating point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Decimal {
    negative: bool,
    /// No zero at either end; empty for zero.
    digits: String,
    exponent: i64,
}

impl Decimal {
    /// Reads a literal of the grammar of RFC 8259 §6. `None` if it is none, or its exponent
    /// (after normalizing) is beyond [`EXPONENT_MAX`].
    pub(super) fn read(literal: &str) -> Option<Self> {
        if scan(literal.as_bytes()) != Some(literal.len()) {
            return None;
        }
        let (negative, rest) = match literal.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, literal),
        };
        let (mantissa, exponent) = rest.split_once(['e', 'E']).unwrap_or((rest, "0"));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let all = format!("{whole}{fraction}");
        let from_first = all.trim_start_matches('0');
        let digits = from_first.trim_end_matches('0');
        if digits.is_empty() {
            return Some(Self {
                negative: false,
                digits: String::new(),
                exponent: 0,
            });
        }
        let dropped = i64::try_from(from_first.len() - digits.len()).ok()?;
        let shift = i64::try_from(fraction.len()).ok()?;
        let exponent = exponent
            .parse::<i64>()
            .ok()?
            .checked_add(dropped)?
            .checked_sub(shift)?;
        (-EXPONENT_MAX..=EXPONENT_MAX)
            .contains(&exponent)
            .then(|| Self {
                negative,
                digits: digits.to_owned(),
                exponent,
            })
    }

    /// The integer it is, if it is one of at most 20 digits.
    pub(super) fn to_integer(&self) -> Option<i128> {
        if self.digits.is_empty() {
            return Some(0);
        }
        let zeros = usize::try_from(self.exponent).ok()?;
        if self.digits.len().checked_add(zeros)? > 20 {
            return None;
        }
        let digits: i128 = self.digits.parse().ok()?;
        let value = digits.checked_mul(10_i128.checked_pow(u32::try_from(zeros).ok()?)?)?;
        Some(if self.negative { -value } else { value })
    }

    /// The one spelling of this number: `0`, or the digits and, if it is not 0, the exponent.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        if self.digits.is_empty() {
            out.push(b'0');
            return;
        }
        if self.negative {
            out.push(b'-');
        }
        out.extend_from_slice(self.digits.as_bytes());
        if self.exponent != 0 {
            out.push(b'e');
            out.extend_from_slice(self.exponent.to_string().as_bytes());
        }
    }
}

/// How many bytes at the start of `text` are a number of RFC 8259 §6; `None` if there is none.
pub(super) fn scan(text: &[u8]) -> Option<usize> {
    let digits = |from: usize| {
        let rest = text.get(from..).unwrap_or_default();
        rest.iter().take_while(|byte| byte.is_ascii_digit()).count()
    };
    let mut at = usize::from(text.first() == Some(&b'-'));
    at += match (text.get(at), digits(at)) {
        (_, 0) => return None,
        (Some(b'0'), _) => 1,
        (_, count) => count,
    };
    if text.get(at) == Some(&b'.') {
        match digits(at + 1) {
            0 => return None,
            count => at += 1 + count,
        }
    }
    if matches!(text.get(at), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(text.get(at + 1), Some(b'+' | b'-')));
        match digits(at + 1 + sign) {
            0 => return None,
            count => at += 1 + sign + count,
        }
    }
    Some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grammar_of_numbers() {
        for good in [
            "0",
            "-0",
            "10",
            "1.5",
            "0.0",
            "1e1",
            "1E+1",
            "1e-1",
            "-1.25e007",
        ] {
            assert_eq!(scan(good.as_bytes()), Some(good.len()), "{good}");
        }
        for bad in [
            "", "-", "+1", ".5", "1.", "1.e1", "1e", "1e+", "a", "-a", "Infinity", "NaN",
        ] {
            assert_eq!(scan(bad.as_bytes()), None, "{bad}");
        }
        for (partly, count) in [
            ("01", 1),
            ("1 2", 1),
            ("1.5.5", 3),
            ("0x10", 1),
            ("1e5e5", 3),
        ] {
            assert_eq!(scan(partly.as_bytes()), Some(count), "{partly}");
            assert_eq!(Decimal::read(partly), None, "{partly}");
        }
    }
}
