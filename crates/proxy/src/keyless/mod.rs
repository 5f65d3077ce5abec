//! Calls without a key, and what is known of the delivery of each answer (contract §10, I5).
//!
//! A call without a key gets one made from its own digest and a count, so that its reservation in
//! the store is at the same time the durable note that it started: nothing else has to be written
//! before it is dispatched, and after a crash the next identical call finds it. What became of the
//! *answer* is kept in a table beside the receipts, written soon after; what was lost of it in a
//! crash counts as unproven.

use counterfoil_core::{Key, OperationId};

/// What tells identical calls: SHA-256 over workspace, principal, upstream instance, the client's
/// name, the tool and the canonical arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CallDigest(pub(crate) [u8; 32]);

/// One connection of a client: a later message on it proves that what was flushed to it before
/// was received. Random; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Channel(pub(crate) [u8; 16]);

/// What a mutating call without a key gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Pairing {
    /// It runs under this key of its own.
    Run(Key),
    /// It is paired with the call under this key and target: it gets that one's answer.
    Attach {
        /// The earlier call's key.
        key: Key,
        /// The operation part of its target.
        operation: String,
    },
    /// It may be a duplicate of this operation, and nothing proves that it is or is not.
    Ask(OperationId),
}
