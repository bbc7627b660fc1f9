//! Images in files: in the ramdisk, or on a stick that is mounted there.

use reqwest::Url;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

/// The file that a `file:///…` URL names; `None` for any other URL.
pub fn path(url: &str) -> Option<PathBuf> {
    Url::parse(url).ok().filter(|url| url.scheme() == "file")?.to_file_path().ok()
}

/// The file from `position` on, and its length.
///
/// # Errors
/// It is not there, is no plain file, or cannot be read.
pub fn open(url: &str, position: u64) -> io::Result<(File, u64)> {
    let path = path(url).ok_or_else(|| io::Error::other("it names no absolute path like file:///mnt/image.tar.zst"))?;
    // A FIFO without a writer would be waited for.
    let mut file = OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path)?;
    let size = plain(&file.metadata()?)?;
    file.seek(SeekFrom::Start(position))?;
    Ok((file, size))
}

fn plain(metadata: &Metadata) -> io::Result<u64> {
    if metadata.is_file() { Ok(metadata.len()) } else { Err(io::Error::other("it is not a plain file")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn a_file_is_read_from_where_it_is_wanted() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("an image.tar"), "0123456789").unwrap();
        let url = format!("file://{}/an%20image.tar", dir.path().display());
        let (mut file, size) = open(&url, 7).unwrap();
        let mut rest = String::new();
        file.read_to_string(&mut rest).unwrap();
        assert_eq!((size, rest.as_str()), (10, "789"));
    }

    #[test]
    fn a_fifo_is_refused_and_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        nix::unistd::mkfifo(&dir.path().join("image"), nix::sys::stat::Mode::S_IRUSR).unwrap();
        let error = open(&format!("file://{}/image", dir.path().display()), 0).unwrap_err().to_string();
        assert!(error.contains("not a plain file"), "{error}");
    }

    #[test]
    fn what_is_no_file_is_refused() {
        for (url, says) in [
            ("file:///no/such/image", "No such file"),
            ("file:///dev/zero", "not a plain file"),
            ("file:///tmp", "not a plain file"),
            ("file://server/image", "no absolute path"),
        ] {
            let error = open(url, 0).unwrap_err().to_string();
            assert!(error.contains(says), "{url}: {error}");
        }
    }
}
