//! One POST: its messages go to a session, and what is said about them comes back.

use std::sync::Arc;

use axum::{
    body::Body,
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use counterfoil_core::PrincipalId;
use counterfoil_mcp::{
    framing::{self, Id, Message, Request, RpcError, Unreadable, codes, error_text, read},
    streamable::{Accepts, LEGACY, events, joined, json_response, refuse},
};
use http::{HeaderValue, StatusCode, header, request::Parts};
use serde_json::value::RawValue;
use tokio::{
    sync::{OwnedSemaphorePermit, oneshot},
    time::Instant,
};

use super::{
    Shared, no_seat,
    outflow::{Fresh, Outflow, Outlet},
    peer::{Form, Said},
    seats::{InUse, NoSeat},
    spoken::{ENVELOPE, Era, SESSION, Spoken, VERSION, Verdict, era_of, facts, line},
};
use crate::{
    keyless::Channel,
    session::Incoming,
    wire::{Handed, HttpFacts, Ticket},
};

/// One POST.
pub(super) struct Exchange<'a> {
    shared: &'a Arc<Shared>,
    principal: &'a PrincipalId,
    parts: &'a Parts,
    accepts: Accepts,
    room: Arc<OwnedSemaphorePermit>,
    channel: Channel,
    facts: Arc<HttpFacts>,
}

/// An answer, and where it is told what became of it.
type Answer = (Bytes, oneshot::Sender<Handed>);

/// How its answer is written.
struct Manner {
    accepts: Accepts,
    /// The newer era has statuses for its errors; whether the request held what that era demands.
    modern: Option<bool>,
    batch: bool,
    /// A session that the answer names.
    fresh: Option<(Fresh, Option<HeaderValue>)>,
}

impl<'a> Exchange<'a> {
    pub(super) fn new(
        shared: &'a Arc<Shared>,
        principal: &'a PrincipalId,
        parts: &'a Parts,
        accepts: Accepts,
        room: OwnedSemaphorePermit,
    ) -> Self {
        let session = match era_of(&parts.headers) {
            Era::Legacy => line(&parts.headers, SESSION),
            Era::Modern => None,
        };
        Self {
            shared,
            principal,
            parts,
            accepts,
            room: Arc::new(room),
            channel: shared.names.channel(parts, session),
            facts: Arc::new(facts(&parts.headers)),
        }
    }

    pub(super) async fn body(self, body: &Bytes) -> Response {
        match read(body, ENVELOPE) {
            Err(unreadable) => refuse(&unreadable),
            Ok(framing::Incoming::Single(Message::Request(request))) => {
                self.request(&request, body).await
            }
            Ok(framing::Incoming::Single(Message::Notification(notification))) => {
                let spoken = Spoken::of(&notification.method, notification.params);
                let in_session = self.parts.headers.contains_key(SESSION);
                if notification.method == "notifications/cancelled" && !in_session {
                    // Without a session its id may be another client's too. Who does not wait
                    // ends the connection.
                    return StatusCode::ACCEPTED.into_response();
                }
                self.told(spoken.era(&self.parts.headers), body).await
            }
            Ok(framing::Incoming::Single(Message::Response(_))) => {
                self.told(era_of(&self.parts.headers), body).await
            }
            Ok(framing::Incoming::Batch(messages)) => self.batch(messages, body).await,
        }
    }

    /// The session of a message that opens none.
    fn seat(&self, era: Era) -> Result<InUse, NoSeat> {
        match (era, self.parts.headers.contains_key(SESSION)) {
            (Era::Legacy, true) => {
                let name = line(&self.parts.headers, SESSION).unwrap_or_default();
                let seat = self.shared.seats.find(name, self.principal);
                seat.ok_or(NoSeat::Unknown)
            }
            (Era::Legacy, false) | (Era::Modern, _) => self.shared.seats.shared(self.principal),
        }
    }

    fn incoming(&self, text: Bytes, ticket: Ticket) -> Incoming {
        Incoming {
            text,
            ticket,
            channel: self.channel,
            http: Some(Arc::clone(&self.facts)),
        }
    }

    /// On a task of its own: a client that goes away does not leave it in the middle.
    fn hand_on(&self, seat: &InUse, incoming: Vec<Incoming>) -> tokio::task::JoinHandle<()> {
        let (seat, room) = (seat.clone(), Arc::clone(&self.room));
        tokio::spawn(async move {
            for incoming in incoming {
                seat.seat().conversation.receive(incoming).await;
            }
            drop((seat, room));
        })
    }

    /// A message that wants no answer. It is taken before the client goes on.
    async fn told(&self, era: Era, text: &Bytes) -> Response {
        let seat = match self.seat(era) {
            Ok(seat) => seat,
            Err(why) => return no_seat(why),
        };
        let ticket = seat.seat().peer.ticket();
        let taken = self.hand_on(&seat, vec![self.incoming(text.clone(), ticket)]);
        let _ = tokio::time::timeout(self.shared.bounds.quiet_for, taken).await;
        StatusCode::ACCEPTED.into_response()
    }

    async fn request(&self, request: &Request<'_>, text: &Bytes) -> Response {
        let headers = &self.parts.headers;
        let spoken = Spoken::of(&request.method, request.params);
        let era = spoken.era(headers);
        if era == Era::Modern
            && let Err(error) = spoken.check(headers)
        {
            let id = Some(request.id.clone());
            return refuse(&Unreadable { id, error });
        }
        let opens = era == Era::Legacy && request.method == "initialize";
        let (seat, fresh) = if opens {
            match self.opened() {
                Ok((seat, fresh)) => (seat, Some(fresh)),
                Err(why) => return no_seat(why),
            }
        } else {
            match self.seat(era) {
                Ok(seat) => (seat, None),
                Err(why) => return no_seat(why),
            }
        };
        let form = Form {
            streams: self.accepts.stream,
            // Before the handshake nobody expects anything else.
            for_others: !opens,
        };
        let (tickets, said) = seat.seat().peer.expect(1, form);
        let incoming = tickets
            .iter()
            .map(|ticket| self.incoming(text.clone(), *ticket));
        let incoming = incoming.collect();
        let waiting = tickets.iter().map(|ticket| (*ticket, request.id.clone()));
        let outlet = Outlet::new(
            said,
            waiting.collect(),
            seat.clone(),
            Arc::clone(&self.room),
        );
        self.hand_on(&seat, incoming);
        let manner = Manner {
            accepts: self.accepts,
            modern: (era == Era::Modern).then_some(spoken.is_complete),
            batch: false,
            fresh,
        };
        self.answered(outlet, Vec::new(), manner).await
    }

    /// A session of its own, for `initialize`.
    fn opened(&self) -> Result<(InUse, (Fresh, Option<HeaderValue>)), NoSeat> {
        let seats = &self.shared.seats;
        let (name, seat) = seats.named(self.principal)?;
        // Hex digits can always be sent.
        let value = HeaderValue::try_from(&name).ok();
        Ok((seat, (Fresh::new(Arc::clone(seats), name), value)))
    }

    /// Only revision 2025-03-26 has batches; it is what a request without a version speaks. Its
    /// messages go on one by one, in their order.
    async fn batch(
        &self,
        messages: Vec<Result<Message<'_>, Unreadable>>,
        body: &Bytes,
    ) -> Response {
        let version = line(&self.parts.headers, VERSION);
        if version.is_some_and(|version| version != LEGACY[2]) {
            let error = RpcError::new(
                codes::INVALID_REQUEST,
                "Invalid request: this revision has no batches; send one message at a time",
            );
            return json_response(StatusCode::BAD_REQUEST, error_text(None, &error));
        }
        let seat = match self.seat(Era::Legacy) {
            Ok(seat) => seat,
            Err(why) => return no_seat(why),
        };
        // The same texts again: it was just read as a list.
        let texts: Vec<&RawValue> = serde_json::from_slice(body).unwrap_or_default();
        let peer = &seat.seat().peer;
        let is_request =
            |message: &Result<Message<'_>, Unreadable>| matches!(message, Ok(Message::Request(_)));
        let form = Form {
            streams: self.accepts.stream,
            for_others: true,
        };
        let requests = messages.iter().filter(|m| is_request(m)).count();
        let (tickets, said) = peer.expect(requests, form);
        let mut tickets = tickets.into_iter();
        let (mut incoming, mut waiting) = (Vec::new(), Vec::new());
        let mut refused: Vec<Answer> = Vec::new();
        for (message, text) in messages.into_iter().zip(texts) {
            let text = body.slice_ref(text.get().as_bytes());
            match message {
                Err(unreadable) => {
                    let text = error_text(unreadable.id.as_ref(), &unreadable.error);
                    // Nobody asks what became of it.
                    refused.push((text, oneshot::channel().0));
                }
                Ok(Message::Request(request)) => {
                    let ticket = tickets.next().unwrap_or_else(|| peer.ticket());
                    waiting.push((ticket, request.id));
                    incoming.push(self.incoming(text, ticket));
                }
                Ok(Message::Notification(_) | Message::Response(_)) => {
                    incoming.push(self.incoming(text, peer.ticket()));
                }
            }
        }
        let outlet = Outlet::new(said, waiting, seat.clone(), Arc::clone(&self.room));
        self.hand_on(&seat, incoming);
        let manner = Manner {
            accepts: self.accepts,
            modern: None,
            batch: true,
            fresh: None,
        };
        self.answered(outlet, refused, manner).await
    }

    /// Waits until it is known what the answer looks like.
    async fn answered(
        &self,
        mut outlet: Outlet,
        mut answers: Vec<Answer>,
        mut manner: Manner,
    ) -> Response {
        let bounds = &self.shared.bounds;
        let quiet = tokio::time::sleep_until(Instant::now() + bounds.quiet_for);
        tokio::pin!(quiet);
        let first = loop {
            tokio::select! {
                biased;
                said = outlet.next() => match said {
                    None => return self.complete(&outlet, answers, manner),
                    Some(Said::Answer(text, handed)) => {
                        answers.push((text, handed));
                        if outlet.is_complete() {
                            return self.complete(&outlet, answers, manner);
                        }
                    }
                    Some(news @ Said::Message { .. }) => break Some(news),
                },
                () = quiet.as_mut(), if manner.accepts.stream => break None,
            }
        };
        let said = answers
            .into_iter()
            .map(|(text, handed)| Said::Answer(text, handed));
        let said = said.chain(first).collect();
        let (fresh, name) = manner.fresh.take().unzip();
        let stream = Outflow::events(said, Some(outlet), fresh).alive(bounds.beat_every);
        named(events(Body::from_stream(stream)), name.flatten())
    }

    /// All that there will be is there.
    fn complete(&self, outlet: &Outlet, answers: Vec<Answer>, manner: Manner) -> Response {
        if answers.is_empty() {
            return Self::unanswered(outlet, &manner);
        }
        let (mut texts, mut receipts) = (Vec::new(), Vec::new());
        for (text, handed) in answers {
            texts.push(text);
            receipts.push(handed);
        }
        // Read only where something hangs on it.
        let matters = manner.modern.is_some() || manner.fresh.is_some();
        let verdict = match &texts[..] {
            [text] if matters && !manner.batch => Some(Verdict::of(text)),
            [..] => None,
        };
        let status = match (&verdict, manner.modern) {
            (Some(verdict), Some(complete)) => verdict.status(complete),
            (Some(_) | None, _) => StatusCode::OK,
        };
        // An error opens no session.
        let fresh = match verdict {
            Some(Verdict::Result) => manner.fresh,
            Some(Verdict::Error(_)) | None => None,
        };
        let (fresh, name) = fresh.unzip();
        if !manner.accepts.json && status == StatusCode::OK {
            let said = texts
                .into_iter()
                .zip(receipts)
                .map(|(text, handed)| Said::Answer(text, handed));
            let stream = Outflow::events(said.collect(), None, fresh);
            return named(events(Body::from_stream(stream)), name.flatten());
        }
        let text = match &texts[..] {
            [text] if !manner.batch => text.clone(),
            texts => joined(texts),
        };
        let length = HeaderValue::from(text.len());
        let body = Body::from_stream(Outflow::whole(&text, receipts, fresh));
        let mut response = Response::new(body);
        *response.status_mut() = status;
        let headers = response.headers_mut();
        let kind = HeaderValue::from_static("application/json");
        headers.insert(header::CONTENT_TYPE, kind);
        headers.insert(header::CONTENT_LENGTH, length);
        named(response, name.flatten())
    }

    /// Cancelled, or the session ended.
    fn unanswered(outlet: &Outlet, manner: &Manner) -> Response {
        if !outlet.is_cut() || outlet.ids().next().is_none() {
            return StatusCode::ACCEPTED.into_response();
        }
        let why = "The session ended before the answer came";
        let error = RpcError::new(codes::INTERNAL, why);
        let text = |id: &Id| error_text(Some(id), &error);
        let texts: Vec<Bytes> = outlet.ids().map(text).collect();
        match &texts[..] {
            [text] if !manner.batch => json_response(StatusCode::OK, text.clone()),
            texts => json_response(StatusCode::OK, joined(texts)),
        }
    }
}

fn named(mut response: Response, name: Option<HeaderValue>) -> Response {
    if let Some(name) = name {
        response.headers_mut().insert(SESSION, name);
    }
    response
}
