//! Digests of the images that this server serves. They are computed in a separate thread, and cached in the database.

use crate::ServerState;
use crate::sql::{OptionalExtension, params};
use common::encoding::hash_reader;
use common::error::Result;
use std::collections::HashMap;
use std::fs::{self, File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Duration after which the server tries again to read a file that could not be read.
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(5);

/// Properties of a file when its content was read. They identify the content.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileStamp {
    pub path: String,
    /// Size in bytes; signed like SQLite's integers.
    pub size: i64,
    /// Modification time in seconds since 1970, with nine decimals.
    pub mtime: String,
    /// Number of the inode, and time of the last change of the inode. They identify a file that has replaced another
    /// file with the same size and modification time. Empty for a document in the database.
    pub inode: String,
    /// Number of the device; 0 for a document in the database. The number is not stored with digests, because it can
    /// change when the host reboots.
    pub device: u64,
}

impl FileStamp {
    /// Returns the stamp of a file with these properties.
    pub fn from_metadata(path: String, metadata: &Metadata) -> FileStamp {
        FileStamp {
            path,
            size: i64::try_from(metadata.len()).unwrap_or(i64::MAX),
            mtime: format!("{}.{:09}", metadata.mtime(), metadata.mtime_nsec()),
            inode: format!("{} {}.{:09}", metadata.ino(), metadata.ctime(), metadata.ctime_nsec()),
            device: metadata.dev(),
        }
    }

    /// Returns the stamp of a document in the database, which has a new revision after each change.
    pub fn from_revision(path: String, size: usize, revision: i64) -> FileStamp {
        let size = i64::try_from(size).unwrap_or(i64::MAX);
        FileStamp { path, size, mtime: format!("revision {revision}"), ..FileStamp::default() }
    }
}

impl ServerState {
    /// Returns the stored digest of a file, unless the file has changed since the digest was computed.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub(crate) fn find_digest(&self, file: &FileStamp) -> Result<Option<String>> {
        let file = file.clone();
        self.run_job_blocking(move |connection| {
            connection
                .query_row(
                    "SELECT digest FROM digests WHERE path = ?1 AND size = ?2 AND mtime = ?3 AND inode = ?4",
                    params![file.path, file.size, file.mtime, file.inode],
                    |row| row.get(0),
                )
                .optional()
        })
    }

    /// Stores the digest of a file.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub(crate) fn store_digest(&self, file: &FileStamp, digest: &str) -> Result<()> {
        let (file, digest) = (file.clone(), digest.to_owned());
        self.run_deferred_blocking(move |transaction| {
            transaction.execute(
                "INSERT INTO digests (path, size, mtime, digest, inode) VALUES (?1, ?2, ?3, ?4, ?5)
                 ON CONFLICT (path) DO UPDATE SET size = ?2, mtime = ?3, digest = ?4, inode = ?5",
                params![file.path, file.size, file.mtime, digest, file.inode],
            )
        })
        .map(drop)
    }
}

/// Result of computing the digest of a file.
pub struct DigestResult {
    file: FileStamp,
    digest: std::result::Result<String, String>,
}

/// Cache of file digests. Also contains the files whose digests are being computed.
pub struct ImageDigests {
    state: ServerState,
    /// Digests by file; `None` while a digest is being computed.
    known: HashMap<FileStamp, Option<std::result::Result<String, String>>>,
    /// Time of the last failure to read a file.
    failed: Option<Instant>,
    queue: mpsc::Sender<FileStamp>,
}

impl ImageDigests {
    /// Starts the thread. For each file, the thread calls `done` with the result. The caller must pass the result to
    /// [`ImageDigests::store_result`].
    ///
    /// # Errors
    /// Returns an error if the thread cannot be started.
    pub fn start(state: ServerState, done: impl Fn(DigestResult) + Send + 'static) -> std::io::Result<ImageDigests> {
        let (queue, files) = mpsc::channel::<FileStamp>();
        let compute = move || {
            for file in files {
                let digest = compute_sha256(Path::new(&file.path)).map_err(|error| error.to_string());
                done(DigestResult { file, digest });
            }
        };
        std::thread::Builder::new().name("digest".to_owned()).spawn(compute)?;
        Ok(ImageDigests { state, known: HashMap::new(), failed: None, queue })
    }

    /// Creates a cache that returns only digests from the database, and computes none.
    pub fn cached_only(state: ServerState) -> ImageDigests {
        ImageDigests { state, known: HashMap::new(), failed: None, queue: mpsc::channel().0 }
    }

    /// Returns the file's digest, or `None` while the digest is being computed.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read.
    pub fn digest_of(&mut self, path: &Path) -> std::result::Result<Option<String>, String> {
        let file = file_stamp(path).map_err(|error| error.to_string())?;
        if let Some(known) = self.known.get(&file) {
            return known.clone().transpose();
        }
        // If the database cannot be read, the digest is computed again, which only takes longer.
        let cached = self.state.find_digest(&file).ok().flatten();
        if cached.is_none() {
            let _ = self.queue.send(file.clone());
        }
        self.known.insert(file, cached.clone().map(Ok));
        Ok(cached)
    }

    /// Stores a result. If the file has changed while it was read, the result is cached only in memory and for the
    /// old stamp, so the digest of the new content will be computed later.
    pub fn store_result(&mut self, done: DigestResult) {
        let unchanged = file_stamp(Path::new(&done.file.path)).is_ok_and(|now| now == done.file);
        if let (true, Ok(digest)) = (unchanged, &done.digest) {
            let _ = self.state.store_digest(&done.file, digest);
        }
        if done.digest.is_err() {
            self.failed = Some(Instant::now());
        }
        self.known.insert(done.file, Some(done.digest));
    }

    /// Discards failed attempts to read files after [`TRY_AGAIN_AFTER`], so that these files are read again. Returns
    /// whether any failures were discarded.
    pub fn discard_failures(&mut self) -> bool {
        let is_due = self.failed.take_if(|since| since.elapsed() >= TRY_AGAIN_AFTER).is_some();
        if is_due {
            self.known.retain(|_, digest| !matches!(digest, Some(Err(_))));
        }
        is_due
    }
}

/// Returns the stamp of a file, which changes whenever the content of the file changes.
///
/// # Errors
/// Returns an error if the file does not exist, or is not a regular file.
pub fn file_stamp(path: &Path) -> std::io::Result<FileStamp> {
    let metadata = fs::metadata(path)?;
    if !metadata.is_file() {
        return Err(std::io::Error::other("not a regular file"));
    }
    Ok(FileStamp::from_metadata(path.display().to_string(), &metadata))
}

fn compute_sha256(path: &Path) -> std::io::Result<String> {
    Ok(format!("sha256:{}", hash_reader(File::open(path)?)?))
}
