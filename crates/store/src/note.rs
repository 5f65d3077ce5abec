use crate::Error;

/// Longest name of a note, in characters.
const NAME_CHARS_MAX: usize = 64;
/// Longest note, in bytes.
const BYTES_MAX: usize = 4096;

/// Whether a note can be kept; the same in every store.
///
/// # Errors
/// [`Error::Statement`] unless the name has 1 to 64 characters, none of them NUL, which PostgreSQL
/// cannot hold, and the note at most 4,096 bytes.
pub fn check_note(name: &str, value: &[u8]) -> Result<(), Error> {
    let length = name.chars().count();
    if (1..=NAME_CHARS_MAX).contains(&length) && value.len() <= BYTES_MAX && !name.contains('\0') {
        return Ok(());
    }
    Err(Error::Statement(format!(
        "a note has a name of 1 to {NAME_CHARS_MAX} characters, without NUL, and at most \
         {BYTES_MAX} bytes"
    )))
}
