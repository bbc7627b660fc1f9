//! The error type of all crates. It contains the phase that failed, the failed action, and the cause as reported by the system or tool.

use crate::error_code::ErrorCode;
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
    code: Option<ErrorCode>,
    refused: bool,
    denied: bool,
}

impl Error {
    pub fn new(phase: Phase, what: impl Into<String>) -> Self {
        Error { phase, what: what.into(), source: None, code: None, refused: false, denied: false }
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

    /// Sets the code of this error. If an error in the chain of sources has a code, that code takes precedence, because
    /// it is more specific.
    #[must_use]
    pub fn with_code(self, code: ErrorCode) -> Error {
        Error { code: Some(code), ..self }
    }

    /// Sets the code of this error, unless the error or its chain of sources already has a code.
    #[must_use]
    pub fn with_default_code(self, code: ErrorCode) -> Error {
        if self.specific_code().is_some() { self } else { self.with_code(code) }
    }

    /// Returns the code of the innermost error that has a code, or else the general code of the phase.
    pub fn code(&self) -> ErrorCode {
        self.specific_code().unwrap_or_else(|| self.phase.general_code())
    }

    /// Returns the code of the innermost error that has a code.
    pub fn specific_code(&self) -> Option<ErrorCode> {
        let mut innermost = self.code;
        let mut source = self.source();
        while let Some(error) = source {
            // The wrapped error itself is examined too, because the source of an `io::Error` that wraps another error
            // is the source of the wrapped error.
            let wrapped = error.downcast_ref::<std::io::Error>().and_then(|error| error.get_ref()?.downcast_ref());
            let coded = error.downcast_ref::<Error>().or(wrapped);
            innermost = coded.and_then(|error| error.specific_code()).or(innermost);
            source = error.source();
        }
        innermost
    }

    /// Returns the message for operators, with the code at its end. If the message already ends with a code of another
    /// process, such as a newer server, no general code is added.
    pub fn to_coded_text(&self) -> String {
        match self.specific_code() {
            Some(code) => code.annotate(self.to_string()),
            None => self.code().annotate_uncoded(self.to_string()),
        }
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
        Error { phase, what: what.into(), source: Some(source.into()), code: None, refused: false, denied: false }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = without_secrets(&self.what);
        f.write_str(&what)?;
        let mut said = what;
        let mut source = self.source();
        while let Some(error) = source {
            // Some libraries repeat the text of the source in their own text. A text that was already printed is
            // skipped.
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
    fn the_innermost_code_wins() {
        let error = |code: Option<ErrorCode>| {
            let plain = Error::new(Phase::Storage, "inner");
            code.map_or_else(|| Error::new(Phase::Storage, "inner"), |code| plain.with_code(code))
        };
        let outer = |inner: Error| Error::with_source(Phase::Image, "outer", inner);
        assert_eq!(error(None).code(), ErrorCode::Storage);
        assert_eq!(outer(error(None)).code(), ErrorCode::Image);
        let coded = outer(error(Some(ErrorCode::Mkfs)));
        assert_eq!(coded.code(), ErrorCode::Mkfs);
        assert_eq!(coded.with_code(ErrorCode::ImageWrite).code(), ErrorCode::Mkfs);
        assert_eq!(outer(error(None)).with_code(ErrorCode::ImageWrite).code(), ErrorCode::ImageWrite);
        // A source of another type may be between two errors.
        let between = std::io::Error::other(error(Some(ErrorCode::Mkfs)));
        assert_eq!(Error::with_source(Phase::Image, "outer", between).code(), ErrorCode::Mkfs);
    }

    #[test]
    fn a_default_code_replaces_no_other_code() {
        let inner = Error::new(Phase::Storage, "inner").with_code(ErrorCode::OptionRejected);
        let outer = Error::with_source(Phase::Storage, "outer", inner).with_default_code(ErrorCode::Mkfs);
        assert_eq!(outer.code(), ErrorCode::OptionRejected);
        let error = Error::new(Phase::Storage, "mkfs: no").with_default_code(ErrorCode::Mkfs);
        assert_eq!((error.to_string(), error.to_coded_text()), ("mkfs: no".into(), "mkfs: no (DH-310)".into()));
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
