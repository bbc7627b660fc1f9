//! Fake control plane, for tests.

#![allow(clippy::unwrap_used)]

use crate::{AttemptNotice, ControlPlane, ReportAcknowledgement};
use common::error::{Error, Phase, Result};
use model::allocation::{Allocation, AssignedMachine};
use model::install_marker::RecordedDisk;
use model::install_report::{BootInfo, DiskChanges, InstallOutcome, InstallResult, ProgressEvent};
use model::inventory::Inventory;
use model::machine_migration::MigrationStatus;
use operations::StageExtents;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Announcement that an attempt passes its point of no return: ids of allocation and reinstall order, disks, and
/// writable extents.
pub(crate) type Begun = (String, Option<String>, Vec<RecordedDisk>, Vec<StageExtents>);

/// Control plane that records all requests in memory.
#[derive(Default)]
pub struct FakeControl {
    /// Allocation that is returned to the agent.
    pub allocation: Option<Allocation>,
    pub newest_move: Option<MigrationStatus>,
    /// True if the control plane does not acknowledge announcements, logs and reports.
    pub refuses: AtomicBool,
    /// True if the control plane denies reports.
    pub denies: AtomicBool,
    /// Delay before an event is accepted.
    pub delay: Duration,
    pub heard: Mutex<Vec<ProgressEvent>>,
    /// True if the log is accepted.
    pub keeps_log: bool,
    pub log: Mutex<Vec<(u64, String)>>,
    pub begun: Mutex<Vec<Begun>>,
    pub ended: Mutex<Vec<InstallResult>>,
}

impl FakeControl {
    fn answer(&self) -> Result<()> {
        match self.refuses.load(Ordering::Relaxed) {
            true => Err(Error::new(Phase::Control, "not acknowledged")),
            false => Ok(()),
        }
    }
}

impl ControlPlane for FakeControl {
    fn register_machine(&self, _: &Inventory) -> Result<()> {
        Ok(())
    }

    fn wait_for_allocation(&self, _: Duration) -> Result<bool> {
        Ok(true)
    }

    fn fetch_machine(&self) -> Result<AssignedMachine> {
        Ok(AssignedMachine {
            allocation: self.allocation.clone(),
            newest_move: self.newest_move.clone(),
            ..AssignedMachine::default()
        })
    }

    fn send_event(&self, event: &ProgressEvent) -> Result<()> {
        thread::sleep(self.delay);
        self.heard.lock().unwrap().push(event.clone());
        Ok(())
    }

    fn upload_log(&self, start: u64, text: &str) -> Result<bool> {
        self.answer()?;
        self.log.lock().unwrap().push((start, text.to_owned()));
        Ok(self.keeps_log)
    }

    fn announce_point_of_no_return(&self, notice: &AttemptNotice) -> Result<()> {
        let (allocation, order) = (notice.allocation.to_owned(), notice.order.map(str::to_owned));
        self.begun.lock().unwrap().push((allocation, order, notice.disks.to_vec(), notice.extents.to_vec()));
        self.answer()
    }

    fn report_result(&self, ended: &InstallResult) -> Result<ReportAcknowledgement> {
        self.ended.lock().unwrap().push(ended.clone());
        if self.denies.load(Ordering::Relaxed) {
            return Err(Error::denial(Phase::Control, "the move is cancelled"));
        }
        self.answer().map(|()| ReportAcknowledgement::default())
    }
}

/// Returns the result of a successful installation.
pub fn ended() -> InstallResult {
    let boot = BootInfo {
        kernel: "/vmlinuz".into(),
        initrd: "/initrd".into(),
        cmdline: "ro".into(),
        bootloader_id: "metal-debian".into(),
    };
    InstallResult {
        outcome: InstallOutcome::Succeeded { boot, marker: None },
        message: "debian-12 is installed".into(),
        allocation: "a-1".into(),
        order: None,
        plan: String::new(),
        timings: Vec::new(),
        peak_rss_bytes: None,
        done: DiskChanges::default(),
    }
}
