use std::io::{Error, ErrorKind, Write as _};

use serde_json::Value;

use crate::exit::{Exit, Failure};

/// Prints text on standard output. A reader that has gone away (a closed pipe) is no failure.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    match write(text) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(Failure::new(
            Exit::Failure,
            format!("standard output cannot be written: {error}"),
        )),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Prints the only copy of something: that nobody reads it is a failure.
pub(crate) fn print_only_copy(text: &str) -> Result<(), Error> {
    write(text)
}

fn write(text: &str) -> Result<(), Error> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    if !text.ends_with('\n') {
        out.write_all(b"\n")?;
    }
    out.flush()
}

/// Whether what is printed goes nowhere: to the null device, which is also what a closed standard
/// output becomes when the program starts.
pub(crate) fn goes_nowhere() -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt as _;
        let device = |path: &str| std::fs::metadata(path).map(|found| found.rdev());
        match (device("/dev/stdout"), device("/dev/null")) {
            (Ok(out), Ok(null)) => out == null,
            (Err(_), _) | (_, Err(_)) => false,
        }
    }
    #[cfg(not(unix))]
    false
}

/// Says something on standard error, where a full disk or a closed stream changes nothing.
pub(crate) fn say(text: &str) {
    let mut lines: Vec<String> = text.lines().map(shown).collect();
    lines.push(String::new());
    let _ = std::io::stderr().write_all(lines.join("\n").as_bytes());
}

/// Prints a value as JSON, indented.
pub(crate) fn print_json(value: &Value) -> Result<(), Failure> {
    print(&format!("{value:#}"))
}

/// A table whose columns are as wide as their widest cell. Control characters are shown escaped,
/// so that a name cannot write over the terminal.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let rows: Vec<Vec<String>> = rows
        .iter()
        .map(|row| row.iter().map(|cell| shown(cell)).collect())
        .collect();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        let widest = cells.map(|cell| cell.chars().count()).max().unwrap_or(0);
        head.get(column).map_or(0, |title| title.len()).max(widest)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |cells: Vec<&str>| {
        let padded: Vec<String> = cells
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        format!("{}\n", padded.join("  ").trim_end())
    };
    let mut text = line(head.to_vec());
    for row in &rows {
        text.push_str(&line(row.iter().map(String::as_str).collect()));
    }
    text
}

/// Text without control characters and without what turns or hides the text around it.
pub(crate) fn shown(text: &str) -> String {
    let escape = |c: char| {
        if c.is_control() || is_invisible(c) {
            c.escape_default().to_string()
        } else {
            c.to_string()
        }
    };
    text.chars().map(escape).collect()
}

/// Characters that show nothing themselves: directions, joiners, separators, tags.
const fn is_invisible(c: char) -> bool {
    matches!(
        c,
        '\u{ad}'
            | '\u{61c}'
            | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_turns_or_hides_the_text_around_it() {
        assert_eq!(shown("a\u{202e}b\u{2066}c"), "a\\u{202e}b\\u{2066}c");
        assert_eq!(shown("a\u{200b}\n\u{feff}"), "a\\u{200b}\\n\\u{feff}");
        assert_eq!(shown("Grüße, 世界"), "Grüße, 世界");
    }

    #[test]
    fn tables_line_up_and_escape() {
        let rows = vec![
            vec!["ab".to_owned(), "c\u{1b}d".to_owned()],
            vec!["x".to_owned(), String::new()],
        ];
        assert_eq!(table(&["A", "LONG"], &rows), "A   LONG\nab  c\\u{1b}d\nx\n");
    }
}
