use super::{Json, number};

/// Bounds on a JSON text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JsonLimits {
    /// Deepest nesting of arrays and objects; above [`JsonLimits::DEPTH_CEILING`] it counts as that.
    pub depth_max: usize,
}

impl JsonLimits {
    /// No setting reads deeper than this: values are walked on the stack.
    pub const DEPTH_CEILING: usize = 256;
}

impl Default for JsonLimits {
    fn default() -> Self {
        Self { depth_max: 64 }
    }
}

/// Why a text is not taken as JSON. `at` is the byte offset.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} at byte {at}")]
pub struct Malformed {
    /// What is wrong, in a few words.
    pub what: &'static str,
    /// Where.
    pub at: usize,
}

/// Reads one JSON text, strictly: UTF-8 without a byte order mark, no duplicate keys (compared
/// after unescaping), no lone surrogates, bounded depth, no number beyond the range of a double,
/// nothing after the value. One pass; time grows with the length of the text (times its logarithm
/// for the keys of very large objects), whatever is in it.
///
/// # Errors
/// [`Malformed`] says what and where.
pub fn parse_json(text: &[u8], limits: JsonLimits) -> Result<Json, Malformed> {
    let text = std::str::from_utf8(text).map_err(|error| Malformed {
        what: "not UTF-8",
        at: error.valid_up_to(),
    })?;
    let mut reader = Reader {
        text,
        bytes: text.as_bytes(),
        at: 0,
    };
    if text.starts_with('\u{feff}') {
        return reader.malformed("a byte order mark");
    }
    reader.skip_space();
    let value = reader.value(limits.depth_max.min(JsonLimits::DEPTH_CEILING))?;
    reader.skip_space();
    if reader.at < reader.bytes.len() {
        return reader.malformed("something after the value");
    }
    Ok(value)
}

struct Reader<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn malformed<T>(&self, what: &'static str) -> Result<T, Malformed> {
        Err(Malformed { what, at: self.at })
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    /// `depth` is how many levels of arrays and objects may still be opened.
    fn value(&mut self, depth: usize) -> Result<Json, Malformed> {
        match self.peek() {
            Some(b'{') => self.object(depth),
            Some(b'[') => self.array(depth),
            Some(b'"') => self.string().map(Json::String),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b't') => self.word("true", Json::Bool(true)),
            Some(b'f') => self.word("false", Json::Bool(false)),
            Some(b'n') => self.word("null", Json::Null),
            Some(_) => self.malformed("no JSON value"),
            None => self.malformed("the text ends where a value must be"),
        }
    }

    fn word(&mut self, word: &str, value: Json) -> Result<Json, Malformed> {
        if !self.bytes[self.at..].starts_with(word.as_bytes()) {
            return self.malformed("no JSON value");
        }
        self.at += word.len();
        Ok(value)
    }

    fn number(&mut self) -> Result<Json, Malformed> {
        let Some(length) = number::scan(&self.bytes[self.at..]) else {
            return self.malformed("no JSON number");
        };
        let literal = &self.text[self.at..self.at + length];
        if !literal.parse::<f64>().is_ok_and(f64::is_finite) {
            return self.malformed("a number beyond the range of a double");
        }
        // `01`, `1.5.5` and the like: what follows is then refused as no separator.
        self.at += length;
        Ok(Json::Number(literal.to_owned()))
    }

    fn deeper(&self, depth: usize) -> Result<usize, Malformed> {
        match depth.checked_sub(1) {
            Some(depth) => Ok(depth),
            None => self.malformed("nested too deeply"),
        }
    }

    fn array(&mut self, depth: usize) -> Result<Json, Malformed> {
        let depth = self.deeper(depth)?;
        let mut elements = Vec::new();
        self.at += 1;
        self.skip_space();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(Json::Array(elements));
        }
        loop {
            self.skip_space();
            elements.push(self.value(depth)?);
            self.skip_space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => {
                    self.at += 1;
                    return Ok(Json::Array(elements));
                }
                Some(_) => return self.malformed("neither `,` nor `]`"),
                None => return self.malformed("the text ends inside an array"),
            }
        }
    }

    fn object(&mut self, depth: usize) -> Result<Json, Malformed> {
        let depth = self.deeper(depth)?;
        let mut members = Vec::new();
        let mut offsets = Vec::new();
        self.at += 1;
        self.skip_space();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(Json::Object(members));
        }
        loop {
            self.skip_space();
            if self.peek() != Some(b'"') {
                return self.malformed("no object key");
            }
            offsets.push(self.at);
            let name = self.string()?;
            self.skip_space();
            if self.peek() != Some(b':') {
                return self.malformed("no `:` after an object key");
            }
            self.at += 1;
            self.skip_space();
            members.push((name, self.value(depth)?));
            self.skip_space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => {
                    self.at += 1;
                    refuse_duplicates(&members, &offsets)?;
                    return Ok(Json::Object(members));
                }
                Some(_) => return self.malformed("neither `,` nor `}`"),
                None => return self.malformed("the text ends inside an object"),
            }
        }
    }

    /// A string from its opening quote on.
    fn string(&mut self) -> Result<String, Malformed> {
        let mut decoded = String::new();
        self.at += 1;
        loop {
            let start = self.at;
            while self
                .peek()
                .is_some_and(|byte| byte >= 0x20 && byte != b'"' && byte != b'\\')
            {
                self.at += 1;
            }
            // Both ends stand beside ASCII, so this is a boundary of characters.
            decoded.push_str(&self.text[start..self.at]);
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(decoded);
                }
                Some(b'\\') => decoded.push(self.escape()?),
                Some(_) => return self.malformed("a bare control character in a string"),
                None => return self.malformed("the text ends inside a string"),
            }
        }
    }

    fn escape(&mut self) -> Result<char, Malformed> {
        let plain = match self.bytes.get(self.at + 1) {
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => return self.escaped_unit(),
            Some(_) => return self.malformed("an unknown escape in a string"),
            None => return self.malformed("the text ends inside a string"),
        };
        self.at += 2;
        Ok(plain)
    }

    /// `\uXXXX`, or two of them that are a surrogate pair.
    fn escaped_unit(&mut self) -> Result<char, Malformed> {
        let Some(first) = self.unit(self.at) else {
            return self.malformed("no four hexadecimal digits after `\\u`");
        };
        let (unit, length) = match first {
            0xd800..=0xdbff => match self.unit(self.at + 6) {
                Some(second @ 0xdc00..=0xdfff) => {
                    (0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00), 12)
                }
                Some(_) | None => return self.malformed("a lone surrogate"),
            },
            _ => (first, 6),
        };
        // What is left without a character is the second half of a pair without its first.
        match char::from_u32(unit) {
            Some(c) => {
                self.at += length;
                Ok(c)
            }
            None => self.malformed("a lone surrogate"),
        }
    }

    fn unit(&self, at: usize) -> Option<u32> {
        let digits = self.bytes.get(at..at + 6)?.strip_prefix(b"\\u")?;
        digits.iter().try_fold(0, |unit, digit| {
            Some(unit * 16 + char::from(*digit).to_digit(16)?)
        })
    }
}

/// Sorted, not hashed: keys come from outside, and there is no randomness here to defend a hash.
fn refuse_duplicates(members: &[(String, Json)], offsets: &[usize]) -> Result<(), Malformed> {
    let mut keys: Vec<(&str, usize)> = members
        .iter()
        .zip(offsets)
        .map(|((name, _), offset)| (name.as_str(), *offset))
        .collect();
    keys.sort_unstable();
    let twice = keys.windows(2).find_map(|pair| match pair {
        [(first, _), (second, at)] if first == second => Some(*at),
        _ => None,
    });
    match twice {
        Some(at) => Err(Malformed {
            what: "a duplicate object key",
            at,
        }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &[u8]) -> (&'static str, usize) {
        let malformed = parse_json(text, JsonLimits::default()).unwrap_err();
        (malformed.what, malformed.at)
    }

    fn string(text: &str) -> String {
        let value = parse_json(text.as_bytes(), JsonLimits::default()).unwrap();
        value.to_value().as_str().unwrap().to_owned()
    }

    #[test]
    fn reads_every_kind_of_value() {
        let text = " {\"a\" : [ 1 , -0.5e+1,true,false , null ] ,\t\"b\":{}\r\n, \"\":[]} ";
        let number = |literal: &str| Json::Number(literal.to_owned());
        let expected = Json::Object(vec![
            (
                "a".to_owned(),
                Json::Array(vec![
                    number("1"),
                    number("-0.5e+1"),
                    Json::Bool(true),
                    Json::Bool(false),
                    Json::Null,
                ]),
            ),
            ("b".to_owned(), Json::Object(vec![])),
            (String::new(), Json::Array(vec![])),
        ]);
        assert_eq!(
            parse_json(text.as_bytes(), JsonLimits::default()),
            Ok(expected)
        );
    }

    #[test]
    fn decodes_strings() {
        assert_eq!(string(r#""a\"\\\/\b\f\n\r\t""#), "a\"\\/\u{8}\u{c}\n\r\t");
        assert_eq!(string(r#""\u00e9\u00E9é""#), "ééé");
        assert_eq!(string(r#""\ud83d\uDE00😀""#), "😀😀");
        assert_eq!(string(r#""\u0000\u007f""#), "\0\u{7f}");
        assert_eq!(
            string("\"\u{7f}\u{feff}\u{10ffff}\""),
            "\u{7f}\u{feff}\u{10ffff}"
        );
    }

    #[test]
    fn refuses_what_is_not_strict_json() {
        for (text, wanted) in [
            (&b""[..], ("the text ends where a value must be", 0)),
            (b"  ", ("the text ends where a value must be", 2)),
            (b"\xef\xbb\xbf{}", ("a byte order mark", 0)),
            (b"\"\xff\"", ("not UTF-8", 1)),
            (b"\"\xed\xa0\x80\"", ("not UTF-8", 1)),
            (b"{} {}", ("something after the value", 3)),
            (b"1\0", ("something after the value", 1)),
            (b"01", ("something after the value", 1)),
            (b"[01]", ("neither `,` nor `]`", 2)),
            (b"+1", ("no JSON value", 0)),
            (b"-", ("no JSON number", 0)),
            (b"[1.]", ("no JSON number", 1)),
            (b"NaN", ("no JSON value", 0)),
            (b"nul", ("no JSON value", 0)),
            (b"'a'", ("no JSON value", 0)),
            (b"[1,]", ("no JSON value", 3)),
            (b"[1 2]", ("neither `,` nor `]`", 3)),
            (b"[1", ("the text ends inside an array", 2)),
            (b"{\"a\":1,}", ("no object key", 7)),
            (b"{a:1}", ("no object key", 1)),
            (b"{\"a\" 1}", ("no `:` after an object key", 5)),
            (b"{\"a\":1", ("the text ends inside an object", 6)),
            (b"{\"a\":1;}", ("neither `,` nor `}`", 6)),
            (b"\"a", ("the text ends inside a string", 2)),
            (b"\"a\nb\"", ("a bare control character in a string", 2)),
            (b"\"\\x\"", ("an unknown escape in a string", 1)),
            (b"\"\\", ("the text ends inside a string", 1)),
            (b"\"\\u12\"", ("no four hexadecimal digits after `\\u`", 1)),
            (
                b"\"\\u+123\"",
                ("no four hexadecimal digits after `\\u`", 1),
            ),
            (b"// no\n1", ("no JSON value", 0)),
            (b"\x0b1", ("no JSON value", 0)),
            (b"\xc2\xa01", ("no JSON value", 0)),
        ] {
            assert_eq!(refused(text), wanted, "{}", String::from_utf8_lossy(text));
        }
    }

    #[test]
    fn refuses_lone_surrogates() {
        for text in [
            r#""\ud800""#,
            r#""\ud800x""#,
            r#""\ud800\n""#,
            r#""\ud800\ud800""#,
            r#""\udc00""#,
            r#""\udc00\ud800""#,
        ] {
            assert_eq!(refused(text.as_bytes()), ("a lone surrogate", 1), "{text}");
        }
    }

    #[test]
    fn refuses_duplicate_keys_however_they_are_spelled() {
        assert_eq!(
            refused(br#"{"a":1,"b":2,"a":1}"#),
            ("a duplicate object key", 13)
        );
        assert_eq!(
            refused(br#"{"a":1,"\u0061":2}"#),
            ("a duplicate object key", 7)
        );
        assert_eq!(
            refused(br#"[{"x":{"":1,"":2}}]"#),
            ("a duplicate object key", 12)
        );
        assert!(parse_json(br#"{"a":{"a":1},"A":2}"#, JsonLimits::default()).is_ok());
        // Not normalized: composed and decomposed are two keys.
        assert!(parse_json("{\"é\":1,\"e\u{301}\":2}".as_bytes(), JsonLimits::default()).is_ok());
    }

    #[test]
    fn refuses_numbers_no_double_holds() {
        let wanted = ("a number beyond the range of a double", 0);
        for text in [
            "1e400",
            "-1e309",
            "1.8e308",
            "1e99999999999999999999",
            &"9".repeat(400),
        ] {
            assert_eq!(refused(text.as_bytes()), wanted, "{text}");
        }
        for text in [
            "1.7976931348623157e308",
            "1e-400",
            "0e400",
            "1e-99999999999999999999",
        ] {
            assert!(
                parse_json(text.as_bytes(), JsonLimits::default()).is_ok(),
                "{text}"
            );
        }
    }

    #[test]
    fn depth_is_bounded() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        let with =
            |depth_max, depth| parse_json(nested(depth).as_bytes(), JsonLimits { depth_max });
        assert!(with(64, 64).is_ok());
        assert_eq!(
            with(64, 65),
            Err(Malformed {
                what: "nested too deeply",
                at: 64
            })
        );
        assert!(parse_json(b"1", JsonLimits { depth_max: 0 }).is_ok());
        assert!(with(0, 1).is_err());
        // However much is allowed, the ceiling holds.
        assert!(with(usize::MAX, JsonLimits::DEPTH_CEILING).is_ok());
        assert!(with(usize::MAX, JsonLimits::DEPTH_CEILING + 1).is_err());
    }

    #[test]
    fn a_depth_bomb_is_refused_where_it_becomes_too_deep() {
        let at_limit = ("nested too deeply", 64);
        assert_eq!(refused(&b"[".repeat(1 << 20)), at_limit);
        assert_eq!(
            refused(&b"{\"a\":".repeat(200_000)),
            ("nested too deeply", 64 * 5)
        );
    }

    #[test]
    fn many_keys_are_read_in_good_time() {
        // A quadratic check would compare 20 thousand million pairs.
        let members: Vec<String> = (0..200_000).map(|n| format!("\"key{n}\":0")).collect();
        let mut text = format!("{{{}}}", members.join(","));
        assert!(parse_json(text.as_bytes(), JsonLimits::default()).is_ok());
        text.truncate(text.len() - 1);
        let at = text.len() + 1;
        text.push_str(",\"key7\":0}");
        assert_eq!(refused(text.as_bytes()), ("a duplicate object key", at));
    }
}
