//! The plan for a person: what `drophammer plan` and the console print before anything happens.

mod kept;
mod operations;
mod running;

pub use kept::show_kept;
pub use running::Running;

use super::{DiskPlan, Mode, Plan, Refusal, Subject, Verdict};
use crate::inventory::{self, Signature};
use crate::marker::Marker;
use crate::text::{bytes, columns};
use std::fmt;

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        title(f, &self.subject, self.mode, &self.layout)?;
        disks(f, &self.disks)?;
        if let Some(marker) = &self.already {
            already(f, marker)?;
        }
        for warning in &self.warnings {
            writeln!(f, "WARNING: {warning}")?;
        }
        if !self.warnings.is_empty() {
            writeln!(f)?;
        }
        for (index, step) in self.steps.iter().enumerate() {
            if index == self.point_of_no_return {
                writeln!(f, "── point of no return {}", "─".repeat(49))?;
            }
            let lines = operations::lines(&step.operations);
            writeln!(
                f,
                "{:>2}  {:<18}  {}",
                index + 1,
                step.name,
                lines.first().map(String::as_str).unwrap_or_default()
            )?;
            for line in lines.iter().skip(1) {
                writeln!(f, "{:24}{line}", "")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        title(f, &self.subject, self.mode, &self.layout)?;
        disks(f, &self.disks)?;
        writeln!(f, "refused, for {}:", if self.problems.len() == 1 { "one reason" } else { "these reasons" })?;
        for problem in &self.problems {
            writeln!(f, "  {problem}")?;
        }
        write!(f, "Nothing was written. Correct the layout, or the disks, and try again.")
    }
}

fn title(f: &mut fmt::Formatter<'_>, subject: &Subject, mode: Mode, layout: &str) -> fmt::Result {
    let mode = match mode {
        Mode::Install => "install",
        Mode::Reinstall => "reinstall",
    };
    let name = if subject.name.is_empty() { String::new() } else { format!("  \"{}\"", subject.name) };
    let machine = if subject.machine.is_empty() { "this machine" } else { &subject.machine };
    writeln!(f, "machine {machine}{name}   {mode}  {}   layout {layout}\n", subject.image)
}

fn already(f: &mut fmt::Formatter<'_>, marker: &Marker) -> fmt::Result {
    let order = if marker.order.is_empty() { String::new() } else { format!(", order {}", marker.order) };
    let time = if marker.time.is_empty() { String::new() } else { format!(" since {}", marker.time) };
    writeln!(f, "Allocation {}{order} is installed here already, with {}{time}.", marker.allocation, marker.image)?;
    writeln!(f, "Nothing is written. What is installed is booted.\n")
}

fn disks(f: &mut fmt::Formatter<'_>, disks: &[DiskPlan]) -> fmt::Result {
    let mut rows = vec![["disk", "size", "model", "serial", "verdict", "now"].map(str::to_owned)];
    rows.extend(disks.iter().map(|disk| {
        let verdict = match disk.verdict {
            Verdict::Wipe => "WIPE",
            Verdict::Keep => "keep",
            Verdict::Make => "make",
            Verdict::NotOurs => "not ours",
        };
        let or_dash = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
        let now = match disk.verdict {
            Verdict::NotOurs => format!("untouched in every case: {}", disk.now),
            _ => disk.now.clone(),
        };
        [
            disk.name.clone(),
            bytes(disk.size_bytes),
            or_dash(&disk.model),
            or_dash(&disk.serial),
            verdict.to_owned(),
            now,
        ]
    }));
    let running = std::iter::once(&[][..]).chain(disks.iter().map(|disk| disk.running.as_slice()));
    for (row, running) in columns(&rows).lines().zip(running) {
        writeln!(f, "{row}")?;
        for line in running {
            writeln!(f, "    {line}")?;
        }
    }
    writeln!(f)
}

fn short(device: &str) -> &str {
    device.strip_prefix("/dev/").unwrap_or(device)
}

/// What is on a disk, in one line.
pub fn contents(disk: &inventory::Disk) -> String {
    let mut parts = Vec::new();
    if let Some(table) = &disk.table {
        let count = table.partitions.len();
        let plural = if count == 1 { "" } else { "s" };
        parts.push(format!("{} {count} partition{plural}", table.kind.to_uppercase()));
        parts.extend(table.partitions.iter().flat_map(|partition| &partition.signatures).map(signature));
    }
    parts.extend(disk.signatures.iter().map(signature));
    parts.extend(disk.unreadable.as_ref().map(|why| format!("not all can be read: {why}")));
    if parts.is_empty() { "blank".to_owned() } else { parts.join(" · ") }
}

pub fn signature(signature: &Signature) -> String {
    let kind = match signature.kind.as_str() {
        "LVM2_member" => "LVM physical volume",
        "linux_raid_member" => "RAID member",
        other => other,
    };
    if signature.label.is_empty() { kind.to_owned() } else { format!("{kind} \"{}\"", signature.label) }
}

pub fn disk_in_short(disk: &inventory::Disk) -> String {
    let model = if disk.model.is_empty() { String::new() } else { format!(" {}", disk.model) };
    format!("{} ({}{model})", disk.device, bytes(disk.size_bytes))
}
