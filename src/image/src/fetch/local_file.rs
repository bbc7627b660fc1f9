//! Images in local files: in the ramdisk, or on a mounted medium.

use reqwest::Url;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

/// Returns the path of a `file:///…` URL; `None` for any other URL.
pub(crate) fn path_of_url(url: &str) -> Option<PathBuf> {
    Url::parse(url).ok().filter(|url| url.scheme() == "file")?.to_file_path().ok()
}

/// Opens the file of a `file:///…` URL, positioned at byte `position`, and returns it with its total length in bytes.
///
/// # Errors
/// Returns an error if the file does not exist, is not a regular file, or cannot be read.
pub(crate) fn open_at(url: &str, position: u64) -> io::Result<(File, u64)> {
    let path = path_of_url(url)
        .ok_or_else(|| io::Error::other("a file URL needs an absolute path, such as file:///mnt/image.tar.zst"))?;
    // O_NONBLOCK is set, because opening a FIFO without a writer would block.
    let mut file = OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path)?;
    let size = regular_size(&file.metadata()?)?;
    file.seek(SeekFrom::Start(position))?;
    Ok((file, size))
}

fn regular_size(metadata: &Metadata) -> io::Result<u64> {
    if metadata.is_file() { Ok(metadata.len()) } else { Err(io::Error::other("not a regular file")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn file_is_read_from_the_requested_offset() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("an image.tar"), "0123456789").unwrap();
        let url = format!("file://{}/an%20image.tar", dir.path().display());
        let (mut file, size) = open_at(&url, 7).unwrap();
        let mut rest = String::new();
        file.read_to_string(&mut rest).unwrap();
        assert_eq!((size, rest.as_str()), (10, "789"));
    }

    #[test]
    fn fifo_is_refused_without_waiting() {
        let dir = tempfile::tempdir().unwrap();
        nix::unistd::mkfifo(&dir.path().join("image"), nix::sys::stat::Mode::S_IRUSR).unwrap();
        let error = open_at(&format!("file://{}/image", dir.path().display()), 0).unwrap_err().to_string();
        assert!(error.contains("not a regular file"), "{error}");
    }

    #[test]
    fn refuses_urls_that_are_not_regular_files() {
        for (url, says) in [
            ("file:///no/such/image", "No such file"),
            ("file:///dev/zero", "not a regular file"),
            ("file:///tmp", "not a regular file"),
            ("file://server/image", "a file URL needs an absolute path"),
        ] {
            let error = open_at(url, 0).unwrap_err().to_string();
            assert!(error.contains(says), "{url}: {error}");
        }
    }
}
