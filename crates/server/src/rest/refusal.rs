use axum::response::Response;
use counterfoil_core::{Code, Rule};
use counterfoil_engine::{Reason, Refusal};
use counterfoil_http::{Issue, Problem, Rest};
use counterfoil_store::{self as store, Failure};

use crate::Error;

/// The one mapping of the application's errors to problems.
pub(super) fn problem_of(rest: &Rest, error: Error) -> Problem {
    match error {
        Error::Invalid(issue) => {
            Problem::invalid([Issue::new(format!("/{}", issue.field), issue.message)])
        }
        Error::NotFound(what) => {
            Problem::new(Code::NotFound).detail(format!("There is no such {what}."))
        }
        Error::Forbidden => Problem::new(Code::Forbidden),
        Error::Settings(why) => {
            tracing::error!(reason = %why, "the settings are wrong");
            Problem::new(Code::Internal)
        }
        Error::NoRandomness => {
            tracing::error!("the operating system gave no random bytes");
            Problem::new(Code::Unavailable)
        }
        Error::Store(error) => problem_of_store(rest, error),
    }
}

pub(super) fn problem_of_store(rest: &Rest, error: store::Error) -> Problem {
    let refusal = Refusal {
        reason: Reason::from(error),
        operation_id: None,
    };
    rest.problem(refusal, Rule::Raw1)
}

/// What a handler inside a transaction ends in.
pub(super) fn failure_of(error: Error) -> Failure {
    match error {
        Error::Store(error) => Failure::Store(error),
        judged @ (Error::Invalid(_)
        | Error::NotFound(_)
        | Error::Forbidden
        | Error::Settings(_)
        | Error::NoRandomness) => problem_of(&Rest::default(), judged).into(),
    }
}

/// An error as the response of a reading route.
pub(super) fn refuse(rest: &Rest, error: Error) -> Response {
    rest.refuse(problem_of(rest, error))
}
