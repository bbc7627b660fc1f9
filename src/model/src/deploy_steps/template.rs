//! Deploy templates. A template consists of a trait, and the steps that run on machines with this trait. Templates are
//! parsed from YAML or JSON, and each problem is reported with its location.
//!
//! The restrictions match Ironic's. The existence of a step is checked only when templates are merged with the default
//! steps of a catalog.

mod check;

use super::TemplateStep;
use common::diagnostic::Diagnostic;
use common::yaml;
use marked_yaml::{LoaderOptions, Marker, Node};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

pub use check::{check_template, is_uuid, prune_step};

/// Line and column, counted from 1.
pub(crate) type TextPosition = (usize, usize);

/// Deploy template.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DeployTemplate {
    /// UUID; `None` if the file does not contain one.
    pub uuid: Option<String>,
    /// Trait. The template applies to machines with this trait.
    pub name: String,
    /// Steps of the file, with priorities converted to numbers.
    pub steps: Vec<Value>,
    pub extra: Map<String, Value>,
    /// Time of creation in RFC 3339; only for templates that were created over the API.
    pub created_at: Option<String>,
    /// Time of the last change over the API, in RFC 3339.
    pub updated_at: Option<String>,
    /// Location of each element in the file, by the path of the element.
    pub places: BTreeMap<String, TextPosition>,
}

impl DeployTemplate {
    /// Parses the text of a template file.
    ///
    /// # Errors
    /// Returns all problems, each with line and column.
    pub fn parse_file(text: &str) -> Result<DeployTemplate, Vec<Diagnostic>> {
        let options = LoaderOptions::default().error_on_duplicate_keys(true).prevent_coercion(true);
        let node = yaml::read_document(text, options).map_err(|why| vec![Diagnostic::new("", why)])?;
        let mut places = BTreeMap::new();
        record_locations(&node, "", None, &mut places);
        let document = yaml::to_json(&node);
        let problems = check_template(&document, &[check::CREATED, check::UPDATED]);
        let mut template = DeployTemplate { places, ..DeployTemplate::default() };
        if !problems.is_empty() {
            return Err(problems.into_iter().map(|problem| template.add_location(problem)).collect());
        }
        template.take_fields(&document);
        Ok(template)
    }

    /// Converts a document to a template. [`check_template`] must have accepted the document.
    pub fn from_checked(document: &Value) -> DeployTemplate {
        let mut template = DeployTemplate::default();
        template.take_fields(document);
        template
    }

    fn take_fields(&mut self, document: &Value) {
        let text = |name: &str| document.get(name).and_then(Value::as_str).map(str::to_owned);
        self.uuid = text("uuid");
        self.name = text("name").unwrap_or_default();
        self.steps = document.get("steps").and_then(Value::as_array).cloned().unwrap_or_default();
        for step in &mut self.steps {
            step["priority"] = json!(step.get("priority").and_then(check::parse_priority));
        }
        self.extra = document.get("extra").and_then(Value::as_object).cloned().unwrap_or_default();
        (self.created_at, self.updated_at) = (text(check::CREATED), text(check::UPDATED));
    }

    /// Returns whether both templates are equal apart from the locations of their elements.
    pub fn equals_ignoring_locations(&self, other: &DeployTemplate) -> bool {
        let without_places = |template: &DeployTemplate| DeployTemplate { places: BTreeMap::new(), ..template.clone() };
        without_places(self) == without_places(other)
    }

    /// Returns the steps in the form that [`super::merge_templates`] requires.
    pub fn template_steps(&self) -> Vec<TemplateStep> {
        let text = |step: &Value, name: &str| step.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let wanted = |step: &Value| TemplateStep {
            interface: text(step, "interface"),
            step: text(step, "step"),
            args: step.get("args").and_then(Value::as_object).cloned().unwrap_or_default(),
            priority: step.get("priority").and_then(check::parse_priority),
        };
        self.steps.iter().map(wanted).collect()
    }

    /// Adds line and column to a problem. If the location of the element with the problem is not known, uses the
    /// location of its innermost parent whose location is known.
    pub fn add_location(&self, mut problem: Diagnostic) -> Diagnostic {
        let mut place = problem.place.as_str();
        let found = loop {
            match (self.places.get(place), place.rfind(['.', '['])) {
                (Some(found), _) => break Some(*found),
                (None, Some(end)) => place = &place[..end],
                (None, None) => break self.places.get("").copied(),
            }
        };
        (problem.line, problem.column) = found.unzip();
        problem
    }

    /// Returns the text of a file that contains this template.
    ///
    /// # Errors
    /// Fails if YAML cannot represent the template.
    pub fn to_yaml(&self) -> Result<String, String> {
        let line = |name: &str, value: &Value| format!("{name}: {}\n", format_flow(value));
        let mut text = String::new();
        if let Some(uuid) = &self.uuid {
            text += &line("uuid", &json!(uuid));
        }
        text += &line("name", &json!(self.name));
        text += "steps:\n";
        for step in &self.steps {
            let fields =
                ["interface", "step", "args", "priority"].iter().filter_map(|name| Some((name, step.get(name)?)));
            for (index, (name, value)) in fields.enumerate() {
                let start = if index == 0 { "  - " } else { "    " };
                text += &format!("{start}{}", line(name, value));
            }
        }
        if !self.extra.is_empty() {
            text += &line("extra", &json!(self.extra));
        }
        let times = [(check::CREATED, &self.created_at), (check::UPDATED, &self.updated_at)];
        for (name, time) in times {
            text += &time.as_ref().map(|time| line(name, &json!(time))).unwrap_or_default();
        }
        let again =
            DeployTemplate::parse_file(&text).map_err(|problems| common::diagnostic::join_problems(&problems))?;
        if again.equals_ignoring_locations(self) {
            Ok(text)
        } else {
            Err("the template cannot be written as YAML".to_owned())
        }
    }
}

/// Formats a value on one line, as JSON with spaces.
fn format_flow(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let fields: Vec<String> =
                fields.iter().map(|(name, value)| format!("{}: {}", json!(name), format_flow(value))).collect();
            format!("{{{}}}", fields.join(", "))
        }
        Value::Array(items) => format!("[{}]", items.iter().map(format_flow).collect::<Vec<_>>().join(", ")),
        other => other.to_string(),
    }
}

/// Records the location of each element. The location of a field is the start of its name. The location of a list item
/// is the start of the item.
fn record_locations(node: &Node, place: &str, mark: Option<&Marker>, places: &mut BTreeMap<String, TextPosition>) {
    let place_of = |mark: &Marker| (mark.line(), mark.column());
    // The location of a mapping is derived from its fields: according to the parser, a block mapping starts after the
    // name of its first field.
    let names = node.as_mapping().into_iter().flat_map(|fields| fields.keys().filter_map(|key| key.span().start()));
    let own = names.chain(node.span().start()).map(place_of).min();
    if let Some(found) = mark.map(place_of).or(own) {
        places.entry(place.to_owned()).or_insert(found);
    }
    match node {
        Node::Mapping(fields) => fields.iter().for_each(|(key, value)| {
            let dot = if place.is_empty() { "" } else { "." };
            record_locations(value, &format!("{place}{dot}{}", key.as_str()), key.span().start(), places);
        }),
        Node::Sequence(items) => {
            items
                .iter()
                .enumerate()
                .for_each(|(index, item)| record_locations(item, &format!("{place}[{index}]"), None, places));
        }
        Node::Scalar(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIRROR: &str = "name: CUSTOM_MIRROR
steps:
  - interface: raid
    step: create_configuration
    args:
      logical_disks: [{size_gb: MAX, raid_level: \"1\", is_root_volume: true}]
      delete_configuration: true
    priority: 10
";

    fn wrong(text: &str) -> Vec<String> {
        DeployTemplate::parse_file(text).unwrap_err().iter().map(Diagnostic::to_string).collect()
    }

    #[test]
    fn template_file_yields_steps_with_locations() {
        let template = DeployTemplate::parse_file(MIRROR).unwrap();
        assert_eq!((template.name.as_str(), &template.uuid), ("CUSTOM_MIRROR", &None));
        let [step] = &template.template_steps()[..] else { panic!() };
        assert_eq!(
            (step.interface.as_str(), step.step.as_str(), step.priority),
            ("raid", "create_configuration", Some(10))
        );
        assert_eq!(step.args["logical_disks"], json!([{"size_gb": "MAX", "raid_level": "1", "is_root_volume": true}]));
        for (place, line, column) in [
            ("steps[0]", 3, 5),
            ("steps[0].args.delete_configuration", 7, 7),
            ("steps[0].args.logical_disks[0].size_gb", 6, 24),
            ("steps[0].args.other", 5, 5),
            ("nothing", 1, 1),
        ] {
            let found = template.add_location(Diagnostic::new(place, ""));
            assert_eq!((found.line, found.column), (Some(line), Some(column)), "{place}");
        }
    }

    #[test]
    fn reports_every_template_problem_with_its_location() {
        let text = "name: custom\nsteps:\n  - {interface: net, step: '', args: [], priority: high, order: 1}\n  - 7\ntraits: []\n";
        let said = wrong(text);
        for place in [
            "1:1: name: ",
            "3:6: steps[0].interface",
            "3:22: steps[0].step",
            "3:32: steps[0].args",
            "3:42: steps[0].priority",
            "3:58: steps[0].order",
            "4:5: steps[1]",
            "5:1: traits",
        ] {
            assert!(said.iter().any(|line| line.starts_with(place)), "{place}\n{}", said.join("\n"));
        }
        assert_eq!(said.len(), 8, "{}", said.join("\n"));
        assert!(wrong("steps: [\n")[0].contains("2:"), "{:?}", wrong("steps: [\n"));
        assert_eq!(wrong("[]"), ["1:1: the document must be a mapping"]);
    }

    #[test]
    fn api_template_survives_conversion_to_yaml() {
        let document = json!({
            "uuid": "3".repeat(32), "name": "CUSTOM_A", "created_at": "2026-11-23T10:00:00.000001+00:00",
            "steps": [
                {"interface": "deploy", "step": "x: #y", "priority": "07", "args": {
                    "null": null, "list": [null, 1.5, -0.25, 1e300, true, "true", "7", "~", ""], "a\"b": {"": "\u{7f}\u{85}ä\u{2028}\n\t\\"},
                    "script": "#!/bin/sh\nset -e\n  echo 'x'  \n", "\u{1f600}": "\u{1f600}", "deep": [[[{}]]]}},
                {"interface": "bios", "step": "y", "priority": 1.0, "args": {}}],
            "extra": {"a: b": "- c"},
        });
        assert_eq!(check_template(&document, &[check::CREATED]), []);
        let template = DeployTemplate::from_checked(&document);
        let text = template.to_yaml().unwrap();
        let again = DeployTemplate::parse_file(&text).unwrap();
        let mut steps = document["steps"].clone();
        (steps[0]["priority"], steps[1]["priority"]) = (json!(7), json!(1));
        assert_eq!(json!(again.steps), steps, "{text}");
        assert_eq!((again.extra, again.uuid), (template.extra, template.uuid));
        let deep = (0..100).fold(json!(1), |inner, _| json!([inner]));
        let document = json!({"name": "CUSTOM_A", "steps": [{"interface": "bios", "step": "y", "priority": 1, "args": {"a": deep}}]});
        assert!(DeployTemplate::from_checked(&document).to_yaml().unwrap_err().contains("nested more than"));
    }

    #[test]
    fn example_templates_merge_into_the_default_steps() {
        use crate::deploy_steps::{CATALOG, StepList, merge_templates};
        for (name, text) in [
            ("VMX_ON", include_str!("../../../../examples/deploy-templates/bios-vmx-on.yaml")),
            ("VMX_OFF", include_str!("../../../../examples/deploy-templates/bios-vmx-off.yaml")),
            ("TURBO_OFF", include_str!("../../../../examples/deploy-templates/bios-turbo-off.yaml")),
        ] {
            let template = DeployTemplate::parse_file(text).unwrap();
            assert_eq!(template.name, format!("CUSTOM_BM_CONFIG_BIOS_{name}"));
            let steps = StepList::default().list().to_vec();
            let steps = merge_templates(&CATALOG, steps, &[template.template_steps()]).unwrap();
            assert!(steps[0].entry.out_of_band, "{name}");
        }
    }

    #[test]
    fn documentation_has_a_valid_template_and_lists_all_steps() {
        let page = include_str!("../../../../docs/templates.md");
        let template = DeployTemplate::parse_file(&testing::docs::code_blocks(page, "yaml")[0]).unwrap();
        assert_eq!(template.template_steps()[0].step, "create_configuration");
        for entry in &crate::deploy_steps::CATALOG {
            let arguments: Vec<&str> = entry.arguments.iter().map(|argument| argument.name).collect();
            let row = format!("| `{}` | {} |", entry.name, entry.priority);
            let row = page.lines().find(|line| line.starts_with(&row)).unwrap_or_else(|| panic!("{row}"));
            assert!(arguments.iter().all(|name| row.contains(&format!("`{name}`"))), "{row}");
            assert_eq!(row.contains("core"), entry.core, "{row}");
        }
    }
}
