//! What is put into an answer of the upstream. Every other byte of it stays.

use counterfoil_mcp::MetaPrefix;

use crate::raw::{Edit, Object, Splices, elements, quoted};

/// Facts about an answer: a name under our prefix, and JSON text.
pub(super) struct Marks(Vec<(String, String)>);

impl Marks {
    pub(super) const fn none() -> Self {
        Self(Vec::new())
    }

    pub(super) fn add(&mut self, prefix: &MetaPrefix, name: &str, value: impl Into<String>) {
        self.0.push((prefix.key(name), value.into()));
    }

    /// As the text of an object.
    pub(super) fn object(&self) -> String {
        self.put_into("{}").unwrap_or_else(|| "{}".to_owned())
    }

    /// An object's text with them, those of the same name replaced; `None` if it is no object.
    fn put_into(&self, text: &str) -> Option<String> {
        let object = Object::read(text)?;
        let mut edit = Edit::of(&object);
        for (name, value) in &self.0 {
            edit.set(name, value);
        }
        edit.text()
    }

    /// `outer` with them in its member `name`. That is made if it is missing or `null`, and
    /// replaced if it must be an object and is none.
    fn put_beside(&self, outer: &Object<'_>, edit: &mut Edit<'_, '_>, name: &str, must: bool) {
        if self.0.is_empty() {
            return;
        }
        let value = match outer.get(name) {
            None | Some("null") => self.object(),
            Some(text) => match self.put_into(text) {
                Some(text) => text,
                None if must => self.object(),
                None => return,
            },
        };
        edit.set(name, &value);
    }
}

/// One text block.
pub(crate) fn text_block(text: &str) -> String {
    format!("{{\"type\":\"text\",\"text\":{}}}", quoted(text))
}

/// A `result` with marks in its `_meta` and one more text at the end of its content. What is no
/// object stays as it is.
pub(super) fn result(text: &str, marks: &Marks, note: Option<&str>, is_modern: bool) -> String {
    let Some(object) = Object::read(text) else {
        return text.to_owned();
    };
    let mut edit = Edit::of(&object);
    let kind = object.get("resultType");
    if is_modern && kind.is_none() {
        edit.insert_first("resultType", "\"complete\"");
    }
    // A question or a task has no content for a model.
    if let Some(note) = note.filter(|_| kind.is_none_or(|kind| kind == "\"complete\"")) {
        match object.get("content") {
            None => edit.insert_last("content", &format!("[{}]", text_block(note))),
            Some(content) => {
                if let Some(content) = with_block(content, note) {
                    edit.replace("content", &content);
                }
            }
        }
    }
    marks.put_beside(&object, &mut edit, "_meta", true);
    edit.text().unwrap_or_else(|| text.to_owned())
}

/// An array with one more text block; `None` if it is no array.
fn with_block(array: &str, text: &str) -> Option<String> {
    let empty = elements(array)?.is_empty();
    let end = array.rfind(']')?;
    let mut splices = Splices::default();
    let comma = if empty { "" } else { "," };
    splices.put(end..end, format!("{comma}{}", text_block(text)));
    splices.apply(array)
}

/// An `error` with marks in its `data`, if that is an object or missing.
pub(super) fn error(text: &str, marks: &Marks) -> String {
    let Some(object) = Object::read(text) else {
        return text.to_owned();
    };
    let mut edit = Edit::of(&object);
    marks.put_beside(&object, &mut edit, "data", false);
    edit.text().unwrap_or_else(|| text.to_owned())
}
