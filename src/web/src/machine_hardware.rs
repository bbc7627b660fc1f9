//! Hardware of a machine: its properties, and its disks, arrays and volume groups, as registered.

use super::disk_drawings;
use common::format::format_bytes;
use control::agent_api_types::RegisterRequest;
use maud::{Markup, html};
use model::inventory::{Cpu, Inventory};
use plan::DiskVerdict;

/// Shows model, firmware, processors, memory and NICs.
pub(crate) fn show_hardware(register: &RegisterRequest) -> Markup {
    let none = Inventory::default();
    let inventory = register.inventory.as_ref().unwrap_or(&none);
    let system = &inventory.system;
    let said = |parts: [&str; 3]| parts.iter().filter(|part| !part.is_empty()).copied().collect::<Vec<_>>().join(" ");
    html! {
        h2 { "Hardware" }
        dl.facts {
            dt { "Model" } dd { (said([&system.vendor, &system.product, &system.serial])) }
            dt { "Firmware" } dd { (said([&register.bios.vendor, &register.bios.version, &register.bios.date])) }
            dt { "Processors" }
            dd {
                @for same in inventory.cpus.chunk_by(|one, next| describe_cpu(one) == describe_cpu(next)) {
                    div { @if same.len() > 1 { (same.len()) " × " } (describe_cpu(&same[0])) }
                }
                @if inventory.cpus.is_empty() { (register.hardware.cpu_cores) " cores" }
            }
            dt { "Memory" } dd { (format_bytes(register.hardware.memory)) }
            dt { "NICs" }
            dd {
                @for nic in &register.hardware.nics { code { (nic.mac) } " " (nic.name) " " }
                @if register.hardware.nics.is_empty() { "none" }
            }
            @if !register.agent.is_empty() { dt { "Agent" } dd { (register.agent) } }
        }
    }
}

fn describe_cpu(cpu: &Cpu) -> String {
    format!("{}, {} cores, {} threads", cpu.model, cpu.cores, cpu.threads)
}

/// Shows the registered disks. `has_begun_since` is true if an installation has started after the registration.
/// `verdict` returns what the plan does with a disk.
pub(crate) fn show_disks(
    inventory: &Inventory,
    has_begun_since: bool,
    verdict: impl Fn(&str) -> Option<DiskVerdict>,
) -> Markup {
    html! {
        h2 { "Disks, as registered" @if has_begun_since { " before the installation" } }
        @if has_begun_since { p.faint { "An installation has started since then: the contents of the disks have changed." } }
        (disk_drawings::draw_disks(inventory, verdict))
        @if inventory.disks.is_empty() { p.faint { "none" } }
        @if !inventory.arrays.is_empty() || !inventory.groups.is_empty() {
            dl.facts {
                @for array in &inventory.arrays { dt { "Array" } dd { (array.level) " " (array.name) " " span.faint { (array.uuid) } } }
                @for group in &inventory.groups {
                    dt { "Volume group" }
                    dd { (group.name) ": " @for volume in &group.volumes { (volume.name) " " span.faint { (format_bytes(volume.size_bytes)) } " " } }
                }
            }
        }
    }
}
