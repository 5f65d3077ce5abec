//! JSON text, read where it stands and edited in place: what is not touched keeps every byte.
//!
//! ```text
//! let object = Object::read(text)?;            // members in order, as slices of the text
//! let mut edit = Edit::of(&object);
//! edit.set("id", "7");                         // replaced where it stands, or put at the end
//! edit.remove("idempotencyKey");
//! let text = edit.text()?;
//! ```

use std::{borrow::Cow, fmt, ops::Range};

use serde::de::{Deserializer as _, MapAccess, Visitor};
use serde_json::value::RawValue;

/// A JSON object, its members as they are spelled.
#[derive(Clone, Debug)]
pub(crate) struct Object<'a> {
    text: &'a str,
    members: Vec<Member<'a>>,
    repeated: Option<Cow<'a, str>>,
}

/// One member of an object.
#[derive(Clone, Debug)]
pub(crate) struct Member<'a> {
    /// Its name, decoded.
    pub(crate) name: Cow<'a, str>,
    /// Its value, as it is spelled.
    pub(crate) value: &'a str,
    /// Where it stands in the object's text, from the quote that opens its name to the end of its
    /// value.
    pub(crate) at: Range<usize>,
}

impl<'a> Object<'a> {
    /// Reads the members of an object and nothing inside them. `None` if the text is no JSON
    /// object, or if a name holds half of a surrogate pair.
    pub(crate) fn read(text: &'a str) -> Option<Self> {
        let mut reader = serde_json::Deserializer::from_str(text);
        let spelled = reader.deserialize_map(Spelled).ok()?;
        reader.end().ok()?;
        let mut members = Vec::with_capacity(spelled.len());
        for (name, value) in spelled {
            let at = place_in(text, name.get())?.start..place_in(text, value.get())?.end;
            members.push(Member {
                name: string(name.get())?,
                value: value.get(),
                at,
            });
        }
        let repeated = repeated(&members);
        Some(Self {
            text,
            members,
            repeated,
        })
    }

    /// Its members, in their order.
    pub(crate) fn members(&self) -> &[Member<'a>] {
        &self.members
    }

    /// The value of a member, as it is spelled; the first if there are several of that name.
    pub(crate) fn get(&self, name: &str) -> Option<&'a str> {
        let found = self.members.iter().find(|member| member.name == name)?;
        Some(found.value)
    }

    /// Whether there is a member of that name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// A name that is there twice.
    pub(crate) fn repeated(&self) -> Option<&str> {
        self.repeated.as_deref()
    }
}

/// Sorted, not compared with each other: an object may have many members.
fn repeated<'a>(members: &[Member<'a>]) -> Option<Cow<'a, str>> {
    let mut names: Vec<&Cow<'a, str>> = members.iter().map(|member| &member.name).collect();
    names.sort_unstable();
    let twice = names.windows(2).find(|pair| pair.first() == pair.last())?;
    twice.first().map(|name| Cow::clone(name))
}

struct Spelled;

impl<'de> Visitor<'de> for Spelled {
    type Value = Vec<(&'de RawValue, &'de RawValue)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = map.next_entry()? {
            members.push(member);
        }
        Ok(members)
    }
}

/// A JSON string decoded, borrowed where nothing in it is escaped; `None` for any other value and
/// for half of a surrogate pair.
pub(crate) fn string(value: &str) -> Option<Cow<'_, str>> {
    let inner = value.strip_prefix('"')?.strip_suffix('"')?;
    if inner.contains(['\\', '"']) || inner.chars().any(|c| c < ' ') {
        return serde_json::from_str(value).ok().map(Cow::Owned);
    }
    Some(Cow::Borrowed(inner))
}

/// A text as a JSON string.
pub(crate) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// The elements of a JSON array, as they are spelled; `None` if the text is no array.
pub(crate) fn elements(text: &str) -> Option<Vec<&str>> {
    let elements: Vec<&RawValue> = serde_json::from_str(text).ok()?;
    Some(elements.into_iter().map(RawValue::get).collect())
}

/// Where a slice of `whole` stands in it; `None` if it is no slice of it.
pub(crate) fn place_in(whole: &str, part: &str) -> Option<Range<usize>> {
    let start = part.as_ptr().addr().checked_sub(whole.as_ptr().addr())?;
    let end = start.checked_add(part.len())?;
    (end <= whole.len()).then_some(start..end)
}

/// What is put in the place of parts of a text.
#[derive(Clone, Debug, Default)]
pub(crate) struct Splices(Vec<(Range<usize>, String)>);

impl Splices {
    /// Puts `text` in the place of what stands at `range`; an empty range inserts. Of several
    /// insertions at one place the first comes first.
    pub(crate) fn put(&mut self, range: Range<usize>, text: impl Into<String>) {
        self.0.push((range, text.into()));
    }

    /// The text with all of them; `None` if two overlap, or one lies outside.
    pub(crate) fn apply(mut self, text: &str) -> Option<String> {
        self.0
            .sort_by_key(|(range, _)| (range.start, range.end > range.start));
        let added: usize = self.0.iter().map(|(_, text)| text.len()).sum();
        let mut result = String::with_capacity(text.len() + added);
        let mut from = 0;
        for (range, put) in self.0 {
            result.push_str(text.get(from..range.start)?);
            result.push_str(&put);
            from = range.end.max(range.start);
        }
        result.push_str(text.get(from..)?);
        Some(result)
    }
}

/// Changes to the members of one object.
#[derive(Clone, Debug)]
pub(crate) struct Edit<'o, 'a> {
    object: &'o Object<'a>,
    /// Of each member: what becomes of it.
    fates: Vec<Fate>,
    first: Vec<String>,
    last: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Fate {
    Kept,
    Replaced(String),
    Removed,
}

impl<'o, 'a> Edit<'o, 'a> {
    /// None yet.
    pub(crate) fn of(object: &'o Object<'a>) -> Self {
        Self {
            object,
            fates: vec![Fate::Kept; object.members.len()],
            first: Vec::new(),
            last: Vec::new(),
        }
    }

    /// Nothing changes.
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_empty()
            && self.last.is_empty()
            && self.fates.iter().all(|fate| *fate == Fate::Kept)
    }

    fn decide(&mut self, name: &str, fate: &Fate) -> bool {
        let mut found = false;
        for (member, its) in self.object.members.iter().zip(&mut self.fates) {
            if member.name == name {
                *its = fate.clone();
                found = true;
            }
        }
        found
    }

    /// Takes every member of that name out, with its comma. Whether there was one.
    pub(crate) fn remove(&mut self, name: &str) -> bool {
        self.decide(name, &Fate::Removed)
    }

    /// Puts JSON text in the place of the value of every member of that name. Whether there was
    /// one.
    pub(crate) fn replace(&mut self, name: &str, value: &str) -> bool {
        self.decide(name, &Fate::Replaced(value.to_owned()))
    }

    /// Puts a member before all others.
    pub(crate) fn insert_first(&mut self, name: &str, value: &str) {
        self.first.push(format!("{}:{value}", quoted(name)));
    }

    /// Puts a member after all others.
    pub(crate) fn insert_last(&mut self, name: &str, value: &str) {
        self.last.push(format!("{}:{value}", quoted(name)));
    }

    /// Replaces where there is one, else puts it at the end.
    pub(crate) fn set(&mut self, name: &str, value: &str) {
        if !self.replace(name, value) {
            self.insert_last(name, value);
        }
    }

    /// The object's text with the changes. `None` only if positions are wrong, which would be a
    /// fault of this module.
    pub(crate) fn text(self) -> Option<String> {
        let Self {
            object,
            fates,
            first,
            last,
        } = self;
        let members = &object.members;
        let mut splices = Splices::default();
        let start = match members.first() {
            Some(member) => member.at.start,
            None => object.text.find('{')? + 1,
        };
        let end = members.last().map_or(start, |member| member.at.end);
        let anything_kept = fates.iter().any(|fate| *fate != Fate::Removed);
        if !first.is_empty() {
            let comma = if anything_kept { "," } else { "" };
            splices.put(start..start, format!("{}{comma}", first.join(",")));
        }
        // A removed member takes the comma before it along, or, where nothing before it is kept,
        // the one behind it.
        let mut kept_before = false;
        let mut previous_end = start;
        for (index, (member, fate)) in members.iter().zip(fates).enumerate() {
            match fate {
                Fate::Kept => kept_before = true,
                Fate::Replaced(value) => {
                    splices.put(member.at.end - member.value.len()..member.at.end, value);
                    kept_before = true;
                }
                Fate::Removed if kept_before => splices.put(previous_end..member.at.end, ""),
                Fate::Removed => {
                    let next = members.get(index + 1).map(|next| next.at.start);
                    splices.put(member.at.start..next.unwrap_or(member.at.end), "");
                }
            }
            previous_end = member.at.end;
        }
        if !last.is_empty() {
            let comma = if anything_kept || !first.is_empty() {
                ","
            } else {
                ""
            };
            splices.put(end..end, format!("{comma}{}", last.join(",")));
        }
        splices.apply(object.text)
    }
}

#[cfg(test)]
mod tests;
