//! GPTs that no tool would write: made out of good ones, always the same 300. Read by the inventory, and by who fits a raw image.

use super::*;
use fastrand::Rng;

const TABLES: u64 = 300;

/// Of each. To look into a partition is what takes time.
const PARTITIONS: usize = 6;

/// Numbers at the edges of what a sector, a count or a size can be.
const EDGES: [u64; 12] = [0, 1, 2, 33, 34, 4096, 4097, u32::MAX as u64, 1 << 32, i64::MAX as u64, 1 << 63, u64::MAX];

/// A disk that begins with such a table.
pub(crate) struct Mutated {
    pub name: String,
    pub sector: u32,
    pub disk: Vec<u8>,
}

/// All of them.
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

/// A few partitions, and what firmware looks at first.
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

/// Where they are, as the disk is now.
fn headers(disk: &[u8], sector: usize) -> Vec<usize> {
    let places = [sector, disk.len() - sector];
    places.into_iter().filter(|at| is_header(&disk[*at..])).collect()
}

fn change(random: &mut Rng, disk: &mut Vec<u8>, sector: usize) -> String {
    let headers = headers(disk, sector);
    // One of the two, or both alike.
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
        // Entries that overlap, that end before they begin, and that lie anywhere.
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
        // A smaller disk than the image was made for.
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

/// Where the entries are that belong to the header there, when they are on the disk.
fn entries(disk: &[u8], header: usize, sector: usize) -> Option<Vec<usize>> {
    let start = usize::try_from(read_u64(disk, header + ENTRIES_LBA)).ok()?.checked_mul(sector)?;
    let end = start.checked_add(128 * 128).filter(|end| *end <= disk.len())?;
    Some((start..end).step_by(128).collect())
}

/// Makes both checksums right, where the header says something that can be summed up.
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
