//! Kubernetes volumes in files of the installed system.

use super::super::filesystem_fate::FilesystemFate;
use super::super::planned_devices::DeviceSize;
use super::super::planner_state::PlannerState;
use super::super::preserved_activation::mount_path;
use super::super::{InstallMode, PersistentVerdict};
use super::{VolumeDecision, VolumeRefusal, udev_path};
use common::format;
use model::device_name::DevicePath;
use model::inventory::InspectionTarget;
use model::k8s_volume::{K8sVolume, SPARSE, VolumeSource};
use model::layout::{FilesystemFormat, FilesystemSpec};
use operations::InitialVolumeContent;

impl<'a> PlannerState<'a> {
    /// Decides on a volume in a file.
    ///
    /// | the filesystem that contains the file | the volume is |
    /// |---|---|
    /// | is created by this installation | created, with a warning if later reinstalls recreate the filesystem |
    /// | is recreated by this reinstall | refused: the file would be lost |
    /// | is preserved, and contains the file | kept |
    /// | is preserved, and does not contain the file | added, unless the filesystem is mounted read-only |
    /// | does not support a file of that size | refused |
    /// | does not have enough free space for the data that mkfs writes to the file ([`super::sparse_file_space`]) | refused |
    pub(super) fn decide_sparse(
        &mut self,
        volume: &K8sVolume,
        size_bytes: u64,
    ) -> Result<VolumeDecision, VolumeRefusal> {
        // If there are fewer decisions than filesystems, an object of the layout was refused, and the refusal is
        // already reported.
        if self.decided.filesystems.len() != self.layout.filesystems.len() {
            return Err(None);
        }
        let (path, wanted, verdict) = self.check_backing_filesystem(volume, size_bytes)?;
        if verdict != PersistentVerdict::Keep
            && let Some(why) = check_max_size(size_bytes, path, wanted)
        {
            return Err(Some(why));
        }
        if verdict == PersistentVerdict::Make {
            self.warn_of_wipes(volume, std::slice::from_ref(&wanted.device));
        }
        Ok(VolumeDecision {
            device: volume.sparse_path().into(),
            disks: self.disks_meant(std::slice::from_ref(&wanted.device)),
            verdict,
            size: DeviceSize::Known(size_bytes),
            sector_bytes: 512,
            prepare: None,
            persistent: udev_path(volume),
        })
    }

    /// Returns the filesystem that contains the backing file, its mount point, and the resulting verdict on the volume.
    fn check_backing_filesystem(
        &mut self,
        volume: &K8sVolume,
        size_bytes: u64,
    ) -> Result<(&'a str, &'a FilesystemSpec, PersistentVerdict), VolumeRefusal> {
        let Some((path, wanted, is)) = self.sparse_carrier() else { return Err(None) };
        let verdict = match is {
            FilesystemFate::Created(_) | FilesystemFate::InImage { .. } | FilesystemFate::Tmpfs
                if self.request.mode == InstallMode::Reinstall =>
            {
                return Err(Some(format!(
                    "has its backing file below {path}, which a reinstall recreates; put /var/lib/metalk8s on a \
                    filesystem that is preserved"
                )));
            }
            FilesystemFate::Tmpfs => return Err(Some(format!("must not be a file below {path}, which is a tmpfs"))),
            FilesystemFate::Preserved { .. } if self.is_unopened(wanted) => {
                self.warn(format!(
                    "volume {volume}: the machine will check for its backing file once {path} is unlocked",
                    volume = volume.name
                ));
                PersistentVerdict::Extend
            }
            FilesystemFate::Preserved { .. } => self.preserve_sparse_file(volume, size_bytes, path)?,
            FilesystemFate::Unformatted { .. } => {
                return Err(Some(format!(
                    "is a file in the encrypted filesystem at {path}, which stays locked; provide the key of the filesystem"
                )));
            }
            FilesystemFate::Created(_) | FilesystemFate::InImage { .. } | FilesystemFate::Filled(_) => {
                PersistentVerdict::Make
            }
        };
        Ok((path, wanted, verdict))
    }

    /// Returns the filesystem that contains the files, with its mount point.
    pub(super) fn sparse_carrier(&self) -> Option<(&'a str, &'a FilesystemSpec, &FilesystemFate)> {
        let carries = |path: &str| path == "/" || SPARSE == path || SPARSE.starts_with(&format!("{path}/"));
        let carriers = self.layout.filesystems.iter().zip(&self.decided.filesystems);
        let carriers = carriers.filter_map(|(wanted, is)| Some((mount_path(wanted)?, wanted, is)));
        carriers.filter(|(path, ..)| carries(path)).max_by_key(|(path, ..)| path.len())
    }

    /// Returns whether the filesystem is encrypted and was not opened.
    fn is_unopened(&self, wanted: &FilesystemSpec) -> bool {
        let Some((_, _, is)) = self.sparse_carrier() else { return false };
        let is_seen =
            is.device().is_some_and(|device| self.inventory.stacked.iter().any(|stacked| stacked.device == *device));
        match wanted.encrypted {
            Some(_) => !is_seen,
            None => self.unopened_reason(&wanted.device).is_some(),
        }
    }

    /// Returns whether the preserved filesystem with the files is on this device.
    pub(super) fn is_carried_on(&self, device: &DevicePath) -> bool {
        self.preserved_carrier().is_some_and(|(_, now)| now == device)
    }

    /// Returns the preserved filesystem that contains the files, and its current device. For an encrypted filesystem,
    /// this device is the mapping of its container.
    pub(super) fn preserved_carrier(&self) -> Option<(&'a FilesystemSpec, &DevicePath)> {
        let (_, wanted, FilesystemFate::Preserved { device, .. }) = self.sparse_carrier()? else { return None };
        let now = match wanted.encrypted {
            Some(_) => device,
            None => self.devices.find_paths(&wanted.device)?.0,
        };
        Some((wanted, now))
    }

    fn preserve_sparse_file(
        &mut self,
        volume: &K8sVolume,
        size_bytes: u64,
        path: &str,
    ) -> Result<PersistentVerdict, VolumeRefusal> {
        let Some((wanted, now)) = self.preserved_carrier().map(|(wanted, now)| (wanted, now.clone())) else {
            return Err(None);
        };
        let Some(inside) = self.inventory.filesystems.iter().find(|filesystem| filesystem.device == now) else {
            return self.extend_unread(volume, &now, path);
        };
        match inside.sparse.iter().find(|file| file.uid == volume.uid) {
            Some(file) if file.size_bytes == size_bytes => Ok(PersistentVerdict::Keep),
            Some(file) => {
                let (is, wanted) = (format::format_bytes(file.size_bytes), format::format_bytes(size_bytes));
                Err(Some(format!("has a backing file of {is} below {path}, but the file must have {wanted}")))
            }
            None if wanted.is_read_only() => Err(Some(format!(
                "cannot be created as a file below {path}, because that filesystem is preserved and mounted read-only"
            ))),
            None => Ok(PersistentVerdict::Extend),
        }
    }

    /// Decides on a volume whose file may be in a preserved filesystem that was not inspected. In an offline plan, the
    /// volume is accepted, because the machine will inspect the filesystem later. In a plan made on the machine, the
    /// volume is refused, because the filesystem could not be mounted.
    fn extend_unread(
        &mut self,
        volume: &K8sVolume,
        now: &DevicePath,
        path: &str,
    ) -> Result<PersistentVerdict, VolumeRefusal> {
        let failure = self.inventory.find_failure(&InspectionTarget::Filesystem(now.clone()));
        let is_preview = self.request.claim.is_none() && self.inventory.filesystems.is_empty();
        match failure {
            None if is_preview => {
                self.warn(format!(
                    "volume {volume}: the machine will check for its backing file once {path} is mounted",
                    volume = volume.name
                ));
                Ok(PersistentVerdict::Extend)
            }
            why => Err(Some(format!(
                "cannot be located below {path}: {now} cannot be mounted: {reason}; repair that filesystem in the installed system",
                reason = why.unwrap_or("the filesystem was not inspected")
            ))),
        }
    }

    /// Returns whether this plan is made offline and the file may be in a filesystem that only the machine can read.
    pub(super) fn may_be_in_closed_filesystem(&self, volume: &K8sVolume) -> bool {
        let is_preview = self.request.claim.is_none();
        let carrier = self.sparse_carrier().filter(|_| matches!(volume.source, VolumeSource::Sparse { .. }));
        carrier.is_some_and(|(_, wanted, fate)| {
            let is_preserved = matches!(fate, FilesystemFate::Preserved { .. });
            let is_unread = self.inventory.filesystems.is_empty() || self.is_unopened(wanted);
            is_preview && is_preserved && is_unread
        })
    }

    /// Returns the initial content of the file of a new sparse volume.
    pub(super) fn sparse_filling(&mut self, volume: &K8sVolume) -> Option<InitialVolumeContent> {
        let VolumeSource::Sparse { .. } = volume.source else { return None };
        let device = DevicePath::from(volume.sparse_path());
        Some(self.volume_filling(volume, &device, false))
    }
}

/// Maximum size of a file on ext3: 2^32 sectors, minus the sectors of the file's block tree.
const EXT3_BYTES: u64 = 2_196_873_666_560;

/// Returns why the filesystem does not support a file of that size.
fn check_max_size(size_bytes: u64, path: &str, carrier: &FilesystemSpec) -> Option<String> {
    let most = largest_file_bytes(carrier).filter(|most| size_bytes > *most)?;
    let has =
        format!("whose filesystem is {format} and supports files of at most {most} bytes", format = carrier.format);
    let put = "make the volume smaller, or put /var/lib/metalk8s on xfs";
    Some(format!("is a file of {size_bytes} bytes below {path}, {has}; {put}"))
}

/// Returns the maximum file size in the kernel's ext4 driver (fs/ext4/super.c: `ext4_max_size` and
/// `ext4_max_bitmap_size`). Returns `None` if this size exceeds the maximum size of a volume.
fn largest_file_bytes(carrier: &FilesystemSpec) -> Option<u64> {
    let block_bytes: u64 = match carrier.find_option_value('b') {
        Some("1024" | "1k" | "1K") => 1024,
        Some("2048" | "2k" | "2K") => 2048,
        _ => 4096,
    };
    match carrier.format {
        FilesystemFormat::Ext4 if !is_like_ext3(carrier) => Some(u64::from(u32::MAX) * block_bytes),
        FilesystemFormat::Ext3 | FilesystemFormat::Ext4 => {
            let pointers = block_bytes / 4;
            let tree = 12 + pointers + pointers.pow(2) + pointers.pow(3);
            Some((tree * block_bytes).min(EXT3_BYTES))
        }
        // vfat stores the length of a file in 32 bits.
        FilesystemFormat::Vfat => Some(u64::from(u32::MAX)),
        FilesystemFormat::Xfs
        | FilesystemFormat::Btrfs
        | FilesystemFormat::Swap
        | FilesystemFormat::Tmpfs
        | FilesystemFormat::None => None,
    }
}

/// Returns whether the create options disable the features for large files.
fn is_like_ext3(carrier: &FilesystemSpec) -> bool {
    let without = ["^extent", "^extents", "^huge_file", "-extent", "-extents", "-huge_file", "none"];
    let features = carrier.find_option_value('O').unwrap_or_default().to_ascii_lowercase();
    features.split(|letter: char| letter == ',' || letter.is_whitespace()).any(|feature| without.contains(&feature))
}
