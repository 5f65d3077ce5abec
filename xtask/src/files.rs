//! Checks that read the files of the work tree.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Longest source file, in lines.
const LINES_MAX: usize = 800;
/// From here on a file is named, so that it is cut before it must be.
const LINES_LONG: usize = 600;
/// Folders that are built, not written.
const BUILT: &[&str] = &["target", ".git", "node_modules", "counterfoil-data"];

/// Hosts of package registries and paths of one machine. Each is cut in two, or this file would
/// be found by its own check.
const WORDS: &[&str] = &[
    concat!("registry.", "npmjs"),
    concat!("registry.", "yarnpkg"),
    concat!("pypi", ".org"),
    concat!("python", "hosted.org"),
    concat!("static.", "crates.io"),
    concat!("index.", "crates.io"),
    concat!("deb.", "debian.org"),
    concat!("/ro", "ot/"),
    concat!("/wo", "rk/"),
    concat!("/ho", "me/"),
    concat!("\"reso", "lved\":"),
];

/// No source file is longer than a reader can hold.
///
/// # Errors
/// Names the files that are.
pub(crate) fn lengths() -> Result<(), String> {
    let mut over = Vec::new();
    let mut count = 0;
    for path in tree()? {
        if path.extension().is_none_or(|ending| ending != "rs") {
            continue;
        }
        let text = fs::read_to_string(&path).map_err(|error| at(&path, &error))?;
        let lines = text.lines().count();
        count += 1;
        if lines > LINES_MAX {
            over.push(format!(
                "{}: {lines} lines, at most {LINES_MAX}",
                short(&path)
            ));
        } else if lines > LINES_LONG {
            println!("{}: {lines} lines, getting long", short(&path));
        }
    }
    println!("{count} source files read");
    if over.is_empty() {
        return Ok(());
    }
    Err(over.join("\n"))
}

/// No file names a package registry's host or a path of one machine.
///
/// # Errors
/// Names file, line and word.
pub(crate) fn words() -> Result<(), String> {
    let mut found = Vec::new();
    let mut count = 0;
    for path in tree()? {
        let bytes = fs::read(&path).map_err(|error| at(&path, &error))?;
        let Ok(text) = String::from_utf8(bytes) else {
            continue;
        };
        count += 1;
        for (number, line) in text.lines().enumerate() {
            for word in WORDS.iter().filter(|word| line.contains(**word)) {
                found.push(format!("{}:{}: {word}", short(&path), number + 1));
            }
        }
    }
    println!("{count} text files read");
    if found.is_empty() {
        return Ok(());
    }
    Err(found.join("\n"))
}

/// Every test that `FIELD.md` names is there, and every row that applies names one.
///
/// # Errors
/// Names the rows and the tests that are missing.
pub(crate) fn field_table() -> Result<(), String> {
    let table = crate::root().join("tests/e2e/FIELD.md");
    let text = fs::read_to_string(&table).map_err(|error| at(&table, &error))?;
    let mut tests = BTreeSet::new();
    for path in tree()? {
        if path.extension().is_some_and(|ending| ending == "rs") {
            let text = fs::read_to_string(&path).map_err(|error| at(&path, &error))?;
            let names = text.split("fn ").skip(1);
            tests.extend(names.filter_map(|rest| rest.split('(').next().map(str::to_owned)));
        }
    }
    let mut missing = Vec::new();
    for row in text
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| #"))
    {
        let named: Vec<_> = row.split('`').skip(1).step_by(2).collect();
        if named.is_empty() {
            missing.push(format!("no test in: {row}"));
        }
        let gone = named.iter().filter(|name| !tests.contains(**name));
        missing.extend(gone.map(|name| format!("no such test: {name}")));
    }
    if missing.is_empty() {
        return Ok(());
    }
    Err(missing.join("\n"))
}

/// Every file that somebody wrote.
fn tree() -> Result<Vec<PathBuf>, String> {
    let mut files = Vec::new();
    let mut folders = vec![crate::root()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).map_err(|error| at(&folder, &error))? {
            let entry = entry.map_err(|error| at(&folder, &error))?;
            let kind = entry
                .file_type()
                .map_err(|error| at(&entry.path(), &error))?;
            let built = BUILT.iter().any(|name| entry.file_name() == *name);
            if kind.is_dir() && !built {
                folders.push(entry.path());
            } else if kind.is_file() && !built {
                files.push(entry.path());
            }
        }
    }
    files.sort();
    Ok(files)
}

fn short(path: &Path) -> String {
    let root = crate::root();
    path.strip_prefix(&root)
        .unwrap_or(path)
        .display()
        .to_string()
}

fn at(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", short(path))
}
