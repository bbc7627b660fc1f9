//! UEFI variables that determine which program runs at the next boot. The installed system can write all of them.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Vendor GUID of the variables that the UEFI specification defines.
pub const GLOBAL_VENDOR: Uuid = Uuid::from_u128(0x8be4df61_93ca_11d2_aa0d_00e098032b8c);

/// Boot variables of the firmware. At most [`FirmwareVariables::MAXIMUM_LISTED`] of each type are listed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirmwareVariables {
    /// Reason why the variables cannot be read. If there is a reason, all other fields are empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreadable: Option<String>,
    /// Number of the boot entry from which the current boot was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_current: Option<u16>,
    /// Number of the boot entry that the firmware starts at the next boot only.
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
    /// Maximum number of listed load options, and also maximum number of other listed variables.
    pub const MAXIMUM_LISTED: usize = 512;
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// A load option (UEFI specification 3.1.3). Its strings are truncated to a maximum length.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirmwareLoadOption {
    pub class: LoadOptionClass,
    pub number: u16,
    pub active: bool,
    /// Description of the load option, which the firmware's boot menu displays.
    pub description: String,
    /// UEFI device path, as text.
    pub path: String,
    pub target: LoadTarget,
    /// Arguments of the program; `None` if the arguments are not text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<String>,
    /// SHA-256 of the variable's value, in hexadecimal; `None` if the value cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

impl FirmwareLoadOption {
    /// Returns the name of the variable: `Boot0003`.
    pub fn variable_name(&self) -> String {
        format!("{}{:04X}", self.class.prefix(), self.number)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoadOptionClass {
    Boot,
    /// Driver that is started before any boot entry, and stays in memory.
    Driver,
    /// Program that is started before any boot entry.
    SysPrep,
    /// Recovery program of the firmware, which the firmware starts if no boot entry can be booted.
    PlatformRecovery,
    /// Recovery program of an operating system, which the firmware starts if no boot entry can be booted.
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

    /// Returns the common name prefix of all variables of this class.
    pub fn prefix(self) -> &'static str {
        match self {
            LoadOptionClass::Boot => "Boot",
            LoadOptionClass::Driver => "Driver",
            LoadOptionClass::SysPrep => "SysPrep",
            LoadOptionClass::PlatformRecovery => "PlatformRecovery",
            LoadOptionClass::OsRecovery => "OsRecovery",
        }
    }

    /// Returns the name of the variable that contains the order in which the load options of this class are started;
    /// `None` if this class has no order.
    pub fn order_variable(self) -> Option<&'static str> {
        match self {
            LoadOptionClass::Boot => Some("BootOrder"),
            LoadOptionClass::Driver => Some("DriverOrder"),
            LoadOptionClass::SysPrep => Some("SysPrepOrder"),
            LoadOptionClass::PlatformRecovery | LoadOptionClass::OsRecovery => None,
        }
    }
}

/// Location from which the firmware loads the program of a load option.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoadTarget {
    /// A GPT partition, with its GUID.
    Partition(Uuid),
    /// An MBR partition. It cannot be matched with a partition of the inventory.
    MbrPartition,
    Uri(String),
    /// The network; the addresses come from DHCP.
    Network,
    /// A fixed network address: the address of an iSCSI target, an NVMe over Fabrics target, a server, or a name
    /// server.
    RemoteAddress,
    /// A program within the firmware, or a device of the firmware's BIOS compatibility module.
    Firmware,
    /// A whole device, from which the firmware starts the program at the fallback path.
    Device,
    Unknown,
    /// The value of the variable cannot be read, or its device path is malformed.
    Malformed,
}

/// Variable that influences a boot but is not a load option.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherFirmwareVariable {
    pub name: String,
    pub vendor: Uuid,
    pub purpose: VariablePurpose,
    pub bytes: usize,
    /// SHA-256 of the variable's value, in hexadecimal; `None` if the value cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VariablePurpose {
    /// Hotkey that starts a load option: `Key0001`.
    HotKey,
    /// Request for the firmware, which it handles at the next boot: `OsIndications`.
    FirmwareRequest,
    /// A setting of systemd-boot.
    SystemdBoot,
    /// A request that shim executes at the next boot: `MokNew`.
    ShimRequest,
    /// Keys that shim trusts in addition to the keys of the firmware. The running system cannot remove them.
    ShimKeys,
    /// A variable that drophammer has written.
    Drophammer,
}
