//! Safe interface to libblkid: partition table and signatures of a device. No other file calls libblkid.

use blkid_sys as blkid;
use model::inventory::DeviceSignature;
use std::ffi::{CStr, c_char, c_int};
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::{io, ptr};

/// Unit of offsets and sizes in libblkid, in bytes, regardless of the disk's sector size.
const UNIT_BYTES: u64 = 512;

/// Range of a device.
#[derive(Debug, Clone, Copy)]
pub(super) struct DeviceArea {
    pub start_bytes: u64,
    pub size_bytes: u64,
}

/// Partition table as decoded by libblkid.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct BlkidTable {
    pub kind: String,
    pub id: String,
    pub partitions: Vec<BlkidPartition>,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct BlkidPartition {
    pub number: u32,
    pub start_bytes: u64,
    pub size_bytes: u64,
    /// Type of the partition: a GUID, or a DOS type such as `0x83`.
    pub kind: String,
    pub guid: String,
    pub name: String,
    /// True if this is a DOS extended partition, a container of logical partitions.
    pub extended: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct BlkidSignature {
    pub signature: DeviceSignature,
    /// True if the superblock has an invalid checksum, so the content is damaged.
    pub damaged: bool,
}

/// Signatures of a device, as far as the device can be read.
#[derive(Debug, Default)]
pub(super) struct FoundSignatures {
    /// Signatures that were found before a read failed; all signatures of the device if no read failed.
    pub signatures: Vec<BlkidSignature>,
    /// Error that ended the search. The device may have further signatures.
    pub error: Option<io::Error>,
}

impl From<io::Error> for FoundSignatures {
    fn from(error: io::Error) -> FoundSignatures {
        FoundSignatures { error: Some(error), ..FoundSignatures::default() }
    }
}

/// libblkid probe of an open device.
pub(super) struct BlkidProbe {
    raw: blkid::blkid_probe,
    /// Open file. libblkid uses the descriptor of this file, but does not close it.
    _file: File,
}

impl BlkidProbe {
    /// Opens a device or an image file, or a range of one of them. `sector_bytes` is the logical sector size of the
    /// disk, which libblkid cannot determine for an image file.
    pub(super) fn open(path: &Path, area: Option<DeviceArea>, sector_bytes: u32) -> io::Result<BlkidProbe> {
        // With O_NONBLOCK, opening a drive without a medium fails immediately.
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
        let offset = |bytes: u64| i64::try_from(bytes).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput));
        // libblkid interprets a size of 0 as "to the end".
        let area = area.unwrap_or(DeviceArea { start_bytes: 0, size_bytes: 0 });
        let (start, size) = (offset(area.start_bytes)?, offset(area.size_bytes)?);
        // SAFETY: the call returns a new probe or null.
        let raw = unsafe { blkid::blkid_new_probe() };
        if raw.is_null() {
            return Err(io::Error::last_os_error());
        }
        let probe = BlkidProbe { raw, _file: file };
        // SAFETY: `raw` is a live probe, and the descriptor stays open as long as the probe lives.
        if unsafe { blkid::blkid_probe_set_device(raw, probe._file.as_raw_fd(), start, size) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `raw` is a live probe with a device.
        if unsafe { blkid::blkid_probe_set_sectorsize(raw, sector_bytes) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(probe)
    }

    /// Returns all signatures of the device. libblkid's `blkid_do_safeprobe` is not used, because it fails if the
    /// device has two signatures. libblkid reads different areas for different formats, so a read may fail after
    /// signatures were found.
    pub(super) fn read_signatures(&mut self) -> FoundSignatures {
        // An invalid checksum must not hide a filesystem; otherwise a damaged disk would appear blank.
        let flags = blkid::BLKID_SUBLKS_LABEL
            | blkid::BLKID_SUBLKS_UUID
            | blkid::BLKID_SUBLKS_TYPE
            | blkid::BLKID_SUBLKS_USAGE
            | blkid::BLKID_SUBLKS_BADCSUM;
        // SAFETY: `raw` is a live probe; these calls set flags in it.
        unsafe {
            blkid::blkid_reset_probe(self.raw);
            blkid::blkid_probe_enable_partitions(self.raw, 0);
            blkid::blkid_probe_enable_superblocks(self.raw, 1);
            blkid::blkid_probe_set_superblocks_flags(self.raw, flags as c_int);
        }
        let mut found = FoundSignatures::default();
        loop {
            match self.advance() {
                Ok(true) => {}
                Ok(false) => return found,
                Err(error) => return FoundSignatures { error: Some(error), ..found },
            }
            let kind = self.lookup_value(c"TYPE");
            let signature = DeviceSignature {
                kind,
                usage: self.lookup_value(c"USAGE"),
                label: self.lookup_value(c"LABEL"),
                uuid: self.lookup_value(c"UUID"),
            };
            let damaged = !self.lookup_value(c"SBBADCSUM").is_empty();
            found.signatures.push(BlkidSignature { signature, damaged });
        }
    }

    /// Returns the partition table; `None` if the device has none. A protective MBR without a GPT is returned as a
    /// table of type `PMBR`.
    ///
    /// # Errors
    /// Returns an error if a read fails.
    pub(super) fn read_table(&mut self) -> io::Result<Option<BlkidTable>> {
        // SAFETY: `raw` is a live probe; these calls set flags in it.
        unsafe {
            blkid::blkid_reset_probe(self.raw);
            blkid::blkid_probe_enable_superblocks(self.raw, 0);
            blkid::blkid_probe_enable_partitions(self.raw, 1);
        }
        // The probe is advanced before the partition list is read: the list alone would not distinguish a read error
        // from a missing table.
        if !self.advance()? {
            return Ok(None);
        }
        let mut table =
            BlkidTable { kind: self.lookup_value(c"PTTYPE"), id: self.lookup_value(c"PTUUID"), partitions: Vec::new() };
        // SAFETY: `raw` is a live probe with a device.
        let list = unsafe { blkid::blkid_probe_get_partitions(self.raw) };
        if list.is_null() {
            return Ok(Some(table));
        }
        // SAFETY: the list belongs to the probe and lives until its next reset.
        let count = unsafe { blkid::blkid_partlist_numof_partitions(list) };
        for index in 0..count {
            // SAFETY: as above, and `index` is below the list's length.
            let partition = unsafe { blkid::blkid_partlist_get_partition(list, index) };
            if !partition.is_null() {
                // SAFETY: this is a partition of the live list.
                table.partitions.push(unsafe { copy_partition(partition) });
            }
        }
        Ok(Some(table))
    }

    /// Advances to the next result; returns false if there is no further result.
    fn advance(&mut self) -> io::Result<bool> {
        // SAFETY: `raw` is a live probe with a device.
        match unsafe { blkid::blkid_do_probe(self.raw) } {
            0 => Ok(true),
            code if code < 0 => Err(io::Error::from_raw_os_error(-code)),
            _ => Ok(false),
        }
    }

    /// Returns the value with this name in the current result; empty if the result does not contain such a value.
    fn lookup_value(&self, name: &CStr) -> String {
        let mut data: *const c_char = ptr::null();
        // SAFETY: `raw` is a live probe, `name` is NUL-terminated, `data` is writable, and a null length is allowed.
        let code = unsafe { blkid::blkid_probe_lookup_value(self.raw, name.as_ptr(), &mut data, ptr::null_mut()) };
        if code != 0 {
            return String::new();
        }
        // SAFETY: on success `data` is a string of the probe's current result, which does not change while it is
        // copied.
        unsafe { copy_string(data) }
    }
}

impl Drop for BlkidProbe {
    fn drop(&mut self) {
        // SAFETY: `raw` came from blkid_new_probe and is freed only here.
        unsafe { blkid::blkid_free_probe(self.raw) }
    }
}

/// Copies a partition of libblkid.
///
/// # Safety
/// `partition` must belong to a live partition list.
unsafe fn copy_partition(partition: blkid::blkid_partition) -> BlkidPartition {
    let bytes = |units: i64| u64::try_from(units).unwrap_or_default().saturating_mul(UNIT_BYTES);
    // SAFETY: guaranteed by the caller; all strings live as long as the list.
    unsafe {
        let mut kind = copy_string(blkid::blkid_partition_get_type_string(partition));
        if kind.is_empty() {
            kind = format!("{:#x}", blkid::blkid_partition_get_type(partition));
        }
        BlkidPartition {
            number: u32::try_from(blkid::blkid_partition_get_partno(partition)).unwrap_or_default(),
            start_bytes: bytes(blkid::blkid_partition_get_start(partition)),
            size_bytes: bytes(blkid::blkid_partition_get_size(partition)),
            kind,
            guid: copy_string(blkid::blkid_partition_get_uuid(partition)),
            name: copy_string(blkid::blkid_partition_get_name(partition)),
            extended: blkid::blkid_partition_is_extended(partition) != 0,
        }
    }
}

/// Copies a string of libblkid. A null pointer results in an empty string.
///
/// # Safety
/// `data` must be null, or a valid NUL-terminated string.
unsafe fn copy_string(data: *const c_char) -> String {
    if data.is_null() {
        return String::new();
    }
    // SAFETY: guaranteed by the caller.
    let bytes = unsafe { CStr::from_ptr(data) }.to_bytes();
    super::sysfs::to_printable(bytes)
}

#[cfg(test)]
mod tests;
