//! Fake control plane, for tests.

use crate::allocation::{Allocation, Machine};
use crate::carried::Newest;
use crate::control::{Acknowledged, AttemptNotice, Control};
use crate::error::{Error, Phase, Result};
use crate::facts::{BootInfo, Done, Ended, Event, Outcome};
use crate::inventory::Inventory;
use crate::marker::MarkedDisk;
use crate::plan::Extents;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Announcement of a point of no return: allocation, order, disks, extents.
pub type Begun = (String, Option<String>, Vec<MarkedDisk>, Vec<Extents>);

/// Control plane that records all requests in memory.
#[derive(Default)]
pub struct FakeControl {
    /// Allocation that is returned to the agent.
    pub allocation: Option<Allocation>,
    pub newest_move: Option<Newest>,
    /// True if announcements, logs and reports are not acknowledged.
    pub refuses: AtomicBool,
    /// True if reports are denied.
    pub denies: AtomicBool,
    /// Delay before an event is accepted.
    pub delay: Duration,
    pub heard: Mutex<Vec<Event>>,
    /// True if the log is accepted.
    pub keeps_log: bool,
    pub log: Mutex<Vec<(u64, String)>>,
    pub begun: Mutex<Vec<Begun>>,
    pub ended: Mutex<Vec<Ended>>,
}

impl FakeControl {
    fn answer(&self) -> Result<()> {
        match self.refuses.load(Ordering::Relaxed) {
            true => Err(Error::new(Phase::Control, "not acknowledged")),
            false => Ok(()),
        }
    }
}

impl Control for FakeControl {
    fn register(&self, _: &Inventory) -> Result<()> {
        Ok(())
    }

    fn wait(&self, _: Duration) -> Result<bool> {
        Ok(true)
    }

    fn machine(&self) -> Result<Machine> {
        Ok(Machine { allocation: self.allocation.clone(), newest_move: self.newest_move.clone(), ..Machine::default() })
    }

    fn event(&self, event: &Event) -> Result<()> {
        thread::sleep(self.delay);
        self.heard.lock().unwrap().push(event.clone());
        Ok(())
    }

    fn log(&self, start: u64, text: &str) -> Result<bool> {
        self.answer()?;
        self.log.lock().unwrap().push((start, text.to_owned()));
        Ok(self.keeps_log)
    }

    fn point_of_no_return(&self, notice: &AttemptNotice) -> Result<()> {
        let (allocation, order) = (notice.allocation.to_owned(), notice.order.map(str::to_owned));
        self.begun.lock().unwrap().push((allocation, order, notice.disks.to_vec(), notice.extents.to_vec()));
        self.answer()
    }

    fn report(&self, ended: &Ended) -> Result<Acknowledged> {
        self.ended.lock().unwrap().push(ended.clone());
        if self.denies.load(Ordering::Relaxed) {
            return Err(Error::denial(Phase::Control, "the move is cancelled"));
        }
        self.answer().map(|()| Acknowledged::default())
    }
}

/// Returns a successful result.
pub fn ended() -> Ended {
    let boot = BootInfo {
        kernel: "/vmlinuz".into(),
        initrd: "/initrd".into(),
        cmdline: "ro".into(),
        bootloader_id: "metal-debian".into(),
    };
    Ended {
        outcome: Outcome::Succeeded { boot, marker: None },
        message: "debian-12 is installed".into(),
        allocation: "a-1".into(),
        order: None,
        plan: String::new(),
        timings: Vec::new(),
        peak_rss_bytes: None,
        done: Done::default(),
    }
}
