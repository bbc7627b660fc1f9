//! Keeps dnsmasq running: it is started, its words are passed on, it is started again when it dies or the card has changed, and ended with
//! the server.

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
/// Until it says that it has begun.
const START: Duration = Duration::from_secs(30);
const END: Duration = Duration::from_secs(2);
/// Before it is started again; doubled each time, up to the second.
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// How it is started.
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

    /// Starts it, and waits until it answers.
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
                // Nobody can say it any more: its output is closed.
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        let end = running.ended().map(|error| error.to_string());
        Err(end.unwrap_or_else(|| format!("dnsmasq has not begun to answer within {} s", START.as_secs())))
    }
}

/// `dnsmasq-dhcp: …` of `dnsmasq-dhcp[123]: …`: the same words are the same.
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
    /// When it may be started again.
    due: Instant,
    pause: Duration,
    /// Why it is not started, as it was said last.
    said: Option<String>,
}

impl Keeper {
    pub fn new(dnsmasq: Dnsmasq, home: Home) -> Keeper {
        Keeper { dnsmasq, home, running: None, due: Instant::now(), pause: PAUSE, said: None }
    }

    /// Until the other end of `ended` is gone. How the first start went is said to `first`.
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
        // Who has got an address keeps it over a restart; without this it most likely does too, as the address is chosen by its MAC.
        let _ = self.home.keep_last_leases();
    }

    fn start(&mut self, card: Card) -> Result<(), String> {
        let running = self.dnsmasq.start(&card, &self.home)?;
        self.running = Some((running, card));
        Ok(())
    }

    fn look(&mut self, watch: &Watch) {
        if let Err(error) = self.home.keep_leases() {
            self.say(watch, format!("the leases of dnsmasq cannot be kept: {error}"));
        }
        let card = match Card::look(&self.dnsmasq.card) {
            Ok(card) => card,
            Err(why) => {
                self.running.take().into_iter().for_each(|(running, _)| running.end(END));
                return self.say(watch, format!("{why}. No machine is answered over PXE until it is back"));
            }
        };
        match &mut self.running {
            Some((running, with)) if *with == card => {
                let Some(end) = running.ended() else { return };
                self.running = None;
                self.later(watch, &end.to_string());
            }
            Some(_) => {
                // It holds on to the card and the address that it has begun with.
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
                watch.note(format!("dnsmasq answers on {} again", self.dnsmasq.card));
            }
            Err(why) => self.later(watch, &why),
        }
    }

    fn later(&mut self, watch: &Watch, why: &str) {
        // It has run for a while: this is another trouble.
        if self.due.elapsed() > LONGEST_PAUSE {
            self.pause = PAUSE;
        }
        let seconds = self.pause.as_secs();
        watch.problem(format!("no machine is answered over PXE: {why}; dnsmasq is started again in {seconds} s"));
        self.due = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }

    /// Once.
    fn say(&mut self, watch: &Watch, what: String) {
        if self.said.as_ref() != Some(&what) {
            watch.problem(what.clone());
            self.said = Some(what);
        }
    }
}
