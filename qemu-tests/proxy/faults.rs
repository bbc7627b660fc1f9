//! Faults that the proxy causes: responses that are cut, delayed or altered, and traps that a response triggers.

use super::{ProxyState, lock_shared};
use crate::faulty_responses::FaultyResponse;
use crate::guest_facts::matches_pattern;
use crate::scenario::EventAction;
use crate::scenario_image::ResponseFault;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Active faults.
#[derive(Default)]
pub(super) struct ActiveFaults {
    pub errors_until: Option<Instant>,
    pub cuts: VecDeque<u64>,
    /// True if the last cut applies to all further responses.
    pub cut_for_ever: bool,
    pub fault: Option<ResponseFault>,
    pub traps: Vec<ResponseTrap>,
    pub triggered: Vec<ResponseTrap>,
    /// Offsets in an image at which the response waits until it is released.
    pub holds: Vec<u64>,
    /// Offsets that responses have reached.
    pub held: Vec<u64>,
}

/// Event at the response to a request: the server is killed, the power of the machine is cut, or the operator cancels
/// the order.
#[derive(Debug, Clone, PartialEq)]
pub struct ResponseTrap {
    /// `METHOD PATH`.
    pub request: String,
    /// True if the response is not delivered to the machine.
    pub swallow: bool,
    pub act: EventAction,
    /// Time until the server is started again.
    pub time: Duration,
}

impl ProxyState {
    pub(super) fn take_trap(&self, request: &str) -> Option<ResponseTrap> {
        let mut faults = lock_shared(&self.faults);
        let index = faults.traps.iter().position(|trap| matches_pattern(&trap.request, request))?;
        Some(faults.traps.remove(index))
    }

    /// Executes the trap when the server's response is complete, because the server has then processed the request.
    pub(super) fn execute_trap(
        &self,
        trap: &ResponseTrap,
        server: &mut TcpStream,
        client: &mut TcpStream,
    ) -> std::io::Result<()> {
        let mut answer = Vec::new();
        let whole = server.read_to_end(&mut answer);
        // The server is marked as away before the response is delivered, because the client may send its next request
        // immediately.
        self.away.store(true, Ordering::Release);
        let passed = if trap.swallow { Ok(()) } else { client.write_all(&answer) };
        if trap.act == EventAction::ServerKill {
            // This fails only if the process has already exited.
            let _ = kill(Pid::from_raw(self.process.load(Ordering::Relaxed)), Signal::SIGKILL);
        }
        lock_shared(&self.faults).triggered.push(trap.clone());
        whole.and(passed)
    }

    /// Keeps the connection open until the power of the machine is cut. If the connection ended, the machine would
    /// repeat the request.
    pub(super) fn hold_until_power_cut(
        &self,
        trap: &ResponseTrap,
        server: &mut TcpStream,
        client: &mut TcpStream,
    ) -> std::io::Result<()> {
        let before = self.power_cuts.load(Ordering::Acquire);
        let mut answer = Vec::new();
        let whole = server.read_to_end(&mut answer);
        let passed = if trap.swallow { Ok(()) } else { client.write_all(&answer) };
        lock_shared(&self.faults).triggered.push(trap.clone());
        let patience = Instant::now() + Duration::from_secs(60);
        while self.power_cuts.load(Ordering::Acquire) == before && Instant::now() < patience {
            std::thread::sleep(Duration::from_millis(5));
        }
        whole.and(passed)
    }

    /// Sends the response with its faults.
    pub(super) fn send_response(
        &self,
        fault: Option<ResponseFault>,
        image: bool,
        from: &mut impl Read,
        client: &mut TcpStream,
    ) -> std::io::Result<()> {
        match fault {
            None => self.forward_response(from, client, image),
            Some(fault) => {
                let number = self.altered_responses.fetch_add(1, Ordering::Relaxed);
                self.forward_response(&mut FaultyResponse::new(fault, from, image, number), client, image)
            }
        }
    }

    /// Forwards the response. If the response is shorter than the next cut, the cut applies to the next response
    /// instead.
    fn forward_response(&self, server: &mut impl Read, client: &mut TcpStream, image: bool) -> std::io::Result<()> {
        let mut sent = 0;
        let mut buffer = [0; 16 * 1024];
        let most = self.length_limit(image);
        loop {
            let room = most.map_or(buffer.len(), |most| buffer.len().min((most - sent) as usize));
            let count = server.read(&mut buffer[..room])?;
            if count == 0 {
                return Ok(());
            }
            client.write_all(&buffer[..count])?;
            sent += count as u64;
            if image {
                self.wait_for_release(sent);
            }
            let mut faults = lock_shared(&self.faults);
            if most.is_none() && image && faults.cuts.front().is_some_and(|cut| sent >= *cut) {
                faults.cuts.pop_front();
                return Ok(());
            }
        }
    }

    /// Returns the length to which each response with an image is cut, if the last cut applies to all further
    /// responses.
    fn length_limit(&self, image: bool) -> Option<u64> {
        let faults = lock_shared(&self.faults);
        let last = (faults.cuts.len() == 1).then(|| faults.cuts.front().copied()).flatten();
        last.filter(|_| faults.cut_for_ever && image)
    }

    /// Waits while a response of this length is held back, but at most for a minute.
    fn wait_for_release(&self, sent: u64) {
        let patience = Instant::now() + Duration::from_secs(60);
        loop {
            let mut faults = lock_shared(&self.faults);
            let Some(hold) = faults.holds.iter().copied().find(|hold| sent >= *hold) else { return };
            if !faults.held.contains(&hold) {
                faults.held.push(hold);
            }
            drop(faults);
            if Instant::now() > patience {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
