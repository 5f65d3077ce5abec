//! The one row, and what a store does with it.

use std::{sync::LazyLock, time::Duration};

use counterfoil_core::{
    Event, Fingerprint, Identity, Illegal, Kept, Key, Mode, OperationId, Presented, PrincipalId,
    Receipt, Retention, State, Status, Target, Timestamp, Token, WorkspaceId, next,
};

pub(super) const NOW: Timestamp = Timestamp::from_millis(1_000_000);

/// What stands between the callers and the effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    /// Somebody else's upstream, guarded; its error answers may or may not leave something behind.
    Opaque,
    /// The same, and it may answer with a question first.
    Asking,
    /// A guarded handler whose effect and committed flag are one transaction.
    OwnTransaction,
    /// Dispatched: two workers, an upstream that honours the provider key.
    ProviderKey,
    /// Dispatched: two workers, an upstream that honours nothing.
    NoProviderKey,
}

impl Kind {
    pub(super) const fn mode(self) -> Mode {
        match self {
            Self::Opaque | Self::Asking | Self::OwnTransaction => Mode::Guarded,
            Self::ProviderKey | Self::NoProviderKey => Mode::Dispatched,
        }
    }
}

/// The row of the store. The clock stands; a lease is alive or has lapsed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Row {
    pub(super) status: Status,
    pub(super) token: u8,
    pub(super) lapsed: bool,
    pub(super) kept: Kept,
    pub(super) rounds: Vec<u8>,
    /// Which attempt's answer is stored.
    pub(super) reply: Option<u32>,
}

impl Row {
    pub(super) fn receipt(&self, kind: Kind) -> Receipt {
        let finished = self.status.state.is_finished();
        Receipt {
            operation_id: OperationId::from_bytes([7; 16]),
            identity: Identity {
                workspace: WorkspaceId::new("w").unwrap(),
                principal: PrincipalId::new("p").unwrap(),
                target: Target::new("MCP pay"),
                key: Key::new("k").unwrap(),
            },
            fingerprint: *ONE,
            version: 1,
            mode: kind.mode(),
            status: self.status.clone(),
            token: Token::new([self.token; 16]),
            created_at: NOW,
            lease_until: NOW.plus(Duration::from_secs(u64::from(!self.lapsed))),
            hard_deadline: NOW.plus(Duration::from_secs(60)),
            finished_at: finished.then_some(NOW),
            retention: Retention::default(),
            kept: self.kept,
            rounds: self.rounds.iter().map(|inputs| [*inputs; 32]).collect(),
            provider_window: Duration::ZERO,
        }
    }

    /// What a store does with an event; `answer` is the attempt whose answer comes with it.
    pub(super) fn apply(&mut self, event: Event, answer: Option<u32>) -> Result<(), Illegal> {
        let was_finished = self.status.state.is_finished();
        self.status = next(&self.status, event)?;
        self.rounds.truncate(usize::from(self.status.round));
        if self.status.state.is_finished() && !was_finished {
            self.reply = answer;
            self.kept = match answer {
                Some(_) => Kept::Stored,
                None => Kept::AnswerLost,
            };
        }
        if self.status.state == State::InputRequired {
            self.lapsed = false;
        }
        Ok(())
    }
}

pub(super) static ONE: LazyLock<Fingerprint> = LazyLock::new(|| Fingerprint::canonical("", b"{}"));
pub(super) static OTHER: LazyLock<Fingerprint> =
    LazyLock::new(|| Fingerprint::canonical("", b"[]"));

pub(super) fn presented(inputs: Option<u8>, token: Option<u8>) -> Presented {
    Presented {
        fingerprint: *ONE,
        inputs: inputs.map(|inputs| [inputs; 32]),
        token: token.map(|token| Token::new([token; 16])),
    }
}
