//! Which stages a step is made of, and which steps an installation cannot do without.

use super::StageName;
use crate::problem::Problem;
use crate::steps::Steps;

/// What must happen in one run: half of it leaves a machine that does not boot, or disks that nobody can tell from foreign ones.
const NEEDED: [&str; 4] = ["deploy.apply_layout", "deploy.burn_image", "deploy.prepare_boot", "deploy.finish"];

/// The step that a stage belongs to. The stages that end a run belong to none.
fn of(stage: StageName) -> Option<&'static str> {
    match stage {
        StageName::StorageIdentify
        | StageName::StorageLock
        | StageName::StorageRelease
        | StageName::StorageRehearse
        | StageName::ReportBegin
        | StageName::StorageWipe
        | StageName::StoragePartition
        | StageName::StorageRaid
        | StageName::StorageLvm
        | StageName::StorageFormat => Some("deploy.apply_layout"),
        StageName::ImageReach
        | StageName::DefinitionVerify
        | StageName::StorageMount
        | StageName::ImageBurn
        | StageName::StorageMountKept => Some("deploy.burn_image"),
        StageName::TargetFiles => Some("deploy.write_files"),
        StageName::TargetInstaller | StageName::TargetFstab => Some("deploy.run_installer"),
        StageName::BootEntries | StageName::BootLoad => Some("deploy.prepare_boot"),
        StageName::StorageProveKept | StageName::TargetMarker | StageName::StorageUnmount => Some("deploy.finish"),
        StageName::ReportFinal | StageName::BootKexec => None,
    }
}

/// The stage runs: its step is not disabled.
pub fn include(steps: &Steps, stage: StageName) -> bool {
    of(stage).is_none_or(|step| steps.include(step))
}

/// Why no installation can be made of these steps.
pub fn missing(steps: &Steps) -> Vec<Problem> {
    let missing = NEEDED.iter().filter(|step| !steps.include(step));
    let problem = |step| {
        let message = format!("{step} is disabled, and an installation needs it: enable it in the template");
        Problem::new("steps", message)
    };
    let wrong = steps.wrong().iter().map(|why| Problem::new("steps", why));
    wrong.chain(missing.map(problem)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::{CATALOGUE, MAKE_THE_LAYOUT};

    #[test]
    fn every_step_has_stages_and_every_stage_a_step_of_the_catalogue() {
        let named: Vec<&str> = StageName::ALL.iter().copied().filter_map(of).collect();
        for entry in CATALOGUE.iter().filter(|entry| !MAKE_THE_LAYOUT.contains(&entry.name)) {
            assert!(named.contains(&entry.name), "{}", entry.name);
        }
        for step in named.iter().chain(&NEEDED) {
            assert!(CATALOGUE.iter().any(|entry| entry.name == *step), "{step}");
        }
    }
}
