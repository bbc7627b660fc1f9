//! The error type of all crates. It contains the phase that failed, the failed action, and the cause as reported by the
//! system or tool.

use crate::error_code::ErrorCode;
use crate::format::os_error_messages::without_os_error_numbers;
use crate::format::without_secrets;
use crate::type_errors::{locate_json_error, reword_type_error};
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

/// Error with its phase and cause. `Display` prints the error with all its causes in one line, so callers need not
/// print [`StdError::source`] themselves.
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

    /// Creates an error that refuses an invalid or unsafe request. Nothing was written, and a retry would fail for the
    /// same reason.
    pub fn refusal(phase: Phase, what: impl Into<String>) -> Self {
        Error { refused: true, ..Error::new(phase, what) }
    }

    /// Creates an error for a request that the control plane has finally denied.
    pub fn denial(phase: Phase, what: impl Into<String>) -> Self {
        Error { denied: true, ..Error::new(phase, what) }
    }

    /// Sets the code of this error. A code in the chain of sources takes precedence, because it is more specific.
    #[must_use]
    pub fn with_code(self, code: ErrorCode) -> Error {
        Error { code: Some(code), ..self }
    }

    /// Sets the code of this error, unless this error or an error in its chain of sources already has a code.
    #[must_use]
    pub fn with_default_code(self, code: ErrorCode) -> Error {
        if self.specific_code().is_some() { self } else { self.with_code(code) }
    }

    /// Returns the code of the innermost error that has a code, or else the general code of the phase.
    pub fn code(&self) -> ErrorCode {
        self.specific_code().unwrap_or_else(|| self.phase.general_code())
    }

    /// Returns the code of the innermost error that has a code; `None` if no error in the chain has a code.
    pub fn specific_code(&self) -> Option<ErrorCode> {
        let mut innermost = self.code;
        let mut source = self.source();
        while let Some(error) = source {
            // `io::Error::source` does not return the error that the `io::Error` wraps, but the source of that error.
            // The wrapped error must therefore be examined separately.
            let wrapped = error.downcast_ref::<std::io::Error>().and_then(|error| error.get_ref()?.downcast_ref());
            let coded = error.downcast_ref::<Error>().or(wrapped);
            innermost = coded.and_then(|error| error.specific_code()).or(innermost);
            source = error.source();
        }
        innermost
    }

    /// Returns the message for operators, with the code at its end. If the message already ends with the code of
    /// another process, such as a newer server, the general code of the phase is not added.
    pub fn to_coded_text(&self) -> String {
        match self.specific_code() {
            Some(code) => code.annotate(self.to_string()),
            None => self.code().annotate_uncoded(self.to_string()),
        }
    }

    /// Returns whether this error, or an error in its chain of sources, was created with [`Error::denial`].
    pub fn is_denial(&self) -> bool {
        let source = self.source.as_ref().and_then(|source| source.downcast_ref::<Error>());
        self.denied || source.is_some_and(Error::is_denial)
    }

    /// Returns whether this error, or an error in its chain of sources, was created with [`Error::refusal`].
    pub fn is_refusal(&self) -> bool {
        let source = self.source.as_ref().and_then(|source| source.downcast_ref::<Error>());
        self.refused || source.is_some_and(Error::is_refusal)
    }

    pub fn with_source(phase: Phase, what: impl Into<String>, source: impl Into<BoxedError>) -> Self {
        Error { phase, what: what.into(), source: Some(source.into()), code: None, refused: false, denied: false }
    }
}

/// Returns the text without secrets, and without the numbers of errors of the operating system.
fn displayed_text(text: &str) -> String {
    without_secrets(&without_os_error_numbers(text))
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = displayed_text(&self.what);
        f.write_str(&what)?;
        let mut said = what;
        let mut source = self.source();
        while let Some(error) = source {
            // The error messages of some libraries contain the message of the source. The text of a source that was
            // already printed in this way is skipped.
            let text = match error.downcast_ref::<serde_json::Error>() {
                Some(error) => locate_json_error(error),
                None => reword_type_error(&error.to_string()),
            };
            let text = displayed_text(&text);
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
    fn error_messages_hide_secrets_of_urls() {
        let inner: Result<(), _> = Err(std::io::Error::other("no answer from http://me:pass@h/i?sig=abc"));
        let error = inner.context(Phase::Image, || "fetch http://me:pass@h/i?sig=abc").unwrap_err().to_string();
        assert_eq!(error, "fetch http://…@h/i?sig=…: no answer from http://…@h/i?sig=…");
    }

    #[test]
    fn messages_of_the_operating_system_have_no_numbers() {
        let system_error = || std::io::Error::from_raw_os_error(2);
        let inner: Result<(), _> = Err(system_error());
        let error = inner.context(Phase::Image, || "open a.tar").unwrap_err();
        assert_eq!(error.to_coded_text(), "open a.tar: No such file or directory (DH-400)");
        let error = Error::refusal(Phase::Image, format!("a.tar: {}; add the file", system_error()));
        assert_eq!(error.to_string(), "a.tar: No such file or directory; add the file");
    }

    #[test]
    fn message_contains_whole_cause_chain_once() {
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
        // The error with the code is wrapped in an error of another type.
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
    fn context_preserves_refusals_and_denials() {
        let inner: Result<()> = Err(Error::refusal(Phase::Image, "it is a tar"));
        let error = inner.context(Phase::Image, || "look at the image").unwrap_err();
        assert!(error.is_refusal() && !error.is_denial());
        let inner: Result<()> = Err(Error::denial(Phase::Control, "cancelled"));
        let error = inner.context(Phase::Control, || "report").unwrap_err();
        assert!(error.is_denial() && !error.is_refusal());
    }
}
