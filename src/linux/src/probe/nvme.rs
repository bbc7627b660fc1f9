//! Queries of NVMe controllers: which erase methods are supported, and whether they affect other namespaces. Opcodes
//! and offsets are those of the NVM Express Base Specification 2.0c. The kernel interface is declared in
//! linux/nvme_ioctl.h.

use model::inventory::EraseMethod;
use nix::libc::c_int;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

/// Length of Identify data.
const IDENTIFY_BYTES: usize = 4096;

/// Timeout of the command Identify. This command normally takes milliseconds. The timeout prevents a removed controller
/// from blocking the inventory.
const IDENTIFY_TIMEOUT: Duration = Duration::from_secs(5);

// Values of the Controller or Namespace Structure (CNS) field, which selects the data that Identify returns.
const CNS_NAMESPACE: u32 = 0x00;
const CNS_CONTROLLER: u32 = 0x01;
const CNS_ACTIVE: u32 = 0x02;
const CNS_ALLOCATED: u32 = 0x10;

// Opcodes of the admin commands that are used.
pub(crate) const GET_LOG_PAGE: u8 = 0x02;
const IDENTIFY: u8 = 0x06;
pub(crate) const FORMAT_NVM: u8 = 0x80;
pub(crate) const SANITIZE: u8 = 0x84;

/// Admin command for an NVMe controller.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AdminCommand {
    pub opcode: u8,
    pub namespace: u32,
    /// Command dword 10, whose meaning depends on the opcode.
    pub dword10: u32,
    /// Timeout after which the kernel aborts the command.
    pub patience: Duration,
}

/// NVMe namespace with its erase methods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NvmeNamespace {
    pub id: u32,
    pub methods: Vec<EraseMethod>,
    /// Current format of the namespace, encoded as command dword 10 of Format NVM without the secure erase setting.
    pub format: u32,
}

mod ioctl {
    /// `struct nvme_admin_cmd`.
    #[repr(C)]
    #[derive(Default)]
    pub(crate) struct NvmeAdminCmd {
        pub opcode: u8,
        pub flags: u8,
        pub reserved: u16,
        pub namespace: u32,
        pub dword2: u32,
        pub dword3: u32,
        pub metadata: u64,
        pub address: u64,
        pub metadata_bytes: u32,
        pub data_bytes: u32,
        pub dwords10: [u32; 6],
        pub timeout_ms: u32,
        pub result: u32,
    }

    nix::ioctl_none_bad!(id, nix::request_code_none!(b'N', 0x40));
    nix::ioctl_readwrite!(admin, b'N', 0x41, NvmeAdminCmd);
}

/// Sends an admin command to the controller of this namespace's block device and stores the response in `data`.
///
/// # Errors
/// Returns an error if the device is not an NVMe disk, or the controller returns an error status.
pub(crate) fn send_admin_command(device: &File, admin: AdminCommand, data: &mut [u8]) -> io::Result<()> {
    let mut command = ioctl::NvmeAdminCmd {
        opcode: admin.opcode,
        namespace: admin.namespace,
        address: if data.is_empty() { 0 } else { data.as_mut_ptr() as u64 },
        data_bytes: u32::try_from(data.len()).map_err(io::Error::other)?,
        dwords10: [admin.dword10, 0, 0, 0, 0, 0],
        timeout_ms: u32::try_from(admin.patience.as_millis()).unwrap_or(u32::MAX),
        ..ioctl::NvmeAdminCmd::default()
    };
    // SAFETY: the kernel reads and writes `command`, and writes at most `data_bytes` bytes to `data`, whose address is
    // in the field `address`.
    match unsafe { ioctl::admin(device.as_raw_fd(), &mut command) }? {
        0 => Ok(()),
        status => Err(io::Error::other(describe_status(status))),
    }
}

/// Returns the ID of the namespace of this block device.
///
/// # Errors
/// Returns an error if the device is not an NVMe disk.
pub(crate) fn read_namespace_id(device: &File) -> io::Result<u32> {
    // SAFETY: NVME_IOCTL_ID takes no argument.
    let id = unsafe { ioctl::id(device.as_raw_fd()) }?;
    u32::try_from(id).map_err(io::Error::other)
}

/// Reads properties of controller and namespace.
///
/// # Errors
/// Returns an error if the device is not an NVMe disk, or the controller does not respond.
pub(crate) fn read_namespace(device: &File) -> io::Result<NvmeNamespace> {
    let id = read_namespace_id(device)?;
    let controller = identify(device, CNS_CONTROLLER, 0)?;
    // Old controllers do not support the lists of active and allocated namespaces. If a list is missing, other
    // namespaces are assumed to exist.
    let list = |cns| identify(device, cns, 0).ok().map(|data| parse_namespace_ids(&data));
    let allocated = if manages_namespaces(&controller) { list(CNS_ALLOCATED) } else { None };
    let alone = is_only_namespace(&controller, id, list(CNS_ACTIVE).as_deref(), allocated.as_deref());
    let format = current_format(&identify(device, CNS_NAMESPACE, id)?);
    Ok(NvmeNamespace { id, methods: list_erase_methods(&controller, alone), format })
}

fn identify(device: &File, cns: u32, namespace: u32) -> io::Result<Vec<u8>> {
    let mut data = vec![0; IDENTIFY_BYTES];
    send_admin_command(
        device,
        AdminCommand { opcode: IDENTIFY, namespace, dword10: cns, patience: IDENTIFY_TIMEOUT },
        &mut data,
    )?;
    Ok(data)
}

/// Returns the methods that erase only this namespace. `controller` is the Identify data of its controller.
fn list_erase_methods(controller: &[u8], alone: bool) -> Vec<EraseMethod> {
    let sanitize = read_u32(controller, 328);
    let can_format = read_u16(controller, 256) & 1 << 1 != 0;
    // Bits of FNA: with bit 0, Format NVM formats all namespaces of the subsystem; with bit 1, a secure erase affects
    // all of them; with bit 2, cryptographic erase is supported.
    let attributes = read_u8(controller, 524);
    let format_is_ours = can_format && (alone || attributes & 0b11 == 0);
    let offers = [
        // Sanitize is offered only if the namespace is the only one, because a sanitize operation affects the whole
        // subsystem.
        (EraseMethod::NvmeSanitizeCrypto, alone && sanitize & 1 != 0),
        (EraseMethod::NvmeSanitizeBlock, alone && sanitize & 1 << 1 != 0),
        (EraseMethod::NvmeFormatCrypto, format_is_ours && attributes & 1 << 2 != 0),
        (EraseMethod::NvmeFormat, format_is_ours),
    ];
    offers.into_iter().filter(|(_, offered)| *offered).map(|(method, _)| method).collect()
}

/// Returns whether this namespace is the only namespace in the whole NVM subsystem. `active` lists the namespaces that
/// are attached to this controller, and `allocated` lists all namespaces that exist in the subsystem.
fn is_only_namespace(controller: &[u8], id: u32, active: Option<&[u32]>, allocated: Option<&[u32]>) -> bool {
    let only = |list: Option<&[u32]>| list == Some(&[id]);
    let most = read_u32(controller, 516);
    let has_siblings = read_u8(controller, 76) & 1 << 1 != 0;
    if most == 1 {
        return true;
    }
    if manages_namespaces(controller) {
        return only(active) && only(allocated);
    }
    !has_siblings && only(active)
}

/// Returns whether namespaces can be created and attached to controllers.
fn manages_namespaces(controller: &[u8]) -> bool {
    read_u16(controller, 256) & 1 << 3 != 0
}

/// Returns the LBA format, metadata setting and protection information, converted from FLBAS (byte 26) and DPS (byte
/// 29) to the fields of Format NVM (figure 189).
fn current_format(namespace: &[u8]) -> u32 {
    let (size, protection) = (u32::from(read_u8(namespace, 26)), u32::from(read_u8(namespace, 29)));
    let low = size & 0xf;
    let high = size >> 5 & 0b11;
    let metadata = size >> 4 & 1;
    low | metadata << 4 | (protection & 0b111) << 5 | (protection >> 3 & 1) << 8 | high << 12
}

/// Parses a list of namespaces: IDs in ascending order, followed by zeros.
fn parse_namespace_ids(list: &[u8]) -> Vec<u32> {
    (0..list.len()).step_by(4).map(|offset| read_u32(list, offset)).take_while(|id| *id != 0).collect()
}

fn read_u8(data: &[u8], offset: usize) -> u8 {
    data.get(offset).copied().unwrap_or_default()
}

fn read_u16(data: &[u8], offset: usize) -> u16 {
    u16::from_le_bytes([read_u8(data, offset), read_u8(data, offset + 1)])
}

fn read_u32(data: &[u8], offset: usize) -> u32 {
    u32::from(read_u16(data, offset)) | u32::from(read_u16(data, offset + 2)) << 16
}

/// Describes the status of a command: its status code type and its status code. The higher bits contain retry hints and
/// are ignored.
fn describe_status(status: c_int) -> String {
    let meaning = match status & 0x7ff {
        0x001 => ", invalid opcode",
        0x002 => ", invalid field",
        0x006 => ", internal error",
        0x007 => ", aborted",
        0x015 => ", operation denied",
        0x01c => ", sanitize failed",
        0x01d => ", sanitize in progress",
        0x020 => ", write protected",
        0x084 => ", format in progress",
        0x10a => ", invalid format",
        _ => "",
    };
    format!("the controller returned status {status:#05x}{meaning}", status = status & 0x7ff)
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::inventory::EraseMethod::*;

    /// Identify Controller data with these bytes set.
    fn controller(bytes: &[(usize, u8)]) -> Vec<u8> {
        let mut data = vec![0; IDENTIFY_BYTES];
        for (offset, byte) in bytes {
            data[*offset] = *byte;
        }
        data
    }

    #[test]
    fn nvme_command_has_the_size_of_the_kernel_structure() {
        assert_eq!(size_of::<ioctl::NvmeAdminCmd>(), 72);
    }

    #[test]
    fn erase_methods_depend_on_controller_capabilities() {
        const FORMAT: (usize, u8) = (256, 0b10);
        let all_of_it: &[EraseMethod] = &[NvmeSanitizeCrypto, NvmeSanitizeBlock, NvmeFormatCrypto, NvmeFormat];
        type Case<'a> = (&'a str, &'a [(usize, u8)], bool, &'a [EraseMethod]);
        let cases: [Case; 10] = [
            ("nothing", &[], true, &[]),
            ("format", &[FORMAT], false, &[NvmeFormat]),
            ("crypto without format", &[(524, 0b100)], true, &[]),
            ("crypto", &[FORMAT, (524, 0b100)], false, &[NvmeFormatCrypto, NvmeFormat]),
            ("format hits all, alone", &[FORMAT, (524, 0b101)], true, &[NvmeFormatCrypto, NvmeFormat]),
            ("format hits all, not alone", &[FORMAT, (524, 0b101)], false, &[]),
            ("erase hits all, not alone", &[FORMAT, (524, 0b110)], false, &[]),
            ("sanitize, alone", &[(328, 0b11)], true, &[NvmeSanitizeCrypto, NvmeSanitizeBlock]),
            ("sanitize, not alone", &[(328, 0b11), FORMAT], false, &[NvmeFormat]),
            ("everything", &[(328, 0b111), FORMAT, (524, 0b111)], true, all_of_it),
        ];
        for (name, bytes, alone, expected) in cases {
            assert_eq!(list_erase_methods(&controller(bytes), alone), expected, "{name}");
        }
    }

    #[test]
    fn format_of_all_namespaces_is_not_offered_with_siblings() {
        for attributes in 0..=u8::MAX {
            let identify_data = controller(&[(256, 0b10), (328, 0xff), (524, attributes)]);
            let hits_all = attributes & 0b11 != 0;
            let beside = list_erase_methods(&identify_data, false);
            let formats = beside.iter().filter(|is| matches!(is, NvmeFormat | NvmeFormatCrypto)).count();
            assert_eq!(formats == 0, hits_all, "{attributes:#010b}: {beside:?}");
            assert_eq!(beside.len(), formats, "{attributes:#010b}: {beside:?}");
            assert!(list_erase_methods(&identify_data, true).contains(&NvmeFormat), "{attributes:#010b}");
        }
    }

    #[test]
    fn namespace_counts_as_only_one_if_proven() {
        const MANY: (usize, u8) = (516, 32);
        const MANAGEMENT: (usize, u8) = (256, 0b1000);
        const SIBLINGS: (usize, u8) = (76, 0b10);
        let one: Option<&[u32]> = Some(&[1]);
        let two: Option<&[u32]> = Some(&[1, 2]);
        type Case<'a> = (&'a str, &'a [(usize, u8)], Option<&'a [u32]>, Option<&'a [u32]>, bool);
        let cases: [Case; 11] = [
            ("there can be only one", &[(516, 1)], None, None, true),
            ("one namespace exists", &[MANY], one, None, true),
            ("two namespaces exist", &[MANY], two, None, false),
            ("no list", &[MANY], None, None, false),
            ("an empty list", &[MANY], Some(&[]), None, false),
            ("one, of another controller", &[MANY], Some(&[2]), None, false),
            ("one, but another controller may have more", &[MANY, SIBLINGS], one, None, false),
            ("one attached, one exists", &[MANY, MANAGEMENT], one, one, true),
            ("the same with siblings", &[MANY, MANAGEMENT, SIBLINGS], one, one, true),
            ("one attached, two exist", &[MANY, MANAGEMENT], one, two, false),
            ("unknown number of namespaces", &[MANY, MANAGEMENT], one, None, false),
        ];
        for (name, bytes, active, allocated, expected) in cases {
            assert_eq!(is_only_namespace(&controller(bytes), 1, active, allocated), expected, "{name}");
        }
    }

    #[test]
    fn current_format_is_preserved() {
        let cases = [
            ((0x00, 0x00), 0x0000),
            ((0x03, 0x00), 0x0003),
            // Metadata at the end of the data, protection type 1 in the first bytes.
            ((0x11, 0x09), 0x0131),
            // Format 33 of 64.
            ((0x21, 0x00), 0x1001),
            ((0x7f, 0x0f), 0x31ff),
        ];
        for ((size, protection), expected) in cases {
            assert_eq!(current_format(&controller(&[(26, size), (29, protection)])), expected, "{size:#x}");
        }
        assert_eq!(current_format(&[]), 0);
    }

    #[test]
    fn namespace_list_ends_at_the_first_zero() {
        assert_eq!(parse_namespace_ids(&[1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0]), [1, 256]);
        assert_eq!(parse_namespace_ids(&[0; 4096]), Vec::<u32>::new());
        assert_eq!(parse_namespace_ids(&[1, 0, 0, 0]), [1]);
    }

    #[test]
    fn nvme_status_is_described() {
        assert_eq!(describe_status(0x4002), "the controller returned status 0x002, invalid field");
        assert_eq!(describe_status(0x0281), "the controller returned status 0x281");
    }

    #[test]
    fn file_is_not_an_nvme_namespace() {
        let file = tempfile::tempfile().unwrap();
        assert!(read_namespace(&file).is_err());
    }
}
