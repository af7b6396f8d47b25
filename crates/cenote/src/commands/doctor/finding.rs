//! A finding: one thing looked at, how it is, and what would mend it.

use serde::Serialize;

use super::fix::Fix;

/// How much a finding matters.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Ok,
    Warning,
    Error,
}

/// One thing looked at.
#[derive(Debug, Serialize)]
pub struct Finding {
    pub subject: &'static str,
    pub state: State,
    pub found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mend: Option<String>,
    /// Whether `--fix` can do it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub fixable: bool,
    #[serde(skip)]
    pub fix: Option<Fix>,
}

impl Finding {
    pub fn ok(subject: &'static str, found: impl Into<String>) -> Self {
        Self {
            subject,
            state: State::Ok,
            found: found.into(),
            mend: None,
            fixable: false,
            fix: None,
        }
    }

    pub fn warning(
        subject: &'static str,
        found: impl Into<String>,
        mend: impl Into<String>,
    ) -> Self {
        Self {
            state: State::Warning,
            mend: Some(mend.into()),
            ..Self::ok(subject, found)
        }
    }

    pub fn error(subject: &'static str, found: impl Into<String>, mend: impl Into<String>) -> Self {
        Self {
            state: State::Error,
            ..Self::warning(subject, found, mend)
        }
    }

    /// The same with what `--fix` does about it.
    pub fn with_fix(self, fix: Fix) -> Self {
        Self {
            fixable: true,
            fix: Some(fix),
            ..self
        }
    }

    /// The same where that would help.
    pub fn with_fix_if(self, helps: bool, fix: impl FnOnce() -> Fix) -> Self {
        match helps {
            true => self.with_fix(fix()),
            false => self,
        }
    }
}
