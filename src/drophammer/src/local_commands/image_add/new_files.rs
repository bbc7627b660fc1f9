//! Creation of the files of an image. The message about a full filesystem contains the path of the file, and the needed
//! and the free space.

use common::error::{Context, Error, Phase, Result};
use common::format::format_bytes;
use nix::sys::statvfs::statvfs;
use std::error::Error as StdError;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// Creates a file, which must not exist yet. The file appears under its name only when its content is complete.
/// `needed_bytes` is the size of the content, if it is known, for the message about a full filesystem.
pub(super) fn store_file<T>(
    path: &Path,
    needed_bytes: Option<u64>,
    fill: impl FnOnce(&mut BufWriter<File>) -> Result<T>,
) -> Result<T> {
    let what = || format!("write {}", path.display());
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = path.with_file_name(format!(".{name}.{}", std::process::id()));
    let file = OpenOptions::new().write(true).create_new(true).open(&temporary).context(Phase::Image, what)?;
    let mut file = BufWriter::new(file);
    let filled = fill(&mut file).and_then(|filled| {
        file.flush().and_then(|()| file.get_ref().sync_all()).context(Phase::Image, what)?;
        // `hard_link` fails if the file exists, whereas a rename would replace it.
        fs::hard_link(&temporary, path).context(Phase::Image, what)?;
        Ok(filled)
    });
    drop(fs::remove_file(&temporary));
    // An open file would occupy its space, although it is removed.
    drop(file);
    filled.map_err(|error| explain_full_disk(error, path, needed_bytes, read_free_bytes(path)))
}

/// Creates a file with this text.
pub(super) fn store_text(path: &Path, text: &[u8]) -> Result<()> {
    let what = || format!("write {}", path.display());
    store_file(path, Some(text.len() as u64), |file| file.write_all(text).context(Phase::Image, what))
}

/// Returns the free space, in bytes, of the filesystem on which a file is created.
fn read_free_bytes(path: &Path) -> Option<u64> {
    let status = statvfs(path.parent()?).ok()?;
    Some(status.blocks_available().saturating_mul(status.fragment_size()))
}

/// If the error is caused by a full filesystem, adds the path of the file, the needed and the free space in bytes, and
/// the remedy. Other errors are returned unchanged.
fn explain_full_disk(error: Error, path: &Path, needed: Option<u64>, free: Option<u64>) -> Error {
    if !is_caused_by_full_disk(&error) {
        return error;
    }
    let exact = |bytes: u64| format!("{} ({bytes} bytes)", format_bytes(bytes));
    let numbers =
        [needed.map(|bytes| format!("needed: {}", exact(bytes))), free.map(|bytes| format!("free: {}", exact(bytes)))];
    let numbers: Vec<String> = numbers.into_iter().flatten().collect();
    let numbers = if numbers.is_empty() { String::new() } else { format!("; {}", numbers.join(", ")) };
    let why = format!(
        "{file}: cannot write the file: the filesystem is full{numbers}; free space on the filesystem, or remove unused images, \
         then repeat the command",
        file = path.display()
    );
    Error::with_source(Phase::Image, why, error)
}

fn is_caused_by_full_disk(error: &Error) -> bool {
    let mut next: Option<&(dyn StdError + 'static)> = Some(error);
    while let Some(error) = next {
        let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
        if matches!(kind, Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)) {
            return true;
        }
        next = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_reported_with_path_and_sizes() {
        let fail = |kind: io::ErrorKind| Error::with_source(Phase::Image, "fetch file:///a.tar", io::Error::from(kind));
        let path = Path::new("/srv/d/images/a.tar");
        let full = explain_full_disk(fail(io::ErrorKind::StorageFull), path, Some(2_000_000), Some(4096)).to_string();
        let expected = "/srv/d/images/a.tar: cannot write the file: the filesystem is full; needed: 2.00 MB (2000000 bytes), \
            free: 4.10 kB (4096 bytes); free space on the filesystem";
        assert!(full.starts_with(expected), "{full}");
        let unknown = explain_full_disk(fail(io::ErrorKind::QuotaExceeded), path, None, None).to_string();
        assert!(unknown.contains("the filesystem is full; free space on the filesystem"), "{unknown}");
        let other = explain_full_disk(fail(io::ErrorKind::PermissionDenied), path, None, None).to_string();
        assert!(other.starts_with("fetch file:///a.tar: "), "{other}");
    }
}
