//! Invalid GPTs, created by random changes to valid ones. Every run uses the same 300 tables. With these tables, tests
//! check the inventory and the adaptation of raw images.

use super::*;
use fastrand::Rng;

const TABLES: u64 = 300;

/// Number of partitions of each table: only a few, because probing the contents of a partition takes time.
const PARTITIONS: usize = 6;

/// Boundary values of sector numbers, counts and sizes.
const EDGES: [u64; 12] = [0, 1, 2, 33, 34, 4096, 4097, u32::MAX as u64, 1 << 32, i64::MAX as u64, 1 << 63, u64::MAX];

/// Disk with a mutated table.
pub(crate) struct Mutated {
    pub name: String,
    pub sector: u32,
    pub disk: Vec<u8>,
}

/// Returns all mutated tables.
pub(crate) fn mutated() -> impl Iterator<Item = Mutated> {
    (0..TABLES).map(|seed| {
        let mut random = Rng::with_seed(seed);
        let sector = *random.choice(&[512, 4096]).unwrap();
        let mut disk = good(sector, random.u64(100..160));
        let changes: Vec<String> =
            (0..random.u8(1..5)).map(|_| change(&mut random, &mut disk, sector as usize)).collect();
        Mutated { name: format!("table {seed}: {}", changes.join(", ")), sector: sector as u32, disk }
    })
}

/// Returns a valid disk with a few partitions and a protective MBR.
fn good(sector: u64, sectors: u64) -> Vec<u8> {
    let mut disk = crowded_image(sector, sectors);
    for header in headers(&disk, sector as usize) {
        for at in entries(&disk, header, sector as usize).unwrap().split_off(PARTITIONS) {
            disk[at..at + 128].fill(0);
        }
        seal(&mut disk, header, sector as usize);
    }
    disk[446..510].fill(0);
    disk[450] = PROTECTIVE;
    disk[454..458].copy_from_slice(&1_u32.to_le_bytes());
    disk[458..462].copy_from_slice(&(sectors as u32 - 1).to_le_bytes());
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    disk
}

/// Returns the offsets of the headers that the disk currently contains.
fn headers(disk: &[u8], sector: usize) -> Vec<usize> {
    let places = [sector, disk.len() - sector];
    places.into_iter().filter(|at| is_header(&disk[*at..])).collect()
}

fn change(random: &mut Rng, disk: &mut Vec<u8>, sector: usize) -> String {
    let headers = headers(disk, sector);
    // Changes the first header, the last one, or both in the same way.
    let which = match random.u8(..3) {
        0 => headers.first().copied().into_iter().collect(),
        1 => headers.last().copied().into_iter().collect(),
        _ => headers,
    };
    let value = number(random, (disk.len() / sector) as u64);
    let said = match random.u8(..8) {
        0 => {
            let field = *random.choice(&[OWN_LBA, BACKUP_LBA, FIRST_USABLE, LAST_USABLE, ENTRIES_LBA]).unwrap();
            which.iter().for_each(|at| disk[at + field..at + field + 8].copy_from_slice(&value.to_le_bytes()));
            format!("{value} at {field}")
        }
        1 => {
            let field = *random.choice(&[HEADER_SIZE, ENTRY_COUNT, ENTRY_SIZE]).unwrap();
            let value = *random.choice(&[value as u32, 256, 512, 129]).unwrap();
            which.iter().for_each(|at| disk[at + field..at + field + 4].copy_from_slice(&value.to_le_bytes()));
            format!("{value} at {field}")
        }
        // Entries that overlap, end before their start, or are at any position.
        2..=4 => {
            let (entry, field) = (random.usize(..PARTITIONS), *random.choice(&[FIRST_LBA, LAST_LBA]).unwrap());
            for header in &which {
                if let Some(at) = entries(disk, *header, sector).map(|all| all[entry] + field) {
                    disk[at..at + 8].copy_from_slice(&value.to_le_bytes());
                }
            }
            format!("{value} at {field} of entry {entry}")
        }
        5 => {
            let at = random.usize(..40 * 512);
            disk[at] ^= 1 << random.u8(..8);
            return format!("a bit of byte {at}");
        }
        6 => {
            which.iter().for_each(|at| disk[*at..at + sector].fill(0));
            return format!("none at {which:?}");
        }
        // A disk that is smaller than the table requires.
        _ => {
            let length = disk.len() - random.usize(..disk.len() / sector / 2) * sector;
            disk.truncate(length);
            return format!("cut to {length}");
        }
    };
    let sealed = random.u8(..4) > 0;
    which.iter().filter(|_| sealed).for_each(|at| seal(disk, *at, sector));
    format!("{said} of {which:?}, sealed {sealed}")
}

fn number(random: &mut Rng, sectors: u64) -> u64 {
    match random.u8(..3) {
        0 => *random.choice(&EDGES).unwrap(),
        1 => random.u64(..sectors),
        _ => sectors - 2 + random.u64(..4),
    }
}

/// Returns the offsets of the entries of this header; `None` if they are not within the disk.
fn entries(disk: &[u8], header: usize, sector: usize) -> Option<Vec<usize>> {
    let start = usize::try_from(read_u64(disk, header + ENTRIES_LBA)).ok()?.checked_mul(sector)?;
    let end = start.checked_add(128 * 128).filter(|end| *end <= disk.len())?;
    Some((start..end).step_by(128).collect())
}

/// Corrects both checksums if the ranges that the header specifies are within the disk.
fn seal(disk: &mut [u8], header: usize, sector: usize) {
    let word = |disk: &[u8], at: usize| u32::from_le_bytes(disk[header + at..header + at + 4].try_into().unwrap());
    let length = (word(disk, ENTRY_COUNT) as usize).saturating_mul(word(disk, ENTRY_SIZE) as usize);
    let start = usize::try_from(read_u64(disk, header + ENTRIES_LBA)).unwrap_or(usize::MAX).saturating_mul(sector);
    if let Some(sum) = disk.get(start..start.saturating_add(length)).map(compute_crc) {
        disk[header + ENTRIES_CRC..header + ENTRIES_CRC + 4].copy_from_slice(&sum.to_le_bytes());
    }
    disk[header + HEADER_CRC..header + HEADER_CRC + 4].fill(0);
    if let Some(sum) = disk[header..].get(..word(disk, HEADER_SIZE) as usize).map(compute_crc) {
        disk[header + HEADER_CRC..header + HEADER_CRC + 4].copy_from_slice(&sum.to_le_bytes());
    }
}
