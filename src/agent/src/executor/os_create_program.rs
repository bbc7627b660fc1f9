//! Installation of a system by the `create` program of an OS definition.

use super::PlanExecutor;
use common::error::{Error, Phase, Result};
use common::error_code::ErrorCode;
use model::ganeti_os_definition;
use newroot::os_create_program;
use operations::CreateSystem;
use std::path::Path;

impl PlanExecutor {
    /// Checks that the ramdisk contains all programs that the `create` program of an OS definition needs. Called before
    /// anything is written.
    pub(super) fn find_programs(&self, os: &str, programs: &[String]) -> Result<()> {
        let refused = |why: String| Err(Error::refusal(Phase::Image, why).with_code(ErrorCode::CreateProgram));
        if !self.trust.keys.0.is_empty() {
            return refused(format!(
                "the create program of {os} cannot be run: this ramdisk installs only images that are signed with a key in the ramdisk, and the output of a program is not signed"
            ));
        }
        let is_there = |program: &&String| {
            ganeti_os_definition::PATH.split(':').any(|folder| Path::new(folder).join(program).is_file())
        };
        let missing: Vec<&str> = programs.iter().filter(|program| !is_there(program)).map(String::as_str).collect();
        match missing.is_empty() {
            true => Ok(()),
            false => refused(format!(
                "the create program of {os} requires programs that are not in this ramdisk: {programs}",
                programs = missing.join(", ")
            )),
        }
    }

    pub(super) fn run_create_program(&mut self, create: &CreateSystem) -> Result<()> {
        let reporter = &*self.reporter;
        os_create_program::run_create(create, os_create_program::SCRIPT_TIMEOUT, &|line| reporter.print_line(line))?;
        self.adapt_written_disk(&create.onto)
    }
}
