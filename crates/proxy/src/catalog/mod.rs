//! What is known of the upstream's tools, from the lists it sent.

mod listing;
mod tool;

pub(crate) use tool::{KEY_ARGUMENT, Tool};

use std::{collections::HashMap, sync::Arc};

/// Most tools that are known of one upstream. What comes after them counts as unknown, and so as
/// mutating.
pub(crate) const TOOLS_MAX: usize = 10_000;
/// Most pages of one list.
pub(crate) const PAGES_MAX: usize = 1_000;

/// The upstream's tools. A list comes in pages, the client's or one's own; the tools that were
/// known stay until a new list is complete.
#[derive(Debug, Default)]
pub(crate) struct Catalog {
    known: HashMap<String, Arc<Tool>>,
    reading: Option<Reading>,
    /// How often the upstream said that its list changed.
    changes: u64,
    /// How often it had said so when the newest complete list began.
    seen: Option<u64>,
    /// That list had more, or other things, than could be read.
    has_gaps: bool,
}

/// A list that is not complete yet.
#[derive(Debug)]
struct Reading {
    tools: HashMap<String, Arc<Tool>>,
    pages: usize,
    /// Not everything in it could be read.
    has_gaps: bool,
    /// As [`Catalog::changes`] at its first page.
    changes: u64,
}

/// What a page of `tools/list` was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Page {
    /// More follow; the cursor as JSON text.
    More(String),
    /// The last, or one page more than is read.
    Last,
    /// No list of tools. Nothing was learned.
    Unreadable,
}

impl Catalog {
    /// How often the upstream said that its list changed, up to now.
    pub(crate) const fn changes(&self) -> u64 {
        self.changes
    }

    /// Reads one result of `tools/list`. `first`: it was asked for without a cursor, when this was
    /// [`Self::changes`]: a change that overtakes the list is not in it. A page that continues no
    /// list that is being read adds what it holds.
    pub(crate) fn take_page(&mut self, result: &str, first: Option<u64>) -> Page {
        let Some((object, tools)) = listing::page(result) else {
            return Page::Unreadable;
        };
        if let Some(changes) = first {
            self.reading = Some(Reading {
                tools: HashMap::new(),
                pages: 0,
                has_gaps: false,
                changes,
            });
        }
        let cursor = listing::next_cursor(&object);
        let old = &self.known;
        let Some(reading) = &mut self.reading else {
            let known = &mut self.known;
            for tool in tools.into_iter().filter_map(Tool::read) {
                add(known, tool);
            }
            return cursor.map_or(Page::Last, |cursor| Page::More(cursor.to_owned()));
        };
        reading.pages += 1;
        for entry in tools {
            let Some(mut tool) = Tool::read(entry) else {
                reading.has_gaps = true;
                continue;
            };
            if !reading.tools.contains_key(&tool.name)
                && let Some(same) = old.get(&tool.name).filter(|old| ***old == tool)
            {
                // Its schema may be compiled already.
                if reading.tools.len() < TOOLS_MAX {
                    reading
                        .tools
                        .insert(std::mem::take(&mut tool.name), Arc::clone(same));
                } else {
                    reading.has_gaps = true;
                }
                continue;
            }
            reading.has_gaps |= !add(&mut reading.tools, tool);
        }
        reading.has_gaps |= cursor.is_some() && reading.pages >= PAGES_MAX;
        let more = cursor.filter(|_| reading.pages < PAGES_MAX);
        if let Some(cursor) = more {
            return Page::More(cursor.to_owned());
        }
        if let Some(read) = self.reading.take() {
            self.known = read.tools;
            self.seen = Some(read.changes);
            self.has_gaps = read.has_gaps;
        }
        Page::Last
    }

    /// A tool of that name. While a new list is being read, the stricter of what both say.
    pub(crate) fn get(&self, name: &str) -> Option<Arc<Tool>> {
        let new = self
            .reading
            .as_ref()
            .and_then(|reading| reading.tools.get(name));
        let known = match (self.known.get(name), new) {
            (Some(old), Some(new)) if old.read_only_hint == Some(true) => new,
            (Some(old), Some(_) | None) => old,
            (None, Some(new)) => new,
            (None, None) => return None,
        };
        Some(Arc::clone(known))
    }

    /// The upstream said that its list of tools changed, or it is another process now.
    pub(crate) fn list_changed(&mut self) {
        self.changes += 1;
    }

    /// Every tool of the newest complete list is known: a name that is not, was not in it.
    pub(crate) const fn knows_all(&self) -> bool {
        !self.has_gaps
    }

    /// No complete list was read since the last change: ask for one before relying on it.
    pub(crate) fn is_stale(&self) -> bool {
        self.seen != Some(self.changes)
    }
}

/// A name that is there twice has the stricter reading of both. `false`: there are too many.
fn add(tools: &mut HashMap<String, Arc<Tool>>, tool: Tool) -> bool {
    if let Some(other) = tools.get_mut(&tool.name) {
        if **other != tool {
            *other = Arc::new(other.stricter(&tool));
        }
    } else if tools.len() < TOOLS_MAX {
        tools.insert(tool.name.clone(), Arc::new(tool));
    } else {
        return false;
    }
    true
}

#[cfg(test)]
mod tests;
