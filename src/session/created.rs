//! System that the definition's `create` program installs.

use super::Session;
use super::undo::Undo;
use crate::definition;
use crate::error::{Error, Phase, Result};
use crate::plan::CreateSystem;
use crate::target::create;
use std::path::Path;

impl Session {
    /// Checks that the programs exist before anything is written.
    pub(super) fn find_programs(&self, os: &str, programs: &[String]) -> Result<()> {
        let refused = |why: String| Err(Error::refusal(Phase::Image, why));
        if !self.trust.keys.0.is_empty() {
            return refused(format!(
                "this ramdisk only installs images signed with its keys, but the output of the create program of {os} cannot be signed"
            ));
        }
        let is_there =
            |program: &&String| definition::PATH.split(':').any(|folder| Path::new(folder).join(program).is_file());
        let missing: Vec<&str> = programs.iter().filter(|program| !is_there(program)).map(String::as_str).collect();
        match missing.is_empty() {
            true => Ok(()),
            false => refused(format!(
                "create of {os} requires programs that are not in this ramdisk: {}",
                missing.join(", ")
            )),
        }
    }

    pub(super) fn create_system(&mut self, create: &CreateSystem) -> Result<()> {
        // Erases partition tables too, since it is unknown what is bootable.
        self.undo.extend(create.disks.iter().cloned().map(Undo::Made));
        let reporter = &*self.reporter;
        create::run(create, create::DEADLINE, &|line| reporter.say(line))?;
        self.arrived(&create.onto)
    }
}
