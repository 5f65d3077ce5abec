use std::{
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use rusqlite::{
    Connection,
    hooks::{AuthAction, AuthContext, Authorization},
};

/// The store's own tables begin with this.
pub(crate) const PREFIX: &str = "counterfoil_";
/// The number of virtual machine steps between two looks at the time.
const STEPS_PER_LOOK: i32 = 4000;

/// Whose statements run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Running {
    /// The store's own: everything is allowed.
    Store = 0,
    /// An application's, in the store's transaction.
    Handler = 1,
    /// An application's, on a reading connection.
    Reader = 2,
}

/// What a connection's statements may do at the moment, shared with its authorizer. The authorizer
/// stays set for good: setting it anew would throw away every prepared statement.
#[derive(Debug)]
pub(crate) struct Guard {
    running: AtomicU8,
    deadline_ms: AtomicU64,
    start: Instant,
}

impl Guard {
    /// Sets the authorizer and the time limit of `connection`.
    pub(crate) fn install(connection: &mut Connection) -> Result<Arc<Self>, rusqlite::Error> {
        let guard = Arc::new(Self {
            running: AtomicU8::new(Running::Store as u8),
            deadline_ms: AtomicU64::new(u64::MAX),
            start: Instant::now(),
        });
        let seen = Arc::clone(&guard);
        connection.authorizer(Some(move |context: AuthContext<'_>| seen.judge(&context)))?;
        let seen = Arc::clone(&guard);
        connection.progress_handler(STEPS_PER_LOOK, Some(move || seen.is_over()))?;
        Ok(guard)
    }

    /// From now on the statements are `running`'s, for at most `limit` if they are an application's.
    pub(crate) fn enter(&self, running: Running, limit: Duration) {
        let end = self.start.elapsed().saturating_add(limit).as_millis();
        self.deadline_ms
            .store(u64::try_from(end).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.running.store(running as u8, Ordering::Relaxed);
    }

    /// The statements are the store's own again.
    pub(crate) fn leave(&self) {
        self.deadline_ms.store(u64::MAX, Ordering::Relaxed);
        self.running.store(Running::Store as u8, Ordering::Relaxed);
    }

    /// The store's own turn in the middle of a handler; what to go back to with [`Self::back`].
    pub(crate) fn leave_for_own(&self) -> u8 {
        self.running.swap(Running::Store as u8, Ordering::Relaxed)
    }

    pub(crate) fn back(&self, running: u8) {
        self.running.store(running, Ordering::Relaxed);
    }

    /// The time of an application's statements is up.
    pub(crate) fn is_over(&self) -> bool {
        let deadline = self.deadline_ms.load(Ordering::Relaxed);
        deadline != u64::MAX && self.start.elapsed().as_millis() > u128::from(deadline)
    }

    fn judge(&self, context: &AuthContext<'_>) -> Authorization {
        let running = self.running.load(Ordering::Relaxed);
        let allowed = if running == Running::Store as u8 {
            true
        } else if running == Running::Handler as u8 {
            may_handler(&context.action)
        } else {
            may_reader(&context.action)
        };
        if allowed {
            Authorization::Allow
        } else {
            Authorization::Deny
        }
    }
}

fn is_own(table: &str) -> bool {
    table
        .get(..PREFIX.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(PREFIX))
}

/// In a transaction: anything but control over it, other files, settings, and our own tables.
#[allow(
    clippy::wildcard_enum_match_arm,
    reason = "the enum is non-exhaustive; what is not known is refused"
)]
fn may_handler(action: &AuthAction<'_>) -> bool {
    match *action {
        AuthAction::Select
        | AuthAction::Read { .. }
        | AuthAction::Function { .. }
        | AuthAction::Recursive
        | AuthAction::Analyze { .. }
        | AuthAction::CreateView { .. }
        | AuthAction::CreateTempView { .. }
        | AuthAction::DropView { .. }
        | AuthAction::DropTempView { .. } => true,
        AuthAction::Insert { table_name }
        | AuthAction::Update { table_name, .. }
        | AuthAction::Delete { table_name }
        | AuthAction::CreateTable { table_name }
        | AuthAction::CreateTempTable { table_name }
        | AuthAction::DropTable { table_name }
        | AuthAction::DropTempTable { table_name }
        | AuthAction::AlterTable { table_name, .. }
        | AuthAction::CreateIndex { table_name, .. }
        | AuthAction::CreateTempIndex { table_name, .. }
        | AuthAction::DropIndex { table_name, .. }
        | AuthAction::DropTempIndex { table_name, .. }
        | AuthAction::CreateTrigger { table_name, .. }
        | AuthAction::CreateTempTrigger { table_name, .. }
        | AuthAction::DropTrigger { table_name, .. }
        | AuthAction::DropTempTrigger { table_name, .. }
        | AuthAction::CreateVtable { table_name, .. }
        | AuthAction::DropVtable { table_name, .. } => !is_own(table_name),
        // The full-text index asks for it when it reads.
        AuthAction::Pragma {
            pragma_name,
            pragma_value: None,
        } => pragma_name.eq_ignore_ascii_case("data_version"),
        AuthAction::Reindex { index_name } => !is_own(index_name),
        _ => false,
    }
}

/// On a reading connection: queries.
fn may_reader(action: &AuthAction<'_>) -> bool {
    matches!(
        action,
        AuthAction::Select
            | AuthAction::Read { .. }
            | AuthAction::Function { .. }
            | AuthAction::Recursive
    )
}
