use std::io::Write as _;

use serde_json::Value;

use crate::exit::{Exit, Failure};

/// Prints text on standard output. A reader that has gone away (a closed pipe) is no failure.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    let written = out
        .write_all(text.as_bytes())
        .and_then(|()| {
            if text.ends_with('\n') {
                Ok(())
            } else {
                out.write_all(b"\n")
            }
        })
        .and_then(|()| out.flush());
    match written {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(Failure::new(
            Exit::Failure,
            format!("standard output cannot be written: {error}"),
        )),
        Ok(()) | Err(_) => Ok(()),
    }
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

/// Text without control characters.
pub(crate) fn shown(text: &str) -> String {
    let escape = |c: char| {
        if c.is_control() {
            c.escape_default().to_string()
        } else {
            c.to_string()
        }
    };
    text.chars().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_line_up_and_escape() {
        let rows = vec![
            vec!["ab".to_owned(), "c\u{1b}d".to_owned()],
            vec!["x".to_owned(), String::new()],
        ];
        assert_eq!(table(&["A", "LONG"], &rows), "A   LONG\nab  c\\u{1b}d\nx\n");
    }
}
