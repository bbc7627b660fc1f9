//! Write log of a disk, written by QEMU's `blklogwrites` in the format of the kernel's dm-log-writes. The first sector
//! contains the number of entries. It is followed, for each write, by a sector with the entry and by the data.

use crate::host_tools::{Context, Result};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const MAGIC: u64 = 0x006a_7366_7773_6872;
const FLUSH: u64 = 1;
/// Flag for force unit access: the data is on the medium when the write is completed.
const FUA: u64 = 2;
const DISCARD: u64 = 4;
const MARK: u64 = 8;

/// Maximum number of writes in flight at a power cut. Their entries may be missing in the file.
const MAX_IN_FLIGHT: u64 = 1024;

/// Write or discard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoggedWrite {
    /// Index of the entry in the log, starting at 0. Flushes are counted.
    pub number: u64,
    /// Offset on the disk, in bytes.
    pub start: u64,
    pub length: u64,
    pub discard: bool,
}

/// Returns the current number of entries; 0 for a log that was just created.
///
/// # Errors
/// Fails if the file cannot be read, or is not a log.
pub fn count_entries(path: &Path) -> Result<u64> {
    Ok(open_log(path)?.map_or(0, |log| log.count))
}

/// Entry with all details that the log contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogRecord {
    /// See [`LoggedWrite::number`].
    pub number: u64,
    /// Offset on the disk, in bytes. A flush has no length.
    pub start: u64,
    pub length: u64,
    /// Offset of the data in the log; `None` for a discard.
    pub data: Option<u64>,
    /// True if all previous entries are on the medium when this entry is completed.
    pub is_flush: bool,
    /// True if the data of this entry are on the medium when it is completed.
    pub is_forced: bool,
}

/// Returns all writes and discards in their order, without flushes.
///
/// # Errors
/// Fails if the file cannot be read, or is not a log.
pub fn read_writes(path: &Path) -> Result<Vec<LoggedWrite>> {
    let writes = read_records(path)?.into_iter().filter(|record| record.length > 0);
    let entry =
        |LogRecord { number, start, length, data, .. }| LoggedWrite { number, start, length, discard: data.is_none() };
    Ok(writes.map(entry).collect())
}

/// Returns all writes, discards and flushes in their order. A write that a flush precedes becomes two records with the
/// same number.
///
/// # Errors
/// Fails if the file cannot be read, or is not a log.
pub fn read_records(path: &Path) -> Result<Vec<LogRecord>> {
    let Some(log) = open_log(path)? else { return Ok(Vec::new()) };
    let mut records = Vec::new();
    let mut offset = log.sector_bytes;
    for number in 0..log.count {
        let mut head = [0; 32];
        let read = log.file.read_exact_at(&mut head, offset);
        let [sector, sectors, flags, _] = parse_words(&head);
        if read.is_err() || (sectors, flags) == (0, 0) {
            match log.count - number {
                ..=MAX_IN_FLIGHT => break,
                _ => return Err(format!("{}: entry {number} of {} is damaged", path.display(), log.count)),
            }
        }
        let length = sectors * log.sector_bytes;
        let has_data = flags & (DISCARD | MARK) == 0;
        if flags & MARK == 0 {
            let flush = LogRecord { number, start: 0, length: 0, data: None, is_flush: true, is_forced: false };
            records.extend((flags & FLUSH != 0).then_some(flush));
            let (start, data) = (sector * log.sector_bytes, has_data.then_some(offset + log.sector_bytes));
            let write = LogRecord { number, start, length, data, is_flush: false, is_forced: flags & FUA != 0 };
            records.extend((length > 0).then_some(write));
        }
        offset += log.sector_bytes + if has_data { length } else { 0 };
    }
    Ok(records)
}

/// Open log, and the values in its first sector.
struct WriteLog {
    file: File,
    count: u64,
    sector_bytes: u64,
}

fn open_log(path: &Path) -> Result<Option<WriteLog>> {
    let file = File::open(path).context(path.display())?;
    let mut head = [0; 32];
    if file.metadata().context(path.display())?.len() < head.len() as u64 {
        return Ok(None);
    }
    file.read_exact_at(&mut head, 0).context(path.display())?;
    match parse_words(&head) {
        [0, 0, 0, 0] => Ok(None),
        [MAGIC, 1, count, sector] if sector as u32 >= 512 => {
            Ok(Some(WriteLog { file, count, sector_bytes: u64::from(sector as u32) }))
        }
        other => Err(format!("{}: not a log of writes: {other:x?}", path.display())),
    }
}

/// Parses four 64-bit little-endian numbers.
fn parse_words(bytes: &[u8; 32]) -> [u64; 4] {
    std::array::from_fn(|index| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[index * 8..][..8]);
        u64::from_le_bytes(word)
    })
}

/// Writes a log with these entries. `count` is the number in the first sector, and the data is holes.
pub fn write_log(path: &Path, count: u64, heads: &[(u64, u64, u64)]) {
    let file = File::create(path).expect("a file");
    let put = |words: [u64; 4], offset: u64| {
        let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
        file.write_all_at(&bytes, offset).expect("written");
    };
    put([MAGIC, 1, count, 512], 0);
    let mut offset = 512;
    for (sector, sectors, flags) in heads {
        put([*sector, *sectors, *flags, 0], offset);
        offset += 512 + if flags & (DISCARD | MARK) == 0 { sectors * 512 } else { 0 };
    }
    file.set_len(offset.max(512)).expect("a length");
}

/// Returns a folder for this test.
pub fn test_folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("drophammer-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

/// Tests that writes, flushes and discards are distinguished. Also tests that a log which ends too early, as after a
/// power cut, is accepted within limits.
pub fn self_test() {
    let folder = test_folder("witness-log");
    let path = folder.join("by-hand.writes");
    File::create(&path).expect("a file");
    assert_eq!((count_entries(&path), read_writes(&path)), (Ok(0), Ok(vec![])));
    let heads = [(2048, 16, 0), (0, 0, FLUSH), (6144, 2048, DISCARD), (7, 1, MARK), (1, 1, 2)];
    write_log(&path, 5, &heads);
    let entry = |number, start, length, discard| LoggedWrite { number, start, length, discard };
    let expected = vec![entry(0, 1 << 20, 8192, false), entry(2, 3 << 20, 1 << 20, true), entry(4, 512, 512, false)];
    assert_eq!((count_entries(&path), read_writes(&path)), (Ok(5), Ok(expected.clone())));
    write_log(&path, 9, &heads);
    assert_eq!(read_writes(&path), Ok(expected));
    write_log(&path, 5 + MAX_IN_FLIGHT + 1, &heads);
    assert!(read_writes(&path).is_err_and(|words| words.contains("entry 5 of 1030 is damaged")));
    std::fs::write(&path, [7; 64]).expect("written");
    assert!(count_entries(&path).is_err_and(|words| words.contains("not a log of writes")));
    read_log_of_qemu(&folder);
    std::fs::remove_dir_all(&folder).expect("removed");
}

/// Tests with a log that QEMU itself has written, if its tool is installed.
fn read_log_of_qemu(folder: &Path) {
    let (disk, log) = (folder.join("disk.raw"), folder.join("disk.writes"));
    File::create(&disk).and_then(|file| file.set_len(16 << 20)).expect("a file");
    File::create(&log).expect("a file");
    let file = format!("file.file.driver=file,file.file.filename={}", disk.display());
    let options = format!("{},{file},discard=unmap", blklogwrites_options(&log, "raw"));
    let mut command = std::process::Command::new("qemu-io");
    for order in ["write -P 65 1M 8k", "write -z 2M 64k", "discard 3M 1M", "flush", "write -f 512 512"] {
        command.args(["-c", order]);
    }
    let output = match command.args(["--image-opts", &options]).output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return,
        output => output.expect("qemu-io"),
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found: Vec<_> =
        read_writes(&log).expect("a log").iter().map(|write| (write.start, write.length, write.discard)).collect();
    let expected = [(1 << 20, 8192, false), (2 << 20, 65536, false), (3 << 20, 1 << 20, true), (512, 512, false)];
    assert_eq!(found, expected);
    assert!(count_entries(&log).expect("a log") > 4, "flushes count");
}

/// Returns QEMU's options for a disk in this format whose writes are logged. The caller appends the options of the
/// disk's file, below `file.file`. QEMU updates the number of entries with each write, and never flushes the log.
pub fn blklogwrites_options(log: &Path, format: &str) -> String {
    let log = log.display();
    format!(
        "driver=blklogwrites,log.driver=file,log.filename={log},log.cache.no-flush=on,log-super-update-interval=1,file.driver={format}"
    )
}
