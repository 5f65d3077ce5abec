use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// The real binary: the one `E2E_BINARY` names, else built here.
///
/// # Panics
/// If it does not build.
pub fn built() -> &'static PathBuf {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        named("E2E_BINARY").unwrap_or_else(|| {
            build(&["build", "-p", "counterfoil"]);
            folder().join("counterfoil")
        })
    })
}

/// The fixture server with the odd tools: the one `E2E_FIXTURE` names, else built here.
///
/// # Panics
/// If it does not build.
pub fn fixture() -> &'static PathBuf {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        named("E2E_FIXTURE").unwrap_or_else(|| {
            build(&["build", "-p", "counterfoil-mcp", "--example", "fixture"]);
            folder().join("examples/fixture")
        })
    })
}

/// Where the real clients are installed.
#[must_use]
pub fn clients() -> PathBuf {
    named("E2E_CLIENTS").unwrap_or_else(|| {
        let target = folder().parent().map(PathBuf::from);
        target.unwrap_or_default().join("clients")
    })
}

fn named(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).map(PathBuf::from)
}

/// The folder that this test program was built into, such as `target/debug`.
fn folder() -> PathBuf {
    let program = std::env::current_exe().expect("a running program has a path");
    let folder = program.ancestors().nth(2).expect("target/debug/deps");
    folder.to_path_buf()
}

fn build(words: &[&str]) {
    let cargo = named("CARGO").unwrap_or_else(|| PathBuf::from("cargo"));
    let status = Command::new(cargo)
        .args(words)
        .arg("--quiet")
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stdin(Stdio::null())
        .status()
        .expect("cargo starts");
    assert!(status.success(), "cargo {}: {status}", words.join(" "));
}
