//! The official conformance suite, on what a server of tools only must do. What fails, and why
//! that is right, is listed in `tests/e2e/conformance`, one file for each revision.

use std::path::Path;

use counterfoil_e2e::installed::conformance;
use counterfoil_e2e::{Fixture, Folder};

use crate::STORE;

fn revision(name: &str) {
    let folder = Folder::new(STORE);
    let fixture = Fixture::start(&folder, &[]);
    let expected = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join(format!("conformance/expected-failures-{name}.yml"));
    let expected = expected.display().to_string();
    let url = fixture.url();
    let words = ["server", "--url", &url, "--requirements", name];
    let done = conformance(
        folder.root(),
        &[&words[..], &["--expected-failures", &expected]].concat(),
    );
    let printed = String::from_utf8_lossy(&done.stdout);
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(
        done.status.success(),
        "{}\n{printed}\n{errors}",
        done.status
    );
    println!(
        "{}",
        printed
            .lines()
            .rev()
            .take(30)
            .collect::<Vec<_>>()
            .join("\n")
    );
}

#[test]
fn conformance_2025_11_25() {
    revision("2025-11-25");
}

#[test]
fn conformance_2026_07_28() {
    revision("2026-07-28");
}
