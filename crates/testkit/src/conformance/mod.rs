//! One suite for every store. Each case takes a [`Subject`] of its own, so that cases neither
//! share rows nor order.
//!
//! ```text
//! fn subject() -> Subject {
//!     let store = Arc::new(MemoryStore::new());
//!     Subject::new(move || {
//!         let store = Arc::clone(&store) as Arc<dyn Store>;
//!         Box::pin(async move { store })
//!     })
//! }
//! counterfoil_testkit::store_conformance!(subject());
//! ```
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "these are tests: each case is named after what it checks"
)]

pub mod admission;
pub mod atomic;
pub mod copying;
pub mod fence;
pub mod identity;
pub mod lease;
pub mod model;
pub mod races;
pub mod reading;
pub mod retention;
pub mod rounds;
mod scene;

use std::sync::Arc;

use counterfoil_store::{BoxFuture, Store};

type Open = dyn Fn() -> BoxFuture<'static, Arc<dyn Store>> + Send + Sync;

/// A store under test: how to open it. Every call of the closure opens the *same* data again, as
/// another process would; a store in memory hands out itself.
pub struct Subject {
    open: Box<Open>,
}

impl Subject {
    /// From the closure that opens it. What it captures (a temporary folder) lives as long as
    /// the subject.
    #[must_use]
    pub fn new(
        open: impl Fn() -> BoxFuture<'static, Arc<dyn Store>> + Send + Sync + 'static,
    ) -> Self {
        Self {
            open: Box::new(open),
        }
    }

    /// Opens it, once more.
    pub async fn open(&self) -> Arc<dyn Store> {
        (self.open)().await
    }
}

/// Runs one case on a runtime with two threads.
pub fn run<F: Future<Output = ()>>(subject: Subject, case: impl FnOnce(Subject) -> F) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(case(subject));
}

/// Expands into one `#[test]` for each case, in the modules `conformance` and `copying`. The
/// argument is an expression for a new, empty [`Subject`].
#[macro_export]
macro_rules! store_conformance {
    ($subject:expr) => {
        $crate::store_conformance! { @cases $subject;
            admission: [
                a_first_call_runs_and_its_reservation_is_durable,
                i2_a_finished_call_replays_its_bytes,
                a_running_call_is_in_progress,
                field_02_a_conflict_is_found_in_every_state,
                a_lost_answer_of_admit_is_recognized_by_its_token,
                a_token_of_the_past_reserves_nothing,
                field_06_a_result_too_large_leaves_a_marker,
                a_refusal_is_kept_with_its_effect,
                an_atomic_policy_cannot_be_admitted,
                cancelling_says_what_is_established,
                a_resolution_settles_an_unknown_outcome,
                a_provider_window_makes_unknown_retryable,
            ];
            identity: [
                i4_each_part_of_the_identity_separates,
                i4_a_key_is_compared_whole,
            ];
            fence: [
                i1_a_wrong_attempt_is_fenced,
                i1_a_wrong_operation_is_not_found,
                i1_a_finished_operation_takes_no_other_verdict,
                i1_an_earlier_attempt_cannot_judge_a_later_one,
                i3_a_late_answer_settles_unknown,
                i3_a_late_refusal_after_a_lapse_is_kept,
                i3_maybe_sent_is_never_released,
                a_release_keeps_operation_and_attempt_counter,
                a_repeated_completion_says_the_same,
                field_04_a_committed_write_cannot_be_released,
                the_committed_flag_rolls_back_with_its_transaction,
                the_committed_flag_is_fenced,
                a_committed_attempt_without_answer_stays_committed,
            ];
            lease: [
                i6_a_lapsed_lease_becomes_unknown,
                i6_lapse_is_bounded_and_finds_everything,
                field_03_a_lapsed_lease_runs_nothing_again,
                a_lease_is_renewed_never_past_the_hard_deadline,
                a_renewal_is_fenced,
                a_live_lease_does_not_lapse,
            ];
            rounds: [
                a_question_is_replayed,
                the_next_round_keeps_the_operation,
                a_repeated_round_is_answered_as_before,
                another_answer_to_an_answered_round_conflicts,
                a_round_not_sent_leaves_its_question_standing,
                i6_an_abandoned_question_frees_its_key,
                an_abandoned_question_that_may_have_applied_is_unknown,
            ];
            retention: [
                windows_with_a_tombstone_are_judged_by_the_clock,
                windows_without_a_tombstone_make_a_new_operation,
                a_clock_that_jumps_back_replays_again,
                a_sweep_keeps_its_horizon,
                a_sweep_never_touches_what_is_unresolved,
                a_sweep_is_bounded_and_gets_through,
                a_swept_result_is_not_invented,
                a_released_key_is_forgotten_after_its_windows,
            ];
            reading: [
                find_and_get_agree,
                lists_are_newest_first_filtered_and_paged,
                a_free_row_is_listed_only_when_asked_for,
                the_event_log_tells_every_transition_once,
                health_counts_unresolved_receipts,
                a_reader_cannot_write,
                a_transaction_commits_whole,
                a_transaction_rolls_back_whole,
                values_survive_a_table,
                migrations_are_idempotent,
                a_newer_schema_is_refused,
                a_note_is_durable,
            ];
            atomic: [
                an_effect_and_its_receipt_are_one,
                i2_an_atomic_answer_is_replayed,
                a_refusal_rolls_back_and_is_kept,
                an_abort_keeps_nothing,
                a_failure_between_effect_and_receipt_leaves_neither,
                a_panic_leaves_neither,
                a_panic_while_keeping_leaves_neither,
                a_failed_statement_leaves_neither,
                an_atomic_result_too_large_leaves_a_marker,
                a_repeated_atomic_admission_is_its_own,
                an_atomic_conflict_runs_nothing,
                a_handler_may_not_control_transactions,
                a_released_key_may_run_atomically,
                an_atomic_tombstone_runs_nothing,
                what_is_kept_may_differ_from_what_is_answered,
            ];
            races: [
                field_05_of_64_first_calls_one_runs,
                field_05_of_64_atomic_calls_one_runs,
                two_openings_race_for_one_key,
                two_openings_migrate_at_once,
                mutations_of_one_workspace_take_turns,
                first_calls_of_many_workspaces_all_run,
            ];
            model: [
                seeded_histories_agree_with_the_model,
            ];
        }
        $crate::store_conformance! { @pairs $subject;
            copying: [
                a_copy_is_the_same_in_everything,
                a_copy_agrees_with_the_model,
                i2_a_copied_call_is_replayed,
                i6_what_was_running_goes_on_or_lapses,
                an_import_may_be_repeated,
                an_import_cut_off_in_the_middle_goes_on,
                two_imports_at_once_write_each_receipt_once,
                a_conflicting_import_changes_nothing,
                a_taken_key_is_not_taken_over,
                a_sealed_reply_moves_as_it_is,
                an_export_is_bounded,
                a_census_counts_everything,
            ];
        }
    };
    (@cases $subject:expr; $($module:ident: [$($case:ident,)*];)*) => {
        mod conformance {
            $(mod $module {
                #[allow(unused_imports, reason = "the subject's expression names what it needs")]
                use super::super::*;
                $(#[test]
                fn $case() {
                    $crate::conformance::run($subject, $crate::conformance::$module::$case);
                })*
            })*
        }
    };
    (@pairs $subject:expr; $module:ident: [$($case:ident,)*];) => {
        mod $module {
            #[allow(unused_imports, reason = "the subject's expression names what it needs")]
            use super::*;
            $(#[test]
            fn $case() {
                $crate::conformance::run($subject, |first| {
                    $crate::conformance::$module::$case(first, $subject)
                });
            })*
        }
    };
}
