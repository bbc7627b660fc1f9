//! Fake control plane for tests.

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
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

/// Recorded announcement of a point of no return: id of the allocation, id of the reinstall order, disks, and writable
/// extents.
pub(crate) type AnnouncedAttempt = (String, Option<String>, Vec<RecordedDisk>, Vec<StageExtents>);

/// Control plane that records all requests.
#[derive(Default)]
pub struct FakeControl {
    /// Allocation that is returned to the agent.
    pub allocation: Option<Allocation>,
    pub newest_move: Option<MigrationStatus>,
    /// True if the control plane acknowledges neither announcements nor logs nor reports.
    pub refuses: AtomicBool,
    /// True if the control plane denies reports.
    pub denies: AtomicBool,
    /// Delay before the control plane accepts an event.
    pub delay: Duration,
    pub heard: Mutex<Vec<ProgressEvent>>,
    /// True if the control plane stores the console log that the agent sends.
    pub keeps_log: bool,
    pub log: Mutex<Vec<(u64, String)>>,
    pub started: Mutex<Vec<AnnouncedAttempt>>,
    pub ended: Mutex<Vec<InstallResult>>,
    /// True if the control plane stores the inventory of a waiting machine.
    pub stores_inventory: bool,
    /// Number of waits that end without an allocation.
    pub waits: AtomicU32,
    pub registered: Mutex<Vec<Inventory>>,
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
    fn register_machine(&self, inventory: &Inventory) -> Result<()> {
        self.answer()?;
        self.registered.lock().unwrap().push(inventory.clone());
        Ok(())
    }

    fn stores_inventory(&self) -> bool {
        self.stores_inventory
    }

    fn wait_for_allocation(&self, _: Duration) -> Result<bool> {
        let left = self.waits.load(Ordering::Relaxed);
        self.waits.store(left.saturating_sub(1), Ordering::Relaxed);
        Ok(left == 0)
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
        self.started.lock().unwrap().push((allocation, order, notice.disks.to_vec(), notice.extents.to_vec()));
        self.answer()
    }

    fn report_result(&self, ended: &InstallResult) -> Result<ReportAcknowledgement> {
        self.ended.lock().unwrap().push(ended.clone());
        if self.denies.load(Ordering::Relaxed) {
            return Err(Error::denial(Phase::Control, "the migration was canceled"));
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
