//! Install marker in the installed system. The marker is written after all other files, so a system that contains a
//! marker is complete.

use super::NewRoot;
use common::error::{Context, Phase, Result};
use model::install_marker::{InstallMarker, PATH};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Mode of the marker. Only root may read it, because it contains IDs and serial numbers.
const SECRET_FILE_MODE: u32 = 0o600;

/// Writes the marker with the time `now`, waits until the marker is on the disk, and returns the marker as written. The
/// caller must have flushed all other data of the target to the disks, because a system with a marker is treated as
/// complete, even after a power failure.
///
/// # Errors
/// Returns an error if the marker cannot be written.
pub fn write_marker(root: &NewRoot, marker: &InstallMarker, now: OffsetDateTime) -> Result<InstallMarker> {
    let what = || format!("write {PATH} to the target");
    let time = now.replace_nanosecond(0).unwrap_or(now).format(&Rfc3339).context(Phase::Target, what)?;
    let marker = InstallMarker { time, ..marker.clone() };
    let text = serde_json::to_string_pretty(&marker).context(Phase::Target, what)?;
    root.write_file(PATH, SECRET_FILE_MODE, format!("{text}\n").as_bytes())?;
    root.sync_dir(PATH.rsplit_once('/').map_or("/", |(dir, _)| dir))?;
    Ok(marker)
}

/// Removes the marker from the files of an image that was built from an installed machine.
///
/// # Errors
/// Returns an error if the marker cannot be removed.
pub fn remove_marker(root: &NewRoot) -> Result<()> {
    root.remove(PATH)
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::install_marker::RecordedDisk;
    use std::os::unix::fs::PermissionsExt;
    use time::macros::datetime;

    #[test]
    fn written_marker_is_readable_only_by_root() {
        let dir = tempfile::tempdir().unwrap();
        let root = NewRoot::open(dir.path()).unwrap();
        let disk =
            RecordedDisk { device: "/dev/sda".into(), serial: "S1".into(), size_bytes: 8, ..RecordedDisk::default() };
        let marker = InstallMarker {
            machine: "m-1".into(),
            allocation: "a-1".into(),
            disks: vec![disk],
            ..InstallMarker::default()
        };
        remove_marker(&root).unwrap();
        let written = write_marker(&root, &marker, datetime!(2026-11-21 01:02:03.456 UTC)).unwrap();
        assert_eq!(written, InstallMarker { time: "2026-11-21T01:02:03Z".into(), ..marker });
        assert_eq!(serde_json::from_str::<InstallMarker>(&root.read_text(PATH).unwrap()).unwrap(), written);
        let mode = std::fs::metadata(dir.path().join(&PATH[1..])).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
        remove_marker(&root).unwrap();
        assert!(root.read_text(PATH).is_err());
    }

    #[test]
    fn failed_marker_write_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("etc"), "a file").unwrap();
        let error = write_marker(
            &NewRoot::open(dir.path()).unwrap(),
            &InstallMarker::default(),
            datetime!(2026-11-21 0:00 UTC),
        );
        assert!(error.unwrap_err().to_string().starts_with("write /etc/metal/drophammer.json to the target: "));
    }
}
