//! Is it still the disk that the plan was made for? Names move: a disk that answers late is another `/dev/sdb`.

use super::kernel;
use crate::error::{Context, Error, Phase, Result};
use crate::inventory;
use crate::plan::DiskIdentity;

/// Compares size, serial number and world wide name with what the device has now.
///
/// # Errors
/// The device is gone, or is another disk: both sides of every difference.
pub fn identify(identity: &DiskIdentity) -> Result<()> {
    let found = read(&identity.device)
        .context(Phase::Storage, || format!("find the disk {} of the plan (nothing was written)", identity.device))?;
    let differences = differences(identity, &found);
    if differences.is_empty() {
        return Ok(());
    }
    let what = format!(
        "{} is not the disk that the plan was made for: {}; nothing was written",
        identity.device,
        differences.join(", ")
    );
    Err(Error::new(Phase::Storage, what))
}

fn read(device: &str) -> Result<DiskIdentity> {
    let (serial, wwn) = inventory::serial_and_wwn(&kernel::sysfs(device)?);
    let file = std::fs::File::open(device).context(Phase::Storage, || format!("open {device}"))?;
    let size_bytes = kernel::size_bytes(&file).context(Phase::Storage, || format!("ask {device} for its size"))?;
    Ok(DiskIdentity { device: device.to_owned(), size_bytes, serial, wwn })
}

/// What the plan knows is compared, what it does not know is not.
fn differences(plan: &DiskIdentity, now: &DiskIdentity) -> Vec<String> {
    let mut differences = Vec::new();
    for (what, planned, found) in [("serial", &plan.serial, &now.serial), ("wwn", &plan.wwn, &now.wwn)] {
        if !planned.is_empty() && planned != found {
            let found = if found.is_empty() { "unknown" } else { found };
            differences.push(format!("{what} {planned} is now {found}"));
        }
    }
    if plan.size_bytes != now.size_bytes {
        differences.push(format!("{} bytes are now {}", plan.size_bytes, now.size_bytes));
    }
    differences
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::loopdev::LoopDevice;

    fn disk(serial: &str, wwn: &str, size_bytes: u64) -> DiskIdentity {
        DiskIdentity { device: "/dev/sda".into(), size_bytes, serial: serial.into(), wwn: wwn.into() }
    }

    #[test]
    fn what_the_plan_knows_must_be_so_still() {
        let cases: [(DiskIdentity, DiskIdentity, &[&str]); 8] = [
            (disk("S1", "0x5", 9), disk("S1", "0x5", 9), &[]),
            (disk("", "", 9), disk("S1", "0x5", 9), &[]),
            (disk("S1", "", 9), disk("S1", "0x5", 9), &[]),
            (disk("S1", "", 9), disk("S2", "", 9), &["serial S1 is now S2"]),
            (disk("S1", "", 9), disk("", "", 9), &["serial S1 is now unknown"]),
            (disk("", "0x5", 9), disk("S2", "0x6", 9), &["wwn 0x5 is now 0x6"]),
            (disk("", "", 9), disk("", "", 10), &["9 bytes are now 10"]),
            (
                disk("S1", "0x5", 9),
                disk("S2", "0x6", 10),
                &["serial S1 is now S2", "wwn 0x5 is now 0x6", "9 bytes are now 10"],
            ),
        ];
        for (plan, now, expected) in cases {
            assert_eq!(differences(&plan, &now), expected, "{plan:?} {now:?}");
        }
    }

    #[test]
    fn a_disk_that_is_gone_is_refused() {
        let plan = DiskIdentity { device: "/dev/no-such-disk".into(), ..disk("S1", "", 9) };
        let error = identify(&plan).unwrap_err().to_string();
        assert!(error.starts_with("find the disk /dev/no-such-disk of the plan (nothing was written): "), "{error}");
        let plan = DiskIdentity { device: "/dev/null".into(), ..plan };
        assert!(identify(&plan).unwrap_err().to_string().contains("it is not a block device"));
    }

    #[test]
    #[ignore = "needs root and loop devices"]
    fn loop_another_size_is_another_disk() {
        let device = LoopDevice::new(16 << 20, 512);
        let plan = DiskIdentity { device: device.path().into(), ..disk("", "", 16 << 20) };
        identify(&plan).unwrap();
        let error = identify(&DiskIdentity { size_bytes: 17 << 20, ..plan.clone() }).unwrap_err().to_string();
        let expected =
            "is not the disk that the plan was made for: 17825792 bytes are now 16777216; nothing was written";
        assert_eq!(error, format!("{} {expected}", device.path()));
        let error = identify(&DiskIdentity { serial: "S1".into(), ..plan }).unwrap_err().to_string();
        assert!(error.contains("serial S1 is now unknown"), "{error}");
    }

    /// The serial numbers of NVMe, SATA and virtio come from three places in sysfs.
    #[test]
    #[ignore = "needs md and LVM: scripts/test vm runs it in a machine"]
    fn vm_every_disk_of_the_inventory_is_itself_and_no_other() {
        let inventory = inventory::read().unwrap();
        let identities = inventory.disks.iter().map(|disk| DiskIdentity {
            device: disk.device.clone(),
            size_bytes: disk.size_bytes,
            serial: disk.serial.clone(),
            wwn: disk.wwn.clone(),
        });
        let identities: Vec<DiskIdentity> = identities.collect();
        assert!(identities.len() >= 11, "{identities:?}");
        for identity in &identities {
            assert!(!identity.serial.is_empty(), "{identity:?}");
            identify(identity).unwrap();
            for other in identities.iter().filter(|other| other.device != identity.device) {
                let moved = DiskIdentity { device: other.device.clone(), ..identity.clone() };
                let error = identify(&moved).unwrap_err().to_string();
                assert!(error.contains(&format!("serial {} is now {}", identity.serial, other.serial)), "{error}");
            }
        }
    }
}
