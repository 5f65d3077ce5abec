use counterfoil_core::WorkspaceId;
use counterfoil_server::{
    AgentKey, AgentKeys, Issued, NewAgentKey, Role, agent_key_json as to_json, rfc3339,
};
use serde_json::{Value, json};

use crate::{
    args::{Keys, Reading, RoleName},
    config::Config,
    exit::{Exit, Failure},
    open::{Mode, folder, with_application, with_reading},
    output::{goes_nowhere, print, print_json, print_only_copy, say, table},
};

pub(crate) fn run(command: Keys) -> Result<(), Failure> {
    match command {
        Keys::Issue {
            reading,
            workspace,
            name,
            role,
        } => {
            let new = NewAgentKey {
                workspace: workspace_id(&workspace)?,
                name,
                role: match role {
                    RoleName::Member => Role::Member,
                    RoleName::Admin => Role::Admin,
                },
            };
            somewhere()?;
            let issued = with_keys(&reading, async |keys| Ok(keys.issue(new).await?))?;
            print_issued(&reading, &issued, "issued").map_err(|error| lost(&issued, &error))
        }
        Keys::List { reading, workspace } => {
            let workspace = workspace_id(&workspace)?;
            let config = Config::load(&reading.place.flags())?;
            let list = with_reading(&config, async |application| {
                Ok(application.agent_keys().list(&workspace).await?)
            })?;
            print_list(&reading, &list)
        }
        Keys::Rotate { reading, id } => {
            let config = Config::load(&reading.place.flags())?;
            let folder = folder(&config, Mode::Changing)?;
            let in_file = folder.holds(&id);
            if !in_file {
                somewhere()?;
            }
            let issued = with_application(&config, async |application| {
                let keys = application.agent_keys();
                let workspace = workspace_of(&keys, &id).await?;
                Ok(keys.rotate(&workspace, &id).await?)
            })?;
            let in_file = folder.update_key(&issued);
            if matches!(in_file, Ok(true)) {
                say(&format!(
                    "{} holds the new key",
                    folder.agent_key().display()
                ));
            }
            let printed = print_issued(&reading, &issued, "rotated");
            match (in_file, printed) {
                (Ok(true), _) => Ok(()),
                (Ok(false), printed) => printed.map_err(|error| lost(&issued, &error)),
                (Err(failure), Ok(())) => Err(failure),
                (Err(_), Err(error)) => Err(lost(&issued, &error)),
            }
        }
        Keys::Revoke { reading, id } => {
            let key = with_keys(&reading, async |keys| {
                let workspace = workspace_of(&keys, &id).await?;
                Ok(keys.revoke(&workspace, &id).await?)
            })?;
            if reading.json {
                return print_json(&to_json(&key));
            }
            print(&format!(
                "revoked {} in workspace {}",
                key.id, key.workspace
            ))
        }
    }
}

fn with_keys<T>(
    reading: &Reading,
    body: impl AsyncFnOnce(AgentKeys) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let config = Config::load(&reading.place.flags())?;
    with_application(&config, async |application| {
        body(application.agent_keys()).await
    })
}

fn workspace_id(text: &str) -> Result<WorkspaceId, Failure> {
    WorkspaceId::new(text).map_err(|error| Failure::new(Exit::Usage, error.to_string()))
}

async fn workspace_of(keys: &AgentKeys, id: &str) -> Result<WorkspaceId, Failure> {
    let found = keys.find(id).await?;
    let absent = || Failure::from(counterfoil_server::Error::NotFound("agent key"));
    found.map(|key| key.workspace).ok_or_else(absent)
}

/// A secret is printed and nowhere else: not before there is somebody to read it.
fn somewhere() -> Result<(), Failure> {
    if !goes_nowhere() {
        return Ok(());
    }
    Err(Failure::new(
        Exit::Failure,
        "standard output goes nowhere, and the key's secret is shown there only; nothing was done",
    )
    .hint("let it go to a terminal, a file or a pipe"))
}

/// The secret was made and nobody has seen it.
fn lost(issued: &Issued, error: &std::io::Error) -> Failure {
    let id = &issued.agent_key.id;
    Failure::new(
        Exit::Failure,
        format!("{id} has a new secret, and it could not be printed: {error}"),
    )
    .hint(format!(
        "it is lost; `counterfoil keys rotate {id}` makes another one"
    ))
}

fn print_issued(reading: &Reading, issued: &Issued, done: &str) -> Result<(), std::io::Error> {
    let secret = issued.credential.reveal();
    if reading.json {
        let mut value = to_json(&issued.agent_key);
        value["key"] = json!(secret.as_str());
        return print_only_copy(&format!("{value:#}"));
    }
    let key = &issued.agent_key;
    print_only_copy(&format!(
        "{done} {} in workspace {} ({}); its key is shown this once:\n{}",
        key.id,
        key.workspace,
        key.role,
        secret.as_str()
    ))
}

fn print_list(reading: &Reading, list: &[AgentKey]) -> Result<(), Failure> {
    if reading.json {
        let keys: Vec<Value> = list.iter().map(to_json).collect();
        return print_json(&json!({ "agent_keys": keys }));
    }
    let rows: Vec<Vec<String>> = list
        .iter()
        .map(|key| {
            let state = match (key.revoked_at, key.rotated_at) {
                (Some(at), _) => format!("revoked {}", rfc3339(at)),
                (None, Some(at)) => format!("rotated {}", rfc3339(at)),
                (None, None) => "active".to_owned(),
            };
            vec![
                key.id.to_string(),
                key.role.to_string(),
                key.name.clone(),
                rfc3339(key.created_at),
                state,
            ]
        })
        .collect();
    print(&table(&["ID", "ROLE", "NAME", "ISSUED", "STATE"], &rows))
}
