//! Templates that disable steps.

use super::*;
use model::deploy_steps::{CATALOG, StepList, TemplateStep, merge_templates};
use operations::StageName;

fn disabled(names: &[&str]) -> Result<Plan, Box<PlanRefusal>> {
    let wanted = |name: &&str| {
        let (interface, step) = name.split_once('.').unwrap();
        TemplateStep { interface: interface.into(), step: step.into(), priority: Some(0), ..TemplateStep::default() }
    };
    let defaults = StepList::default().list().to_vec();
    let steps = merge_templates(&CATALOG, defaults, &[names.iter().map(wanted).collect()]).unwrap();
    let request = PlanRequest {
        mode: InstallMode::Install,
        steps: steps.into(),
        subject: subject(),
        assigned: Default::default(),
        claim: None,
    };
    super::super::make_plan(&layout(), &machine(), request, &mut counting())
}

#[test]
fn disabling_a_step_removes_only_its_stages() {
    // The operation of `report.begin` contains the extents of all stages.
    let shown = |plan: &Plan| plan.stages.iter().map(|stage| serde_json::to_string(stage).unwrap()).collect::<Vec<_>>();
    let whole = disabled(&[]).unwrap();
    assert_eq!(whole, make(&layout(), &machine(), InstallMode::Install).unwrap());
    for (step, gone) in [
        ("deploy.write_files", &[StageName::TargetFiles] as &[_]),
        ("deploy.run_installer", &[StageName::TargetInstaller, StageName::TargetFstab]),
    ] {
        assert!(gone.iter().all(|gone| whole.stages.iter().any(|stage| stage.name == *gone)));
        let mut expected = whole.clone();
        expected.stages.retain(|stage| !gone.contains(&stage.name));
        assert_eq!(shown(&disabled(&[step]).unwrap()), shown(&expected), "{step}");
    }
}

#[test]
fn refuses_to_disable_required_steps() {
    let both = disabled(&["deploy.burn_image", "deploy.finish"]);
    let expected = ["burn_image", "finish"].map(|step| {
        format!(
            "steps: the step deploy.{step} is disabled, but every installation requires this step; enable the \
            step in the template"
        )
    });
    assert_eq!(reasons(both), expected);
}
