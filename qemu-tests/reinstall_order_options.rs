//! Options of an order to reinstall the machine of a scenario.

use serde::Deserialize;

/// Reinstall order with its options.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReinstallOrderOptions {
    /// True if the order confirms that the disk with the marker was replaced.
    #[serde(default)]
    pub without_marker: bool,
    /// Serial numbers of disks whose data may be erased.
    #[serde(default)]
    pub give_up: Vec<String>,
    /// UUIDs of LUKS containers that may stay locked.
    #[serde(default)]
    pub leave_locked: Vec<String>,
    #[serde(default)]
    pub change_promise: bool,
    /// True if the order applies the whole machine file instead of the fields of the installed allocation.
    #[serde(default)]
    pub apply_allocation: bool,
}

impl ReinstallOrderOptions {
    /// Returns the command line options.
    pub fn options(&self) -> Vec<&str> {
        let flags = [
            ("--without-marker", self.without_marker),
            ("--change-promise", self.change_promise),
            ("--apply-allocation", self.apply_allocation),
        ];
        let flags = flags.into_iter().filter_map(|(option, is_set)| is_set.then_some(option));
        let flags = flags.chain(self.give_up.iter().flat_map(|serial| ["--give-up", serial]));
        flags.chain(self.leave_locked.iter().flat_map(|uuid| ["--leave-locked", uuid])).collect()
    }
}
