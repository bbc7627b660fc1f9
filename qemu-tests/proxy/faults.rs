//! What is broken on the wire: answers that end early, wait or lie, and traps that spring at an answer.

use super::{Wire, lock};
use crate::facts::matches;
use crate::lies::Told;
use crate::scenario::Act;
use crate::served::Lie;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// What is broken now.
#[derive(Default)]
pub(super) struct Broken {
    pub errors_until: Option<Instant>,
    pub cuts: VecDeque<u64>,
    /// The last cut is for every answer.
    pub cut_for_ever: bool,
    pub lie: Option<Lie>,
    pub traps: Vec<Trap>,
    pub sprung: Vec<Trap>,
    /// Bytes of an image after which the rest waits to be let go.
    pub holds: Vec<u64>,
    /// Those that an answer has reached.
    pub held: Vec<u64>,
}

/// What happens when such a request is answered: the server is killed, the machine loses its power, or the operator takes
/// the order back.
#[derive(Debug, Clone, PartialEq)]
pub struct Trap {
    /// `METHOD PATH`.
    pub request: String,
    /// The answer does not reach the machine.
    pub swallow: bool,
    pub act: Act,
    /// How long the server stays away.
    pub time: Duration,
}

impl Wire {
    pub(super) fn trap(&self, request: &str) -> Option<Trap> {
        let mut broken = lock(&self.broken);
        let index = broken.traps.iter().position(|trap| matches(&trap.request, request))?;
        Some(broken.traps.remove(index))
    }

    /// The server has done its part when its answer is complete.
    pub(super) fn spring(&self, trap: &Trap, server: &mut TcpStream, client: &mut TcpStream) -> std::io::Result<()> {
        let mut answer = Vec::new();
        let whole = server.read_to_end(&mut answer);
        // This comes before the answer is through, because its reader may call again at once.
        self.away.store(true, Ordering::Release);
        let passed = if trap.swallow { Ok(()) } else { client.write_all(&answer) };
        if trap.act == Act::ServerKill {
            // Fails only when it is gone already.
            let _ = kill(Pid::from_raw(self.process.load(Ordering::Relaxed)), Signal::SIGKILL);
        }
        lock(&self.broken).sprung.push(trap.clone());
        whole.and(passed)
    }

    /// Keeps the connection open until the machine has lost its power: if it ended, the machine would ask again.
    pub(super) fn darken(&self, trap: &Trap, server: &mut TcpStream, client: &mut TcpStream) -> std::io::Result<()> {
        let before = self.blackouts.load(Ordering::Acquire);
        let mut answer = Vec::new();
        let whole = server.read_to_end(&mut answer);
        let passed = if trap.swallow { Ok(()) } else { client.write_all(&answer) };
        lock(&self.broken).sprung.push(trap.clone());
        let patience = Instant::now() + Duration::from_secs(60);
        while self.blackouts.load(Ordering::Acquire) == before && Instant::now() < patience {
            std::thread::sleep(Duration::from_millis(5));
        }
        whole.and(passed)
    }

    /// The answer, and what is wrong with it.
    pub(super) fn tell(
        &self,
        lie: Option<Lie>,
        image: bool,
        from: &mut impl Read,
        client: &mut TcpStream,
    ) -> std::io::Result<()> {
        match lie {
            None => self.answer(from, client, image),
            Some(lie) => {
                let number = self.lies.fetch_add(1, Ordering::Relaxed);
                self.answer(&mut Told::new(lie, from, image, number), client, image)
            }
        }
    }

    /// A cut counts as used when it has hurt: a short answer leaves it for the next one.
    fn answer(&self, server: &mut impl Read, client: &mut TcpStream, image: bool) -> std::io::Result<()> {
        let mut sent = 0;
        let mut buffer = [0; 16 * 1024];
        let most = self.most(image);
        loop {
            let room = most.map_or(buffer.len(), |most| buffer.len().min((most - sent) as usize));
            let count = server.read(&mut buffer[..room])?;
            if count == 0 {
                return Ok(());
            }
            client.write_all(&buffer[..count])?;
            sent += count as u64;
            if image {
                self.hold(sent);
            }
            let mut broken = lock(&self.broken);
            if most.is_none() && image && broken.cuts.front().is_some_and(|cut| sent >= *cut) {
                broken.cuts.pop_front();
                return Ok(());
            }
        }
    }

    /// Where every answer with an image ends: at the last cut, if that one is for every answer.
    fn most(&self, image: bool) -> Option<u64> {
        let broken = lock(&self.broken);
        let last = (broken.cuts.len() == 1).then(|| broken.cuts.front().copied()).flatten();
        last.filter(|_| broken.cut_for_ever && image)
    }

    /// Waits while an answer of this length is held back. Gives up when nobody lets it go.
    fn hold(&self, sent: u64) {
        let patience = Instant::now() + Duration::from_secs(60);
        loop {
            let mut broken = lock(&self.broken);
            let Some(hold) = broken.holds.iter().copied().find(|hold| sent >= *hold) else { return };
            if !broken.held.contains(&hold) {
                broken.held.push(hold);
            }
            drop(broken);
            if Instant::now() > patience {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
