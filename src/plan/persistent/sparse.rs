//! Volumes in files of the installed system.

use super::super::devices::Size;
use super::super::placed::FilesystemFate;
use super::super::returning::mountable;
use super::super::verdict::Deciding;
use super::super::{Filling, Mode, PersistentVerdict};
use super::{Decision, Refused, persistent};
use crate::device::DevicePath;
use crate::inventory::Tried;
use crate::layout::{Filesystem, Format};
use crate::text;
use crate::volume::{SPARSE, Source, Volume};

impl<'a> Deciding<'a> {
    /// | the filesystem that carries the file | |
    /// |---|---|
    /// | is made by this installation | made, and said when a reinstall makes it anew |
    /// | is made by this reinstall, beside kept ones | refused: the file would be gone with it |
    /// | is kept, and has the file | kept |
    /// | is kept, and has it not | added, unless it is mounted read-only |
    /// | cannot have a file of that size | refused |
    /// | has too little room for what mkfs writes into the file ([`super::sparse_room`]) | refused |
    pub(super) fn decide_sparse(&mut self, volume: &Volume, size_bytes: u64) -> Result<Decision, Refused> {
        // Something of the layout was refused.
        if self.decided.filesystems.len() != self.layout.filesystems.len() {
            return Err(None);
        }
        let Some((path, wanted, is)) = self.sparse_carrier() else { return Err(None) };
        let verdict = match is {
            FilesystemFate::Made(_) | FilesystemFate::InImage { .. } | FilesystemFate::Tmpfs
                if self.request.mode == Mode::Reinstall =>
            {
                let why = "which a reinstall makes anew: put /var/lib/metalk8s on a filesystem that is kept";
                return Err(Some(format!("is a file below {path}, {why}")));
            }
            FilesystemFate::Tmpfs => return Err(Some(format!("is a file below {path}, which is in memory"))),
            FilesystemFate::Kept { .. } if self.is_unopened(wanted) => {
                self.warn(format!(
                    "volume {}: the machine sees whether its file is there, when it opens {path}",
                    volume.name
                ));
                PersistentVerdict::Extend
            }
            FilesystemFate::Kept { .. } => self.keep_sparse(volume, size_bytes, path)?,
            FilesystemFate::Unformatted { .. } => {
                return Err(Some(format!("is a file below {path}, which stays locked: give its key")));
            }
            FilesystemFate::Made(_) | FilesystemFate::InImage { .. } | FilesystemFate::Filled(_) => {
                PersistentVerdict::Make
            }
        };
        if verdict != PersistentVerdict::Keep
            && let Some(why) = too_large(size_bytes, path, wanted)
        {
            return Err(Some(why));
        }
        if verdict == PersistentVerdict::Make {
            self.warn_of_wipes(volume, std::slice::from_ref(&wanted.device));
        }
        Ok(Decision {
            device: volume.sparse_path().into(),
            disks: self.disks_meant(std::slice::from_ref(&wanted.device)),
            verdict,
            size: Size::Known(size_bytes),
            sector_bytes: 512,
            prepare: None,
            persistent: persistent(volume),
        })
    }

    /// The filesystem that carries the files, and its path.
    pub(super) fn sparse_carrier(&self) -> Option<(&'a str, &'a Filesystem, &FilesystemFate)> {
        let carries = |path: &str| path == "/" || SPARSE == path || SPARSE.starts_with(&format!("{path}/"));
        let carriers = self.layout.filesystems.iter().zip(&self.decided.filesystems);
        let carriers = carriers.filter_map(|(wanted, is)| Some((mountable(wanted)?, wanted, is)));
        carriers.filter(|(path, ..)| carries(path)).max_by_key(|(path, ..)| path.len())
    }

    /// Is it encrypted, and nobody has seen what is in it?
    fn is_unopened(&self, wanted: &Filesystem) -> bool {
        let Some((_, _, is)) = self.sparse_carrier() else { return false };
        let is_seen =
            is.device().is_some_and(|device| self.inventory.stacked.iter().any(|stacked| stacked.device == *device));
        match wanted.encrypted {
            Some(_) => !is_seen,
            None => self.hidden(&wanted.device).is_some(),
        }
    }

    /// Is it kept on this device?
    pub(super) fn is_carried_on(&self, device: &DevicePath) -> bool {
        self.carrier_now().is_some_and(|(_, now)| now == device)
    }

    /// The kept filesystem that carries the files, and where it is seen now: an encrypted one inside of its container.
    pub(super) fn carrier_now(&self) -> Option<(&'a Filesystem, &DevicePath)> {
        let (_, wanted, FilesystemFate::Kept { device, .. }) = self.sparse_carrier()? else { return None };
        let now = match wanted.encrypted {
            Some(_) => device,
            None => self.devices.path(&wanted.device)?.0,
        };
        Some((wanted, now))
    }

    fn keep_sparse(&mut self, volume: &Volume, size_bytes: u64, path: &str) -> Result<PersistentVerdict, Refused> {
        let Some((wanted, now)) = self.carrier_now().map(|(wanted, now)| (wanted, now.clone())) else {
            return Err(None);
        };
        let Some(inside) = self.inventory.filesystems.iter().find(|is| is.device == now) else {
            return self.extend_unread(volume, &now, path);
        };
        match inside.sparse.iter().find(|file| file.uid == volume.uid) {
            Some(file) if file.size_bytes == size_bytes => Ok(PersistentVerdict::Keep),
            Some(file) => {
                let (is, wanted) = (text::bytes(file.size_bytes), text::bytes(size_bytes));
                Err(Some(format!("is a file below {path}, which is there with {is} and not {wanted}")))
            }
            None if wanted.is_read_only() => {
                Err(Some(format!("is a new file below {path}, which is kept and mounted read-only")))
            }
            None => Ok(PersistentVerdict::Extend),
        }
    }

    /// Decides about a kept filesystem that was not looked into: on a desk the machine will, on the machine it cannot be.
    fn extend_unread(&mut self, volume: &Volume, now: &DevicePath, path: &str) -> Result<PersistentVerdict, Refused> {
        let failure = self.inventory.failure(&Tried::Filesystem(now.clone()));
        let is_preview = self.request.claim.is_none() && self.inventory.filesystems.is_empty();
        match failure {
            None if is_preview => {
                self.warn(format!(
                    "volume {}: the machine sees whether its file is there, when it mounts {path}",
                    volume.name
                ));
                Ok(PersistentVerdict::Extend)
            }
            why => Err(Some(format!(
                "cannot be looked for below {path}: {now} cannot be mounted: {}; repair that filesystem in the installed system",
                why.unwrap_or("it was not looked into")
            ))),
        }
    }

    /// Returns whether the file may be in a filesystem that is opened on the machine only, and not on a desk.
    pub(super) fn may_be_in_closed_carrier(&self, volume: &Volume) -> bool {
        let is_preview = self.request.claim.is_none();
        let carrier = self.sparse_carrier().filter(|_| matches!(volume.source, Source::Sparse { .. }));
        carrier.is_some_and(|(_, wanted, is)| {
            let is_kept = matches!(is, FilesystemFate::Kept { .. });
            let is_unread = self.inventory.filesystems.is_empty() || self.is_unopened(wanted);
            is_preview && is_kept && is_unread
        })
    }

    /// What the file of a new sparse volume gets.
    pub(super) fn sparse_filling(&mut self, volume: &Volume) -> Option<Filling> {
        let Source::Sparse { .. } = volume.source else { return None };
        let device = DevicePath::from(volume.sparse_path());
        Some(self.filling(volume, &device, false))
    }
}

/// 2^32 sectors, of which the tree that leads to the blocks has some.
const EXT3_BYTES: u64 = 2_196_873_666_560;

/// Why the carrier cannot have a file of that size.
fn too_large(size_bytes: u64, path: &str, carrier: &Filesystem) -> Option<String> {
    let most = largest_file_bytes(carrier).filter(|most| size_bytes > *most)?;
    let has = format!("which is {} and has none of more than {most}", carrier.format);
    let put = "make it smaller, or put /var/lib/metalk8s on xfs";
    Some(format!("is a file of {size_bytes} bytes below {path}, {has}: {put}"))
}

/// What the kernel lets a file grow to (fs/ext4/super.c: `ext4_max_size` and `ext4_max_bitmap_size`). None where that is more than
/// a volume can have.
fn largest_file_bytes(carrier: &Filesystem) -> Option<u64> {
    let block_bytes: u64 = match carrier.create_option('b') {
        Some("1024" | "1k" | "1K") => 1024,
        Some("2048" | "2k" | "2K") => 2048,
        _ => 4096,
    };
    match carrier.format {
        Format::Ext4 if !is_like_ext3(carrier) => Some(u64::from(u32::MAX) * block_bytes),
        Format::Ext3 | Format::Ext4 => {
            let pointers = block_bytes / 4;
            let tree = 12 + pointers + pointers.pow(2) + pointers.pow(3);
            Some((tree * block_bytes).min(EXT3_BYTES))
        }
        // A length has 32 bits there.
        Format::Vfat => Some(u64::from(u32::MAX)),
        Format::Xfs | Format::Btrfs | Format::Swap | Format::Tmpfs | Format::None => None,
    }
}

/// Do its create options take away what makes files larger?
fn is_like_ext3(carrier: &Filesystem) -> bool {
    let without = ["^extent", "^extents", "^huge_file", "-extent", "-extents", "-huge_file", "none"];
    let features = carrier.create_option('O').unwrap_or_default().to_ascii_lowercase();
    features.split(|letter: char| letter == ',' || letter.is_whitespace()).any(|feature| without.contains(&feature))
}
