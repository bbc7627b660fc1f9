//! Text that is never printed: passwords, keys and tokens.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Secret text. It can be serialized, but is never printed.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct SecretText(String);

impl SecretText {
    pub fn new(word: impl Into<String>) -> SecretText {
        SecretText(word.into())
    }

    /// Returns the secret text.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("…")
    }
}
