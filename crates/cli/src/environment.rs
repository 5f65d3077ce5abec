//! The one place that reads the environment.

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
