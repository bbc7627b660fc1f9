//! State of the OS definition that an allocation names.

use model::ganeti_os_definition::{OsSelector, SelectedDefinition};

/// State of the OS definition that an allocation names.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum DefinitionState {
    /// The allocation does not name an OS definition.
    #[default]
    Unnamed,
    /// The `verify` program is still running.
    Verifying,
    Usable(Box<SelectedDefinition>),
    /// The definition or its parameters cannot be used for the allocation. Contains the reasons.
    Unusable(String),
}

impl DefinitionState {
    /// Returns the definition as it is sent to the machine. Unless `with_secrets` is true, the values of the
    /// parameters are empty, because they may be secret.
    pub fn for_machine(&self, with_secrets: bool) -> Option<SelectedDefinition> {
        let DefinitionState::Usable(chosen) = self else { return None };
        let mut told = (**chosen).clone();
        if !with_secrets {
            told.parameters.values_mut().for_each(String::clear);
        }
        Some(told)
    }

    /// Returns the name of the OS if the definition creates the OS itself, without an image.
    pub fn created_os(&self) -> Option<OsSelector> {
        let DefinitionState::Usable(chosen) = self else { return None };
        chosen.has_create().then(|| chosen.selector())
    }
}
