//! Steps of an allocation: the templates that its requested traits name, merged. Conflicts are reported here, before the machine boots.

use super::App;
use super::api_error::ApiError;
use super::input::{Allocation, at};
use super::resolve::Known;
use super::state::{Standing, State};
use super::templates::{Stored, Templates};
use crate::inventory::Inventory;
use crate::layout::Layout;
use crate::plan;
use crate::problem::Problem;
use crate::raid::{self, Config};
use crate::steps::{CATALOGUE, MAKE_THE_LAYOUT, Step, Steps, Wanted, merge};
use marked_yaml::Spanned;
use std::sync::Arc;

/// Result of merging the templates of an allocation.
#[derive(Debug, Default)]
pub struct Merged {
    /// All steps to run; empty if no template changes them.
    pub steps: Vec<Wanted>,
    /// Arrays from which the layout is generated.
    pub arrays: Option<Arrays>,
}

/// Arrays that a template requests.
#[derive(Debug)]
pub struct Arrays {
    config: Config,
    asked: Asked,
    /// Path of the step in its template.
    place: String,
}

/// Template, and the trait that requests it.
#[derive(Debug, Clone)]
struct Asked {
    by: Spanned<String>,
    stored: Arc<Stored>,
}

impl Asked {
    /// Formats a problem with its positions in both files.
    fn says(&self, problem: Problem) -> String {
        let Stored { path, template, .. } = &*self.stored;
        let located = template.located(problem);
        let place = located.line.zip(located.column).map(|(line, column)| format!(":{line}:{column}"));
        let file = path.file_name().unwrap_or_default().display();
        let file = format!("{}/{file}{}", super::templates::FOLDER, place.unwrap_or_default());
        at(&self.by, &format!("the template {} ({file}): {}", template.name, located.message))
    }
}

impl Arrays {
    /// Generates the layout for a machine with this inventory.
    ///
    /// # Errors
    /// The arrays are not possible there.
    pub fn layout(&self, inventory: &Inventory) -> Result<Layout, String> {
        let made = self.config.layout(&self.asked.stored.template.name, inventory);
        made.map_err(|problems| {
            let said = problems.into_iter().map(|problem| {
                let message = format!("on the disks that the machine has registered: {}", problem.message);
                self.asked.says(Problem::new(format!("{}.{}", self.place, problem.place), message))
            });
            said.collect::<Vec<_>>().join("\n")
        })
    }
}

/// Returns the templates of the allocation, in the order of its traits.
fn asked(allocation: &Allocation, known: &Known) -> Vec<Asked> {
    let of = |by: &Spanned<String>| Some(Asked { by: by.clone(), stored: known.templates.by_name(by)?.clone() });
    allocation.requested_traits.iter().filter_map(of).collect()
}

/// Returns whether a template generates the layout from the machine's registered hardware.
pub fn needs_inventory(allocation: &Allocation, known: &Known) -> bool {
    let named = |wanted: &Wanted| MAKE_THE_LAYOUT.contains(&format!("{}.{}", wanted.interface, wanted.step).as_str());
    asked(allocation, known).iter().any(|asked| asked.stored.template.wanted().iter().any(named))
}

/// Returns the state of the allocation, with everything from which its layout may be generated.
///
/// # Errors
/// The database cannot be read or written.
pub async fn standing(app: &App, machine: &str, allocation: &Allocation, known: &Known) -> Result<Standing, ApiError> {
    let standing = app.state.standing(machine, &allocation.id).await?;
    let generated = generate(app, machine, allocation, known).await?;
    approved(app, machine, &allocation.id, Standing { generated, ..standing }, known).await
}

/// Generates the layout from the templates of the allocation and the machine's registered hardware, if both exist.
///
/// # Errors
/// The database cannot be read, or the planner fails.
pub async fn generate(app: &App, machine: &str, allocation: &Allocation, known: &Known) -> Result<Generated, ApiError> {
    let Some(arrays) = requested_arrays(allocation, known) else { return Ok(None) };
    let Some(registered) = app.state.registered(machine).await? else { return Ok(None) };
    let generate = move || Some(arrays.layout(&registered.inventory()?));
    app.planner.compute(machine, generate).await
}

/// Blocking variant of [`generate`].
///
/// # Errors
/// The database cannot be read or written.
pub fn generate_blocking(
    state: &State,
    machine: &str,
    allocation: &Allocation,
    known: &Known,
) -> crate::error::Result<Generated> {
    let Some(arrays) = requested_arrays(allocation, known) else { return Ok(None) };
    Ok(state.inventory_blocking(machine)?.map(|inventory| arrays.layout(&inventory)))
}

/// Generated layout, or why it cannot be generated. `None`: no template generates one, or the machine has not registered.
pub type Generated = Option<Result<Layout, String>>;

fn requested_arrays(allocation: &Allocation, known: &Known) -> Option<Arrays> {
    needs_inventory(allocation, known).then(|| merged(allocation, known).ok()?.arrays).flatten()
}

/// Returns the standing with the approval in force for the machine.
///
/// # Errors
/// The database cannot be read or written.
pub async fn approved(
    app: &App,
    machine: &str,
    allocation: &str,
    standing: Standing,
    known: &Known,
) -> Result<Standing, ApiError> {
    let approved = match known.approvals.of_other(machine, allocation) {
        Some(other) => known.approvals.in_force(machine, &app.state.standing(machine, &other).await?),
        None => known.approvals.in_force(machine, &standing),
    };
    Ok(Standing { approved, ..standing })
}

/// Merges the templates of the allocation with its default steps.
///
/// # Errors
/// All problems, one per line, with their positions in the machine's file and in the template's.
pub fn merged(allocation: &Allocation, known: &Known) -> Result<Merged, String> {
    let asked = asked(allocation, known);
    if asked.is_empty() {
        return Ok(Merged::default());
    }
    let templates: Vec<Vec<Wanted>> = asked.iter().map(|asked| asked.stored.template.wanted()).collect();
    let defaults = Steps::erasing(allocation.erase).list().to_vec();
    let steps = merge(&CATALOGUE, defaults, &templates).map_err(|wrong| {
        let said =
            wrong.into_iter().map(|wrong| asked[wrong.template].says(Problem::new(wrong.place(), wrong.message)));
        said.collect::<Vec<_>>().join("\n")
    })?;
    let mut problems = Vec::new();
    let arrays = arrays(&steps, &asked, &mut problems);
    if let (Some(arrays), Some(layout)) = (&arrays, &allocation.filesystemlayout) {
        let name = &arrays.asked.stored.template.name;
        problems.push(at(
            layout,
            &format!("the template {name} generates the layout: remove filesystemlayout, or do not request {name}"),
        ));
    }
    let list = steps.iter().map(Step::wanted).collect();
    let by = &asked[0].by;
    problems.extend(plan::without_steps(&Steps::from(steps)).into_iter().map(|problem| at(by, &problem.message)));
    match problems.is_empty() {
        true => Ok(Merged { steps: list, arrays }),
        false => Err(problems.join("\n")),
    }
}

/// Returns the arrays of the only step that generates the layout.
fn arrays(steps: &[Step], asked: &[Asked], problems: &mut Vec<String>) -> Option<Arrays> {
    let mut all = steps.iter().filter(|step| MAKE_THE_LAYOUT.contains(&step.entry.name)).filter_map(|step| {
        let asked = asked.get(*step.from.first()?)?.clone();
        let wanted = step.wanted();
        let is_this = |other: &Wanted| other.interface == wanted.interface && other.step == wanted.step;
        let index = asked.stored.template.wanted().iter().position(is_this)?;
        Some((step, asked, index))
    });
    let (step, asked, index) = all.next()?;
    for (other, again, index) in all {
        let message =
            format!("{} generates the layout, and so does {}: only one step can", other.entry.name, step.entry.name);
        problems.push(again.says(Problem::new(format!("steps[{index}]"), message)));
    }
    let place = format!("steps[{index}].args");
    match raid::of_step(step.entry.name, &step.arguments) {
        Ok(config) => Some(Arrays { config, asked, place }),
        Err(wrong) => {
            let within = |problem: Problem| {
                let message = format!("{}: {}", problem.place, problem.message);
                asked.says(Problem::new(format!("{place}.{}", problem.place), message))
            };
            problems.extend(wrong.into_iter().map(within));
            None
        }
    }
}

/// Returns remarks on templates that no allocation can request, with their positions. Such templates are kept: another conductor may
/// support their steps.
pub fn unusable(templates: &Templates) -> Vec<String> {
    let mut said = Vec::new();
    for stored in templates.all() {
        let wrong = merge(&CATALOGUE, Steps::default().list().to_vec(), &[stored.template.wanted()]).err();
        for wrong in wrong.into_iter().flatten() {
            let problem = stored.template.located(Problem::new(wrong.place(), wrong.message));
            let why = format!("{problem}; an allocation that requests {} is refused", stored.template.name);
            said.push(super::folder::say(&stored.path, &why, false));
        }
    }
    said
}
