//! Defaults and templates in, the ordered list of steps out; or everything that is wrong with the templates.
//!
//! The rules are those of Ironic's deploy templates:
//!
//! * A step that a template names replaces the default one. Its arguments replace those of the same name.
//! * Priority 0 disables a step. A core step keeps its priority otherwise.
//! * The highest priority runs first. Where two are equal, the default comes first, then the templates in their order.
//! * A step that is not a core step may be named more than once, and runs as often.

use super::Entry;
use crate::problem::Problem;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A step as a template writes it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wanted {
    pub interface: String,
    pub step: String,
    #[serde(default)]
    pub args: Map<String, Value>,
    /// The default one where there is none.
    #[serde(default)]
    pub priority: Option<u32>,
}

/// A step that will run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    pub entry: &'static Entry,
    pub priority: u32,
    pub arguments: Map<String, Value>,
}

/// The steps of `catalogue` that run without a template, in their order.
pub fn defaults(catalogue: &'static [Entry]) -> Vec<Step> {
    let steps = catalogue.iter().filter(|entry| entry.priority > 0);
    let mut steps: Vec<Step> =
        steps.map(|entry| Step { entry, priority: entry.priority, arguments: Map::new() }).collect();
    in_order(&mut steps);
    steps
}

/// What runs with these templates.
///
/// # Errors
/// All that is wrong with them, each with its place: `templates[0][2]`.
pub fn merge(catalogue: &'static [Entry], templates: &[Vec<Wanted>]) -> Result<Vec<Step>, Vec<Problem>> {
    let mut problems = Vec::new();
    let mut steps = defaults(catalogue);
    let mut named: Vec<Step> = Vec::new();
    for (template, wanted) in templates.iter().enumerate() {
        for (index, wanted) in wanted.iter().enumerate() {
            match step(catalogue, wanted) {
                Ok(step) => name(&mut named, step, wanted.priority),
                Err(messages) => {
                    let place = format!("templates[{template}][{index}]");
                    problems.extend(messages.into_iter().map(|message| Problem::new(place.clone(), message)));
                }
            }
        }
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    steps.retain(|default| named.iter().all(|step| step.entry != default.entry));
    steps.extend(named.into_iter().filter(|step| step.priority > 0));
    in_order(&mut steps);
    Ok(steps)
}

/// Stable: what has one priority stays as it stands.
fn in_order(steps: &mut [Step]) {
    steps.sort_by_key(|step| std::cmp::Reverse(step.priority));
}

/// There is one of each core step: a later template adds its arguments to it, and its priority where it has one.
fn name(named: &mut Vec<Step>, step: Step, priority: Option<u32>) {
    match named.iter_mut().find(|earlier| earlier.entry.core && earlier.entry == step.entry) {
        Some(earlier) => {
            earlier.priority = priority.unwrap_or(earlier.priority);
            earlier.arguments.extend(step.arguments);
        }
        None => named.push(step),
    }
}

fn step(catalogue: &'static [Entry], wanted: &Wanted) -> Result<Step, Vec<String>> {
    let Wanted { interface, step, args, priority } = wanted;
    let name = format!("{interface}.{step}");
    let Some(entry) = catalogue.iter().find(|entry| entry.name == name) else {
        let known: Vec<&str> = catalogue.iter().map(|entry| entry.name).collect();
        return Err(vec![format!("there is no step {name}; there are {}", known.join(", "))]);
    };
    let wrong: Vec<String> = wrong_priority(entry, *priority).into_iter().chain(wrong_arguments(entry, args)).collect();
    if !wrong.is_empty() {
        return Err(wrong);
    }
    Ok(Step { entry, priority: priority.unwrap_or(entry.priority), arguments: args.clone() })
}

fn wrong_priority(entry: &Entry, wanted: Option<u32>) -> Option<String> {
    let Entry { name, priority, core, .. } = entry;
    match wanted {
        None if *priority == 0 => Some(format!("{name} does not run by default: give it a priority")),
        Some(other) if *core && other != 0 && other != *priority => {
            Some(format!("{name} is a core step: its priority is {priority}, and 0 disables it; found {other}"))
        }
        _ => None,
    }
}

fn wrong_arguments(entry: &Entry, args: &Map<String, Value>) -> Vec<String> {
    let check = |(given, value): (&String, &Value)| {
        let Some(argument) = entry.arguments.iter().find(|argument| argument.name == given) else {
            let known: Vec<&str> = entry.arguments.iter().map(|argument| argument.name).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            return Some(format!("{} has no argument {given}; it takes {known}", entry.name));
        };
        let fits = argument.values.is_empty() || value.as_str().is_some_and(|value| argument.values.contains(&value));
        (!fits)
            .then(|| format!("{given} of {} must be one of {}, found {value}", entry.name, argument.values.join(", ")))
    };
    args.iter().filter_map(check).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::{Argument, CATALOGUE, Erase, Kind, Steps};
    use serde_json::json;

    const fn entry(name: &'static str, priority: u32, core: bool) -> Entry {
        const SIZE: Argument = Argument { name: "size", about: "", values: &[] };
        Entry { name, about: "", priority, core, arguments: &[SIZE], kinds: &[Kind::Deploy] }
    }

    static SMALL: [Entry; 4] = [
        entry("deploy.first", 90, true),
        entry("deploy.last", 10, true),
        entry("deploy.often", 0, false),
        entry("raid.between", 50, false),
    ];

    /// `INTERFACE.STEP[=PRIORITY][ SIZE]`.
    fn wanted(text: &str) -> Wanted {
        let (text, size) = text.split_once(' ').map_or((text, None), |(text, size)| (text, Some(size)));
        let (name, priority) = text.split_once('=').map_or((text, None), |(name, priority)| (name, Some(priority)));
        let (interface, step) = name.split_once('.').unwrap();
        let args = size.map(|size| ("size".to_owned(), json!(size))).into_iter().collect();
        let priority = priority.map(|priority| priority.parse().unwrap());
        Wanted { interface: interface.into(), step: step.into(), args, priority }
    }

    fn merged(templates: &[&[&str]]) -> Result<String, Vec<String>> {
        let templates: Vec<Vec<Wanted>> =
            templates.iter().map(|template| template.iter().map(|text| wanted(text)).collect()).collect();
        let steps = merge(&SMALL, &templates)
            .map_err(|problems| problems.iter().map(Problem::to_string).collect::<Vec<_>>())?;
        let steps = steps.iter().map(|step| {
            let size = step.arguments.get("size").and_then(Value::as_str).map(|size| format!(" {size}"));
            format!("{}={}{}", step.entry.name, step.priority, size.unwrap_or_default())
        });
        Ok(steps.collect::<Vec<_>>().join(", "))
    }

    #[test]
    fn the_list_is_sorted_by_priority_then_by_the_order_of_the_templates() {
        for (templates, expected) in [
            (&[] as &[&[&str]], "deploy.first=90, raid.between=50, deploy.last=10"),
            // An argument replaces; the priority stays.
            (&[&["raid.between 3"]], "deploy.first=90, raid.between=50 3, deploy.last=10"),
            (&[&["raid.between=95"]], "raid.between=95, deploy.first=90, deploy.last=10"),
            (&[&["raid.between=0"]], "deploy.first=90, deploy.last=10"),
            (&[&["deploy.last=0"]], "deploy.first=90, raid.between=50"),
            (&[&["deploy.first=90 7"]], "deploy.first=90 7, raid.between=50, deploy.last=10"),
            // The same one twice, and ties.
            (
                &[&["deploy.often=50 1", "deploy.often=50 2"], &["deploy.often=60 3"]],
                "deploy.first=90, deploy.often=60 3, raid.between=50, deploy.often=50 1, deploy.often=50 2, deploy.last=10",
            ),
            // A later template has the last word about a core step.
            (&[&["deploy.first 1"], &["deploy.first 2"]], "deploy.first=90 2, raid.between=50, deploy.last=10"),
            (&[&["deploy.first=0"], &["deploy.first=90"]], "deploy.first=90, raid.between=50, deploy.last=10"),
            (&[&["deploy.first=0"], &["deploy.first 1"]], "raid.between=50, deploy.last=10"),
        ] {
            assert_eq!(merged(templates).as_deref(), Ok(expected), "{templates:?}");
        }
    }

    #[test]
    fn what_is_wrong_is_all_told_before_anything_runs() {
        let mut bad =
            vec![wanted("deploy.often"), wanted("deploy.first=80"), wanted("bios.apply=3"), wanted("raid.between")];
        bad[3].args.insert("level".into(), json!(1));
        let problems = merge(&SMALL, &[Vec::new(), bad]).unwrap_err();
        let lines: Vec<String> = problems.iter().map(Problem::to_string).collect();
        assert_eq!(
            lines,
            [
                "templates[1][0]: deploy.often does not run by default: give it a priority",
                "templates[1][1]: deploy.first is a core step: its priority is 90, and 0 disables it; found 80",
                "templates[1][2]: there is no step bios.apply; there are deploy.first, deploy.last, deploy.often, raid.between",
                "templates[1][3]: raid.between has no argument level; it takes size",
            ]
        );
    }

    #[test]
    fn the_own_catalogue_is_in_order_and_has_its_words_for_erasing() {
        let steps = merge(&CATALOGUE, &[]).unwrap();
        let names: Vec<&str> = steps.iter().map(|step| step.entry.name).collect();
        assert_eq!(names, CATALOGUE.each_ref().map(|entry| entry.name));
        assert_eq!(Steps::from(steps), Steps::default());
        for erase in [Erase::Quick, Erase::Secure, Erase::None] {
            assert_eq!(Steps::erasing(erase).erase(), erase);
        }
        let mut layout = wanted("deploy.apply_layout");
        layout.args.insert("erase".into(), json!("secure"));
        assert_eq!(Steps::from(merge(&CATALOGUE, &[vec![layout.clone()]]).unwrap()).erase(), Erase::Secure);
        layout.args.insert("erase".into(), json!("thorough"));
        assert_eq!(
            merge(&CATALOGUE, &[vec![layout]]).unwrap_err()[0].to_string(),
            "templates[0][0]: erase of deploy.apply_layout must be one of quick, secure, none, found \"thorough\""
        );
    }
}
