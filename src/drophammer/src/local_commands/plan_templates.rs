//! `drophammer plan --template`: applies deploy templates to the plan of an installation.

use super::check::with_default_codes;
use super::{format_located, read_text};
use common::diagnostic::{self, Diagnostic};
use common::error::Result;
use common::error_code::ErrorCode;
use model::deploy_steps::template::DeployTemplate;
use model::deploy_steps::{
    CATALOG, LAYOUT_DEFINITION_STEPS, OutOfBandStep, PlannedStep, TemplateStep, find_misplaced_step, merge_templates,
};
use model::inventory::Inventory;
use model::ironic_raid::{self, RaidConfig};
use model::layout::{self, ParsedLayout};
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Deploy templates, each with the path of its file.
pub(crate) struct NamedTemplates(Vec<(PathBuf, DeployTemplate)>);

/// Steps of the installation, which result from merging the templates into the default steps.
pub(crate) struct MergedSteps {
    pub steps: Vec<PlannedStep>,
    arrays: Option<TemplateArrays>,
}

/// Arrays from which the layout is generated, the template that defines them, and their path in this template.
struct TemplateArrays {
    config: RaidConfig,
    template: usize,
    place: String,
}

impl NamedTemplates {
    /// Reads the template files. The inner error lists all problems of the files.
    pub(crate) fn read(paths: &[PathBuf]) -> Result<std::result::Result<NamedTemplates, String>> {
        let (mut templates, mut wrong) = (Vec::new(), String::new());
        for path in paths {
            match DeployTemplate::parse_file(&read_text(path)?) {
                Ok(template) => templates.push((path.clone(), template)),
                Err(problems) => {
                    wrong += &super::problem_lines(path, &with_default_codes(problems, ErrorCode::SiteFile));
                }
            }
        }
        Ok(if wrong.is_empty() { Ok(NamedTemplates(templates)) } else { Err(wrong) })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Merges the steps of the templates with the default steps.
    ///
    /// # Errors
    /// Returns all problems of the steps, with file, line and column.
    pub(crate) fn merge(&self, defaults: &[PlannedStep]) -> std::result::Result<MergedSteps, String> {
        let wanted: Vec<Vec<TemplateStep>> = self.0.iter().map(|(_, template)| template.template_steps()).collect();
        let steps = merge_templates(&CATALOG, defaults.to_vec(), &wanted).map_err(|wrong| {
            let said =
                wrong.into_iter().map(|wrong| self.format_problem(wrong.template, wrong.problem_path(), wrong.message));
            said.collect::<String>()
        })?;
        self.check_out_of_band(&steps)?;
        let mut makers = steps.iter().filter(|step| LAYOUT_DEFINITION_STEPS.contains(&step.entry.name));
        let arrays = makers.next().map(|step| self.read_arrays(step)).transpose()?;
        match makers.next() {
            Some(other) => {
                let message = format!(
                    "step {step} also generates the layout: only one step may generate the layout",
                    step = other.entry.name
                );
                let template = other.from.first().copied().unwrap_or_default();
                Err(self.format_problem(template, self.step_path(template, other), message))
            }
            None => Ok(MergedSteps { steps, arrays }),
        }
    }

    /// Refuses out-of-band steps if they cannot run in the specified order.
    fn check_out_of_band(&self, steps: &[PlannedStep]) -> std::result::Result<(), String> {
        let remote: Vec<&PlannedStep> = steps.iter().filter(|step| step.entry.out_of_band).collect();
        let parsed = remote.iter().filter_map(|step| OutOfBandStep::parse(step.entry.name, &step.arguments).ok());
        let misplaced = find_misplaced_step(&parsed.collect::<Vec<_>>());
        let Some((step, why)) = misplaced.and_then(|(index, why)| Some((*remote.get(index)?, why))) else {
            return Ok(());
        };
        let template = step.from.first().copied().unwrap_or_default();
        Err(self.format_problem(template, self.step_path(template, step), why))
    }

    fn read_arrays(&self, step: &PlannedStep) -> std::result::Result<TemplateArrays, String> {
        let template = step.from.first().copied().unwrap_or_default();
        let place = format!("{}.args", self.step_path(template, step));
        match ironic_raid::read_step_arrays(step.entry.name, &step.arguments) {
            Ok(config) => Ok(TemplateArrays { config, template, place }),
            Err(problems) => {
                let within = |problem: Diagnostic| {
                    self.format_problem(template, format!("{place}.{}", problem.place), problem.message)
                };
                Err(problems.into_iter().map(within).collect())
            }
        }
    }

    /// Returns the path of a step in its template, such as `steps[2]`.
    fn step_path(&self, template: usize, step: &PlannedStep) -> String {
        let wanted = step.as_template_step();
        let is_this = |other: &TemplateStep| other.interface == wanted.interface && other.step == wanted.step;
        let steps = self.0.get(template).map(|(_, template)| template.template_steps()).unwrap_or_default();
        format!("steps[{}]", steps.iter().position(is_this).unwrap_or_default())
    }

    fn format_problem(&self, template: usize, place: String, message: String) -> String {
        let problem = Diagnostic::new(place, message).with_code(ErrorCode::DeployArguments);
        match self.0.get(template) {
            Some((path, template)) => format_located(path, &template.add_location(problem)) + "\n",
            None => ErrorCode::DeployArguments.annotate(problem.message) + "\n",
        }
    }

    /// Returns the layout that a template generates for a machine with this inventory; `None` if no template generates
    /// a layout. The inner error lists the reasons why the layout cannot be generated.
    pub(crate) fn generate_layout(
        &self,
        merged: &MergedSteps,
        inventory: &Inventory,
    ) -> Option<std::result::Result<ParsedLayout, String>> {
        let TemplateArrays { config, template, place } = merged.arrays.as_ref()?;
        let id = self.0.get(*template).map(|(_, template)| template.name.as_str()).unwrap_or_default();
        let made = config.build_layout(id, inventory).map_err(|problems| {
            let within = |problem: Diagnostic| {
                self.format_problem(*template, format!("{place}.{}", problem.place), problem.message)
            };
            problems.into_iter().map(within).collect::<String>()
        });
        Some(made.and_then(|made| {
            let json = serde_json::to_value(&made).map_err(|error| ErrorCode::Layout.annotate(error.to_string()))?;
            let coded = |problems| diagnostic::summarize_problems(&with_default_codes(problems, ErrorCode::Layout));
            layout::read_json(&json).map_err(coded)
        }))
    }

    /// Formats the merged steps as a table, with the names of each step's templates.
    pub(crate) fn format_steps(&self, steps: &[PlannedStep]) -> String {
        let width = steps.iter().map(|step| step.entry.name.len()).max().unwrap_or_default();
        let mut text = "steps\n".to_owned();
        for step in steps {
            let from = self.template_names(step, |path, template| format!("{} ({})", template.name, path.display()));
            let from = if from.is_empty() { "default".to_owned() } else { from.join(", ") };
            let arguments =
                if step.arguments.is_empty() { String::new() } else { format!("  {}", json!(step.arguments)) };
            let _ = writeln!(text, "  {:>5}  {:width$}  {from}{arguments}", step.priority, step.entry.name);
        }
        text + "\n"
    }

    /// Returns the merged steps as JSON, each with the names of its templates.
    pub(crate) fn steps_as_json(&self, steps: &[PlannedStep]) -> Value {
        let of = |step: &PlannedStep| {
            let mut shown = json!(step.as_template_step());
            shown["templates"] = json!(self.template_names(step, |_, template| template.name.clone()));
            shown
        };
        steps.iter().map(of).collect()
    }

    fn template_names(&self, step: &PlannedStep, name: impl Fn(&Path, &DeployTemplate) -> String) -> Vec<String> {
        let mut all: Vec<usize> = step.from.clone();
        all.dedup();
        all.iter().filter_map(|index| self.0.get(*index)).map(|(path, template)| name(path, template)).collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::cli::{Cli, CliCommand};
    use crate::local_commands::plan::plan_output;
    use clap::Parser;
    use common::command_outcome::CommandOutcome;
    use std::path::Path;

    const MIRROR: &str = r#"{"name": "CUSTOM_MIRROR", "steps": [{"interface": "raid", "step": "create_configuration", "args": {
        "logical_disks": [{"size_gb": "MAX", "raid_level": "1", "is_root_volume": true}], "delete_configuration": true}, "priority": 10}]}"#;
    const SECURE: &str =
        "name: CUSTOM_SECURE\nsteps:\n- {interface: deploy, step: apply_layout, args: {erase: secure}, priority: 90}\n";

    /// Runs `drophammer plan` with these templates.
    fn plan(templates: &[&str], more: &[&str]) -> common::error::Result<(String, CommandOutcome)> {
        let dir = tempfile::tempdir().unwrap();
        let mut arguments: Vec<String> =
            ["drophammer", "plan"].iter().chain(more).map(|word| word.to_string()).collect();
        for (index, text) in templates.iter().enumerate() {
            let path = dir.path().join(format!("{index}.yaml"));
            std::fs::write(&path, text).unwrap();
            arguments.extend(["--template".to_owned(), path.display().to_string()]);
        }
        let CliCommand::Plan(options) = Cli::try_parse_from(arguments).unwrap().command else { panic!() };
        plan_output(&options).map(|(text, exit)| (text.replace(&format!("{}/", dir.path().display()), ""), exit))
    }

    fn testdata(name: &str) -> String {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("testdata").join(name).display().to_string()
    }

    #[test]
    fn merged_steps_are_printed_with_their_templates() {
        let inventory = testdata("inventories/five-sata.json");
        let (text, exit) = plan(&[SECURE, MIRROR], &["--inventory", &inventory]).unwrap();
        let steps: Vec<&str> = text.split("\n\n").nth(1).unwrap().lines().collect();
        assert_eq!(
            steps,
            [
                "steps",
                "     90  deploy.apply_layout        CUSTOM_SECURE (0.yaml)  {\"erase\":\"secure\"}",
                "     80  deploy.burn_image          default",
                "     70  deploy.write_files         default",
                "     65  deploy.run_installer       default",
                "     60  deploy.prepare_boot        default",
                "     45  deploy.finish              default",
                "     10  raid.create_configuration  CUSTOM_MIRROR (1.yaml)  {\"delete_configuration\":true,\"logical_disks\":[{\"is_root_volume\":true,\"raid_level\":\"1\",\"size_gb\":\"MAX\"}]}",
            ],
            "{text}"
        );
        assert!(text.contains("md0 raid1 metadata 1.2"), "{text}");
        let (json, _) = plan(&[MIRROR], &["--inventory", &inventory, "--json"]).unwrap();
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["deploy_steps"][6]["templates"], serde_json::json!(["CUSTOM_MIRROR"]));
        assert_eq!(json["deploy_steps"][0]["templates"], serde_json::json!([]));
        // The steps are printed even if the layout's plan is refused.
        let one = testdata("inventories/sata-1.json");
        let layout = testdata("layouts/default.yaml");
        let (text, exit_of_layout) = plan(&[SECURE], &["--inventory", &one, "--layout", &layout]).unwrap();
        assert!(
            text.contains("\n\nsteps\n") && exit == CommandOutcome::Good && exit_of_layout == CommandOutcome::Good,
            "{text}"
        );
    }

    #[test]
    fn invalid_templates_are_refused_with_file_and_position() {
        let inventory = testdata("inventories/sata-1.json");
        let layout = testdata("layouts/default.yaml");
        let refused = |templates: &[&str], more: &[&str]| {
            let all: Vec<&str> = ["--inventory", inventory.as_str()].iter().chain(more).copied().collect();
            match plan(templates, &all) {
                Ok((text, exit)) => {
                    assert_eq!(exit, CommandOutcome::Refused, "{text}");
                    text
                }
                Err(error) => error.to_string(),
            }
        };
        let with_layout = ["--layout", layout.as_str()];
        let text = refused(&[&SECURE.replace("erase", "wipe")], &with_layout);
        assert!(
            text.starts_with(
                "0.yaml:3:50: steps[0].args.wipe: step deploy.apply_layout: unknown argument wipe; supported arguments: erase"
            ),
            "{text}"
        );
        let text = refused(&[&SECURE.replace("name: ", "nam: ")], &with_layout);
        assert!(text.starts_with("0.yaml:1:1: "), "{text}");
        let text = refused(&[MIRROR], &with_layout);
        assert!(text.contains("a template generates the layout: omit either --layout or that template"), "{text}");
        let text = refused(&[MIRROR, &MIRROR.replace("MIRROR", "AGAIN")], &[]);
        assert!(text.starts_with("1.yaml:1:") && text.contains("only one step may generate the layout"), "{text}");
        let text = refused(&[MIRROR], &[]);
        assert!(text.starts_with("0.yaml:1:") && text.contains("has 1 of the 2 devices"), "{text}");
        let text = refused(&[&MIRROR.replace("\"1\"", "1")], &[]);
        assert!(text.starts_with("0.yaml:2:") && text.contains("raid_level"), "{text}");
        assert!(refused(&[SECURE], &[]).contains("the layout is missing"));
    }
}
