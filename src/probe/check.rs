//! Results of server checks without a reference.

use crate::error::Error;
use crate::probe::answer::MissingAnswer;
use crate::verdict::Verdict;

/// Result of one check.
#[derive(Clone, Debug, PartialEq)]
pub struct ProbeCheck {
    /// Subject of the check.
    pub(crate) subject: ProbeSubject,
    /// Name of the check.
    pub name: String,
    /// Verdict; `None` if the server does not support the check.
    pub verdict: Option<Verdict>,
    /// Result, or the reason why the check is impossible.
    pub found: String,
}

/// Subject of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProbeSubject {
    /// Texts and their tokens.
    Tokens,
    /// A single answer.
    Answer,
    /// Two answers to the same request.
    Own,
    /// The server and the model.
    Model,
}

impl ProbeSubject {
    /// Returns the name of the subject in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            ProbeSubject::Tokens => "tokens",
            ProbeSubject::Answer => "answer",
            ProbeSubject::Own => "self",
            ProbeSubject::Model => "model",
        }
    }
}

impl ProbeCheck {
    /// Returns a check with a verdict.
    pub(crate) fn new(
        subject: ProbeSubject,
        name: impl Into<String>,
        (verdict, found): (Verdict, String),
    ) -> Self {
        Self { subject, name: name.into(), verdict: Some(verdict), found }
    }

    /// Returns a check that the server does not support.
    pub(crate) fn cannot(subject: ProbeSubject, name: impl Into<String>, why: impl Into<String>) -> Self {
        Self { subject, name: name.into(), verdict: None, found: format!("cannot: {}", why.into()) }
    }

    /// Returns a check for a request that was not answered. If the server does not support the request, the check
    /// decides nothing. If the request was not sent, the check is inconclusive.
    ///
    /// # Errors
    /// If the server should have answered.
    pub(crate) fn refused(
        subject: ProbeSubject,
        name: impl Into<String>,
        refusal: MissingAnswer,
    ) -> Result<Self, Error> {
        match refusal {
            MissingAnswer::Broken(error) => Err(*error),
            other => Ok(Self::unanswered(subject, name, &other)),
        }
    }

    /// Returns the check of a request without an answer, even if the server should have answered.
    pub(crate) fn unanswered(
        subject: ProbeSubject,
        name: impl Into<String>,
        refusal: &MissingAnswer,
    ) -> Self {
        match refusal {
            MissingAnswer::NotAsked(why) => Self::new(subject, name, (Verdict::Inconclusive, why.clone())),
            other => Self::cannot(subject, name, other.why()),
        }
    }
}
