//! The error type of all crates. It contains the phase that failed, the failed action, and the cause as reported by the system or tool.

use crate::format::without_secrets;
use crate::type_errors::reword_type_error;
use std::error::Error as StdError;
use std::fmt;

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Phase in which an error occurred. The name of the phase is printed in reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Settings,
    Control,
    Inventory,
    Layout,
    Plan,
    Storage,
    Image,
    Target,
    Boot,
    Move,
    Serve,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Phase::Settings => "settings",
            Phase::Control => "control plane",
            Phase::Inventory => "inventory",
            Phase::Layout => "layout",
            Phase::Plan => "plan",
            Phase::Storage => "storage",
            Phase::Image => "image",
            Phase::Target => "target",
            Phase::Boot => "boot",
            Phase::Move => "move",
            Phase::Serve => "serve",
        })
    }
}

type BoxedError = Box<dyn StdError + Send + Sync>;

/// Error with its phase and cause. `Display` prints the error with all its causes in one line, so callers need not print
/// [`StdError::source`] themselves.
#[derive(Debug)]
pub struct Error {
    pub phase: Phase,
    what: String,
    source: Option<BoxedError>,
    refused: bool,
    denied: bool,
}

impl Error {
    pub fn new(phase: Phase, what: impl Into<String>) -> Self {
        Error { phase, what: what.into(), source: None, refused: false, denied: false }
    }

    /// Creates an error for a request that is invalid or unsafe. Nothing was written, and a retry would fail in the
    /// same way.
    pub fn refusal(phase: Phase, what: impl Into<String>) -> Self {
        Error { refused: true, ..Error::new(phase, what) }
    }

    /// Creates an error for a request that the control plane has denied. The denial is final.
    pub fn denial(phase: Phase, what: impl Into<String>) -> Self {
        Error { denied: true, ..Error::new(phase, what) }
    }

    /// Returns whether this error, or an error in its chain of sources, was created by [`Error::denial`].
    pub fn is_denial(&self) -> bool {
        let source = self.source.as_ref().and_then(|source| source.downcast_ref::<Error>());
        self.denied || source.is_some_and(Error::is_denial)
    }

    /// Returns whether this error, or an error in its chain of sources, was created by [`Error::refusal`].
    pub fn is_refusal(&self) -> bool {
        let source = self.source.as_ref().and_then(|source| source.downcast_ref::<Error>());
        self.refused || source.is_some_and(Error::is_refusal)
    }

    pub fn with_source(phase: Phase, what: impl Into<String>, source: impl Into<BoxedError>) -> Self {
        Error { phase, what: what.into(), source: Some(source.into()), refused: false, denied: false }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = without_secrets(&self.what);
        f.write_str(&what)?;
        let mut said = what;
        let mut source = self.source();
        while let Some(error) = source {
            // Some libraries repeat the text of the source in their own text; each text is printed once.
            let text = without_secrets(&reword_type_error(&error.to_string()));
            if !said.contains(&text) {
                write!(f, ": {text}")?;
                said.push_str(&text);
            }
            source = error.source();
        }
        Ok(())
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

/// Adds a phase and a description to an error: `.context(Phase::Storage, || format!("open {device}"))`.
pub trait Context<T> {
    /// Wraps the error of the result in an [`Error`] with this phase and description.
    ///
    /// # Errors
    /// Returns the wrapped error if the result is an error.
    fn context<S: Into<String>>(self, phase: Phase, what: impl FnOnce() -> S) -> Result<T>;
}

impl<T, E: Into<BoxedError>> Context<T> for std::result::Result<T, E> {
    fn context<S: Into<String>>(self, phase: Phase, what: impl FnOnce() -> S) -> Result<T> {
        self.map_err(|source| Error::with_source(phase, what(), source))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_message_has_the_password_of_a_url() {
        let inner: Result<(), _> = Err(std::io::Error::other("no answer from http://me:pass@h/i?sig=abc"));
        let error = inner.context(Phase::Image, || "fetch http://me:pass@h/i?sig=abc").unwrap_err().to_string();
        assert_eq!(error, "fetch http://…@h/i?sig=…: no answer from http://…@h/i?sig=…");
    }

    #[test]
    fn the_whole_chain_is_said_once() {
        let inner: Result<(), _> = Err(std::io::Error::other("No space left on device"));
        let error =
            inner.context(Phase::Image, || "write etc/hosts").context(Phase::Image, || "unpack the image").unwrap_err();
        assert_eq!(error.to_string(), "unpack the image: write etc/hosts: No space left on device");
        assert_eq!(error.phase, Phase::Image);
        assert!(!error.is_refusal());
    }

    #[test]
    fn a_refusal_stays_one() {
        let inner: Result<()> = Err(Error::refusal(Phase::Image, "it is a tar"));
        let error = inner.context(Phase::Image, || "look at the image").unwrap_err();
        assert!(error.is_refusal() && !error.is_denial());
        let inner: Result<()> = Err(Error::denial(Phase::Control, "cancelled"));
        let error = inner.context(Phase::Control, || "report").unwrap_err();
        assert!(error.is_denial() && !error.is_refusal());
    }
}
