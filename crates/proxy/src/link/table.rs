use std::collections::{HashMap, HashSet, VecDeque};

use bytes::Bytes;
use counterfoil_mcp::framing::Id;
use tokio::sync::oneshot;

use super::{Forwarded, Watch};
use crate::{
    raw::{self, Object},
    wire::{Failure, Ticket},
};

/// Who gets the answer to a request.
pub(super) enum Waiter {
    /// The client, as it comes.
    Client {
        ticket: Ticket,
        /// The client's id, if it was replaced.
        original: Option<Id>,
        is_modern: bool,
        watch: Watch,
        /// What is sent once more if its session has ended.
        again: Option<Box<Forwarded>>,
    },
    /// Somebody here.
    Here(oneshot::Sender<Result<Bytes, Failure>>),
}

/// A request in flight.
pub(super) struct Waiting {
    pub(super) waiter: Waiter,
    /// Who hears of what comes in between; `None`: nobody (any more).
    pub(super) about: Option<Ticket>,
    /// Its progress token as the upstream knows it.
    pub(super) token: Option<Box<str>>,
}

/// A progress token in use.
pub(super) struct Token {
    pub(super) about: Option<Ticket>,
    /// The client's token, if it was replaced.
    pub(super) original: Option<Box<str>>,
}

/// A progress token as the upstream is to know it, and the client's own where that differs.
pub(crate) struct TokenName {
    pub(crate) upstream: Box<str>,
    pub(crate) original: Option<Box<str>>,
}

/// Ids and tokens that are remembered when nobody waits for them any more.
const USED_MAX: usize = 1024;

/// Names that were used lately. What comes late for one of them must not be taken for what comes
/// for the next one of that name: a request that was given up may still be answered.
#[derive(Default)]
struct Used {
    names: HashSet<Box<str>>,
    order: VecDeque<Box<str>>,
}

impl Used {
    /// Whether it was not used lately; it is from now on.
    fn take(&mut self, name: &str) -> bool {
        if !self.names.insert(name.into()) {
            return false;
        }
        self.order.push_back(name.into());
        if self.order.len() > USED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.names.remove(&oldest);
        }
        true
    }
}

/// What is in flight, by the ids that the upstream knows.
#[derive(Default)]
pub(super) struct Table {
    pub(super) waiting: HashMap<Id, Waiting>,
    pub(super) tokens: HashMap<Box<str>, Token>,
    used_ids: Used,
    used_tokens: Used,
}

impl Table {
    /// Whether a request may have this id on its way to the upstream, which is its own from then
    /// on. Not one with an escape: it may come back spelled in another way.
    pub(super) fn take_id(&mut self, id: &Id) -> bool {
        !id.as_str().contains('\\')
            && !self.waiting.contains_key(id)
            && self.used_ids.take(id.as_str())
    }

    /// The same for a progress token.
    pub(super) fn take_token(&mut self, token: &str) -> bool {
        !self.tokens.contains_key(token) && self.used_tokens.take(token)
    }

    pub(super) fn insert(&mut self, id: Id, waiting: Waiting, token: Option<TokenName>) {
        let about = waiting.about;
        let mut waiting = waiting;
        if let Some(TokenName { upstream, original }) = token {
            let entry = Token { about, original };
            self.tokens.insert(upstream.clone(), entry);
            waiting.token = Some(upstream);
        }
        self.waiting.insert(id, waiting);
    }

    pub(super) fn remove(&mut self, id: &Id) -> Option<Waiting> {
        let waiting = self.waiting.remove(id)?;
        if let Some(token) = &waiting.token {
            self.tokens.remove(token);
        }
        Some(waiting)
    }

    /// Nothing is in flight that will be answered by itself.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.values().all(|waiting| {
            matches!(
                waiting.waiter,
                Waiter::Client {
                    watch: Watch::Standing,
                    ..
                }
            )
        })
    }

    /// The client's request under its own id: the upstream's id of it, and more.
    pub(super) fn of_client(&self, id: &Id) -> Option<(Id, Ticket, bool)> {
        self.waiting.iter().find_map(|(upstream, waiting)| {
            let Waiter::Client {
                ticket,
                original,
                is_modern,
                ..
            } = &waiting.waiter
            else {
                return None;
            };
            let own = original.as_ref().unwrap_or(upstream);
            (own == id).then(|| (upstream.clone(), *ticket, *is_modern))
        })
    }

    /// A request of 2026-07-28 by its ticket.
    pub(super) fn of_ticket(&self, wanted: Ticket) -> Option<Id> {
        self.waiting.iter().find_map(|(upstream, waiting)| {
            let is_it = matches!(
                &waiting.waiter,
                Waiter::Client { ticket, is_modern: true, .. } if *ticket == wanted
            );
            is_it.then(|| upstream.clone())
        })
    }

    /// From now on nobody hears of what comes for the request but its answer.
    pub(super) fn mute(&mut self, ticket: Ticket) {
        let waiting = self.waiting.values_mut().map(|waiting| &mut waiting.about);
        let tokens = self.tokens.values_mut().map(|token| &mut token.about);
        for about in waiting.chain(tokens) {
            if *about == Some(ticket) {
                *about = None;
            }
        }
    }
}

/// An id without escapes where it needs none: how it is known here if a server spells it anew.
pub(super) fn plain(id: &Id) -> Option<Id> {
    id.as_str().contains('\\').then_some(())?;
    let text = raw::string(id.as_str())?;
    Id::from_json(&raw::quoted(&text))
}

/// `whole` with its slice `part` replaced; unchanged if that is no slice of it.
pub(super) fn replaced(whole: &Bytes, part: &str, with: &str) -> Bytes {
    let place = std::str::from_utf8(whole)
        .ok()
        .and_then(|text| raw::place_in(text, part));
    let Some(place) = place else {
        return whole.clone();
    };
    let mut text = Vec::with_capacity(whole.len() + with.len());
    text.extend_from_slice(&whole[..place.start]);
    text.extend_from_slice(with.as_bytes());
    text.extend_from_slice(&whole[place.end..]);
    text.into()
}

/// A member of a member of … of a message, as it is spelled.
pub(super) fn member<'a>(text: &'a Bytes, path: &[&str]) -> Option<&'a str> {
    let text = std::str::from_utf8(text).ok()?;
    path.iter()
        .try_fold(text, |text, name| Object::read(text)?.get(name))
}

/// The progress token of a request, as it is spelled.
pub(super) fn progress_token(text: &Bytes) -> Option<Box<str>> {
    // Most requests have none; looking for the word is cheaper than reading.
    memchr::memmem::find(text, b"progressToken")?;
    member(text, &["params", "_meta", "progressToken"])
        .filter(|token| *token != "null")
        .map(Into::into)
}
