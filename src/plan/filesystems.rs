//! Filesystems: made on devices that are made, or found as the layout says.

use super::capacity::least_mib;
use super::devices::Device;
use super::display;
use super::sectors::MIB;
use super::verdict::{Deciding, FilesystemFate};
use crate::layout::{Filesystem, Format};
use uuid::Uuid;

impl Deciding<'_> {
    pub fn decide_filesystems(&mut self) {
        for (index, filesystem) in self.layout.filesystems.iter().enumerate() {
            let place = format!("filesystems[{index}]");
            if filesystem.format == Format::Tmpfs {
                let fate = FilesystemFate { device: "tmpfs".to_owned(), uuid: String::new(), keep: false, fill: false };
                self.decided.filesystems.push(fate);
            } else if let Some(device) = self.devices.get(&place, &filesystem.device) {
                self.decide_filesystem(&place, filesystem, &device);
            }
        }
    }

    fn decide_filesystem(&mut self, place: &str, filesystem: &Filesystem, device: &Device) {
        let fate = if device.keep {
            keep_filesystem(filesystem, device)
        } else {
            too_small(filesystem, device).map_or_else(|| Ok(filesystem_uuid(filesystem.format, (self.ids)())), Err)
        };
        match fate {
            Ok(uuid) => {
                let (device, keep) = (device.path.clone(), device.keep);
                self.decided.filesystems.push(FilesystemFate { device, uuid, keep, fill: false });
            }
            Err(message) => self.refuse(place, message),
        }
    }
}

fn too_small(filesystem: &Filesystem, device: &Device) -> Option<String> {
    let (required, why) = least_mib(filesystem, device.sector_bytes)?;
    let existing = device.size_bytes.filter(|bytes| bytes / MIB < required)? / MIB;
    Some(format!(
        "device:{} is not big enough required:{required}MiB, existing:{existing}MiB ({}: {why})",
        filesystem.device, filesystem.format
    ))
}

/// The UUID of the filesystem that is there, when it is the one that the layout means.
fn keep_filesystem(wanted: &Filesystem, device: &Device) -> Result<String, String> {
    if wanted.path.as_deref() == Some("/") {
        let message = "holds /, where the new image goes, and cannot be kept: say wipeonreinstall: true for its disks";
        return Err(format!("{} {message}", device.path));
    }
    if wanted.format == Format::None {
        return Ok(String::new());
    }
    let label = wanted.label.as_deref().map(|label| format!(" \"{label}\"")).unwrap_or_default();
    let wish = format!("{} is to be kept with {}{label}", device.path, wanted.format);
    match device.content.as_ref().map_err(|why| format!("{wish}, but {why}"))? {
        [] => {
            let size = crate::text::bytes(device.size_bytes.unwrap_or_default());
            Err(format!("{wish}, but there is nothing that is known on its {size}"))
        }
        [one] if one.kind != wanted.format.name() => Err(format!("{wish}, but there is {}", display::signature(one))),
        [one] if wanted.label.as_ref().is_some_and(|label| *label != one.label) => {
            Err(format!("{wish}, but there is {}", display::signature(one)))
        }
        [one] => Ok(one.uuid.clone()),
        several => {
            let there: Vec<String> = several.iter().map(display::signature).collect();
            Err(format!("{wish}, but there are several signatures at once: {}", there.join(" and ")))
        }
    }
}

/// vfat has a 32-bit volume id, written as blkid does.
fn filesystem_uuid(format: Format, id: Uuid) -> String {
    match format {
        Format::None => String::new(),
        Format::Vfat => {
            let bytes = id.as_bytes();
            format!("{:02X}{:02X}-{:02X}{:02X}", bytes[0], bytes[1], bytes[2], bytes[3])
        }
        _ => id.to_string(),
    }
}
