use super::{Json, number::Decimal, number::scan};

impl Json {
    /// Canonical JSON, version 1 (contract §5): the same bytes for the same value, and other bytes
    /// for any other. Golden samples pin it for ever.
    ///
    /// - Object keys are sorted by code point, at every depth. No space anywhere.
    /// - Strings are ASCII: `\"`, `\\`, `\b`, `\f`, `\n`, `\r`, `\t`, and `\uXXXX` in lower-case
    ///   hexadecimal for everything else outside space to `~`, surrogate pairs beyond U+FFFF.
    ///   Nothing is normalized.
    /// - A number is its significant digits, without zeros at either end, and a power of ten if
    ///   that is not 0: `1`, `-15e-1`, `1e2`; every zero is `0`. A literal whose power of ten is
    ///   beyond 999,999,999 either way stands as it was spelled. A literal that is no JSON number,
    ///   which only a value built by hand can hold, stands as `#` and a string.
    #[must_use]
    pub fn canonical(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.write(&mut out);
        out
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Null => out.extend_from_slice(b"null"),
            Self::Bool(true) => out.extend_from_slice(b"true"),
            Self::Bool(false) => out.extend_from_slice(b"false"),
            Self::Number(literal) => write_number(literal, out),
            Self::String(text) => write_string(text, out),
            Self::Array(elements) => {
                out.push(b'[');
                for (index, element) in elements.iter().enumerate() {
                    if index > 0 {
                        out.push(b',');
                    }
                    element.write(out);
                }
                out.push(b']');
            }
            Self::Object(members) => {
                let mut sorted: Vec<&(String, Self)> = members.iter().collect();
                // UTF-8 sorts by code point. UTF-16 would not: U+FF5E and U+1F600 change places.
                sorted.sort_by(|(left, _), (right, _)| left.cmp(right));
                out.push(b'{');
                for (index, (name, value)) in sorted.into_iter().enumerate() {
                    if index > 0 {
                        out.push(b',');
                    }
                    write_string(name, out);
                    out.push(b':');
                    value.write(out);
                }
                out.push(b'}');
            }
        }
    }
}

fn write_number(literal: &str, out: &mut Vec<u8>) {
    if let Some(decimal) = Decimal::read(literal) {
        decimal.write(out);
    } else if scan(literal.as_bytes()) == Some(literal.len()) {
        out.extend_from_slice(literal.as_bytes());
    } else {
        out.push(b'#');
        write_string(literal, out);
    }
}

fn write_string(text: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    for c in text.chars() {
        match c {
            '"' => out.extend_from_slice(b"\\\""),
            '\\' => out.extend_from_slice(b"\\\\"),
            '\u{8}' => out.extend_from_slice(b"\\b"),
            '\u{c}' => out.extend_from_slice(b"\\f"),
            '\n' => out.extend_from_slice(b"\\n"),
            '\r' => out.extend_from_slice(b"\\r"),
            '\t' => out.extend_from_slice(b"\\t"),
            ' '..='~' => out.extend(c.encode_utf8(&mut [0; 4]).bytes()),
            _ => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    write_unit(*unit, out);
                }
            }
        }
    }
    out.push(b'"');
}

fn write_unit(unit: u16, out: &mut Vec<u8>) {
    const HEX: [u8; 16] = *b"0123456789abcdef";
    out.extend_from_slice(b"\\u");
    for shift in [12, 8, 4, 0] {
        out.push(HEX[usize::from((unit >> shift) & 0xf)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical(value: &Json) -> String {
        String::from_utf8(value.canonical()).unwrap()
    }

    fn number(literal: &str) -> String {
        canonical(&Json::Number(literal.to_owned()))
    }

    #[test]
    fn the_same_number_has_one_spelling() {
        for (spellings, wanted) in [
            (
                &["0", "-0", "0.000", "-0e5", "0e99999999999999999999"][..],
                "0",
            ),
            (&["1", "1.0", "1e0", "10e-1", "0.001E+3", "1000e-3"], "1"),
            (&["-1.5", "-15e-1", "-1.50", "-0.15e1"], "-15e-1"),
            (&["100", "1e2", "1E+02", "100.00"], "1e2"),
            (&["1e999999999", "10e999999998"], "1e999999999"),
        ] {
            for spelling in spellings {
                assert_eq!(number(spelling), wanted, "{spelling}");
            }
        }
    }

    #[test]
    fn different_numbers_differ() {
        assert_ne!(number("9007199254740992"), number("9007199254740993"));
        assert_ne!(number("1"), number("-1"));
        assert_ne!(number("0.1"), number("0.10000000000000000555"));
        assert_ne!(number("1e-400"), number("0"));
    }

    #[test]
    fn beyond_the_bound_the_literal_counts() {
        for literal in [
            "1e1000000000",
            "1E+1000000000",
            "1e-99999999999999999999",
            "10e999999999",
        ] {
            assert_eq!(number(literal), literal);
        }
    }

    #[test]
    fn what_is_no_number_cannot_pass_for_something_else() {
        assert_eq!(number("1,2"), "#\"1,2\"");
        assert_eq!(number(""), "#\"\"");
        assert_eq!(number("01"), "#\"01\"");
    }
}
