//! Stages that belong to each step, and the steps that an installation requires.

use super::Plan;
use common::diagnostic::Diagnostic;
use common::error_code::ErrorCode;
use model::deploy_steps::StepList;
use operations::{PlanStage, StageExtents, StageName};

/// Steps that an installation requires. If one of them is missing, the machine does not boot, or its disks cannot be
/// recognized later.
const NEEDED: [&str; 4] = ["deploy.apply_layout", "deploy.burn_image", "deploy.prepare_boot", "deploy.finish"];

/// Returns the step to which a stage belongs. Returns `None` for the last stages of a plan, which do not belong to any
/// step.
fn step_of(stage: StageName) -> Option<&'static str> {
    match stage {
        StageName::StorageIdentify
        | StageName::StorageLock
        | StageName::StorageRelease
        | StageName::StorageRehearse
        | StageName::ReportBegin
        | StageName::StorageWipe
        | StageName::BootClean
        | StageName::StoragePartition
        | StageName::StorageRaid
        | StageName::StorageLvm
        | StageName::StorageEncrypt
        | StageName::StorageFormat => Some("deploy.apply_layout"),
        StageName::ImageReach
        | StageName::DefinitionVerify
        | StageName::MoveCopy
        | StageName::StorageMount
        | StageName::ImageBurn
        | StageName::StorageMountPreserved
        | StageName::StorageVolumes => Some("deploy.burn_image"),
        StageName::TargetFiles => Some("deploy.write_files"),
        StageName::TargetInstaller | StageName::TargetFstab => Some("deploy.run_installer"),
        StageName::BootEntries | StageName::BootLoad => Some("deploy.prepare_boot"),
        StageName::StorageProvePreserved
        | StageName::TargetMarker
        | StageName::StorageUnmount
        | StageName::StorageDeactivate => Some("deploy.finish"),
        StageName::ReportFinal | StageName::BootKexec => None,
    }
}

/// Returns whether the stage is executed. A stage of a disabled step is not executed.
pub(crate) fn includes_stage(steps: &StepList, stage: StageName) -> bool {
    step_of(stage).is_none_or(|step| steps.includes_step(step))
}

/// Returns the reasons why an installation cannot be made with these steps.
pub fn missing_steps(steps: &StepList) -> Vec<Diagnostic> {
    let missing = NEEDED.iter().filter(|step| !steps.includes_step(step));
    let problem = |step| {
        let message = format!(
            "the step {step} is disabled, but every installation requires this step; enable the step in the template"
        );
        Diagnostic::new("steps", message).with_code(ErrorCode::StepDisabled)
    };
    let wrong = steps.problems().iter().map(|why| Diagnostic::new("steps", why).with_code(ErrorCode::StepDisabled));
    wrong.chain(missing.map(problem)).collect()
}

impl Plan {
    /// Returns a plan with only the stages of these steps, for callers that request steps one at a time. Stages that
    /// are needed only for a kexec are omitted, because the machine boots through its firmware.
    ///
    /// If the whole plan has a destructive stage that is not among the selected stages, the selected stages count as
    /// stages after the point of no return.
    pub fn select_steps(&self, steps: &[&str]) -> Plan {
        let is_wanted =
            |stage: StageName| stage != StageName::BootLoad && step_of(stage).is_some_and(|step| steps.contains(&step));
        let mut part = self.clone();
        part.stages.retain(|stage| is_wanted(stage.name));
        for extents in &mut part.extents {
            extents.stages.retain(|stage| is_wanted(*stage));
        }
        part.extents.retain(|extents: &StageExtents| !extents.stages.is_empty());
        let first = |stages: &[PlanStage]| stages.iter().position(|stage| stage.name.is_destructive());
        part.point_of_no_return = match (first(&part.stages), first(&self.stages)) {
            (Some(first), _) => first,
            (None, Some(_)) => 0,
            (None, None) => part.stages.len(),
        };
        part
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{InstallMode, PlanRequest, PlanSubject};
    use model::deploy_steps::{CATALOG, LAYOUT_DEFINITION_STEPS};
    use model::inventory::Inventory;
    use model::layout;

    fn whole() -> Plan {
        let layout = layout::read_yaml(include_str!("../../../testdata/layouts/storage.yaml")).unwrap().layout;
        let inventory = include_str!("../../../testdata/inventories/raid-lvm.json");
        let inventory: Inventory = serde_json::from_str(inventory).unwrap();
        let (mode, steps, subject) = (InstallMode::Install, StepList::default(), PlanSubject::default());
        let request = PlanRequest { mode, steps, subject, assigned: Default::default(), claim: None };
        crate::make_plan(&layout, &inventory, request, &mut uuid::Uuid::new_v4).unwrap()
    }

    #[test]
    fn selected_steps_cover_all_stages_except_kexec() {
        let whole = whole();
        let core: Vec<&str> = model::deploy_steps::core_steps().collect();
        let parts: Vec<Plan> = core.iter().map(|step| whole.select_steps(&[step])).collect();
        let names = |stages: &[PlanStage]| stages.iter().map(|stage| stage.name).collect::<Vec<_>>();
        let mut of_parts: Vec<StageName> = parts.iter().flat_map(|part| names(&part.stages)).collect();
        of_parts.sort();
        let mut expected = names(&whole.stages);
        expected.retain(|name| !matches!(name, StageName::BootLoad | StageName::ReportFinal | StageName::BootKexec));
        expected.sort();
        assert_eq!(of_parts, expected);
        assert_eq!(parts[0].stages[parts[0].point_of_no_return].name, StageName::StorageWipe);
        assert!(parts[1..].iter().all(|part| part.point_of_no_return == 0));
        let all = whole.select_steps(&core);
        assert_eq!(all.stages[all.point_of_no_return].name, StageName::StorageWipe);
        assert!(all.stages.len() + 3 >= whole.stages.len());
    }

    #[test]
    fn steps_and_stages_refer_to_each_other() {
        let named: Vec<&str> = StageName::ALL.iter().copied().filter_map(step_of).collect();
        let is_staged = |name: &str, out_of_band: bool| !out_of_band && !LAYOUT_DEFINITION_STEPS.contains(&name);
        for entry in CATALOG.iter().filter(|entry| is_staged(entry.name, entry.out_of_band)) {
            assert!(named.contains(&entry.name), "{}", entry.name);
        }
        for step in named.iter().chain(&NEEDED) {
            assert!(CATALOG.iter().any(|entry| entry.name == *step), "{step}");
        }
    }
}
