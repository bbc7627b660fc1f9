//! Supervision of dnsmasq: starts it, forwards its log, restarts it if it dies or the NIC changes, and stops it with the server.

use super::card::Card;
use super::conf::{self, Asked};
use super::home::Home;
use super::{CAPABILITIES, PxeOptions, Range, binary, script};
use crate::command::{Command, Running};
use crate::serve::Options;
use crate::serve::alarm::Alarms;
use crate::serve::watch::Watch;
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Time within which it must report its start.
const START: Duration = Duration::from_secs(30);
const END: Duration = Duration::from_secs(2);
/// Pause before a restart, doubled each time up to [`LONGEST_PAUSE`].
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Parameters of its start.
pub struct Dnsmasq {
    program: PathBuf,
    card: String,
    range: Option<Range>,
    options: Options,
    port: u16,
    words: Alarms,
}

impl Dnsmasq {
    pub fn new(asked: &PxeOptions, options: &Options, port: u16, program: PathBuf, watch: &Watch) -> Dnsmasq {
        let (card, range, words) = (asked.card.clone(), asked.range, Alarms::new(watch.clone()));
        Dnsmasq { program, card, range, options: options.clone(), port, words }
    }

    /// Starts it, and waits until it serves.
    fn start(&self, card: &Card, home: &Home) -> Result<Running, String> {
        let (script, ipxe) = (script(&self.options, card, self.port), binary(&self.options, card, self.port));
        let (tftp, leases) = (home.tftp(), home.leases());
        let forwards = std::fs::read_to_string("/proc/sys/net/ipv4/ip_forward").is_ok_and(|text| text.trim() == "1");
        let (script, ipxe, tftp, leases) = (&script, &ipxe, &tftp, &leases);
        let text = conf::text(&Asked { card, range: self.range, forwards, script, ipxe, tftp, leases });
        let file = home.configure(&text).map_err(|error| format!("write dnsmasq's configuration: {error}"))?;
        let (begun, has_begun) = mpsc::channel();
        let words = self.words.clone();
        let command =
            Command::new(&self.program).arg("--keep-in-foreground").arg(format!("--conf-file={}", file.display()));
        let started = command.with_only(CAPABILITIES).start(move |line| {
            if line.contains(": started, version") {
                let _ = begun.send(());
            }
            if !line.contains("compile time options") {
                words.note(without_number(line));
            }
        });
        let mut running = started.map_err(|error| error.to_string())?;
        let began = Instant::now();
        while began.elapsed() < START {
            match has_begun.recv_timeout(Duration::from_millis(50)) {
                Ok(()) => return Ok(running),
                Err(RecvTimeoutError::Timeout) => {}
                // Its output is closed, so it can no longer report.
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        let end = running.ended().map(|error| error.to_string());
        Err(end.unwrap_or_else(|| format!("dnsmasq did not start within {} s", START.as_secs())))
    }
}

/// Removes the process id, as in `dnsmasq-dhcp[123]: …`, so that repeated messages are equal.
fn without_number(line: &str) -> String {
    match (line.find('['), line.find("]: ")) {
        (Some(from), Some(to)) if from < to => format!("{}{}", &line[..from], &line[to + 1..]),
        _ => line.to_owned(),
    }
}

pub struct Keeper {
    dnsmasq: Dnsmasq,
    home: Home,
    running: Option<(Running, Card)>,
    /// Time before which it is not restarted.
    due: Instant,
    pause: Duration,
    /// Problem that was reported last.
    said: Option<String>,
}

impl Keeper {
    pub fn new(dnsmasq: Dnsmasq, home: Home) -> Keeper {
        Keeper { dnsmasq, home, running: None, due: Instant::now(), pause: PAUSE, said: None }
    }

    /// Runs until the sender of `ended` is dropped. Sends the result of the first start to `first`.
    pub fn run(mut self, watch: &Watch, ended: &mpsc::Receiver<()>, first: &mpsc::Sender<Result<(), String>>) {
        let started = Card::look(&self.dnsmasq.card).and_then(|card| self.start(card));
        let is_good = started.is_ok();
        let _ = first.send(started);
        while is_good && ended.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
            self.look(watch);
        }
        if let Some((running, _)) = self.running.take() {
            running.end(END);
        }
        // Preserves assigned addresses across restarts. Without the leases they are mostly the same as well, as they are derived from the
        // MAC.
        let _ = self.home.keep_last_leases();
    }

    fn start(&mut self, card: Card) -> Result<(), String> {
        let running = self.dnsmasq.start(&card, &self.home)?;
        self.running = Some((running, card));
        Ok(())
    }

    fn look(&mut self, watch: &Watch) {
        if let Err(error) = self.home.keep_leases() {
            self.say(watch, format!("cannot save the leases of dnsmasq: {error}"));
        }
        let card = match Card::look(&self.dnsmasq.card) {
            Ok(card) => card,
            Err(why) => {
                self.running.take().into_iter().for_each(|(running, _)| running.end(END));
                return self.say(watch, format!("{why}. Machines cannot boot over PXE until then"));
            }
        };
        match &mut self.running {
            Some((running, with)) if *with == card => {
                let Some(end) = running.ended() else { return };
                self.running = None;
                self.later(watch, &end.to_string());
            }
            Some(_) => {
                // It keeps using the NIC and the address that it was started with.
                self.running.take().into_iter().for_each(|(running, _)| running.end(END));
                self.start_again(watch, card);
            }
            None if Instant::now() >= self.due => self.start_again(watch, card),
            None => {}
        }
    }

    fn start_again(&mut self, watch: &Watch, card: Card) {
        match self.start(card) {
            Ok(()) => {
                self.said = None;
                watch.note(format!("dnsmasq serves on {} again", self.dnsmasq.card));
            }
            Err(why) => self.later(watch, &why),
        }
    }

    fn later(&mut self, watch: &Watch, why: &str) {
        // It was running for a while, so this is a new problem.
        if self.due.elapsed() > LONGEST_PAUSE {
            self.pause = PAUSE;
        }
        let seconds = self.pause.as_secs();
        watch.problem(format!("machines cannot boot over PXE: {why}; restarting dnsmasq in {seconds} s"));
        self.due = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }

    /// Reports a problem once.
    fn say(&mut self, watch: &Watch, what: String) {
        if self.said.as_ref() != Some(&what) {
            watch.problem(what.clone());
            self.said = Some(what);
        }
    }
}
