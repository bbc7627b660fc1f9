//! cloud-init's seed on a separate filesystem with the label CIDATA, for which cloud-init searches.

use super::esp_files::{self, EspFile};
use super::machine_boot_requirements::BootEsp;
use super::user_data::SEED;
use crate::NewRoot;
use crate::system_setup::LogSink;
use common::error::Result;
use operations::SeedFilesystem;

const FILES: [&str; 3] = ["meta-data", "user-data", "network-config"];

/// Moves the seed from the root filesystem of the target to the separate filesystem with the label CIDATA, if the
/// layout contains such a filesystem.
///
/// # Errors
/// Returns an error if the filesystem cannot be mounted or written.
pub(crate) fn move_seed(root: &NewRoot, seed: Option<&SeedFilesystem>, say: LogSink) -> Result<()> {
    let Some(SeedFilesystem { device, path }) = seed else { return Ok(()) };
    let in_tree = |name: &str| format!("{SEED}/{name}");
    let there = FILES.into_iter().filter(|name| root.path_exists(&in_tree(name)));
    let files: Vec<EspFile> = there.map(|name| EspFile::from_file(format!("/{name}"), in_tree(name))).collect();
    if files.is_empty() {
        say(&format!(
            "WARNING: no cloud-init seed was written to {device}, because the image does not contain cloud-init"
        ));
        return Ok(());
    }
    let on = BootEsp { device: device.clone(), path: path.clone() };
    esp_files::write_files(root, &[on], &files, "write the cloud-init seed to")?;
    FILES.into_iter().try_for_each(|name| root.remove(&in_tree(name)))?;
    say(&format!("the cloud-init seed was written to {device}"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::testing::{capture_log, tree};
    use super::*;

    #[test]
    fn seed_is_written_to_its_filesystem_in_the_layout() {
        let seed = SeedFilesystem { device: "/dev/sda3".into(), path: Some("/seed".to_owned()) };
        let (dir, root) = tree(&[("var/lib/cloud/seed/nocloud/meta-data", "instance-id: a-1\n")]);
        let user_data = vec![0xff; 3 << 20];
        root.write_file(&format!("{SEED}/user-data"), 0o600, &user_data).unwrap();
        let (done, lines) = capture_log(|say| move_seed(&root, Some(&seed), say));
        done.unwrap();
        assert_eq!(lines, ["the cloud-init seed was written to /dev/sda3"]);
        assert_eq!(root.read_text("/seed/meta-data").unwrap(), "instance-id: a-1\n");
        // User data may have any size, and may be compressed.
        assert_eq!(std::fs::read(dir.path().join("seed/user-data")).unwrap(), user_data);
        // The seed was removed from the root filesystem, and no file was created that was not in the seed.
        assert!(
            !root.path_exists("/var/lib/cloud/seed/nocloud/user-data") && !root.path_exists("/seed/network-config")
        );

        let (_dir, root) = tree(&[("var/lib/cloud/seed/nocloud/meta-data", ""), ("seed", "a file")]);
        let error = capture_log(|say| move_seed(&root, Some(&seed), say)).0.unwrap_err().to_string();
        assert!(error.starts_with("write the cloud-init seed to /dev/sda3: "), "{error}");

        let (done, lines) = capture_log(|say| move_seed(&tree(&[]).1, Some(&seed), say));
        done.unwrap();
        assert_eq!(
            lines,
            ["WARNING: no cloud-init seed was written to /dev/sda3, because the image does not contain cloud-init"]
        );
        capture_log(|say| move_seed(&root, None, say)).0.unwrap();
    }
}
