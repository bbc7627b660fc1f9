//! Variables of a UEFI firmware that decide what runs at the next boot. The installed system can write all of them.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Vendor of the variables that the UEFI specification defines.
pub const GLOBAL_VENDOR: Uuid = Uuid::from_u128(0x8be4df61_93ca_11d2_aa0d_00e098032b8c);

/// Boot variables of the firmware, at most [`FirmwareVariables::MAXIMUM_LISTED`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirmwareVariables {
    /// Reason why no variable can be read. Then nothing else is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreadable: Option<String>,
    /// Number of the boot entry that the firmware started last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_current: Option<u16>,
    /// Number of the boot entry that the firmware starts next, once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_next: Option<u16>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub boot_order: Vec<u16>,
    /// Programs that the firmware starts: boot entries, drivers, and recovery programs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub load_options: Vec<FirmwareLoadOption>,
    /// Other variables that influence a boot.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<OtherFirmwareVariable>,
    /// Number of variables that are not listed because there are too many.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub omitted: usize,
}

impl FirmwareVariables {
    /// Maximum number of load options, and of other variables.
    pub const MAXIMUM_LISTED: usize = 512;
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// A load option (UEFI specification 3.1.3) with its texts cut to a bounded length.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirmwareLoadOption {
    pub class: LoadOptionClass,
    pub number: u16,
    pub active: bool,
    /// Name in the firmware's menu.
    pub description: String,
    /// Device path as text.
    pub path: String,
    pub target: LoadTarget,
    /// Arguments of the program, if they are text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<String>,
    /// SHA-256 of the variable's value, in hexadecimal; none if it cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

impl FirmwareLoadOption {
    /// Name of the variable: `Boot0003`.
    pub fn variable_name(&self) -> String {
        format!("{}{:04X}", self.class.prefix(), self.number)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoadOptionClass {
    Boot,
    /// Started before any boot entry, and stays in memory.
    Driver,
    /// Started before any boot entry.
    SysPrep,
    /// Made by the firmware. Started if no boot entry works.
    PlatformRecovery,
    /// Made by an operating system. Started if no boot entry works.
    OsRecovery,
}

impl LoadOptionClass {
    pub const ALL: [LoadOptionClass; 5] = [
        LoadOptionClass::Boot,
        LoadOptionClass::Driver,
        LoadOptionClass::SysPrep,
        LoadOptionClass::PlatformRecovery,
        LoadOptionClass::OsRecovery,
    ];

    /// Common prefix of the variable names.
    pub fn prefix(self) -> &'static str {
        match self {
            LoadOptionClass::Boot => "Boot",
            LoadOptionClass::Driver => "Driver",
            LoadOptionClass::SysPrep => "SysPrep",
            LoadOptionClass::PlatformRecovery => "PlatformRecovery",
            LoadOptionClass::OsRecovery => "OsRecovery",
        }
    }

    /// Variable with the order in which load options of this class are started.
    pub fn order_variable(self) -> Option<&'static str> {
        match self {
            LoadOptionClass::Boot => Some("BootOrder"),
            LoadOptionClass::Driver => Some("DriverOrder"),
            LoadOptionClass::SysPrep => Some("SysPrepOrder"),
            LoadOptionClass::PlatformRecovery | LoadOptionClass::OsRecovery => None,
        }
    }
}

/// Location from which a load option is started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoadTarget {
    /// A GPT partition, by its GUID.
    Partition(Uuid),
    /// A partition of an MBR, which the inventory does not identify.
    MbrPartition,
    Uri(String),
    /// The network, at the address that DHCP supplies.
    Network,
    /// A fixed network address: iSCSI, NVMe over Fabrics, a server's IP address or name server.
    RemoteAddress,
    /// A program within the firmware, or a device of its compatibility module.
    Firmware,
    /// A whole device, which the firmware starts from its fallback path.
    Device,
    Unknown,
    /// The value cannot be read, or its device path is malformed.
    Malformed,
}

/// Variable that is not a load option.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherFirmwareVariable {
    pub name: String,
    pub vendor: Uuid,
    pub purpose: VariablePurpose,
    pub bytes: usize,
    /// SHA-256 of its value, in hexadecimal; none if it cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VariablePurpose {
    /// Hotkey that starts a load option: `Key0001`.
    HotKey,
    /// A request to the firmware, carried out at the next boot: `OsIndications`.
    FirmwareRequest,
    /// A setting of systemd-boot.
    SystemdBoot,
    /// A request to shim, carried out at the next boot: `MokNew`.
    ShimRequest,
    /// Keys that shim trusts in addition to the firmware's. The running system cannot remove them.
    ShimKeys,
    /// A variable of drophammer.
    Drophammer,
}
