//! Management controllers in machine files. If the files of two machines name the same controller, one of them is
//! usually an edited copy of the other, and an action on one machine would switch the other.
//!
//! A Redfish controller may manage several systems, such as the blades of a chassis. Their files may share the address
//! of the controller if the addresses name different systems, or no system: the controller must then prove by its UUID
//! which system belongs to the machine.

use crate::operator_files::MachineSpec;
use crate::snapshot::{SharedMap, SiteSnapshot};
use model::bmc::BmcAddress;
use std::path::PathBuf;
use uuid::Uuid;

/// Machines whose files name a controller, by the endpoint of the controller.
#[derive(Debug, Clone, Default)]
pub(crate) struct ControllerIndex(SharedMap<Vec<ControllerUser>>);

/// Machine whose file names a controller.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ControllerUser {
    machine: String,
    at: BmcAddress,
}

/// Relation between a machine's controller and the files of other machines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ControllerSharing {
    /// No other file names the controller, or the other files name other systems of the controller.
    Exclusive,
    /// Other files name the same Redfish controller, and the address does not contain the path of a system. The
    /// controller must report the UUID of the machine.
    ProvenByUuid,
    /// The file of this other machine names the same IPMI controller, or the same Redfish system.
    Conflict(String),
}

impl ControllerIndex {
    /// Adds the controller of a machine. An earlier entry of the machine must not exist.
    pub(crate) fn add(&mut self, machine: &MachineSpec) {
        let Some(bmc) = &machine.bmc else { return };
        let mut users = self.0.get(&bmc.at.endpoint()).cloned().unwrap_or_default();
        users.push(ControllerUser { machine: machine.id.clone(), at: bmc.at.clone() });
        self.0.insert_mut(bmc.at.endpoint(), users);
    }

    /// Returns whether the file of another machine names the same controller, or another system of it.
    pub(crate) fn is_used_by_another(&self, machine: &MachineSpec) -> bool {
        machine.bmc.as_ref().is_some_and(|bmc| self.other_users(&bmc.at, &machine.id).next().is_some())
    }

    /// Compares an address in the file of this machine with the files of all other machines.
    fn compare(&self, at: &BmcAddress, machine: &str) -> ControllerSharing {
        let mut others = self.other_users(at, machine);
        let conflict = self.other_users(at, machine).find(|other| is_same_system(at, &other.at));
        match (conflict, at) {
            (Some(other), _) => ControllerSharing::Conflict(other.machine.clone()),
            (None, BmcAddress::Redfish { system: None, .. }) if others.next().is_some() => {
                ControllerSharing::ProvenByUuid
            }
            _ => ControllerSharing::Exclusive,
        }
    }

    fn other_users(&self, at: &BmcAddress, machine: &str) -> impl Iterator<Item = &ControllerUser> {
        let users = self.0.get(&at.endpoint()).into_iter().flatten();
        users.filter(move |user| user.machine != machine)
    }
}

/// Returns whether both addresses, which have the same endpoint, select the same system. Addresses without a path
/// select a system by its UUID.
fn is_same_system(one: &BmcAddress, other: &BmcAddress) -> bool {
    match (one, other) {
        (BmcAddress::Redfish { system: Some(one), .. }, BmcAddress::Redfish { system: Some(other), .. }) => {
            one.trim_end_matches('/') == other.trim_end_matches('/')
        }
        (BmcAddress::Ipmi { .. }, BmcAddress::Ipmi { .. }) => true,
        _ => false,
    }
}

impl SiteSnapshot {
    /// Compares the controller at this address, which the file of this machine contains, with all other machine files.
    pub fn compare_controller(&self, at: &BmcAddress, machine: &str) -> ControllerSharing {
        self.controllers.compare(at, machine)
    }

    /// Returns the UUIDs that the firmware of all other machines reports, according to their files.
    pub fn other_firmware_uuids(&self, machine: &str) -> Vec<Uuid> {
        let others = self.machines().filter(|other| other.id != machine);
        others.filter_map(MachineSpec::firmware_uuid).collect()
    }

    /// Returns a problem for each machine file whose controller the file of another machine also names.
    pub(crate) fn describe_controller_conflicts(&self) -> Vec<String> {
        let describe = |machine: &MachineSpec| {
            let at = &machine.bmc.as_ref()?.at;
            let ControllerSharing::Conflict(other) = self.compare_controller(at, &machine.id) else { return None };
            let path = self.machine_files.get(&machine.id).map(PathBuf::as_path)?.display();
            Some(format!(
                "{path}: the management controller {at} is also in the file of machine {other}, so the server changes \
                 neither the power state nor the boot device of these machines; correct the address in one of the files"
            ))
        };
        let mut problems: Vec<String> = self.machines().filter_map(describe).collect();
        problems.sort();
        problems
    }
}

impl MachineSpec {
    /// Returns the UUID that the machine's firmware and its management controller should report: `smbios_uuid` or, if
    /// the file lacks this field, the machine's id. Returns `None` if the id is not a UUID.
    pub fn firmware_uuid(&self) -> Option<Uuid> {
        self.smbios_uuid.or_else(|| Uuid::try_parse(&self.id).ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operator_files::parse_machine;

    fn machine(number: u32, url: &str) -> MachineSpec {
        let id = format!("4c4c4544-0051-3010-8052-b4c04f4d000{number}");
        parse_machine(&format!("id: {id}\nbmc: {{url: '{url}', username: u, password: p}}\n")).unwrap()
    }

    fn compare(urls: [&str; 2]) -> [ControllerSharing; 2] {
        let machines = [machine(1, urls[0]), machine(2, urls[1])];
        let mut index = ControllerIndex::default();
        machines.iter().for_each(|machine| index.add(machine));
        machines.each_ref().map(|machine| index.compare(&machine.bmc.as_ref().unwrap().at, &machine.id))
    }

    #[test]
    fn only_different_systems_of_a_redfish_controller_are_shared() {
        use ControllerSharing::{Conflict, Exclusive, ProvenByUuid};
        let [first, second] = [1, 2].map(|number| Conflict(machine(number, "https://h").id));
        let system = |number: u32| format!("https://h/redfish/v1/Systems/{number}");
        let (one, two) = (system(1), system(2));
        for (urls, expected) in [
            (["ipmi://10.1.0.7", "ipmi://10.1.0.8"], [Exclusive, Exclusive]),
            (["ipmi://10.1.0.7", "ipmi://10.1.0.7:9001"], [Exclusive, Exclusive]),
            (["ipmi://10.1.0.7", "ipmi://10.1.0.7:623"], [second.clone(), first.clone()]),
            ([&one, &two], [Exclusive, Exclusive]),
            ([&one, &(one.clone() + "/")], [second, first]),
            (["https://h", "https://H:443/redfish/v1"], [ProvenByUuid, ProvenByUuid]),
            (["https://h", &two], [ProvenByUuid, Exclusive]),
        ] {
            assert_eq!(compare(urls), expected, "{urls:?}");
        }
    }
}
