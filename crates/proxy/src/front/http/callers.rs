//! Who calls: told by the `Authorization` header, which goes no further than here.

use std::collections::HashSet;

use counterfoil_core::PrincipalId;
use http::{HeaderMap, HeaderValue, header};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use super::names::hex;
use crate::{InvalidSettings, Listening};

/// No known caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unauthorized {
    /// No credential.
    #[error("no credential; send `Authorization: Bearer <token>`")]
    Missing,
    /// A wrong one.
    #[error("this credential belongs to no client that is configured here")]
    Invalid,
    /// More than one header.
    #[error("more than one Authorization header; send one")]
    Several,
}

/// The configured clients; if there are none, everybody.
pub(super) struct Callers {
    known: Vec<(PrincipalId, [u8; 32])>,
    local: PrincipalId,
}

impl Callers {
    /// # Errors
    /// [`InvalidSettings::Client`] names a client without a usable name or a token of its own.
    pub(super) fn new(listening: &Listening) -> Result<Self, InvalidSettings> {
        let mut known = Vec::with_capacity(listening.clients.len());
        let (mut names, mut tokens) = (HashSet::new(), HashSet::new());
        for (name, token) in &listening.clients {
            let wrong = || InvalidSettings::Client(name.clone());
            let token = token.trim();
            // A space would end it, and what is no header's text could never be sent.
            let sendable = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
            if !sendable || !names.insert(name) || !tokens.insert(token) {
                return Err(wrong());
            }
            let principal = PrincipalId::new(name.as_str()).map_err(|_| wrong())?;
            known.push((principal, Sha256::digest(token).into()));
        }
        let local =
            PrincipalId::new("local").map_err(|_| InvalidSettings::Client("local".to_owned()))?;
        Ok(Self { known, local })
    }

    /// Whose request this is.
    pub(super) fn of(&self, headers: &HeaderMap) -> Result<PrincipalId, Unauthorized> {
        let mut lines = headers.get_all(header::AUTHORIZATION).iter();
        match (lines.next(), lines.next()) {
            (Some(_), Some(_)) => Err(Unauthorized::Several),
            (None, _) if self.known.is_empty() => Ok(self.local.clone()),
            (None, _) => Err(Unauthorized::Missing),
            (Some(given), None) if self.known.is_empty() => {
                let digest = hex(&Sha256::digest(given.as_bytes())[..16]);
                PrincipalId::new(format!("bearer-{digest}")).map_err(|_| Unauthorized::Invalid)
            }
            (Some(given), None) => self.known(given).ok_or(Unauthorized::Invalid),
        }
    }

    fn known(&self, given: &HeaderValue) -> Option<PrincipalId> {
        let (scheme, token) = given.to_str().ok()?.trim().split_once(' ')?;
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let digest: [u8; 32] = Sha256::digest(token.trim()).into();
        let mut found = None;
        // All of them, always: time tells neither whether one fits nor which.
        for (principal, known) in &self.known {
            if bool::from(known.ct_eq(&digest)) {
                found = Some(principal);
            }
        }
        found.cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn callers(clients: &[(&str, &str)]) -> Result<Callers, InvalidSettings> {
        let owned = |(name, token): &(&str, &str)| ((*name).to_owned(), (*token).to_owned());
        Callers::new(&Listening {
            clients: clients.iter().map(owned).collect(),
            ..Listening::default()
        })
    }

    fn headers(lines: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(header::AUTHORIZATION, line.parse().unwrap());
        }
        headers
    }

    #[test]
    fn i4_configured_clients_are_told_apart_by_their_tokens() {
        let callers = callers(&[("ann", "t-ann"), ("bob", "t-bob")]).unwrap();
        for (lines, got) in [
            (&["Bearer t-ann"][..], Ok("ann")),
            (&["bearer  t-bob"], Ok("bob")),
            (&[], Err(Unauthorized::Missing)),
            (&["t-ann"], Err(Unauthorized::Invalid)),
            (&["Basic t-ann"], Err(Unauthorized::Invalid)),
            (&["Bearer t-an"], Err(Unauthorized::Invalid)),
            (&["Bearer "], Err(Unauthorized::Invalid)),
            (
                &["Bearer t-ann", "Bearer t-ann"],
                Err(Unauthorized::Several),
            ),
        ] {
            let of = callers.of(&headers(lines));
            let of = of.as_ref().map(PrincipalId::as_str).map_err(|why| *why);
            assert_eq!(of, got, "{lines:?}");
        }
    }

    #[test]
    fn i4_without_configured_clients_what_they_bring_tells_them_apart() {
        let callers = callers(&[]).unwrap();
        assert_eq!(callers.of(&headers(&[])).unwrap().as_str(), "local");
        let one = callers.of(&headers(&["Bearer one"])).unwrap();
        // The first 32 digits of `printf 'Bearer one' | sha256sum`.
        assert_eq!(one.as_str(), "bearer-0b84d71fd60e2e328bb359ce07a6c57c");
        assert_ne!(one, callers.of(&headers(&["Bearer two"])).unwrap());
        assert!(callers.of(&headers(&["Bearer one", "Bearer two"])).is_err());
    }

    #[test]
    fn clients_need_a_name_and_a_token_of_their_own() {
        for clients in [
            &[("", "t")][..],
            &[("a b", "t")],
            &[("a", "")],
            &[("a", " ")],
            &[("a", "t t")],
            &[("a", "t"), ("a", "u")],
            &[("a", "t"), ("b", "t")],
        ] {
            let wrong = callers(clients).map(drop).unwrap_err();
            assert!(matches!(wrong, InvalidSettings::Client(_)), "{clients:?}");
        }
    }
}
