//! Which crate may not lead to which: the directions of `ARCHITECTURE.md`, read off the
//! dependency graph that is built, features and all.

use std::collections::BTreeSet;

use crate::processes::Run;

/// A package, and what its normal dependencies must never reach.
const BANS: &[(&str, &[&str])] = &[
    (
        "counterfoil-core",
        &[
            "tokio-postgres",
            "tokio",
            "axum",
            "hyper",
            "reqwest",
            "rmcp",
            "rusqlite",
            "counterfoil-store",
            "counterfoil-engine",
        ],
    ),
    (
        "counterfoil-store",
        &[
            "tokio-postgres",
            "counterfoil-engine",
            "rusqlite",
            "axum",
            "rmcp",
        ],
    ),
    (
        "counterfoil-engine",
        &[
            "counterfoil-postgres",
            "tokio-postgres",
            "counterfoil-sqlite",
            "counterfoil-http",
            "counterfoil-mcp",
            "counterfoil-proxy",
            "reqwest",
            "rusqlite",
            "axum",
            "rmcp",
        ],
    ),
    (
        "counterfoil-sqlite",
        &[
            "counterfoil-postgres",
            "counterfoil-engine",
            "counterfoil-http",
            "counterfoil-mcp",
            "axum",
            "rmcp",
        ],
    ),
    (
        "counterfoil-postgres",
        &[
            "counterfoil-engine",
            "counterfoil-sqlite",
            "counterfoil-http",
            "counterfoil-mcp",
            "rusqlite",
            "axum",
            "rmcp",
        ],
    ),
    (
        "counterfoil-http",
        &[
            "counterfoil-postgres",
            "tokio-postgres",
            "counterfoil-mcp",
            "counterfoil-sqlite",
            "rusqlite",
            "rmcp",
        ],
    ),
    (
        "counterfoil-mcp",
        &[
            "counterfoil-postgres",
            "tokio-postgres",
            "counterfoil-http",
            "counterfoil-proxy",
            "counterfoil-server",
            "counterfoil-sqlite",
            "reqwest",
            "rusqlite",
        ],
    ),
    (
        "counterfoil-proxy",
        &[
            "counterfoil-postgres",
            "tokio-postgres",
            "counterfoil-http",
            "counterfoil-server",
            "counterfoil-sqlite",
            "rusqlite",
        ],
    ),
    (
        "counterfoil-server",
        &[
            "counterfoil-postgres",
            "counterfoil-proxy",
            "tokio-postgres",
            "counterfoil-sqlite",
            "rusqlite",
        ],
    ),
    ("counterfoil", &[]),
];

/// Test-only: in no shipped package's normal dependencies.
const TEST_ONLY: &[&str] = &[
    "counterfoil-testkit",
    "counterfoil-e2e",
    "counterfoil-test-postgres",
    "counterfoil-test-upstream",
    "proptest",
    "insta",
];

/// Checks every ban.
///
/// # Errors
/// Names each package and what it reaches.
pub(crate) fn check(run: &Run) -> Result<(), String> {
    let mut broken = Vec::new();
    for (package, banned) in BANS {
        let reached = reached(run, package)?;
        for name in banned.iter().chain(TEST_ONLY) {
            if reached.contains(*name) {
                broken.push(format!(
                    "{package} reaches {name}: cargo tree -p {package} -e normal -i {name}"
                ));
            }
        }
    }
    if broken.is_empty() {
        println!("{} packages keep their directions", BANS.len());
        return Ok(());
    }
    Err(broken.join("\n"))
}

fn reached(run: &Run, package: &str) -> Result<BTreeSet<String>, String> {
    let mut command = run.command("cargo");
    command.args(["tree", "--locked", "-p", package, "-e", "normal"]);
    command.args(["--prefix", "none", "--format", "{p}", "--no-dedupe"]);
    let tree = run.output(&mut command)?;
    let names: BTreeSet<String> = tree
        .lines()
        .filter_map(|line| line.split(' ').next())
        .map(str::to_owned)
        .collect();
    if !names.contains(package) {
        return Err(format!("cargo tree -p {package} does not name {package}"));
    }
    Ok(names)
}
