use counterfoil_postgres::PostgresStore;
use counterfoil_server::Application;
use counterfoil_sqlite::SqliteStore;
use serde_json::{Value, json};

use crate::{
    address::Address,
    args::Reading,
    config::Config,
    exit::Failure,
    folder::Folder,
    open::{self, Mode, Opened, open, runtime},
    output::{print, print_json},
    postgres, sqlite,
};

/// Tables, what was found and what is there now.
struct Step {
    tables: &'static str,
    from: i64,
    to: i64,
}

/// Brings all tables up to date and says what it found. Others may do the same meanwhile: then
/// both say so.
pub(crate) fn run(reading: &Reading) -> Result<(), Failure> {
    let config = Config::load(&reading.place.flags())?;
    let folder = open::folder(&config, Mode::Migrating)?;
    let steps = runtime()?.block_on(migrate(&config, &folder))?;
    if reading.json {
        let tables: Vec<Value> = steps
            .iter()
            .map(|step| json!({ "tables": step.tables, "from": step.from, "to": step.to }))
            .collect();
        return print_json(&json!({ "store": config.store.to_string(), "migrated": tables }));
    }
    let mut text = format!("{}\n", config.store);
    for Step { tables, from, to } in &steps {
        text.push_str(&match from {
            0 => format!("tables of the {tables}: made, version {to}\n"),
            from if from == to => format!("tables of the {tables}: version {to}, as before\n"),
            from => format!("tables of the {tables}: from version {from} to {to}\n"),
        });
    }
    print(&text)
}

async fn migrate(config: &Config, folder: &Folder) -> Result<[Step; 2], Failure> {
    let (from, to) = match &config.store {
        Address::Sqlite(_) => (
            sqlite::version(config, folder)?,
            SqliteStore::SCHEMA_VERSION,
        ),
        Address::Postgres(_) => (
            postgres::version(config).await?,
            PostgresStore::SCHEMA_VERSION,
        ),
    };
    let own = Step {
        tables: "store",
        from,
        to,
    };
    let store = open(config, folder, Mode::Migrating).await?;
    let done = migrate_application(&store).await;
    store.close().await;
    Ok([own, done?])
}

async fn migrate_application(store: &Opened) -> Result<Step, Failure> {
    let from = store.component_version(Application::COMPONENT).await?;
    Application::migrate(store.shared().as_ref()).await?;
    Ok(Step {
        tables: Application::COMPONENT,
        from,
        to: Application::SCHEMA_VERSION,
    })
}
