//! Disks of the machine, which are sparse raw files: their initial contents, and detection of changes.

use crate::host_tools::{Context, Result, run_tool, write};
use crate::qemu_disks;
use crate::scenario::{Bus, Disk, InitialContent, MkfsContent, Partition, PatternContent, RandomContent};
use nix::errno::Errno;
use nix::unistd::{Whence, lseek};
use sha2::{Digest, Sha256};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

const MIB: u64 = 1024 * 1024;

pub fn disk_path(folder: &Path, disk: &Disk) -> PathBuf {
    folder.join(format!("{}.raw", disk.name))
}

/// Creates the file of a disk with its initial contents.
pub fn create_disk(folder: &Path, disk: &Disk) -> Result<()> {
    if disk.bus == Bus::Sata && disk.sector != 512 {
        return Err(format!("disk {}: QEMU's SATA disks have sectors of 512 bytes", disk.name));
    }
    if disk.path_of.is_some() {
        return Ok(());
    }
    make_empty(folder, disk)?;
    if !disk.errors_at_mib.is_empty() {
        write(&qemu_disks::errors_file(folder, disk), qemu_disks::error_rules(disk))?;
    }
    let path = disk_path(folder, disk);
    for before in &disk.before {
        match before {
            InitialContent::Random(random) => fill_random(&path, random)?,
            InitialContent::Pattern(pattern) => fill_pattern(&path, pattern)?,
            InitialContent::Mkfs(mkfs) => make_filesystem(&path, mkfs)?,
            InitialContent::Gpt(partitions) => make_table(&path, disk, partitions)?,
            InitialContent::Copy(file) => copy_file(&path, file)?,
        }
    }
    Ok(())
}

/// Creates an empty file. Replaces an existing file.
pub fn make_empty(folder: &Path, disk: &Disk) -> Result<()> {
    let path = disk_path(folder, disk);
    let file = File::create(&path).context(path.display())?;
    file.set_len(disk.size_mib * MIB).context(path.display())
}

fn open_file(path: &Path) -> Result<File> {
    OpenOptions::new().write(true).open(path).context(path.display())
}

/// Fills a range with xorshift64* noise, which is the same on every host (Vigna, "An experimental exploration of
/// Marsaglia's xorshift").
fn fill_random(path: &Path, random: &RandomContent) -> Result<()> {
    let mut state = random.seed.max(1);
    let noise: Vec<u8> = (0..random.mib * MIB / 8)
        .flat_map(|_| {
            state ^= state >> 12;
            state ^= state << 25;
            state ^= state >> 27;
            state.wrapping_mul(0x2545_F491_4F6C_DD1D).to_le_bytes()
        })
        .collect();
    open_file(path)?.write_all_at(&noise, random.at_mib * MIB).context(path.display())
}

fn fill_pattern(path: &Path, pattern: &PatternContent) -> Result<()> {
    let length = (pattern.mib * MIB) as usize;
    let bytes: Vec<u8> = pattern.text.bytes().cycle().take(length).collect();
    if bytes.len() < length {
        return Err("a pattern requires a text".to_owned());
    }
    open_file(path)?.write_all_at(&bytes, pattern.at_mib * MIB).context(path.display())
}

/// Copies a file, which must not be larger than the disk, to the disk.
fn copy_file(disk: &Path, from: &Path) -> Result<()> {
    let mut source = File::open(from).context(from.display())?;
    let mut target = open_file(disk)?;
    let size = |file: &File| file.metadata().map(|metadata| metadata.len()).context(disk.display());
    if size(&source)? > size(&target)? {
        return Err(format!("{} is larger than {}", from.display(), disk.display()));
    }
    std::io::copy(&mut source, &mut target).map(drop).context(from.display())
}

/// Creates the filesystem in a separate file, and copies this file to the filesystem's offset on the disk, because not
/// every mkfs can write at an offset.
fn make_filesystem(path: &Path, mkfs: &MkfsContent) -> Result<()> {
    let part = path.with_extension("part");
    let part_name = part.to_string_lossy();
    File::create(&part).and_then(|file| file.set_len(mkfs.mib * MIB)).context(part.display())?;
    let program = if mkfs.format == "swap" { "mkswap".to_owned() } else { format!("mkfs.{}", mkfs.format) };
    let mut argv = vec![program.as_str()];
    argv.extend(mkfs.options.iter().map(String::as_str));
    argv.push(&part_name);
    run_tool(&argv, Stdio::null())?;
    let (input, output, seek) = (format!("if={part_name}"), format!("of={}", path.display()), mkfs.at_mib.to_string());
    let seek = format!("seek={seek}");
    run_tool(&["dd", &input, &output, &seek, "bs=1M", "conv=notrunc,sparse", "status=none"], Stdio::null())?;
    fs::remove_file(&part).context(part.display())
}

fn make_table(path: &Path, disk: &Disk, partitions: &[Partition]) -> Result<()> {
    if disk.sector != 512 {
        return Err(format!("disk {}: an initial partition table requires sectors of 512 bytes", disk.name));
    }
    let script = path.with_extension("sfdisk");
    let mut file = File::create(&script).context(script.display())?;
    writeln!(file, "label: gpt").context(script.display())?;
    for partition in partitions {
        let start = partition.start_mib.map(|mib| format!(", start={mib}MiB")).unwrap_or_default();
        let size = partition.size_mib.map(|mib| format!(", size={mib}MiB")).unwrap_or_default();
        let name = partition.label.as_ref().map(|label| format!(", name=\"{label}\"")).unwrap_or_default();
        let kind = partition.kind.as_deref().map_or("linux".to_owned(), kind_guid);
        writeln!(file, "{} : type={kind}{start}{size}{name}", partition.number).context(script.display())?;
    }
    let input = File::open(&script).context(script.display())?;
    run_tool(&["sfdisk", "--quiet", &path.to_string_lossy()], Stdio::from(input))?;
    fs::remove_file(&script).context(script.display())
}

/// Returns the type GUID of a partition for the short name in a scenario.
pub fn kind_guid(kind: &str) -> String {
    match kind {
        "efi" => "C12A7328-F81F-11D2-BA4B-00A0C93EC93B",
        "linux" => "0FC63DAF-8483-4772-8E79-3D69D8477DE4",
        "raid" => "A19D880F-05FC-4D3B-A006-743F0F84911E",
        "lvm" => "E6D6D379-F507-44C2-A23C-238F2A3DF928",
        "swap" => "0657FD6D-A4AB-43C4-84E5-0933C84B4F4F",
        guid => guid,
    }
    .to_uppercase()
}

/// Returns whether a BIOS would run code from the disk: the area for boot code, before the disk signature and the
/// partition table, is not empty.
pub fn has_boot_code(path: &Path) -> Result<bool> {
    let mut code = [0; 440];
    File::open(path).and_then(|mut file| file.read_exact(&mut code)).context(path.display())?;
    Ok(code.iter().any(|byte| *byte != 0))
}

/// Returns a digest of all blocks that are not zero, with their offsets. A hole therefore equals zeros.
pub fn digest_disk(path: &Path) -> Result<String> {
    let mut digest = Sha256::new();
    each_block(path, |offset, block| {
        if block.iter().any(|byte| *byte != 0) {
            digest.update(offset.to_le_bytes());
            digest.update(block);
        }
    })?;
    Ok(format!("{:x}", digest.finalize()))
}

/// Returns the digest of a range of the disk.
pub fn part_digest(path: &Path, at_mib: u64, mib: u64) -> Result<String> {
    let mut file = File::open(path).context(path.display())?;
    file.seek(SeekFrom::Start(at_mib * MIB)).context(path.display())?;
    let (mut digest, mut block) = (Sha256::new(), vec![0; MIB as usize]);
    for _ in 0..mib {
        file.read_exact(&mut block).context(path.display())?;
        digest.update(&block);
    }
    Ok(format!("{:x}", digest.finalize()))
}

/// Returns whether the disk contains the text. An occurrence across the boundary of two blocks is not found.
pub fn contains_text(path: &Path, text: &str) -> Result<bool> {
    let mut found = false;
    each_block(path, |_, block| found |= block.windows(text.len()).any(|window| window == text.as_bytes()))?;
    Ok(found)
}

/// Calls the function with the offset and the content of every allocated block of the sparse file.
fn each_block(path: &Path, mut call: impl FnMut(u64, &[u8])) -> Result<()> {
    const BLOCK_BYTES: u64 = 64 * 1024;
    let mut file = File::open(path).context(path.display())?;
    let end = file.metadata().context(path.display())?.len() as i64;
    let mut block = vec![0; BLOCK_BYTES as usize];
    let mut place = 0;
    while place < end {
        let data = match lseek(&file, place, Whence::SeekData) {
            Ok(offset) => offset as u64 / BLOCK_BYTES * BLOCK_BYTES,
            Err(Errno::ENXIO) => break,
            Err(error) => return Err(format!("{}: {error}", path.display())),
        };
        let hole = lseek(&file, data as i64, Whence::SeekHole).context(path.display())?.max(data as i64 + 1) as u64;
        file.seek(SeekFrom::Start(data)).context(path.display())?;
        for offset in (data..hole).step_by(BLOCK_BYTES as usize) {
            let length = (end as u64 - offset).min(BLOCK_BYTES) as usize;
            file.read_exact(&mut block[..length]).context(path.display())?;
            call(offset, &block[..length]);
        }
        place = hole.next_multiple_of(BLOCK_BYTES) as i64;
    }
    Ok(())
}

/// Tests that a text is found only if the disk contains it, and that a digest depends on the contents, but not on
/// holes.
pub fn self_test() {
    let folder = std::env::temp_dir().join(format!("drophammer-disks-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    let path = folder.join("disk.raw");
    File::create(&path).and_then(|file| file.set_len(4 * MIB)).expect("a file");
    let empty = digest_disk(&path).expect("a fingerprint");
    open_file(&path).and_then(|file| file.write_all_at(&[0; 4096], MIB).context("zeros")).expect("written");
    assert_eq!(digest_disk(&path).expect("a fingerprint"), empty);
    fill_pattern(&path, &PatternContent { text: "secret ".to_owned(), at_mib: 2, mib: 1 }).expect("written");
    assert_ne!(digest_disk(&path).expect("a fingerprint"), empty);
    let part = |at_mib| part_digest(&path, at_mib, 1).expect("a digest");
    assert_eq!(part(0), part(1));
    assert_ne!(part(1), part(2));
    assert!(part_digest(&path, 3, 2).is_err());
    assert!(contains_text(&path, "secret").expect("read") && !contains_text(&path, "secrets").expect("read"));
    let copy = folder.join("copy.raw");
    File::create(&copy).and_then(|file| file.set_len(4 * MIB)).expect("a file");
    copy_file(&copy, &path).expect("copied");
    assert_eq!(digest_disk(&copy).expect("a digest"), digest_disk(&path).expect("a digest"));
    File::create(&copy).and_then(|file| file.set_len(MIB)).expect("a file");
    assert!(copy_file(&copy, &path).is_err_and(|why| why.contains("is larger than")));
    fs::remove_dir_all(&folder).expect("removed");
}
