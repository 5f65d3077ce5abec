use crate::Verdict;

/// The most attempts one operation may have; beyond it an admission is refused.
pub const MAX_ATTEMPTS: usize = 1000;

/// What is established about the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// It happened.
    Happened,
    /// Proven: nothing happened.
    None,
    /// Nobody knows (yet).
    Unknown,
}

impl Effect {
    /// The word used on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Happened => "happened",
            Self::None => "none",
            Self::Unknown => "unknown",
        }
    }
}

/// What is known of one attempt. Knowledge never shrinks (invariant I3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Knowledge {
    /// Under way; nothing is known yet.
    Open,
    /// Proven: not one byte was sent, or everything was rolled back.
    NotApplied,
    /// Bytes may have been sent and no answer came.
    MaybeSent,
    /// It ended in a question; proven not to have applied anything before.
    Asked,
    /// It ended in a question; what it did before asking is not known.
    AskedUnknown,
    /// A definite error answer; what it left behind is not established.
    RefusedUnknown,
    /// A definite error answer; established that it left nothing behind.
    RefusedNone,
    /// Cancelled before any effect; proven.
    Stopped,
    /// It happened.
    Happened,
}

impl Knowledge {
    const ALL: [(Self, u8); 9] = [
        (Self::Open, 0),
        (Self::NotApplied, 1),
        (Self::MaybeSent, 2),
        (Self::Asked, 3),
        (Self::AskedUnknown, 4),
        (Self::RefusedUnknown, 5),
        (Self::RefusedNone, 6),
        (Self::Stopped, 7),
        (Self::Happened, 8),
    ];

    /// Every value, for exhaustive exploration.
    pub fn all() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().map(|(knowledge, _)| knowledge)
    }

    /// No further evidence about this attempt is expected.
    #[must_use]
    pub const fn is_settled(self) -> bool {
        !matches!(self, Self::Open | Self::MaybeSent)
    }

    /// The attempt may have left an effect behind.
    #[must_use]
    pub const fn may_have_applied(self) -> bool {
        match self {
            Self::Open
            | Self::MaybeSent
            | Self::AskedUnknown
            | Self::RefusedUnknown
            | Self::Happened => true,
            Self::NotApplied | Self::Asked | Self::RefusedNone | Self::Stopped => false,
        }
    }

    const fn to_byte(self) -> u8 {
        self as u8
    }

    fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find_map(|(knowledge, code)| (code == byte).then_some(knowledge))
    }
}

/// What is known of every attempt of an operation, the first one first. Attempt numbers start at
/// 1 and strictly increase (invariant I1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Attempts(Vec<Knowledge>);

impl Attempts {
    /// The number of the latest attempt; 0 before the first.
    #[must_use]
    pub fn latest(&self) -> u32 {
        u32::try_from(self.0.len()).unwrap_or(u32::MAX)
    }

    /// What is known of attempt `number`.
    #[must_use]
    pub fn get(&self, number: u32) -> Option<Knowledge> {
        let index = usize::try_from(number.checked_sub(1)?).ok()?;
        self.0.get(index).copied()
    }

    /// All of them, the first one first.
    pub fn iter(&self) -> impl Iterator<Item = Knowledge> + '_ {
        self.0.iter().copied()
    }

    pub(crate) fn set(&mut self, number: u32, knowledge: Knowledge) {
        let slot = number
            .checked_sub(1)
            .and_then(|index| usize::try_from(index).ok())
            .and_then(|index| self.0.get_mut(index));
        if let Some(slot) = slot {
            *slot = knowledge;
        }
    }

    pub(crate) fn push(&mut self, knowledge: Knowledge) {
        self.0.push(knowledge);
    }

    /// A verdict on the operation as a whole: it happened, so what is not settled counts as the
    /// one that did it; or nothing happened, which clears every attempt that may have applied.
    pub(crate) fn resolve(&mut self, verdict: Verdict) {
        for slot in &mut self.0 {
            match verdict {
                Verdict::Happened => {
                    if !slot.is_settled() || *slot == Knowledge::AskedUnknown {
                        *slot = Knowledge::Happened;
                    }
                }
                Verdict::NotHappened => {
                    if slot.may_have_applied() {
                        *slot = Knowledge::RefusedNone;
                    }
                }
            }
        }
    }

    /// The bytes a store keeps: one an attempt.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        self.0.iter().map(|knowledge| knowledge.to_byte()).collect()
    }

    /// From the bytes a store kept; `None` if they are not such bytes.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes
            .iter()
            .map(|byte| Knowledge::from_byte(*byte))
            .collect::<Option<Vec<_>>>()
            .map(Self)
    }
}
