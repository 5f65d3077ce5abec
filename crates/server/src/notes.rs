use counterfoil_core::{PrincipalId, Timestamp, WorkspaceId};
use counterfoil_engine::Engine;
use counterfoil_store::{self as store, Row, Sql, Value as Parameter};
use serde_json::{Value, json};

use crate::{
    Error,
    cursor::{read_cursor, write_cursor},
    ids::{is_note_id, note_id, rfc3339},
};

/// Longest body of a note, in characters.
pub(crate) const BODY_CHARS_MAX: usize = 10_000;
/// Notes on a page, unless the caller says otherwise.
pub(crate) const PAGE_DEFAULT: u32 = 50;
/// Most notes on a page.
pub(crate) const PAGE_MAX: u32 = 100;
const CURSOR_KIND: char = 'n';

/// A note of a workspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Note {
    pub(crate) id: String,
    pub(crate) body: String,
    pub(crate) author: PrincipalId,
    pub(crate) created_at: Timestamp,
}

/// Notes, the newest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NotePage {
    pub(crate) notes: Vec<Note>,
    pub(crate) next_cursor: Option<String>,
}

/// Adds a note's fields to an answer.
pub(crate) fn show(note: &Note, answer: &mut Value) {
    answer["note_id"] = json!(note.id);
    answer["body"] = json!(note.body);
    answer["author"] = json!(note.author.as_str());
    answer["created_at"] = json!(rfc3339(note.created_at));
}

/// A note as both surfaces show it.
pub(crate) fn to_json(note: &Note) -> Value {
    let mut shown = json!({});
    show(note, &mut shown);
    shown
}

impl NotePage {
    /// A page as both surfaces show it.
    pub(crate) fn to_json(&self) -> Value {
        let notes: Vec<Value> = self.notes.iter().map(to_json).collect();
        json!({ "notes": notes, "next_cursor": self.next_cursor })
    }
}

pub(crate) fn check_body(body: &str) -> Result<(), Error> {
    let chars = body.chars().count();
    if !(1..=BODY_CHARS_MAX).contains(&chars) {
        return Err(Error::invalid(
            "body",
            format!("must have 1 to {BODY_CHARS_MAX} characters, this one has {chars}"),
        ));
    }
    if body.contains('\0') {
        return Err(Error::invalid("body", "must not contain U+0000"));
    }
    Ok(())
}

/// A note that is not stored yet.
pub(crate) fn draft(engine: &Engine, author: &PrincipalId, body: String) -> Result<Note, Error> {
    check_body(&body)?;
    Ok(Note {
        id: note_id(engine).ok_or(Error::NoRandomness)?,
        body,
        author: author.clone(),
        created_at: engine.now(),
    })
}

/// Stores a note, in the transaction of its receipt.
pub(crate) async fn insert(
    tx: &mut dyn Sql,
    workspace: &WorkspaceId,
    note: &Note,
) -> Result<(), store::Error> {
    tx.execute(
        "INSERT INTO notes (workspace, id, body, author, created_at) VALUES ($1, $2, $3, $4, $5)",
        &[
            workspace.as_str().into(),
            note.id.as_str().into(),
            note.body.as_str().into(),
            note.author.as_str().into(),
            note.created_at.as_millis().into(),
        ],
    )
    .await
    .map(drop)
}

fn read_row(row: &Row) -> Result<Note, store::Error> {
    Ok(Note {
        id: row.text(0)?.to_owned(),
        body: row.text(1)?.to_owned(),
        author: PrincipalId::new(row.text(2)?)
            .map_err(|_| store::Error::Corrupt("a note has an impossible author".to_owned()))?,
        created_at: Timestamp::from_millis(row.int(3)?),
    })
}

/// The note `id` of a workspace.
pub(crate) async fn get(engine: &Engine, workspace: &WorkspaceId, id: &str) -> Result<Note, Error> {
    if !is_note_id(id) {
        return Err(Error::NotFound("note"));
    }
    let found = store::read(engine.store().as_ref(), |sql| {
        let parameters = [Parameter::from(workspace.as_str()), Parameter::from(id)];
        Box::pin(async move {
            let rows = sql
                .query(
                    "SELECT id, body, author, created_at FROM notes \
                     WHERE workspace = $1 AND id = $2",
                    &parameters,
                )
                .await?;
            rows.first().map(read_row).transpose()
        })
    })
    .await?;
    found.ok_or(Error::NotFound("note"))
}

/// A page of a workspace's notes, the newest first.
pub(crate) async fn list(
    engine: &Engine,
    workspace: &WorkspaceId,
    limit: u32,
    cursor: Option<&str>,
) -> Result<NotePage, Error> {
    if !(1..=PAGE_MAX).contains(&limit) {
        return Err(Error::invalid(
            "limit",
            format!("must be between 1 and {PAGE_MAX}"),
        ));
    }
    // Above every id: `~` sorts after all its characters.
    let before = match cursor {
        None => "~".to_owned(),
        Some(cursor) => read_cursor(CURSOR_KIND, cursor)
            .filter(|id| is_note_id(id))
            .ok_or_else(|| {
                Error::invalid("cursor", "is none of this list; take it from next_cursor")
            })?,
    };
    let mut notes = store::read(engine.store().as_ref(), |sql| {
        let parameters = [
            Parameter::from(workspace.as_str()),
            Parameter::from(before.as_str()),
            Parameter::Int(i64::from(limit) + 1),
        ];
        Box::pin(async move {
            let rows = sql
                .query(
                    "SELECT id, body, author, created_at FROM notes \
                     WHERE workspace = $1 AND id < $2 ORDER BY id DESC LIMIT $3",
                    &parameters,
                )
                .await?;
            rows.iter().map(read_row).collect::<Result<Vec<_>, _>>()
        })
    })
    .await?;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let more = notes.len() > limit;
    notes.truncate(limit);
    let next_cursor = notes
        .last()
        .filter(|_| more)
        .map(|note| write_cursor(CURSOR_KIND, &note.id));
    Ok(NotePage { notes, next_cursor })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_counted_in_characters() {
        assert!(check_body("").is_err());
        assert!(check_body("x").is_ok());
        assert!(check_body(&"ß".repeat(BODY_CHARS_MAX)).is_ok());
        assert!(check_body(&"x".repeat(BODY_CHARS_MAX + 1)).is_err());
        assert!(check_body("a\0b").is_err());
    }
}
