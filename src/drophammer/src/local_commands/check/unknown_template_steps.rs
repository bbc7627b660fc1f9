//! Notes about the steps of a deploy template that the agent does not support. They are not problems, because Ironic's
//! other hardware interfaces may support them.

use common::diagnostic::Diagnostic;
use common::spelling_suggestions::find_mistyped;
use model::deploy_steps::CATALOG;
use model::deploy_steps::template::DeployTemplate;

/// Returns a note for each step of a valid template that the agent does not support.
pub(super) fn find_unknown_steps(text: &str) -> Vec<Diagnostic> {
    let Ok(template) = DeployTemplate::parse_file(text) else { return Vec::new() };
    let steps = template.template_steps().into_iter().enumerate();
    let names = steps.map(|(index, wanted)| (index, format!("{}.{}", wanted.interface, wanted.step)));
    let unknown = names.filter(|(_, name)| CATALOG.iter().all(|entry| entry.name != name));
    unknown.map(|(index, name)| template.add_location(describe_unknown_step(index, &name))).collect()
}

fn describe_unknown_step(index: usize, name: &str) -> Diagnostic {
    let similar = find_mistyped(name, CATALOG.iter().map(|entry| entry.name));
    let suggestion = similar.map(|similar| format!("; did you mean {similar}?")).unwrap_or_default();
    let message = format!(
        "unknown step {name}: allocations with this template are refused; if only Ironic uses the template, ignore \
         this note{suggestion}"
    );
    Diagnostic::new(format!("steps[{index}].step"), message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unknown_steps_have_notes() {
        let notes = |steps: &str| {
            let text = format!("name: CUSTOM_A\nsteps:\n{steps}");
            find_unknown_steps(&text).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let known = "  - {interface: bios, step: factory_reset, args: {}, priority: 95}\n";
        assert_eq!(notes(known), [] as [String; 0]);
        let found = notes(&format!("{known}  - {{interface: vendor, step: flash, args: {{}}, priority: 10}}\n"));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].contains("unknown step vendor.flash: allocations with this template are refused"),
            "{found:?}"
        );
        let mistyped = notes("  - {interface: bios, step: factory_rest, args: {}, priority: 95}\n");
        assert!(mistyped[0].ends_with("did you mean bios.factory_reset?"), "{mistyped:?}");
        assert_eq!(notes("  - 5\n"), [] as [String; 0], "problems of an invalid template are reported as such");
    }
}
