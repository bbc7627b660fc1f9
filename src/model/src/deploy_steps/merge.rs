//! Merge of default steps and templates into the ordered list of steps.
//!
//! The rules match Ironic's deploy templates:
//!
//! * A step in a template replaces the default step with the same name. Its arguments replace the default arguments
//!   with the same names.
//! * Priority 0 disables a step. A core step accepts no priority other than 0 and its default priority.
//! * Steps run in the order of descending priority. If priorities are equal, default steps precede the steps of
//!   templates, and the steps of templates keep their order.
//! * A step that is not a core step may be listed several times. It then runs several times.

use super::{CatalogStep, OutOfBandStep};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::fmt;

/// Step in a template.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TemplateStep {
    pub interface: String,
    pub step: String,
    #[serde(default)]
    pub args: Map<String, Value>,
    /// Priority; `None` for the default priority of the step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u32>,
}

/// Step that will run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedStep {
    pub entry: &'static CatalogStep,
    pub priority: u32,
    pub arguments: Map<String, Value>,
    /// Indices of the templates that list this step. Empty for a default step.
    pub from: Vec<usize>,
}

impl PlannedStep {
    /// Returns the step in the format of templates.
    pub fn as_template_step(&self) -> TemplateStep {
        let (interface, step) = self.entry.name.split_once('.').unwrap_or((self.entry.name, ""));
        let (interface, step) = (interface.to_owned(), step.to_owned());
        TemplateStep { interface, step, args: self.arguments.clone(), priority: Some(self.priority) }
    }
}

/// Problem with a step of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepProblem {
    /// Index of the template.
    pub template: usize,
    /// Index of the step in the template.
    pub step: usize,
    /// Name of the invalid argument; `None` if the problem does not concern an argument.
    pub argument: Option<String>,
    pub message: String,
}

impl StepProblem {
    /// Returns the path of the problem within the template, such as `steps[2].args.erase`.
    pub fn problem_path(&self) -> String {
        let argument = self.argument.as_ref().map(|name| format!(".args.{name}"));
        format!("steps[{}]{}", self.step, argument.unwrap_or_default())
    }
}

impl fmt::Display for StepProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "templates[{}].{}: {}", self.template, self.problem_path(), self.message)
    }
}

/// Returns the default steps of a catalog in the order in which they run.
pub(crate) fn default_steps(catalog: &'static [CatalogStep]) -> Vec<PlannedStep> {
    let steps = catalog.iter().filter(|entry| entry.priority > 0);
    let mut steps: Vec<PlannedStep> = steps
        .map(|entry| PlannedStep { entry, priority: entry.priority, arguments: Map::new(), from: Vec::new() })
        .collect();
    sort_by_priority(&mut steps);
    steps
}

/// Merges templates into the default steps.
///
/// # Errors
/// Returns all problems of the templates.
pub fn merge_templates(
    catalog: &'static [CatalogStep],
    defaults: Vec<PlannedStep>,
    templates: &[Vec<TemplateStep>],
) -> Result<Vec<PlannedStep>, Vec<StepProblem>> {
    let mut wrong = Vec::new();
    let mut steps = defaults;
    let mut named: Vec<PlannedStep> = Vec::new();
    for (template, wanted) in templates.iter().enumerate() {
        for (index, wanted) in wanted.iter().enumerate() {
            match parse_step(catalog, wanted) {
                Ok(step) => add_step(&mut named, add_default_arguments(step, &steps, template), wanted.priority),
                Err(found) => wrong.extend(found.into_iter().map(|(argument, message)| StepProblem {
                    template,
                    step: index,
                    argument,
                    message,
                })),
            }
        }
    }
    if !wrong.is_empty() {
        return Err(wrong);
    }
    steps.retain(|default| named.iter().all(|step| step.entry != default.entry));
    steps.extend(named.into_iter().filter(|step| step.priority > 0));
    sort_by_priority(&mut steps);
    Ok(steps)
}

/// Adds the default arguments of the step, except those that the template sets.
fn add_default_arguments(mut step: PlannedStep, defaults: &[PlannedStep], template: usize) -> PlannedStep {
    let default = defaults.iter().find(|default| default.entry == step.entry);
    let mut arguments = default.map(|default| default.arguments.clone()).unwrap_or_default();
    arguments.append(&mut step.arguments);
    PlannedStep { arguments, from: vec![template], ..step }
}

/// Sorts steps by descending priority. Steps with equal priority keep their order.
fn sort_by_priority(steps: &mut [PlannedStep]) {
    steps.sort_by_key(|step| std::cmp::Reverse(step.priority));
}

/// Adds a step to the list. If the list already contains the same core step from an earlier template, adds the
/// arguments to the existing step and does not add a second step. If the later template sets a priority, this priority
/// replaces that of the existing step.
fn add_step(named: &mut Vec<PlannedStep>, step: PlannedStep, priority: Option<u32>) {
    match named.iter_mut().find(|earlier| earlier.entry.core && earlier.entry == step.entry) {
        Some(earlier) => {
            earlier.priority = priority.unwrap_or(earlier.priority);
            earlier.arguments.extend(step.arguments);
            earlier.from.extend(step.from);
        }
        None => named.push(step),
    }
}

/// Name of the invalid argument (`None` if the problem does not concern an argument), and the message.
pub(super) type ArgumentProblem = (Option<String>, String);

/// Parses one step.
pub(super) fn parse_step(
    catalog: &'static [CatalogStep],
    wanted: &TemplateStep,
) -> Result<PlannedStep, Vec<ArgumentProblem>> {
    let TemplateStep { interface, step, args, priority } = wanted;
    let name = format!("{interface}.{step}");
    let Some(entry) = catalog.iter().find(|entry| entry.name == name) else {
        let known: Vec<&str> = catalog.iter().map(|entry| entry.name).collect();
        return Err(vec![(
            None,
            format!("unknown step {name}; supported steps: {known_steps}", known_steps = known.join(", ")),
        )]);
    };
    let priority_is = check_priority(entry, *priority).map(|why| (None, why));
    let mut wrong: Vec<ArgumentProblem> = priority_is.into_iter().chain(check_arguments(entry, args)).collect();
    if entry.out_of_band && wrong.is_empty() {
        wrong.extend(OutOfBandStep::parse(entry.name, args).err().unwrap_or_default());
    }
    if !wrong.is_empty() {
        return Err(wrong);
    }
    Ok(PlannedStep { entry, priority: priority.unwrap_or(entry.priority), arguments: args.clone(), from: Vec::new() })
}

fn check_priority(entry: &CatalogStep, wanted: Option<u32>) -> Option<String> {
    let CatalogStep { name, priority, core, .. } = entry;
    match wanted {
        None if *priority == 0 => {
            Some(format!("step {name} does not run by default; to run the step, set its priority"))
        }
        Some(other) if *core && other != 0 && other != *priority => Some(format!(
            "{name} is a core step: its priority must be {priority}, or 0 to disable the step; found {other}"
        )),
        _ => None,
    }
}

fn check_arguments(entry: &CatalogStep, args: &Map<String, Value>) -> Vec<ArgumentProblem> {
    let check = |(given, value): (&String, &Value)| {
        let Some(argument) = entry.arguments.iter().find(|argument| argument.name == given) else {
            let known: Vec<&str> = entry.arguments.iter().map(|argument| argument.name).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            return Some((
                Some(given.clone()),
                format!("step {step}: unknown argument {given}; supported arguments: {known}", step = entry.name),
            ));
        };
        let fits = argument.values.is_empty() || value.as_str().is_some_and(|value| argument.values.contains(&value));
        let why = || {
            format!(
                "step {step}: argument {given} must be one of {values}, found {value}",
                step = entry.name,
                values = argument.values.join(", ")
            )
        };
        (!fits).then(|| (Some(given.clone()), why()))
    };
    args.iter().filter_map(check).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deploy_steps::{CATALOG, EraseMode, StepArgument, StepKind, StepList};
    use serde_json::json;

    const fn entry(name: &'static str, priority: u32, core: bool) -> CatalogStep {
        const SIZE: StepArgument = StepArgument { name: "size", about: "", values: &[] };
        CatalogStep {
            name,
            about: "",
            priority,
            core,
            out_of_band: false,
            arguments: &[SIZE],
            kinds: &[StepKind::Deploy],
        }
    }

    static SMALL: [CatalogStep; 4] = [
        entry("deploy.first", 90, true),
        entry("deploy.last", 10, true),
        entry("deploy.often", 0, false),
        entry("raid.between", 50, false),
    ];

    /// Parses a step from `INTERFACE.STEP[=PRIORITY][ SIZE]`.
    fn wanted(text: &str) -> TemplateStep {
        let (text, size) = text.split_once(' ').map_or((text, None), |(text, size)| (text, Some(size)));
        let (name, priority) = text.split_once('=').map_or((text, None), |(name, priority)| (name, Some(priority)));
        let (interface, step) = name.split_once('.').unwrap();
        let args = size.map(|size| ("size".to_owned(), json!(size))).into_iter().collect();
        let priority = priority.map(|priority| priority.parse().unwrap());
        TemplateStep { interface: interface.into(), step: step.into(), args, priority }
    }

    fn merged(templates: &[&[&str]]) -> Result<String, Vec<String>> {
        let templates: Vec<Vec<TemplateStep>> =
            templates.iter().map(|template| template.iter().map(|text| wanted(text)).collect()).collect();
        let steps = merge_templates(&SMALL, default_steps(&SMALL), &templates)
            .map_err(|wrong| wrong.iter().map(StepProblem::to_string).collect::<Vec<_>>())?;
        let steps = steps.iter().map(|step| {
            let size = step.arguments.get("size").and_then(Value::as_str).map(|size| format!(" {size}"));
            format!("{}={}{}", step.entry.name, step.priority, size.unwrap_or_default())
        });
        Ok(steps.collect::<Vec<_>>().join(", "))
    }

    #[test]
    fn steps_are_sorted_by_priority_then_template_order() {
        for (templates, expected) in [
            (&[] as &[&[&str]], "deploy.first=90, raid.between=50, deploy.last=10"),
            // An argument replaces the default argument; the priority is unchanged.
            (&[&["raid.between 3"]], "deploy.first=90, raid.between=50 3, deploy.last=10"),
            (&[&["raid.between=95"]], "raid.between=95, deploy.first=90, deploy.last=10"),
            (&[&["raid.between=0"]], "deploy.first=90, deploy.last=10"),
            (&[&["deploy.last=0"]], "deploy.first=90, raid.between=50"),
            (&[&["deploy.first=90 7"]], "deploy.first=90 7, raid.between=50, deploy.last=10"),
            // One step is listed several times, and other steps have equal priority.
            (
                &[&["deploy.often=50 1", "deploy.often=50 2"], &["deploy.often=60 3"]],
                "deploy.first=90, deploy.often=60 3, raid.between=50, deploy.often=50 1, deploy.often=50 2, deploy.last=10",
            ),
            // The last template that lists a core step takes precedence.
            (&[&["deploy.first 1"], &["deploy.first 2"]], "deploy.first=90 2, raid.between=50, deploy.last=10"),
            (&[&["deploy.first=0"], &["deploy.first=90"]], "deploy.first=90, raid.between=50, deploy.last=10"),
            (&[&["deploy.first=0"], &["deploy.first 1"]], "raid.between=50, deploy.last=10"),
        ] {
            assert_eq!(merged(templates).as_deref(), Ok(expected), "{templates:?}");
        }
    }

    #[test]
    fn reports_every_invalid_step_before_execution() {
        let mut bad =
            vec![wanted("deploy.often"), wanted("deploy.first=80"), wanted("bios.apply=3"), wanted("raid.between")];
        bad[3].args.insert("level".into(), json!(1));
        let wrong = merge_templates(&SMALL, default_steps(&SMALL), &[Vec::new(), bad]).unwrap_err();
        let lines: Vec<String> = wrong.iter().map(StepProblem::to_string).collect();
        assert_eq!(
            lines,
            [
                "templates[1].steps[0]: step deploy.often does not run by default; to run the step, set its priority",
                "templates[1].steps[1]: deploy.first is a core step: its priority must be 90, or 0 to disable the step; found 80",
                "templates[1].steps[2]: unknown step bios.apply; supported steps: deploy.first, deploy.last, deploy.often, raid.between",
                "templates[1].steps[3].args.level: step raid.between: unknown argument level; supported arguments: size",
            ]
        );
    }

    #[test]
    fn catalog_steps_are_ordered_and_accept_all_erase_modes() {
        let merged = |templates: &[Vec<TemplateStep>]| merge_templates(&CATALOG, default_steps(&CATALOG), templates);
        let steps = merged(&[]).unwrap();
        let names: Vec<&str> = steps.iter().map(|step| step.entry.name).collect();
        let run = CATALOG.iter().filter(|entry| entry.priority > 0);
        assert_eq!(names, run.map(|entry| entry.name).collect::<Vec<_>>());
        assert_eq!(StepList::from(steps), StepList::default());
        for erase in [EraseMode::Quick, EraseMode::Secure, EraseMode::None] {
            assert_eq!(StepList::with_erase_mode(erase).erase_mode(), erase);
        }
        let mut layout = wanted("deploy.apply_layout");
        layout.args.insert("erase".into(), json!("secure"));
        assert_eq!(StepList::from(merged(&[vec![layout.clone()]]).unwrap()).erase_mode(), EraseMode::Secure);
        layout.args.insert("erase".into(), json!("thorough"));
        assert_eq!(
            merged(&[vec![layout]]).unwrap_err()[0].to_string(),
            "templates[0].steps[0].args.erase: step deploy.apply_layout: argument erase must be one of quick, secure, none, found \"thorough\""
        );
    }

    #[test]
    fn steps_keep_default_arguments_and_record_their_templates() {
        let secure = StepList::with_erase_mode(EraseMode::Secure).list;
        let layout = wanted("deploy.apply_layout");
        let files = wanted("deploy.write_files");
        let steps = merge_templates(&CATALOG, secure, &[vec![layout.clone()], vec![files, layout]]).unwrap();
        let from = |name: &str| &steps.iter().find(|step| step.entry.name == name).unwrap().from;
        assert_eq!((from("deploy.apply_layout"), from("deploy.write_files")), (&vec![0, 1], &vec![1]));
        assert!(from("deploy.finish").is_empty());
        let told: Vec<TemplateStep> = steps.iter().map(PlannedStep::as_template_step).collect();
        let again = StepList::from_received(&told);
        assert_eq!((again.erase_mode(), again.problems()), (EraseMode::Secure, &[][..]));
        assert_eq!(again.list.iter().map(PlannedStep::as_template_step).collect::<Vec<_>>(), told);
        let bad = StepList::from_received(&[wanted("deploy.later=7")]);
        assert!(bad.problems()[0].starts_with("unknown step deploy.later; supported steps: "), "{:?}", bad.problems());
    }

    #[test]
    fn agent_refuses_steps_of_the_management_controller() {
        let step = |interface: &str, step: &str, args: Value| TemplateStep {
            interface: interface.to_owned(),
            step: step.to_owned(),
            args: args.as_object().cloned().unwrap_or_default(),
            priority: Some(150),
        };
        let reboot = step("power", "reboot", json!({}));
        let bad = step("bios", "apply_configuration", json!({"settings": 7}));
        let received = StepList::from_received(std::slice::from_ref(&reboot));
        assert!(received.problems()[0].contains("power.reboot runs through the management controller"), "{received:?}");
        assert!(!received.includes_step("power.reboot"));
        let merge = |step| merge_templates(&CATALOG, default_steps(&CATALOG), &[vec![step]]);
        assert_eq!(merge(reboot).unwrap()[0].entry.name, "power.reboot");
        let why = merge(bad).unwrap_err();
        assert_eq!((why.len(), why[0].problem_path().as_str()), (1, "steps[0].args.settings"), "{why:?}");
    }
}
