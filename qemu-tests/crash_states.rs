//! Disk at a moment, reconstructed from its earlier contents and the log of its writes.
//!
//! After a power cut, a disk contains all writes before its last flush, and any subset of the later writes. A write
//! with FUA (force unit access) is always contained. Any other write is complete, or torn at a multiple of 512 bytes. A
//! discard leaves zeros.
//!
//! A flush is assumed to apply to all entries that precede it in the log.

use crate::host_tools::{Context, Result};
use crate::write_log::{self, LogRecord};
use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::{Whence, lseek};
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Block size for copies, in bytes. Discards and holes of disks may be large.
const PIECE_BYTES: u64 = 1 << 20;

/// Part of a write that has arrived: a range relative to the start of the write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ArrivedPart {
    /// Index of the write in [`ReplayedDisk::records`].
    pub record: usize,
    pub start: u64,
    pub length: u64,
}

/// Disk that is advanced through its write log. Its file also contains the parts of later writes that are tried out.
pub struct ReplayedDisk {
    pub name: String,
    pub records: Vec<LogRecord>,
    pub file: File,
    /// Path at which other programs open the disk.
    pub path: PathBuf,
    log: File,
    base: File,
    /// Index of the first record that is not on the disk yet.
    cursor: usize,
    /// Digest of the parts of writes that are tried out.
    tried: u64,
}

impl ReplayedDisk {
    /// Copies the disk from before the reinstall into memory: thousands of states would wear out a real disk.
    ///
    /// # Errors
    /// Fails if a file cannot be read, or there is not enough memory.
    pub fn open(name: &str, base: &Path, log: &Path) -> Result<ReplayedDisk> {
        let source = File::open(base).context(base.display())?;
        let file = File::from(memfd_create(name, MFdFlags::MFD_CLOEXEC).context("a file in memory")?);
        let path = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()));
        let length = source.metadata().context(base.display())?.len();
        file.set_len(length).context(path.display())?;
        copy_part(&source, &file, 0, length).context(path.display())?;
        Ok(ReplayedDisk {
            name: name.to_owned(),
            records: write_log::read_records(log)?,
            file,
            path,
            log: File::open(log).context(log.display())?,
            base: source,
            cursor: 0,
            tried: 0,
        })
    }

    /// Returns the index of the record that follows the last flush before this index.
    pub fn find_last_flush(&self, place: usize) -> usize {
        self.records[..place].iter().rposition(|record| record.is_flush).map_or(0, |place| place + 1)
    }

    /// Returns the number of records that belong to entries of the log before the entry `number`.
    pub fn count_records_before(&self, number: u64) -> usize {
        self.records.partition_point(|record| record.number < number)
    }

    /// Advances the disk to this index in its log. A disk cannot be moved back.
    ///
    /// # Errors
    /// Fails if a file cannot be read or written.
    pub fn advance_to(&mut self, place: usize) -> Result<()> {
        for index in self.cursor..place.max(self.cursor) {
            let whole = ArrivedPart { record: index, start: 0, length: self.records[index].length };
            self.write_part(whole)?;
        }
        self.cursor = self.cursor.max(place);
        Ok(())
    }

    /// Returns a key of the state. If two states have the same key, they have the same bytes.
    pub fn state_key(&self) -> (usize, u64) {
        (self.records[..self.cursor].iter().filter(|record| record.length > 0).count(), self.tried)
    }

    /// Writes these parts of writes to the disk, in order, until [`ReplayedDisk::restore_contents`].
    ///
    /// # Errors
    /// Fails if a file cannot be read or written.
    pub fn apply_parts(&mut self, parts: &[ArrivedPart]) -> Result<PreviousContents> {
        let mut undo = PreviousContents::default();
        let mut hasher = DefaultHasher::new();
        parts.hash(&mut hasher);
        self.tried = if parts.is_empty() { 0 } else { hasher.finish() };
        for part in parts {
            let record = &self.records[part.record];
            let (mut place, end) = (record.start + part.start, record.start + part.start + part.length);
            while place < end {
                let length = (end - place).min(PIECE_BYTES);
                let mut old = vec![0; length as usize];
                self.file.read_exact_at(&mut old, place).context(self.path.display())?;
                let is_hole = old.iter().all(|byte| *byte == 0);
                undo.pieces.push((place, length, (!is_hole).then_some(old)));
                place += length;
            }
            self.write_part(*part)?;
        }
        Ok(undo)
    }

    /// Reverts the parts that were tried out.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn restore_contents(&mut self, undo: PreviousContents) -> Result<()> {
        self.tried = 0;
        for (place, length, old) in undo.pieces.into_iter().rev() {
            match old {
                Some(bytes) => self.file.write_all_at(&bytes, place).context(self.path.display())?,
                None => self.punch_hole(place, length)?,
            }
        }
        Ok(())
    }

    /// Returns the bytes of the range as they are now, and as they were before the reinstall.
    ///
    /// # Errors
    /// Fails if a file cannot be read.
    pub fn now_and_before(&self, place: u64, length: u64) -> Result<(Vec<u8>, Vec<u8>)> {
        let (mut now, mut before) = (vec![0; length as usize], vec![0; length as usize]);
        self.file.read_exact_at(&mut now, place).context(self.path.display())?;
        self.base.read_exact_at(&mut before, place).context(&self.name)?;
        Ok((now, before))
    }

    fn write_part(&self, part: ArrivedPart) -> Result<()> {
        let record = &self.records[part.record];
        let place = record.start + part.start;
        let Some(data) = record.data else {
            return if part.length > 0 { self.punch_hole(place, part.length) } else { Ok(()) };
        };
        let mut bytes = vec![0; part.length as usize];
        self.log.read_exact_at(&mut bytes, data + part.start).context(format!("the log of {}", self.name))?;
        if bytes.iter().all(|byte| *byte == 0) && part.length > 0 {
            return self.punch_hole(place, part.length);
        }
        self.file.write_all_at(&bytes, place).context(self.path.display())
    }

    fn punch_hole(&self, place: u64, length: u64) -> Result<()> {
        let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        fallocate(&self.file, flags, place as i64, length as i64).context(self.path.display())
    }
}

/// Contents that were replaced by the parts that are tried out. A range without bytes contained zeros.
#[derive(Default)]
pub struct PreviousContents {
    pieces: Vec<(u64, u64, Option<Vec<u8>>)>,
}

/// Returns all writes in flight, for a state in which all of them have arrived.
pub fn take_all_parts(disk: &ReplayedDisk, from: usize, to: usize) -> Vec<ArrivedPart> {
    let whole = |record: usize| ArrivedPart { record, start: 0, length: disk.records[record].length };
    (from..to).map(whole).filter(|part| part.length > 0).collect()
}

/// Parameters of a random state.
#[derive(Clone, Copy)]
pub struct RandomStateParameters<'a> {
    /// Probability that a write arrives.
    pub chance: f64,
    /// Size in bytes for a write at this offset of the disk. The write is torn at multiples of this size.
    pub tear_bytes: &'a dyn Fn(u64) -> u64,
}

/// Returns a random subset of the writes in flight. One in four of these writes is torn.
pub fn take_random_parts(
    disk: &ReplayedDisk,
    from: usize,
    to: usize,
    lot: RandomStateParameters,
    random: &mut fastrand::Rng,
) -> Vec<ArrivedPart> {
    let mut parts = take_all_parts(disk, from, to);
    parts.retain(|part| disk.records[part.record].is_forced || random.f64() < lot.chance);
    for part in &mut parts {
        if !disk.records[part.record].is_forced && random.u8(0..4) == 0 {
            let tear_bytes = (lot.tear_bytes)(disk.records[part.record].start);
            let pieces = part.length / tear_bytes;
            let (one, other) = (random.u64(0..=pieces), random.u64(0..=pieces));
            // A write that is not longer than one block cannot be torn.
            if pieces > 1 {
                (part.start, part.length) = (one.min(other) * tear_bytes, one.abs_diff(other) * tear_bytes);
            }
        }
    }
    parts.retain(|part| part.length > 0);
    parts
}

/// Ranges of a disk as pairs of start and length, sorted, without adjacent ranges.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ByteRanges(Vec<(u64, u64)>);

impl ByteRanges {
    pub fn new(ranges: impl IntoIterator<Item = (u64, u64)>) -> ByteRanges {
        let mut sorted: Vec<(u64, u64)> = ranges.into_iter().filter(|(_, length)| *length > 0).collect();
        sorted.sort_unstable();
        let mut merged: Vec<(u64, u64)> = Vec::new();
        for (start, length) in sorted {
            match merged.last_mut() {
                Some(last) if start <= last.0 + last.1 => last.1 = (start + length).max(last.0 + last.1) - last.0,
                _ => merged.push((start, length)),
            }
        }
        ByteRanges(merged)
    }

    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.iter().copied()
    }

    /// Returns the bytes that are in both sets of ranges.
    pub fn intersect_with(&self, other: &ByteRanges) -> ByteRanges {
        let meet = |(start, length): (u64, u64)| {
            other.iter().filter_map(move |(begin, size)| {
                let (first, last) = (start.max(begin), (start + length).min(begin + size));
                (first < last).then(|| (first, last - first))
            })
        };
        ByteRanges::new(self.iter().flat_map(meet))
    }

    /// Returns the bytes of this set that are not in `other`.
    pub fn exclude_ranges(&self, other: &ByteRanges) -> ByteRanges {
        let mut left = Vec::new();
        for (start, length) in self.iter() {
            let mut place = start;
            for (begin, size) in other.iter().filter(|(begin, size)| begin + size > start && *begin < start + length) {
                left.push((place, begin.saturating_sub(place)));
                place = place.max(begin + size);
            }
            left.push((place, (start + length).saturating_sub(place)));
        }
        ByteRanges::new(left)
    }
}

/// Copies a range to the start of another file, in which zeros become holes.
///
/// # Errors
/// Fails if one of the files cannot be read or written.
pub fn copy_part(from: &File, to: &File, start: u64, length: u64) -> std::io::Result<()> {
    let end = start + length;
    let mut place = start;
    while place < end {
        let data = match lseek(from, place as i64, Whence::SeekData) {
            Ok(data) if (data as u64) < end => data as u64,
            Ok(_) | Err(nix::errno::Errno::ENXIO) => break,
            Err(error) => return Err(error.into()),
        };
        let hole = (lseek(from, data as i64, Whence::SeekHole)? as u64).min(end);
        let mut piece = data;
        while piece < hole {
            let mut bytes = vec![0; (hole - piece).min(PIECE_BYTES) as usize];
            from.read_exact_at(&mut bytes, piece)?;
            to.write_all_at(&bytes, piece - start)?;
            piece += bytes.len() as u64;
        }
        place = hole;
    }
    Ok(())
}

/// Returns the offset of the first byte that differs. Holes count as zeros.
///
/// # Errors
/// Fails if one of the files cannot be read.
pub fn find_difference(one: &File, other: &File) -> std::io::Result<Option<u64>> {
    let length = one.metadata()?.len().min(other.metadata()?.len());
    let mut pieces = [vec![0; PIECE_BYTES as usize], vec![0; PIECE_BYTES as usize]];
    for place in (0..length).step_by(PIECE_BYTES as usize) {
        let size = (length - place).min(PIECE_BYTES) as usize;
        one.read_exact_at(&mut pieces[0][..size], place)?;
        other.read_exact_at(&mut pieces[1][..size], place)?;
        if pieces[0][..size] != pieces[1][..size] {
            let differs = pieces[0].iter().zip(&pieces[1]).position(|(one, other)| one != other);
            return Ok(differs.map(|at| place + at as u64));
        }
    }
    Ok(None)
}

/// Returns a disk of 64 KiB filled with `o`, with a log of these entries. Write 0 consists of `a` only,
/// write 1 of `b` only, and so on.
pub fn test_disk(folder: &Path, name: &str, heads: &[(u64, u64, u64)]) -> ReplayedDisk {
    let (base, log) = (folder.join(format!("{name}.raw")), folder.join(format!("{name}.writes")));
    std::fs::write(&base, [b'o'; 64 << 10]).expect("written");
    write_log::write_log(&log, heads.len() as u64, heads);
    let file = File::options().write(true).open(&log).expect("a log");
    for record in write_log::read_records(&log).expect("records") {
        let letter = b'a' + record.number as u8;
        let bytes = vec![letter; record.length as usize];
        record.data.into_iter().for_each(|place| file.write_all_at(&bytes, place).expect("written"));
    }
    ReplayedDisk::open(name, &base, &log).expect("a disk")
}

/// Entries of a log: two writes, a flush, a write, a write with FUA, a discard, and a write that a flush precedes.
pub const TEST_HEADS: [(u64, u64, u64); 7] =
    [(0, 2, 0), (4, 2, 0), (0, 0, 1), (8, 2, 0), (16, 4, 2), (0, 8, 4), (32, 2, 1)];

/// Tests that disks advance through their logs and are restored, that flushed writes and any subset of the others have
/// arrived, and that ranges are computed correctly.
pub fn self_test() {
    let folder = write_log::test_folder("crash-states");
    let mut disk = test_disk(&folder, "sda", &TEST_HEADS);
    test_disk_moves(&mut disk);
    test_random_parts(&disk);
    test_range_counts();
    std::fs::remove_dir_all(&folder).expect("removed");
}

fn test_disk_moves(disk: &mut ReplayedDisk) {
    // The last entry consists of two records: a flush and a write.
    assert_eq!((disk.records.len(), disk.count_records_before(6), disk.count_records_before(7)), (8, 6, 8));
    assert_eq!([0, 2, 3, 6, 7, 8].map(|place| disk.find_last_flush(place)), [0, 0, 3, 3, 7, 7]);
    let letters = |disk: &ReplayedDisk| {
        [0, 1024, 2048, 4096, 8192, 16384].map(|place| disk.now_and_before(place, 1).expect("read").0[0])
    };
    assert_eq!(letters(disk), *b"oooooo");
    disk.advance_to(3).expect("advanced");
    assert_eq!(letters(disk), *b"aobooo");
    disk.advance_to(1).expect("it does not go back");
    let in_flight = take_all_parts(disk, 3, 8);
    let undo = disk.apply_parts(&in_flight).expect("tried");
    assert_eq!(letters(disk), *b"\0\0\0deg");
    disk.restore_contents(undo).expect("undo the writes");
    assert_eq!(letters(disk), *b"aobooo");
    let torn = ArrivedPart { record: 4, start: 512, length: 512 };
    let undo = disk.apply_parts(&[torn, ArrivedPart { record: 5, start: 0, length: 1024 }]).expect("tried");
    let (now, before) = disk.now_and_before(8192, 2048).expect("read");
    assert_eq!((now[511], now[512], now[1023], now[1024], before[512]), (b'o', b'e', b'e', b'o', b'o'));
    assert_eq!(letters(disk), *b"\0obooo");
    disk.restore_contents(undo).expect("undo the writes");
    let same = find_difference(&disk.file, &disk.base).expect("compared");
    assert_eq!(same, Some(0), "the first write is preserved");
    disk.advance_to(8).expect("advanced");
    assert_eq!(letters(disk), *b"\0\0\0deg");
}

fn test_random_parts(disk: &ReplayedDisk) {
    let lot = |chance, tear_bytes: &'static dyn Fn(u64) -> u64| RandomStateParameters { chance, tear_bytes };
    let chosen = |lot, seed| take_random_parts(disk, 3, 6, lot, &mut fastrand::Rng::with_seed(seed));
    let forced = ArrivedPart { record: 4, start: 0, length: 2048 };
    for seed in 0..200 {
        assert_eq!(chosen(lot(0.0, &|_| 512), seed), [forced], "FUA is durable by itself");
        let parts = chosen(lot(1.0, &|_| 512), seed);
        assert_eq!(parts, chosen(lot(1.0, &|_| 512), seed), "the same for the same seed");
        assert!(parts.contains(&forced));
        let fits =
            |part: &ArrivedPart| part.start.is_multiple_of(512) && part.length.is_multiple_of(512) && part.length > 0;
        assert!(parts.iter().all(fits), "{parts:?}");
        assert_eq!(chosen(lot(1.0, &|_| 4096), seed), take_all_parts(disk, 3, 6), "no longer than what arrives whole");
    }
    let different = |lot| {
        let mut all: Vec<_> = (0..200).map(|seed| format!("{:?}", chosen(lot, seed))).collect();
        all.sort_unstable();
        all.dedup();
        all.len()
    };
    assert_eq!(different(lot(0.5, &|_| 4096)), 4, "two writes that may arrive");
    assert!(different(lot(1.0, &|_| 512)) > 8, "torn in many ways");
}

fn test_range_counts() {
    let ranges = |ranges: &[(u64, u64)]| ByteRanges::new(ranges.iter().copied());
    assert_eq!(ranges(&[(10, 5), (0, 4), (4, 2), (12, 9), (30, 0)]), ranges(&[(0, 6), (10, 11)]));
    let (one, other) = (ranges(&[(0, 10), (20, 10)]), ranges(&[(5, 20), (28, 1)]));
    assert_eq!(one.intersect_with(&other), ranges(&[(5, 5), (20, 5), (28, 1)]));
    assert_eq!(one.exclude_ranges(&other), ranges(&[(0, 5), (25, 3), (29, 1)]));
    assert_eq!(other.exclude_ranges(&one), ranges(&[(10, 10)]));
    assert_eq!(one.exclude_ranges(&ranges(&[])), one);
    assert!(one.exclude_ranges(&ranges(&[(0, 40)])).iter().next().is_none());
}
