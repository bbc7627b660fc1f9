//! Faults of the proxy: responses that are cut, delayed or altered, and traps that are triggered by a response.

use super::{ProxyState, lock_shared};
use crate::facts::matches_pattern;
use crate::faulty_responses::FaultyResponse;
use crate::scenario::EventAction;
use crate::served_image::ResponseFault;
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
    /// True if the last cut applies to every response.
    pub cut_for_ever: bool,
    pub fault: Option<ResponseFault>,
    pub traps: Vec<ResponseTrap>,
    pub triggered: Vec<ResponseTrap>,
    /// Offsets in an image after which the response waits to be released.
    pub holds: Vec<u64>,
    /// Offsets that a response has reached.
    pub held: Vec<u64>,
}

/// Event at the response to a request: the server is killed, the machine loses its power, or the operator cancels the order.
#[derive(Debug, Clone, PartialEq)]
pub struct ResponseTrap {
    /// `METHOD PATH`.
    pub request: String,
    /// True if the response is not delivered to the machine.
    pub swallow: bool,
    pub act: EventAction,
    /// Time until the server returns.
    pub time: Duration,
}

impl ProxyState {
    pub(super) fn take_trap(&self, request: &str) -> Option<ResponseTrap> {
        let mut faults = lock_shared(&self.faults);
        let index = faults.traps.iter().position(|trap| matches_pattern(&trap.request, request))?;
        Some(faults.traps.remove(index))
    }

    /// Executes the trap once the server's response is complete, because the server has processed the request by then.
    pub(super) fn execute_trap(
        &self,
        trap: &ResponseTrap,
        server: &mut TcpStream,
        client: &mut TcpStream,
    ) -> std::io::Result<()> {
        let mut answer = Vec::new();
        let whole = server.read_to_end(&mut answer);
        // Before the response is delivered, because its reader may send another request immediately.
        self.away.store(true, Ordering::Release);
        let passed = if trap.swallow { Ok(()) } else { client.write_all(&answer) };
        if trap.act == EventAction::ServerKill {
            // Fails only if the process has exited already.
            let _ = kill(Pid::from_raw(self.process.load(Ordering::Relaxed)), Signal::SIGKILL);
        }
        lock_shared(&self.faults).triggered.push(trap.clone());
        whole.and(passed)
    }

    /// Keeps the connection open until the machine has lost its power, because the machine would send the request again
    /// if the connection ended.
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

    /// Sends the response, with its faults.
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

    /// Forwards the response. A cut beyond the end of a response has no effect, and remains for the next response.
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

    /// Returns the length at which every response with an image ends: the last cut, if it applies to every response.
    fn length_limit(&self, image: bool) -> Option<u64> {
        let faults = lock_shared(&self.faults);
        let last = (faults.cuts.len() == 1).then(|| faults.cuts.front().copied()).flatten();
        last.filter(|_| faults.cut_for_ever && image)
    }

    /// Waits while a response of this length is held back. Stops waiting if the response is not released within a
    /// minute.
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
