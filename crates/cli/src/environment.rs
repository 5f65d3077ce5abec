//! The one place that reads the environment.

use std::path::{Path, PathBuf};

/// Every variable whose name begins with `COUNTERFOIL_`, as far as it is text.
pub(crate) fn variables() -> Vec<(String, String)> {
    let all = std::env::vars_os();
    let text = all.filter_map(|(name, value)| {
        let name = name.into_string().ok()?;
        name.starts_with("COUNTERFOIL_")
            .then(|| (name, value.to_string_lossy().into_owned()))
    });
    let mut variables: Vec<_> = text.collect();
    variables.sort();
    variables
}

/// The path of this program, to be pasted into a client's configuration.
pub(crate) fn program() -> String {
    std::env::current_exe().map_or_else(
        |_| "counterfoil".to_owned(),
        |path| path.display().to_string(),
    )
}

/// One variable, if it is set and is text.
pub(crate) fn variable(name: &str) -> Option<String> {
    let found = std::env::vars_os().find(|(found, _)| found == name);
    found.and_then(|(_, value)| value.into_string().ok())
}

/// Where this process runs.
pub(crate) fn current_folder() -> std::io::Result<PathBuf> {
    std::env::current_dir()
}

/// The user's folder for what programs keep between two runs, with our name on it. `None` for a
/// user without a home.
pub(crate) fn state_folder() -> Option<PathBuf> {
    state_in(|name| std::env::vars_os().find_map(|(found, value)| (found == name).then_some(value)))
}

fn state_in(variable: impl Fn(&str) -> Option<std::ffi::OsString>) -> Option<PathBuf> {
    // A relative one is to be ignored, says the specification of these folders.
    let folder = |name| {
        variable(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let base = if cfg!(target_os = "macos") {
        folder("HOME")?.join("Library/Application Support")
    } else if cfg!(windows) {
        folder("LOCALAPPDATA")?
    } else {
        folder("XDG_STATE_HOME").or_else(|| Some(folder("HOME")?.join(".local/state")))?
    };
    Some(base.join("counterfoil"))
}

/// Whether there is a program to run under this name: in a folder of `search` (a `PATH`), or, for
/// a name with a `/`, under that path.
#[cfg(unix)]
pub(crate) fn is_program(name: &str, search: &str) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    let runs = |path: &Path| {
        std::fs::metadata(path)
            .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    if name.contains('/') {
        return runs(Path::new(name));
    }
    std::env::split_paths(search).any(|folder| runs(&folder.join(name)))
}

/// What is tried under a name depends on the system here; the start will tell.
#[cfg(not(unix))]
pub(crate) fn is_program(name: &str, search: &str) -> bool {
    let _ = (Path::new(name), search);
    true
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn the_state_folder_is_the_users() {
        let of = |pairs: &[(&str, &str)]| {
            state_in(|name| {
                let found = pairs.iter().find(|(found, _)| *found == name);
                found.map(|(_, value)| value.into())
            })
        };
        let home = ("HOME", "/people/a");
        let expected = PathBuf::from("/people/a/.local/state/counterfoil");
        assert_eq!(of(&[home]), Some(expected.clone()));
        assert_eq!(of(&[home, ("XDG_STATE_HOME", "relative")]), Some(expected));
        let named = of(&[home, ("XDG_STATE_HOME", "/s")]);
        assert_eq!(named, Some(PathBuf::from("/s/counterfoil")));
        assert_eq!(of(&[]), None);
    }
}
