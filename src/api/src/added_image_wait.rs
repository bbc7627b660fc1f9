//! Images that other processes add to the server's directory while the server runs, such as `drophammer image add`.

use crate::AppState;
use site::snapshot::SiteSnapshot;
use std::time::Duration;

/// Maximum time for which a request waits for a scan of the directory.
const SCAN_TIMEOUT: Duration = Duration::from_secs(5);

impl AppState {
    /// Waits until the current snapshot contains the files that were added to `images/`. Without this wait, a new image
    /// would be visible only after the next periodic scan.
    pub async fn await_added_images(&self) {
        let (documents, folder) = (self.documents.clone(), self.images.clone());
        // A network filesystem may respond slowly, so the folder is listed on a blocking thread. A folder that cannot
        // be read is reported by the periodic scan.
        let listed = tokio::task::spawn_blocking(move || documents.list_yaml(&folder)).await;
        let Ok(Ok(listed)) = listed else { return };
        let is_scanned = |directory: &SiteSnapshot| listed.is_subset(&directory.scanned_images);
        let mut directory = self.directory.clone();
        if is_scanned(&directory.borrow()) {
            return;
        }
        self.request_reload();
        let _ = tokio::time::timeout(SCAN_TIMEOUT, directory.wait_for(|directory| is_scanned(directory))).await;
    }

    /// Waits as [`AppState::await_added_images`] does if the image is unknown.
    pub async fn await_image(&self, id: &str) {
        if !self.directory.borrow().known.images.contains_key(id) {
            self.await_added_images().await;
        }
    }
}
