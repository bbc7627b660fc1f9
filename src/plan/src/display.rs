//! Text form of the plan. `drophammer plan` prints it, and the console prints it before the plan is executed.

mod disks;
mod firmware;
mod k8s_volumes;
mod opaque;
mod preserved_tree;
mod running_tree;
mod tree_lines;

use operations::operation_lines;
pub(crate) use preserved_tree::draw_preserved;
pub(crate) use running_tree::RunningTrees;

use disks::write_disks;
use opaque::write_opaque;

use super::{InstallMode, Plan, PlanRefusal, PlanSubject, PlanSummary};
use common::format::terminal_escaping::escape_line;
use common::format::{format_bytes, format_count};
use model::device_name::KernelName;
use model::install_marker::InstallMarker;
use std::fmt;

/// Prints the plan. The alternate form `{:#}` prints wiped disks in color.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_title(f, &self.subject, self.mode, &self.layout)?;
        write_disks(f, &self.disks)?;
        write_opaque(f, &self.opaque)?;
        firmware::write_firmware(f, self.firmware.as_ref())?;
        if let Some(marker) = &self.already {
            write_existing(f, marker)?;
        }
        k8s_volumes::write_volumes(f, &self.volumes)?;
        for warning in &self.warnings {
            writeln!(f, "WARNING: {}", escape_line(warning))?;
        }
        if !self.warnings.is_empty() {
            writeln!(f)?;
        }
        for (index, stage) in self.stages.iter().enumerate() {
            if index == self.point_of_no_return {
                writeln!(f, "── point of no return {}", "─".repeat(49))?;
            }
            let lines = operation_lines(&stage.operations, &self.sizes);
            writeln!(
                f,
                "{:>2}  {:<18}  {}",
                index + 1,
                stage.name,
                escape_line(lines.first().map(String::as_str).unwrap_or_default())
            )?;
            for line in lines.iter().skip(1) {
                writeln!(f, "{:24}{}", "", escape_line(line))?;
            }
        }
        write!(f, "{}", self.summary)
    }
}

impl fmt::Display for PlanRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_title(f, &self.subject, self.mode, &self.layout)?;
        write_disks(f, &self.disks)?;
        write_opaque(f, &self.opaque)?;
        writeln!(f, "refused, for {}:", if self.problems.len() == 1 { "one reason" } else { "these reasons" })?;
        for problem in &self.problems {
            writeln!(f, "  {}", escape_line(&problem.to_coded_text()))?;
        }
        let remedy = match self.mode {
            InstallMode::Install => "Correct the layout, or the disks, and try again.",
            // The remedy does not mention the layout file, because editing it does not change the stored layout.
            InstallMode::Reinstall => {
                "A reinstall uses the layout that was stored when the machine was installed. Repair the disks and order the \
                 reinstall again, or correct the layout file and order the reinstall with --change-promise."
            }
        };
        write!(f, "Nothing was written. {remedy}")
    }
}

impl fmt::Display for PlanSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let disks = |names: &[KernelName]| format_count(names.len(), "disk", "disks");
        let lost = match (self.wiped.is_empty(), self.lost_bytes) {
            (true, _) => String::new(),
            (false, 0) => " (nothing is lost)".to_owned(),
            (false, lost) => format!(" (up to {size} of data is lost)", size = format_bytes(lost)),
        };
        let parts = [
            (&self.wiped, "wiped", lost.as_str()),
            (&self.made, "recreated", ""),
            (&self.kept, "kept", ""),
            (&self.volumes, "for Kubernetes volumes only", ""),
            (&self.untouched, "not touched", ""),
        ];
        writeln!(f)?;
        for (names, what, more) in parts.into_iter().filter(|(names, what, _)| !names.is_empty() || *what == "wiped") {
            let names_of = if names.is_empty() { String::new() } else { format!(": {}", names.join(", ")) };
            writeln!(f, "{} {what}{more}{}", disks(names), escape_line(&names_of))?;
        }
        Ok(())
    }
}

fn write_title(f: &mut fmt::Formatter<'_>, subject: &PlanSubject, mode: InstallMode, layout: &str) -> fmt::Result {
    let mode = match mode {
        InstallMode::Install => "install",
        InstallMode::Reinstall => "reinstall",
    };
    let name = if subject.name.is_empty() { String::new() } else { format!("  \"{}\"", subject.name) };
    let machine = if subject.machine.is_empty() { "this machine" } else { &subject.machine };
    let line = format!("machine {machine}{name}   {mode}  {image}   layout {layout}", image = subject.image);
    writeln!(f, "{}\n", escape_line(&line))
}

fn write_existing(f: &mut fmt::Formatter<'_>, marker: &InstallMarker) -> fmt::Result {
    let order = marker.order.as_ref().map(|order| format!(", order {order}")).unwrap_or_default();
    let time = if marker.time.is_empty() { String::new() } else { format!(" since {}", marker.time) };
    let line = format!(
        "Allocation {allocation}{order} is already installed on this machine, with {image}{time}.",
        allocation = marker.allocation,
        image = marker.image
    );
    writeln!(f, "{}", escape_line(&line))?;
    writeln!(f, "Nothing will be written; the installed system will be booted.\n")
}
