//! What libblkid recognises on a device: its partition table, and its signatures one by one. The only unsafe code of
//! the inventory.

use super::Signature;
use blkid_sys as blkid;
use std::ffi::{CStr, c_char, c_int};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::ptr;

/// libblkid counts in these, whatever the disk's sector size is.
const UNIT_BYTES: u64 = 512;

/// A part of a device.
#[derive(Debug, Clone, Copy)]
pub(super) struct Area {
    pub start_bytes: u64,
    pub size_bytes: u64,
}

/// A partition table as libblkid decodes it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct FoundTable {
    pub kind: String,
    pub id: String,
    pub partitions: Vec<FoundPartition>,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct FoundPartition {
    pub number: u32,
    pub start_bytes: u64,
    pub size_bytes: u64,
    /// GUID, or `0x83`.
    pub kind: String,
    pub guid: String,
    pub name: String,
    /// A DOS extended partition: a box for others, with nothing of its own inside.
    pub extended: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct FoundSignature {
    pub signature: Signature,
    /// The checksum in it is wrong: something was there, and is damaged.
    pub damaged: bool,
}

/// A libblkid probe on an open device.
pub(super) struct Probe {
    raw: blkid::blkid_probe,
    /// libblkid reads from this descriptor and does not own it.
    _file: File,
}

impl Probe {
    /// Opens a device or an image file, whole or a part of it. `sector_bytes` is the logical sector of the disk,
    /// which libblkid could not know of an image file.
    pub(super) fn open(path: &Path, area: Option<Area>, sector_bytes: u32) -> io::Result<Probe> {
        // O_NONBLOCK: a drive without a medium says so at once.
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
        let offset = |bytes: u64| i64::try_from(bytes).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput));
        // libblkid takes a size of 0 for "to the end".
        let area = area.unwrap_or(Area { start_bytes: 0, size_bytes: 0 });
        let (start, size) = (offset(area.start_bytes)?, offset(area.size_bytes)?);
        // SAFETY: takes nothing and gives a new probe or null.
        let raw = unsafe { blkid::blkid_new_probe() };
        if raw.is_null() {
            return Err(io::Error::last_os_error());
        }
        let probe = Probe { raw, _file: file };
        // SAFETY: `raw` is a live probe, and the descriptor stays open as long as it does.
        if unsafe { blkid::blkid_probe_set_device(raw, probe._file.as_raw_fd(), start, size) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `raw` is a live probe with a device.
        if unsafe { blkid::blkid_probe_set_sectorsize(raw, sector_bytes) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(probe)
    }

    /// Every signature there is. libblkid's own `blkid_do_safeprobe` refuses when there are two; here both are told.
    ///
    /// # Errors
    /// A read error, after which nothing is known.
    pub(super) fn signatures(&mut self) -> io::Result<Vec<FoundSignature>> {
        // A wrong checksum must not make a filesystem invisible, or a damaged disk would pass for a blank one.
        let flags = blkid::BLKID_SUBLKS_LABEL
            | blkid::BLKID_SUBLKS_UUID
            | blkid::BLKID_SUBLKS_TYPE
            | blkid::BLKID_SUBLKS_USAGE
            | blkid::BLKID_SUBLKS_BADCSUM;
        // SAFETY: `raw` is a live probe; these set flags in it.
        unsafe {
            blkid::blkid_reset_probe(self.raw);
            blkid::blkid_probe_enable_partitions(self.raw, 0);
            blkid::blkid_probe_enable_superblocks(self.raw, 1);
            blkid::blkid_probe_set_superblocks_flags(self.raw, flags as c_int);
        }
        let mut found = Vec::new();
        while self.next()? {
            let kind = self.value(c"TYPE");
            let signature =
                Signature { kind, usage: self.value(c"USAGE"), label: self.value(c"LABEL"), uuid: self.value(c"UUID") };
            found.push(FoundSignature { signature, damaged: !self.value(c"SBBADCSUM").is_empty() });
        }
        Ok(found)
    }

    /// The partition table, if there is one. A protective MBR whose GPT is gone is a table of kind `PMBR`.
    ///
    /// # Errors
    /// A read error.
    pub(super) fn table(&mut self) -> io::Result<Option<FoundTable>> {
        // SAFETY: `raw` is a live probe; these set flags in it.
        unsafe {
            blkid::blkid_reset_probe(self.raw);
            blkid::blkid_probe_enable_superblocks(self.raw, 0);
            blkid::blkid_probe_enable_partitions(self.raw, 1);
        }
        // The list below does not tell a read error from no table.
        if !self.next()? {
            return Ok(None);
        }
        let mut table = FoundTable { kind: self.value(c"PTTYPE"), id: self.value(c"PTUUID"), partitions: Vec::new() };
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
                // SAFETY: a partition of the live list.
                table.partitions.push(unsafe { found_partition(partition) });
            }
        }
        Ok(Some(table))
    }

    /// Goes to the next result; false at the end.
    fn next(&mut self) -> io::Result<bool> {
        // SAFETY: `raw` is a live probe with a device.
        match unsafe { blkid::blkid_do_probe(self.raw) } {
            0 => Ok(true),
            code if code < 0 => Err(io::Error::from_raw_os_error(-code)),
            _ => Ok(false),
        }
    }

    /// A value of the current result; empty when it has none of that name.
    fn value(&self, name: &CStr) -> String {
        let mut data: *const c_char = ptr::null();
        // SAFETY: `raw` is a live probe, `name` ends in NUL, `data` is ours to write to, and a null length is allowed.
        let code = unsafe { blkid::blkid_probe_lookup_value(self.raw, name.as_ptr(), &mut data, ptr::null_mut()) };
        if code != 0 {
            return String::new();
        }
        // SAFETY: on success `data` is a string of the probe's current result, which is not changed while we copy.
        unsafe { text(data) }
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        // SAFETY: `raw` came from blkid_new_probe and is freed only here.
        unsafe { blkid::blkid_free_probe(self.raw) }
    }
}

/// Copies what libblkid knows about a partition.
///
/// # Safety
/// `partition` belongs to a partition list that is alive.
unsafe fn found_partition(partition: blkid::blkid_partition) -> FoundPartition {
    let bytes = |units: i64| u64::try_from(units).unwrap_or_default().saturating_mul(UNIT_BYTES);
    // SAFETY: the caller's promise; all strings live as long as the list.
    unsafe {
        let mut kind = text(blkid::blkid_partition_get_type_string(partition));
        if kind.is_empty() {
            kind = format!("{:#x}", blkid::blkid_partition_get_type(partition));
        }
        FoundPartition {
            number: u32::try_from(blkid::blkid_partition_get_partno(partition)).unwrap_or_default(),
            start_bytes: bytes(blkid::blkid_partition_get_start(partition)),
            size_bytes: bytes(blkid::blkid_partition_get_size(partition)),
            kind,
            guid: text(blkid::blkid_partition_get_uuid(partition)),
            name: text(blkid::blkid_partition_get_name(partition)),
            extended: blkid::blkid_partition_is_extended(partition) != 0,
        }
    }
}

/// Copies a string of libblkid; null is empty.
///
/// # Safety
/// `data` is null, or ends in NUL and is alive.
unsafe fn text(data: *const c_char) -> String {
    if data.is_null() {
        return String::new();
    }
    // SAFETY: the caller's promise.
    let bytes = unsafe { CStr::from_ptr(data) }.to_bytes();
    super::printable(bytes)
}
