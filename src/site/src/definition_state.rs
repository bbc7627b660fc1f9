//! State of the OS definition that an allocation names.

use model::os_definition::{OsSelector, SelectedDefinition};

/// State of the OS definition that an allocation names.
#[derive(Debug, Clone, Default)]
pub enum DefinitionState {
    /// The allocation names none.
    #[default]
    Unnamed,
    /// The `verify` program is still running.
    Waits,
    Good(Box<SelectedDefinition>),
    /// The allocation cannot be installed with it, for these reasons.
    Bad(String),
}

impl DefinitionState {
    /// Returns the definition as it is sent to the machine. Parameters may be secrets: without `with_secrets`, their values are cleared.
    pub fn for_machine(&self, with_secrets: bool) -> Option<SelectedDefinition> {
        let DefinitionState::Good(chosen) = self else { return None };
        let mut told = (**chosen).clone();
        if !with_secrets {
            told.parameters.values_mut().for_each(String::clear);
        }
        Some(told)
    }

    /// Returns the OS that the definition creates itself, without an image.
    pub fn created_os(&self) -> Option<OsSelector> {
        let DefinitionState::Good(chosen) = self else { return None };
        chosen.has_create().then(|| chosen.selector())
    }
}
