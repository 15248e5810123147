//! What is found of a server by itself: plain data.

use crate::compare::Verdict;
use crate::error::Error;
use crate::probe::answer::Refusal;

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    /// What it is about.
    pub subject: Subject,
    /// What was asked.
    pub name: String,
    /// `None` where the server cannot be asked that.
    pub verdict: Option<Verdict>,
    /// What was found, or why it cannot be asked.
    pub found: String,
}

/// What a check is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// Texts and their tokens.
    Tokens,
    /// What a single answer says of itself.
    Answer,
    /// One answer and another to the same question.
    Own,
    /// The server and the model.
    Model,
}

impl Subject {
    /// The word in reports.
    pub fn name(self) -> &'static str {
        match self {
            Subject::Tokens => "tokens",
            Subject::Answer => "answer",
            Subject::Own => "self",
            Subject::Model => "model",
        }
    }
}

impl Check {
    /// What was found.
    pub fn new(subject: Subject, name: impl Into<String>, (verdict, found): (Verdict, String)) -> Self {
        Self { subject, name: name.into(), verdict: Some(verdict), found }
    }

    /// That it cannot be asked.
    pub fn cannot(subject: Subject, name: impl Into<String>, why: impl Into<String>) -> Self {
        Self { subject, name: name.into(), verdict: None, found: format!("cannot: {}", why.into()) }
    }

    /// That there was no answer. What a server cannot be asked decides nothing; what it was not asked is not known.
    ///
    /// # Errors
    /// If the server should have answered.
    pub fn refused(subject: Subject, name: impl Into<String>, refusal: Refusal) -> Result<Self, Error> {
        match refusal {
            Refusal::Broken(error) => Err(*error),
            other => Ok(Self::unanswered(subject, name, &other)),
        }
    }

    /// The same, whatever the server should have done.
    pub fn unanswered(subject: Subject, name: impl Into<String>, refusal: &Refusal) -> Self {
        match refusal {
            Refusal::NotAsked(why) => Self::new(subject, name, (Verdict::Inconclusive, why.clone())),
            other => Self::cannot(subject, name, other.why()),
        }
    }
}
