use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};

/// Longest cursor that is looked at, in characters.
const CURSOR_CHARS_MAX: usize = 128;

/// An opaque place in the list `kind`.
pub(crate) fn write_cursor(kind: char, place: &str) -> String {
    URL_SAFE_NO_PAD.encode(format!("{kind}{place}"))
}

/// The place; `None` if the text is no cursor of the list `kind`.
pub(crate) fn read_cursor(kind: char, cursor: &str) -> Option<String> {
    if cursor.len() > CURSOR_CHARS_MAX {
        return None;
    }
    let bytes = URL_SAFE_NO_PAD.decode(cursor).ok()?;
    let text = String::from_utf8(bytes).ok()?;
    text.strip_prefix(kind).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_belong_to_their_list() {
        let cursor = write_cursor('n', "note_1");
        assert_eq!(read_cursor('n', &cursor).as_deref(), Some("note_1"));
        assert_eq!(read_cursor('o', &cursor), None);
        assert_eq!(read_cursor('n', "bm90ZQ="), None);
        assert_eq!(read_cursor('n', "§"), None);
        assert_eq!(read_cursor('n', &"A".repeat(200)), None);
    }
}
