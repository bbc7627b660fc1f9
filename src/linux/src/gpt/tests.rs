use super::testing::crowded_image;
use super::*;
use mutated_tables::{Mutated, mutated};

pub(crate) mod mutated_tables;

fn from(disk: &[u8]) -> impl Fn(&mut [u8], u64) -> io::Result<()> {
    |bytes, at| {
        let found = usize::try_from(at).ok().and_then(|at| disk.get(at..)?.get(..bytes.len()));
        bytes.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

#[test]
fn refuses_damaged_or_oversized_gpt_copy() {
    for sector in SECTORS_BYTES {
        let good = crowded_image(sector, 200);
        let read = |disk: &[u8], lba| Gpt::read(&from(disk), sector, lba);
        let [primary, backup] = [1, 199].map(|lba| read(&good, lba).unwrap().unwrap());
        assert!(primary.entries().eq(backup.entries()) && primary.entries().count() == ENTRIES as usize);
        assert_eq!((primary.backup_lba(), backup.backup_lba()), (199, 1));
        assert!(read(&good, 0).unwrap().is_none() && read(&good, 200).is_err());
        let header = sector as usize;
        // Offset in the header, the value written there, whether the checksum is corrected, and the error.
        for (at, word, sealed, says) in [
            (DISK_GUID, 7, false, "sector 1 is damaged: the header's checksum does not match"),
            (HEADER_SIZE, 91, false, "the header's checksum does not match"),
            (HEADER_SIZE, u32::MAX, false, "the header's checksum does not match"),
            (OWN_LBA, 2, true, "the header contains the number of another sector"),
            (ENTRY_COUNT, 0, true, "0 entries of 128 bytes"),
            (ENTRY_COUNT, 4097, true, "4097 entries of 128 bytes"),
            (ENTRY_SIZE, 64, true, "128 entries of 64 bytes"),
            (ENTRY_SIZE, 8192, true, "128 entries of 8192 bytes"),
            (ENTRY_SIZE, 384, true, "128 entries of 384 bytes"),
            (ENTRIES_LBA, 3, true, "the checksum of the partition entries does not match"),
            (ENTRIES_LBA + 4, u32::MAX, true, "invalid data"),
            (ENTRIES_LBA, 199, true, "unexpected end of file"),
        ] {
            let mut disk = good.clone();
            write_bytes(&mut disk, header + at, &word.to_le_bytes());
            if sealed {
                write_bytes(&mut disk, header + HEADER_CRC, &[0; 4]);
                let sum = compute_crc(&disk[header..header + HEADER_BYTES as usize]);
                write_bytes(&mut disk, header + HEADER_CRC, &sum.to_le_bytes());
            }
            let error = read(&disk, 1).err().unwrap().to_string();
            assert!(error.contains(says), "{says}: {error}");
            assert!(read(&disk, 199).unwrap() == Some(backup.clone()), "{says}: the other copy is intact");
        }
    }
}

/// Reading the entries of a mutated table does not panic or exhaust memory.
#[test]
fn both_copies_of_mutated_tables_are_parsed_or_refused() {
    let (mut whole, mut refused, mut none) = (0, 0, 0);
    for Mutated { name, sector, disk } in mutated() {
        let sector = u64::from(sector);
        for lba in [1, disk.len() as u64 / sector - 1] {
            match Gpt::read(&from(&disk), sector, lba) {
                Ok(Some(gpt)) => {
                    assert!(gpt.entries.len() <= 4096 * 4096 && gpt.entries().count() <= 4096, "{name}");
                    whole += 1;
                }
                Ok(None) => none += 1,
                Err(_) => refused += 1,
            }
        }
    }
    println!("600 copies of mutated GPTs: {whole} whole, {refused} refused, {none} no longer recognized as a GPT");
    assert!(whole > 200 && refused > 50 && none > 20, "{whole} {refused} {none}");
}

#[test]
fn hybrid_mbr_is_not_changed() {
    let mut mbr = protective_mbr(100);
    resize_protective_mbr(&mut mbr, 1000);
    assert_eq!(mbr, protective_mbr(1000));
    // The second entry is a partition of the hybrid MBR, which an enlarged protective entry would overlap.
    mbr[446 + 16 + 4] = 0x83;
    let before = mbr;
    resize_protective_mbr(&mut mbr, 5000);
    assert_eq!(mbr, before);
}
