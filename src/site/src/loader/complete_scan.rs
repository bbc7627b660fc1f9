//! Scan of all documents that waits for the `verify` programs. Used for checks before documents are stored or served.

use super::{SiteLoader, SiteScan};
use crate::documents::SiteDocuments;
use crate::ganeti_os_definitions::{OsDefinitions, VerifyCache};
use std::sync::mpsc;
use std::time::Duration;
use store::ServerState;
use store::image_digest_cache::ImageDigests;

/// Longest wait for one `verify` program.
const VERIFY_PROGRAM_TIMEOUT: Duration = Duration::from_secs(60);

/// Returns the snapshot that a server would publish once all `verify` programs have exited. Blocks the calling thread
/// until then.
///
/// # Errors
/// Returns an error if the thread that runs `verify` programs cannot be started.
pub fn scan_completely(documents: &SiteDocuments, state: ServerState) -> std::io::Result<SiteScan> {
    let (done, verdicts) = mpsc::channel();
    let verified = VerifyCache::start(move |verdict| drop(done.send(verdict)))?;
    let dir = documents.directory_path();
    let definitions = OsDefinitions::new(dir.join("os"), verified);
    // The check requires only that images can be read. Their digests are not computed, since images may be large.
    let loader = SiteLoader::new(dir, ImageDigests::cached_only(state.clone()), definitions, state);
    let mut loader = loader.with_documents(documents);
    let mut seen = loader.rescan().unwrap_or_default();
    while loader.is_waiting() {
        let Ok(verdict) = verdicts.recv_timeout(VERIFY_PROGRAM_TIMEOUT) else { break };
        loader.store_verdict(verdict);
        seen = loader.rescan().unwrap_or(seen);
    }
    Ok(seen)
}
