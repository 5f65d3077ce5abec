use serde_json::{Value, json};

use crate::{
    args::Reading,
    config::{Config, Found, SETTINGS, Setting, layers},
    environment,
    exit::Failure,
    folder::is_open,
    open::settings,
    output::{print, print_json, say, table},
    telemetry,
};

/// Prints every setting in force with its source; fails if any is wrong.
pub(crate) fn run(reading: &Reading) -> Result<(), Failure> {
    let layers = layers(&reading.place.flags(), &environment::variables())?;
    let config = Config::read(&layers)?;
    config.check_address()?;
    telemetry::filter(&config)?;
    settings(&config)?;
    if let Some(path) = config.key_file.as_deref().filter(|path| is_open(path)) {
        say(&format!(
            "warning: other users can read or change {}, and it holds secrets; `chmod 600` it",
            path.display()
        ));
    }
    let found = |setting: &Setting| {
        let Found { text, source } = &layers[setting.name];
        (text.clone(), source.to_string())
    };
    if reading.json {
        let settings: Vec<Value> = SETTINGS
            .iter()
            .map(|setting| {
                let (value, source) = found(setting);
                json!({
                    "name": setting.name,
                    "value": value,
                    "source": source,
                    "default": setting.default,
                    "environment": setting.variable(),
                    "about": setting.about,
                })
            })
            .collect();
        return print_json(&json!({ "settings": settings }));
    }
    let rows: Vec<Vec<String>> = SETTINGS
        .iter()
        .map(|setting| {
            let (value, source) = found(setting);
            vec![
                setting.name.to_owned(),
                value,
                source,
                setting.about.to_owned(),
            ]
        })
        .collect();
    print(&table(&["SETTING", "VALUE", "FROM", "WHAT"], &rows))
}
