//! The plan for a person: what `drophammer plan` and the console print before anything happens.

use super::{DiskPlan, Mode, Operation, Plan, Refusal, Subject, Verdict, WipeDisk, sectors::MIB};
use crate::inventory::{self, Signature};
use crate::text::{bytes, columns};
use std::fmt;

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        title(f, &self.subject, self.mode, &self.layout)?;
        disks(f, &self.disks)?;
        for (index, step) in self.steps.iter().enumerate() {
            if index == self.point_of_no_return {
                writeln!(f, "── point of no return {}", "─".repeat(49))?;
            }
            let lines = lines(&step.operations);
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

fn disks(f: &mut fmt::Formatter<'_>, disks: &[DiskPlan]) -> fmt::Result {
    let mut rows = vec![["disk", "size", "model", "serial", "verdict", "now"].map(str::to_owned)];
    rows.extend(disks.iter().map(|disk| {
        let verdict = match disk.verdict {
            Verdict::Wipe => "WIPE",
            Verdict::Keep => "keep",
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
    writeln!(f, "{}", columns(&rows))
}

/// One line for each operation of a step; the same thing done to many disks is one line.
fn lines(operations: &[Operation]) -> Vec<String> {
    match operations {
        [Operation::LockDisk { .. }, ..] => vec![format!("{} read-only", listed(operations))],
        _ => operations.iter().flat_map(operation).collect(),
    }
}

fn listed(operations: &[Operation]) -> String {
    let devices = operations.iter().filter_map(|operation| match operation {
        Operation::LockDisk { device } => Some(short(device)),
        _ => None,
    });
    devices.collect::<Vec<_>>().join(", ")
}

fn operation(operation: &Operation) -> Vec<String> {
    let one = |line: String| vec![line];
    match operation {
        Operation::ReachImage { url, .. } => one(format!("{url} answers, its digest is known")),
        Operation::LockDisk { device } => one(format!("{} read-only", short(device))),
        Operation::UnlockDisk { device } => one(format!("{} writable again", short(device))),
        Operation::IdentifyDisk(identity) => one(short(&identity.device).to_owned()),
        Operation::Release(_)
        | Operation::AssertFree { .. }
        | Operation::CreateArray(_)
        | Operation::CreateGroup(_)
        | Operation::CreateVolume(_)
        | Operation::AssembleArray { .. }
        | Operation::ActivateGroup { .. }
        | Operation::DeactivateGroup { .. }
        | Operation::StopArray { .. } => todo!(),
        Operation::WipeDisk(WipeDisk { device, zero, .. }) => one(format!(
            "{}: discard, then {} in {} places read back as zero",
            short(device),
            bytes(zero.iter().map(|range| range.length).sum()),
            zero.len()
        )),
        Operation::WriteTable(table) => {
            let mut lines = vec![format!("{}: GPT {}", short(&table.device), table.guid)];
            lines.extend(table.partitions.iter().map(|partition| {
                let sectors = partition.last_lba + 1 - partition.first_lba;
                let mib = sectors * u64::from(table.sector_bytes) / MIB;
                let name = if partition.name.is_empty() { String::new() } else { format!(" \"{}\"", partition.name) };
                format!("  {}{name}  {mib} MiB  {}", short(&partition.device), kind(partition.kind))
            }));
            lines
        }
        Operation::MakeFilesystem(make) => {
            let label = make.label.as_deref().map(|label| format!(" \"{label}\"")).unwrap_or_default();
            one(format!("{}: {}{label}  {}", short(&make.device), make.format, make.uuid))
        }
        Operation::Mount(mount) => one(format!("{} at {}", short(&mount.device), mount.path)),
        Operation::BurnImage { name } => one(format!("{name}, digest checked before anything of it runs")),
        Operation::WriteMachineFiles => one("/etc/metal/install.yaml, userdata, disk.json".to_owned()),
        Operation::RunInstaller => one("/install-go or /install.sh of the image, in a chroot".to_owned()),
        Operation::WriteFstab => one("/etc/fstab, by filesystem UUID".to_owned()),
        Operation::LoadKernel => one("kernel and initrd of /etc/metal/boot-info.yaml".to_owned()),
        Operation::Unmount => one("everything".to_owned()),
        Operation::FlushDisks { disks } => {
            let disks: Vec<&str> = disks.iter().map(|disk| short(disk)).collect();
            one(format!("flush {}", disks.join(", ")))
        }
        Operation::Report => one("acknowledged by the control plane".to_owned()),
        Operation::Kexec => one("into the installed system".to_owned()),
    }
}

fn kind(guid: uuid::Uuid) -> String {
    let known = crate::layout::PartitionKind::ALL.iter().find(|kind| kind.guid() == guid);
    known.map(|kind| kind.code().to_owned()).unwrap_or_else(|| guid.to_string())
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
