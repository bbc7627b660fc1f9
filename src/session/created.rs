//! A system that the definition's own `create` makes.

use super::Session;
use super::undo::Undo;
use crate::definition;
use crate::error::{Error, Phase, Result};
use crate::plan::CreateSystem;
use crate::target::create;
use std::path::Path;

impl Session {
    /// Before anything is written: a program that is missed later is missed on a disk that is erased.
    pub(super) fn find_programs(&self, os: &str, programs: &[String]) -> Result<()> {
        let refused = |why: String| Err(Error::refusal(Phase::Image, why));
        if !self.trust.keys.0.is_empty() {
            return refused(format!(
                "this ramdisk installs what one of its keys has signed, and nobody signs what create of {os} makes"
            ));
        }
        let is_there =
            |program: &&String| definition::PATH.split(':').any(|folder| Path::new(folder).join(program).is_file());
        let missing: Vec<&str> = programs.iter().filter(|program| !is_there(program)).map(String::as_str).collect();
        match missing.is_empty() {
            true => Ok(()),
            false => refused(format!("create of {os} needs what this ramdisk does not have: {}", missing.join(", "))),
        }
    }

    pub(super) fn create_system(&mut self, create: &CreateSystem) -> Result<()> {
        // Their tables too: nobody knows what of it can boot.
        self.undo.extend(create.disks.iter().cloned().map(Undo::Made));
        let reporter = &*self.reporter;
        create::run(create, create::DEADLINE, &|line| reporter.say(line))?;
        self.arrived(&create.onto)
    }
}
