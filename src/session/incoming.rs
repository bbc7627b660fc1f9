//! What comes from another machine, onto the devices that the plan has made for it.

use super::Session;
use crate::control::Control;
use crate::error::{Error, Phase, Result};
use crate::facts::Progress;
use crate::moving::whole::{Device, Incoming};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// So often the control plane is asked who sends now: a machine that was switched off has another certificate after it.
const ASK: Duration = Duration::from_secs(5);

const LOOK: Duration = Duration::from_millis(500);

impl Session {
    /// The end of the wire at which the plan's devices are received.
    pub fn awaits(&mut self, incoming: Incoming) {
        self.incoming = Some(incoming);
    }

    /// Receives devices that have so many bytes at the other end, for as long as the control plane wants it.
    pub(super) fn receive_devices(&mut self, order: &str, devices: Vec<Device>, total_bytes: u64) -> Result<()> {
        let not_there = || Error::new(Phase::Move, "the plan receives devices, and no other machine is known");
        let incoming = self.incoming.take().ok_or_else(not_there)?;
        let arriving = incoming.begin(order, devices)?;
        let (control, reporter, over) = (&*self.control, &*self.reporter, AtomicBool::new(false));
        let (began, is_over) = (Instant::now(), || over.load(Ordering::Relaxed));
        let show = || {
            while !is_over() {
                thread::sleep(LOOK);
                reporter.progress(progress(arriving.bytes(), total_bytes, began.elapsed()));
            }
        };
        // Apart from the other: a control plane that is away is waited for.
        let ask = || {
            let mut asked = Instant::now();
            while !is_over() {
                thread::sleep(LOOK);
                if asked.elapsed() > ASK {
                    follow(control, order, &incoming);
                    asked = Instant::now();
                }
            }
        };
        thread::scope(|scope| {
            scope.spawn(show);
            scope.spawn(ask);
            let whole = arriving.until_whole(&|line| reporter.say(line));
            over.store(true, Ordering::Relaxed);
            whole
        })
    }
}

fn progress(bytes: u64, total_bytes: u64, elapsed: Duration) -> Progress {
    let bytes_per_second = (bytes as f64 / elapsed.as_secs_f64().max(1.0)) as u64;
    let seconds_left = total_bytes.saturating_sub(bytes).checked_div(bytes_per_second);
    Progress { bytes, total_bytes: Some(total_bytes), bytes_per_second, seconds_left }
}

/// Hears from the control plane who sends, and whether the move goes on. While it does not answer, all goes on as it was.
fn follow(control: &dyn Control, order: &str, incoming: &Incoming) {
    let machine = match control.machine() {
        Ok(machine) => machine,
        Err(error) => return tracing::warn!("{error}; what comes from the other machine is taken all the same"),
    };
    let moving = machine.allocation.and_then(|allocation| allocation.moving).filter(|moving| moving.order == order);
    match moving {
        None => incoming.end("the control plane has ended the move: this machine has nothing whole on its disks"),
        Some(moving) => {
            if let Some(Err(error)) = moving.peer.map(|peer| incoming.hear(&peer)) {
                tracing::warn!("{error}");
            }
        }
    }
}
