//! Findings about a machine that its layout cannot express.

use std::fmt;

/// Property of the machine that the layout does not express.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiscoveryNote {
    /// Sentence that describes the property, and the remedy if there is one.
    pub text: String,
    /// True if the property prevents a reinstall that preserves all data.
    pub is_obstacle: bool,
}

impl DiscoveryNote {
    pub(crate) fn report(text: impl Into<String>) -> DiscoveryNote {
        DiscoveryNote { text: text.into(), is_obstacle: false }
    }

    pub(crate) fn obstacle(text: impl Into<String>) -> DiscoveryNote {
        DiscoveryNote { text: text.into(), is_obstacle: true }
    }
}

impl fmt::Display for DiscoveryNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
