use serde_json::{Value, json};

use crate::{
    address::without_password,
    args::Reading,
    config::{Config, Found, Kind, SETTINGS, Setting, layers},
    environment,
    exit::Failure,
    folder::is_open,
    open::{database_address, settings},
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
    database_address(&config)?;
    let secrets = [
        &config.key_file,
        &config.store_in,
        &config.store_password_file,
    ];
    for path in secrets.into_iter().flatten().filter(|path| is_open(path)) {
        say(&format!(
            "warning: other users can read or change {}, and it holds secrets; `chmod 600` it",
            path.display()
        ));
    }
    let found = |setting: &Setting| {
        let Found { text, source } = &layers[setting.name];
        let shown = match setting.kind {
            Kind::Store => without_password(text),
            Kind::Text | Kind::Duration | Kind::Number | Kind::Switch | Kind::List | Kind::Path => {
                text.clone()
            }
        };
        (shown, source.to_string())
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
