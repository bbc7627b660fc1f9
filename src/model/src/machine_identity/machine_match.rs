//! Selection of the machine file that applies when a machine boots or registers.
//!
//! | UUID reported by the firmware | files whose `id` is this UUID | files with the MAC of the boot | machine of the file with the MAC | result |
//! |---|---|---|---|---|
//! | usable | one, without `macs` or with this MAC | any | | this file; another file with the MAC is reported |
//! | usable | one, with other `macs` | any | | the machine is not served |
//! | usable | none | one | `smbios_uuid` of the file is this UUID | this file |
//! | usable | none | one | `smbios_uuid`, or else the registered UUID, is another UUID | the machine is not served: different machine |
//! | usable | none | one | no `smbios_uuid`; registered with this UUID, without a UUID, or never | this file, but only blank disks are overwritten |
//! | usable | none | several | | the machine is not served: ambiguous |
//! | usable | none | none | | unknown machine |
//! | not usable | | one | `smbios_uuid` or a usable registered UUID exists | this file, but only blank disks are overwritten |
//! | not usable | | one | neither exists | this file |
//! | not usable | | several | | the machine is not served: ambiguous |
//! | not usable | | none | | the machine is not served: no identity |
//!
//! UUIDs are equal if they match in either byte order. If the ids of two files match the UUID, the file whose id has
//! the identical spelling applies. When a machine registers, the file that applied to its boot still applies. The
//! registration contains all MACs of the machine, and at least one of these MACs must be in `macs` of the file or in an
//! earlier registration.

use super::is_same_uuid;
use uuid::Uuid;

/// Identity that a machine presents when it requests a boot script.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BootIdentity {
    /// UUID that the firmware reports; `None` if it is not usable.
    pub uuid: Option<Uuid>,
    /// MAC of the NIC from which the machine boots.
    pub mac: Option<String>,
}

/// Identity of a machine according to the operator's file and the machine's registration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownMachine {
    /// `id` of the file, in lower case.
    pub id: String,
    pub name: String,
    pub macs: Vec<String>,
    /// `smbios_uuid` of the file: UUID that the firmware reports, if it differs from the id.
    pub smbios_uuid: Option<Uuid>,
    pub registered: RegisteredIdentity,
}

/// Identity with which a machine has registered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RegisteredIdentity {
    /// Last usable UUID that the firmware of the machine has reported.
    pub uuid: Option<Uuid>,
    /// MACs of the last registration.
    pub macs: Vec<String>,
}

/// Result of comparing a UUID with the identity of a known machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UuidProof {
    /// The UUID equals the UUID of the known machine, or neither of the two machines has a UUID.
    Proven,
    /// The UUID neither proves nor disproves that the machine is the known one. Contains a message with both identities
    /// and the remedy.
    Unproven(String),
    /// The UUID proves that the machine is not the known one. Contains a message with both UUIDs and the remedies.
    Contradicted(String),
}

/// Result of selecting a machine file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MachineMatch {
    /// The file with this id applies. Contains a warning if another file lists the MAC of the boot.
    Proven { id: String, warning: Option<String> },
    /// The file with this id applies, even though the machine is identified only by a MAC. Contains a message with the
    /// restrictions for such a machine.
    Unproven { id: String, why: String },
    /// No file applies. The machine registers under its UUID and waits.
    Unknown(Uuid),
    /// The file with this id contradicts the identity of the machine, so the machine is not served. Contains the
    /// reason.
    Withheld { id: String, why: String },
    /// Several files list the MAC, so the machine is not served. Contains a message with these files.
    Ambiguous(String),
    /// The machine has neither a usable UUID nor a known MAC, so it is not served.
    Unidentified,
}

/// Selects the file that applies. `by_uuid` is the machine whose id is the UUID of the boot; `by_mac` contains all
/// machines whose files list the MAC of the boot.
pub fn match_machine(asking: &BootIdentity, by_uuid: Option<&KnownMachine>, by_mac: &[KnownMachine]) -> MachineMatch {
    if let Some(machine) = by_uuid {
        return match_by_uuid(asking, machine, by_mac);
    }
    match (by_mac, asking.uuid) {
        ([], Some(uuid)) => MachineMatch::Unknown(uuid),
        ([], None) => MachineMatch::Unidentified,
        ([machine], uuid) => match prove_uuid(machine, uuid) {
            UuidProof::Proven => MachineMatch::Proven { id: machine.id.clone(), warning: None },
            UuidProof::Unproven(why) => MachineMatch::Unproven { id: machine.id.clone(), why },
            UuidProof::Contradicted(why) => MachineMatch::Withheld { id: machine.id.clone(), why },
        },
        (several, uuid) => MachineMatch::Ambiguous(describe_ambiguity(asking, several, uuid)),
    }
}

fn match_by_uuid(asking: &BootIdentity, machine: &KnownMachine, by_mac: &[KnownMachine]) -> MachineMatch {
    let id = machine.id.clone();
    let Some(mac) = &asking.mac else { return MachineMatch::Proven { id, warning: None } };
    if !machine.macs.is_empty() && !machine.macs.contains(mac) {
        return MachineMatch::Withheld { id, why: describe_other_macs(machine, mac) };
    }
    let other = by_mac.iter().find(|other| other.id != machine.id);
    let warning = other.map(|other| {
        format!(
            "machine {id} ({:?}) boots over MAC {mac}, which the machine file of {} ({:?}) also lists: the UUID \
             takes precedence; remove the MAC from one of the machine files",
            machine.name, other.id, other.name
        )
    });
    MachineMatch::Proven { id, warning }
}

/// Returns the message about a machine whose UUID is in a machine file, but whose MAC (`seen`) is not listed in that
/// file.
pub fn describe_other_macs(machine: &KnownMachine, seen: &str) -> String {
    describe_other_macs_of(&machine.id, &machine.name, &machine.macs, seen)
}

/// Returns the message of [`describe_other_macs`] for a machine with this id, this name, and these MACs in its file.
pub fn describe_other_macs_of(id: &str, name: &str, macs: &[String], seen: &str) -> String {
    format!(
        "a machine with the id {id} of {name:?} has the MAC {seen}, which is not among the MACs in the file of \
         {name:?} ({}): the machine is not served. If two machines share a UUID, assign a separate id to each; if it \
         is the same machine, add the MAC to its file",
        macs.join(" ")
    )
}

fn describe_ambiguity(asking: &BootIdentity, several: &[KnownMachine], uuid: Option<Uuid>) -> String {
    let names: Vec<String> = several.iter().map(|machine| format!("{:?} ({})", machine.name, machine.id)).collect();
    let uuid = uuid.map_or("without a usable UUID".to_owned(), |uuid| format!("with unlisted UUID {uuid}"));
    format!(
        "machine {uuid} boots over the MAC {mac}, which does not identify a machine: the machine files of {machines} list this MAC; remove the MAC from all but one of these files",
        mac = asking.mac.as_deref().unwrap_or("unknown"),
        machines = names.join(" and ")
    )
}

/// Compares the UUID that the firmware of a machine reports with the identity of a known machine.
pub fn prove_uuid(machine: &KnownMachine, reported: Option<Uuid>) -> UuidProof {
    let id = Uuid::try_parse(&machine.id).ok();
    let expected = machine.smbios_uuid.or(machine.registered.uuid);
    let KnownMachine { id: own, name, .. } = machine;
    let Some(reported) = reported else {
        // If no UUID is known for the machine, its firmware is not expected to report one, so the identity is proven.
        return expected.map_or(UuidProof::Proven, |expected| {
            UuidProof::Unproven(format!(
                "a machine whose firmware does not report a usable UUID matches {own} ({name:?}) by a MAC, but {own} \
                 has reported the UUID {expected}: only blank disks are overwritten; if the mainboard was replaced, \
                 assign another id to the machine: drophammer machine rename {own} NEW"
            ))
        });
    };
    let is_own = |uuid: Option<Uuid>| uuid.is_some_and(|uuid| is_same_uuid(uuid, reported));
    if is_own(id) || is_own(machine.smbios_uuid) {
        return UuidProof::Proven;
    }
    match expected {
        Some(expected) if !is_same_uuid(expected, reported) => UuidProof::Contradicted(format!(
            "a machine with UUID {reported} has a MAC of {own} ({name:?}), whose firmware reports {expected}: it is a \
             different machine, and is not served. If it is the same machine with a new mainboard, write id: \
             {reported} into its file and run `drophammer machine rename {own} {reported}`; if the NIC was moved, \
             remove its MAC from the file of {name:?}"
        )),
        _ => UuidProof::Unproven(format!(
            "a machine with UUID {reported} matches {own} ({name:?}) only by a MAC: only blank disks are \
             overwritten; if it is that machine, write smbios_uuid: {reported} into its file; if the NIC was moved, remove \
             its MAC from the file"
        )),
    }
}

#[cfg(test)]
mod tests;
