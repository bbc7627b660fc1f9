//! Decision which machine file applies to a machine that boots or registers.
//!
//! | UUID that the firmware reports | file with it as `id` | files with the MAC of the boot | what is known of that file's machine | result |
//! |---|---|---|---|---|
//! | usable | one, without `macs` or with this MAC | any | | this file; another file with the MAC is reported |
//! | usable | one, with other `macs` | any | | nothing is served |
//! | usable | none | one | `smbios_uuid` of the file is this UUID | this file |
//! | usable | none | one | `smbios_uuid` is another UUID, or it registered with another one | nothing is served: another machine |
//! | usable | none | one | it registered with this UUID, with none, or never | this file, unproven: installed over blank disks only |
//! | usable | none | several | | nothing is served: ambiguous |
//! | usable | none | none | | unknown machine |
//! | not usable | | one | `smbios_uuid` is given, or it registered with a usable UUID | this file, unproven: installed over blank disks only |
//! | not usable | | one | neither | this file |
//! | not usable | | several | | nothing is served: ambiguous |
//! | not usable | | none | | nothing is served: no identity |
//!
//! UUIDs are the same in either byte order; of two files the one with the identical spelling counts. At registration the file is the
//! one of the boot, and all MACs of the machine are known: a file with `macs`, or an earlier registration, has one of them.

use super::is_same_uuid;
use uuid::Uuid;

/// Identity that a machine presents when it asks for a boot.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BootIdentity {
    /// UUID of the firmware, if it is usable.
    pub uuid: Option<Uuid>,
    /// MAC of the NIC that it boots over.
    pub mac: Option<String>,
}

/// Identity of a machine as the operator's file and its registration have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownMachine {
    /// UUID of the file, in lower case.
    pub id: String,
    pub name: String,
    pub macs: Vec<String>,
    /// UUID that the firmware reports by the operator's file, if it is not the id.
    pub smbios_uuid: Option<Uuid>,
    pub registered: RegisteredIdentity,
}

/// Identity with which a machine has registered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RegisteredIdentity {
    /// Last usable UUID that its firmware has reported.
    pub uuid: Option<Uuid>,
    /// MACs of the last registration.
    pub macs: Vec<String>,
}

/// Relation of a machine's UUID to what is known of the machine that it claims to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UuidProof {
    /// The UUID is that of the file, or there is none on either side.
    Proven,
    /// The UUID neither proves nor contradicts the identity. The text names both identities and the remedy.
    Unproven(String),
    /// It is another machine. The text names both UUIDs and the remedies.
    Contradicted(String),
}

/// Machine file that applies to a machine that boots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MachineMatch {
    /// The machine with this id, and a warning if another file lists its MAC.
    Proven { id: String, warning: Option<String> },
    /// The machine with this id by a MAC alone, and why that proves little.
    Unproven { id: String, why: String },
    /// No file; the machine registers under its UUID and waits.
    Unknown(Uuid),
    /// The boot is not served, as it is none of this machine's.
    Withheld { id: String, why: String },
    /// Several files list the MAC.
    Ambiguous(String),
    /// Neither a usable UUID nor a known MAC.
    Unidentified,
}

/// Decides which file applies. `by_uuid` is the machine with the UUID as its id; `by_mac` are all with the MAC.
pub fn match_machine(asking: &BootIdentity, by_uuid: Option<&KnownMachine>, by_mac: &[KnownMachine]) -> MachineMatch {
    if let Some(machine) = by_uuid {
        return of_uuid(asking, machine, by_mac);
    }
    match (by_mac, asking.uuid) {
        ([], Some(uuid)) => MachineMatch::Unknown(uuid),
        ([], None) => MachineMatch::Unidentified,
        ([machine], uuid) => match prove_uuid(machine, uuid) {
            UuidProof::Proven => MachineMatch::Proven { id: machine.id.clone(), warning: None },
            UuidProof::Unproven(why) => MachineMatch::Unproven { id: machine.id.clone(), why },
            UuidProof::Contradicted(why) => MachineMatch::Withheld { id: machine.id.clone(), why },
        },
        (several, uuid) => MachineMatch::Ambiguous(ambiguous(asking, several, uuid)),
    }
}

fn of_uuid(asking: &BootIdentity, machine: &KnownMachine, by_mac: &[KnownMachine]) -> MachineMatch {
    let id = machine.id.clone();
    let Some(mac) = &asking.mac else { return MachineMatch::Proven { id, warning: None } };
    if !machine.macs.is_empty() && !machine.macs.contains(mac) {
        return MachineMatch::Withheld { id, why: other_macs(machine, mac) };
    }
    let other = by_mac.iter().find(|other| other.id != machine.id);
    let warning = other.map(|other| {
        format!(
            "machine {id} ({:?}) boots over MAC {mac}, which the file of machine {} ({:?}) lists: its UUID counts; remove the MAC from \
             one of the files",
            machine.name, other.id, other.name
        )
    });
    MachineMatch::Proven { id, warning }
}

/// Returns the message for a machine with the right UUID and other MACs than its file lists.
pub fn other_macs(machine: &KnownMachine, seen: &str) -> String {
    other_macs_of(&machine.id, &machine.name, &machine.macs, seen)
}

/// Returns the message of [`other_macs`] for the fields of a machine.
pub fn other_macs_of(id: &str, name: &str, macs: &[String], seen: &str) -> String {
    format!(
        "a machine with the id {id} of {name:?} has MAC {seen}, which is not among those of its file ({}): it gets nothing. Two \
         machines with one UUID need ids of their own; if it is the same machine, add the MAC to its file",
        macs.join(" ")
    )
}

fn ambiguous(asking: &BootIdentity, several: &[KnownMachine], uuid: Option<Uuid>) -> String {
    let names: Vec<String> = several.iter().map(|machine| format!("{:?} ({})", machine.name, machine.id)).collect();
    let uuid =
        uuid.map_or("without a usable UUID".to_owned(), |uuid| format!("with UUID {uuid}, which is in no file,"));
    format!(
        "a machine {uuid} boots over MAC {}, which identifies none: the files of {} list it; remove it from all but one of them",
        asking.mac.as_deref().unwrap_or("unknown"),
        names.join(" and ")
    )
}

/// Compares the UUID that a machine's firmware reports with what is known of the machine that it claims to be.
pub fn prove_uuid(machine: &KnownMachine, reported: Option<Uuid>) -> UuidProof {
    let id = Uuid::try_parse(&machine.id).ok();
    let expected = machine.smbios_uuid.or(machine.registered.uuid);
    let KnownMachine { id: own, name, .. } = machine;
    let Some(reported) = reported else {
        // Firmware without a UUID, as ever.
        return expected.map_or(UuidProof::Proven, |expected| {
            UuidProof::Unproven(format!(
                "a machine whose firmware reports no usable UUID is taken for {own} ({name:?}) by a MAC, and that machine reported {expected}: it is \
                 installed over blank disks only; if its mainboard was replaced, give it another id: drophammer machine rename {own} NEW"
            ))
        });
    };
    let is_own = |uuid: Option<Uuid>| uuid.is_some_and(|uuid| is_same_uuid(uuid, reported));
    if is_own(id) || is_own(machine.smbios_uuid) {
        return UuidProof::Proven;
    }
    match expected {
        Some(expected) if !is_same_uuid(expected, reported) => UuidProof::Contradicted(format!(
            "a machine with UUID {reported} has a MAC of {own} ({name:?}), whose firmware reports {expected}: it is another machine, and gets nothing. \
             If it is the same machine with a new mainboard, write id: {reported} into its file and run `drophammer machine rename {own} {reported}`; \
             if the NIC was moved, remove its MAC from the file of {name:?}"
        )),
        _ => UuidProof::Unproven(format!(
            "a machine with UUID {reported} is taken for {own} ({name:?}) by a MAC alone: it is installed over blank disks only; if it is that machine, \
             write smbios_uuid: {reported} into its file; if the NIC was moved, remove its MAC from the file"
        )),
    }
}

#[cfg(test)]
mod tests;
