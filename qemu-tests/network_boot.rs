//! Boot over the network with the events of the scenario, until its outcome is known.

use crate::expectation_check::RunObservations;
use crate::expectations::Outcome;
use crate::guest_facts::{Facts, matches_pattern, shows_pattern};
use crate::host_tools::{Result, write};
use crate::proxy::{Proxy, ResponseTrap};
use crate::qemu_machine::{POLL, Vm};
use crate::scenario::{BootFrom, EventAction, EventTrigger, ResponseFate, ScenarioEvent};
use crate::scenario_run::RunContext;
use crate::server::Server;
use serde_json::Value;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Text that the ramdisk prints when the agent has exited.
pub const AGENT_EXITED: &str = "the agent ended without booting the machine";
/// Time limit for the report of an agent that has exited.
const EXIT_REPORT_TIMEOUT: Duration = Duration::from_secs(10);
/// Text that the tiny OS prints when its script has exited.
const SCRIPT_ENDED: &str = "tiny: the script ended with status ";

/// Text that the agent's ramdisk prints when the script before the agent has exited.
const SCRIPT_BEFORE: &str = "before-agent: status ";

/// State of a boot over the network: server, proxy, machine, and pending events.
pub struct NetworkBootRun<'a> {
    stage: &'a RunContext<'a>,
    server: Server,
    proxy: Proxy,
    tftp: PathBuf,
    vm: Vm,
    pending: Vec<ScenarioEvent>,
    /// Events that were triggered, each with the time at which it is due.
    due: Vec<(Instant, ScenarioEvent)>,
    /// Console output before the last power cycle of the machine.
    earlier_consoles: String,
    /// Active faults, each with the time at which it ends.
    repairs: Vec<(Instant, EventAction)>,
    /// Time at which the console has shown that the agent has exited.
    agent_exited_at: Option<Instant>,
    /// Number of times that the machine was switched on: at the beginning, and after each time that it has switched
    /// itself off.
    boots: u32,
    /// Number of systems that start between power-on and the examined system.
    others: usize,
    /// True if the power was cut at the report of success.
    was_cut_at_report: bool,
    /// Numbers of announcements and reports of agents before this boot.
    announced: usize,
    reported: usize,
    /// Violations that the witness found in the boots so far.
    violations: Vec<String>,
    /// Time at which the machine was switched on, or at which the system that reinstalls itself was up.
    began: Instant,
}

/// Returns the traps of the proxy: events at the response to a request. The proxy executes these events, because only
/// the proxy knows when the response is complete.
pub fn list_traps(events: &[ScenarioEvent]) -> Vec<ResponseTrap> {
    let trap = |event: &ScenarioEvent| match &event.at {
        EventTrigger::Request(request) if event.is_at_answer() => Some(ResponseTrap {
            request: request.clone(),
            swallow: event.answer == ResponseFate::Lost,
            act: event.act,
            time: Duration::from_secs(event.seconds),
        }),
        _ => None,
    };
    events.iter().filter_map(trap).collect()
}

/// Returns the offsets in an image at which the proxy holds back the response.
pub fn list_holds(events: &[ScenarioEvent]) -> Vec<u64> {
    let hold = |event: &ScenarioEvent| if let EventTrigger::ImageBytes(bytes) = event.at { Some(bytes) } else { None };
    events.iter().filter_map(hold).collect()
}

/// Returns the failure of the script before the agent, if the ramdisk has reported one.
fn script_failure(console: &str) -> Option<String> {
    let code = console.split(SCRIPT_BEFORE).nth(1)?.lines().next().filter(|code| *code != "0")?;
    Some(format!("the script of `before_agent` ended with {code}"))
}

impl<'a> NetworkBootRun<'a> {
    pub fn new(stage: &'a RunContext<'a>, server: Server, proxy: Proxy, tftp: PathBuf, vm: Vm) -> NetworkBootRun<'a> {
        let pending = stage.run.events.iter().filter(|event| !event.is_at_answer()).cloned().collect();
        let others = usize::from(stage.run.boot == BootFrom::Kexec);
        let (repairs, agent_exited_at, began) = (vec![], None, Instant::now());
        let (due, earlier_consoles) = (vec![], String::new());
        NetworkBootRun {
            stage,
            server,
            proxy,
            tftp,
            vm,
            pending,
            due,
            earlier_consoles,
            repairs,
            agent_exited_at,
            boots: 1,
            others,
            was_cut_at_report: false,
            announced: 0,
            reported: 0,
            violations: vec![],
            began,
        }
    }

    /// Returns the observations of server and machine, and the violations that the witness has found in all boots.
    ///
    /// # Errors
    /// Fails if a write log cannot be read.
    pub fn collect_observations(&mut self) -> Result<RunObservations> {
        self.finish_witness()?;
        Ok(self.read_observations())
    }

    /// Ends the witness of this boot.
    fn finish_witness(&mut self) -> Result<()> {
        // Without an announcement to a control plane, there are no extents with which writes could be compared.
        if self.stage.run.fleet.is_some() && self.stage.run.expect.outcome == Outcome::Installed {
            return Ok(());
        }
        let announced = self.proxy.announced();
        let last = announced.get(self.announced..).and_then(<[Value]>::last);
        let reported = self.server.all_messages().iter().filter(|line| line["report"].is_object()).count();
        let acted = last.is_some() || reported > self.reported;
        self.violations.extend(self.vm.finish_witness(last.map(|notice| &notice["extents"]), acted)?);
        (self.announced, self.reported) = (announced.len(), reported);
        Ok(())
    }

    fn read_observations(&self) -> RunObservations {
        let messages = self.server.all_messages();
        RunObservations {
            report: messages.iter().rev().find(|line| line["report"].is_object()).map(|line| line["report"].clone()),
            events: messages.iter().filter_map(|line| line["event"].as_str().map(str::to_owned)).collect(),
            console: self.vm.console(),
            earlier_consoles: self.earlier_consoles.clone(),
            was_cut_at_report: self.was_cut_at_report,
            requests: self.proxy.requests_with_queries(),
            problems: messages.iter().filter_map(|line| line["problem"].as_str().map(str::to_owned)).collect(),
            violations: self.violations.clone(),
            ..RunObservations::default()
        }
    }

    /// Waits until the outcome is known. Returns the facts of the system that has started.
    ///
    /// # Errors
    /// Fails if the outcome is another one than expected, or is not known in time.
    pub fn wait_for_outcome(&mut self) -> Result<Option<Facts>> {
        loop {
            let messages = self.server.all_messages();
            if self.is_over(&messages)? {
                return Ok(None);
            }
            if let Some(facts) = self.read_facts()? {
                return Ok(Some(facts));
            }
            if self.vm.is_off()? && self.boots < self.stage.run.expect.boots + u32::from(self.stage.run.expect.rebooted)
            {
                self.boots += 1;
                self.boot_over_network_again(&format!("boot{}", self.boots))?;
            }
            self.vm.check_alive()?;
            self.check_agent()?;
            self.fire_events(&messages)?;
            self.end_faults()?;
            std::thread::sleep(POLL);
        }
    }

    /// Returns whether the run has reached its expected outcome, for outcomes after which no system is running.
    fn is_over(&self, messages: &[Value]) -> Result<bool> {
        let expect = &self.stage.run.expect;
        let failures: Vec<&Value> =
            messages.iter().map(|line| &line["report"]).filter(|report| report["success"] == false).collect();
        let shows_texts = || {
            let console = self.vm.console();
            expect.console_contains.iter().all(|text| shows_pattern(&console, text))
        };
        if expect.outcome == Outcome::Stopped {
            return Ok(shows_texts());
        }
        let Some(last) = failures.last() else {
            let waits = expect.outcome == Outcome::Waiting && messages.iter().any(|line| line["event"] == "Waiting");
            return Ok(waits && shows_texts());
        };
        let is_last = failures.len() >= expect.boots as usize;
        match expect.outcome {
            Outcome::Failed | Outcome::Refused if is_last => return Ok(true),
            Outcome::InstalledOrRefused if is_last && last["untouched"] == true => return Ok(true),
            Outcome::OldSystem if last["untouched"] == true => return Ok(false),
            _ if !is_last => return Ok(false),
            _ => {}
        }
        let (step, message) = (&last["step"], last["message"].as_str().unwrap_or_default());
        let how = if last["untouched"] == true { "before" } else { "after" };
        Err(format!("failed in step {step}, {how} the point of no return: {message}{}", self.vm.last_lines()))
    }

    /// Returns the facts of the examined system, once it is up.
    fn read_facts(&mut self) -> Result<Option<Facts>> {
        let expect = &self.stage.run.expect;
        let system = self.stage.run.image.system.name();
        if self.others == 1 && self.vm.facts_after(1, system).is_none() {
            if self.vm.facts(system).is_none() {
                self.began = Instant::now();
            }
            return Ok(None);
        }
        let Some(facts) = self.vm.facts_after(self.others, system) else { return Ok(None) };
        if !expect.outcome.ends_with_running_system() {
            return Err("the machine installed and booted".to_owned());
        }
        if expect.outcome == Outcome::OldSystem && !self.has_failed() {
            return Err("a system came up, but no failure was reported".to_owned());
        }
        // scripts/bench evaluates this file.
        let seconds = self.began.elapsed().as_secs_f64();
        let path = self.stage.chassis.folder.join(format!("{}.seconds", self.stage.label));
        write(&path, format!("{seconds:.1}\n"))?;
        Ok(Some(facts))
    }

    fn has_failed(&self) -> bool {
        self.server.all_messages().iter().any(|line| line["report"]["success"] == false)
    }

    /// Switches the machine off, and boots it over the network again.
    fn boot_over_network_again(&mut self, how: &str) -> Result<()> {
        (self.agent_exited_at, self.others) = (None, 0);
        self.earlier_consoles += &self.vm.console();
        let label = format!("{}-network-{how}", self.stage.label);
        // The machine uses the disks until it is off.
        self.vm.cut_power();
        self.finish_witness()?;
        self.vm = self.stage.over_network(&label, &self.tftp, self.proxy.port)?;
        Ok(())
    }

    /// Fails if the agent has exited without a report, so that the test does not wait until its time limit.
    fn check_agent(&mut self) -> Result<()> {
        let console = self.vm.console();
        // If `drophammer reinstall` succeeds, it starts another kernel, so the script that runs it never ends.
        let code = console.split(SCRIPT_ENDED).nth(1).and_then(|rest| rest.lines().next()).unwrap_or("0");
        if self.others == 1 && code != "0" {
            return Err(format!("`drophammer reinstall` ended with {code}{}", self.vm.last_lines()));
        }
        if let Some(words) = script_failure(&console) {
            return Err(format!("{words}{}", self.vm.last_lines()));
        }
        if self.agent_exited_at.is_none() && console.contains(AGENT_EXITED) {
            self.agent_exited_at = Some(Instant::now());
        }
        if self.agent_exited_at.is_some_and(|since| since.elapsed() > EXIT_REPORT_TIMEOUT) {
            return Err(format!("the agent exited without reporting a failure{}", self.vm.last_lines()));
        }
        Ok(())
    }

    fn fire_events(&mut self, messages: &[Value]) -> Result<()> {
        let (console, requests) = (self.vm.console(), self.proxy.requests());
        let has = |field: &str, wanted: &str| messages.iter().any(|line| line[field] == wanted);
        let is_now = |event: &ScenarioEvent| match &event.at {
            EventTrigger::Step(step) => has("step", step),
            EventTrigger::Event(name) => has("event", name),
            EventTrigger::Console(text) => console.contains(text),
            EventTrigger::Request(pattern) => requests.iter().any(|request| matches_pattern(pattern, request)),
            EventTrigger::ImageBytes(bytes) => self.proxy.is_held_at(*bytes),
        };
        let (now, later) = std::mem::take(&mut self.pending).into_iter().partition(is_now);
        self.pending = later;
        let now: Vec<ScenarioEvent> = now;
        self.due.extend(now.into_iter().map(|event| (Instant::now() + Duration::from_secs(event.after), event)));
        let (now, later) = self.due.drain(..).partition(|(when, _)| *when <= Instant::now());
        self.due = later;
        let now: Vec<(Instant, ScenarioEvent)> = now;
        for (_, event) in now {
            self.execute_event(&event)?;
            if let EventTrigger::ImageBytes(bytes) = event.at {
                self.proxy.release_hold(bytes);
            }
        }
        for trap in self.proxy.take_triggered_traps() {
            match trap.act {
                EventAction::PowerCut => {
                    self.boot_over_network_again("again")?;
                    self.proxy.announce_power_cut();
                    // The server may print its message slightly after it has responded.
                    self.was_cut_at_report |=
                        self.server.all_messages().iter().any(|line| line["report"]["success"] == true);
                }
                EventAction::Cancel => {
                    self.stage.cancel_order(&self.server)?;
                    self.server.connect_proxy(&self.proxy)?;
                }
                _ => {
                    self.server.kill();
                    self.repairs.push((Instant::now() + trap.time, EventAction::ServerKill));
                }
            }
        }
        Ok(())
    }

    fn execute_event(&mut self, event: &ScenarioEvent) -> Result<()> {
        let time = Duration::from_secs(event.seconds);
        match event.act {
            EventAction::PowerCut => self.boot_over_network_again("again")?,
            EventAction::LinkDown => self.vm.set_link(false)?,
            EventAction::ServerStop => self.server.set_frozen(true)?,
            EventAction::ServerKill => self.server.kill(),
            EventAction::ServerErrors => self.proxy.break_for(time),
            EventAction::Replug => self.vm.replug_disks(self.stage.chassis, &event.disks)?,
            // This event occurs at a response, so the proxy reports it.
            EventAction::Cancel => {}
        }
        self.repairs.push((Instant::now() + time, event.act));
        Ok(())
    }

    fn end_faults(&mut self) -> Result<()> {
        let (due, later) = self.repairs.drain(..).partition(|(when, _)| *when <= Instant::now());
        self.repairs = later;
        let due: Vec<(Instant, EventAction)> = due;
        for (_, act) in due {
            match act {
                EventAction::LinkDown => self.vm.set_link(true)?,
                EventAction::ServerStop => self.server.set_frozen(false)?,
                EventAction::ServerKill => {
                    self.server.restart()?;
                    self.server.connect_proxy(&self.proxy)?;
                }
                EventAction::PowerCut | EventAction::ServerErrors | EventAction::Replug | EventAction::Cancel => {}
            }
        }
        Ok(())
    }
}

/// Tests which events the proxy executes, and that a failed script is detected.
pub fn self_test() {
    let text = "about: x\nfirmware: bios\nlayout: x\ndisks: []\nexpect: {}\nevents:\n\
                - {at: {request: 'POST */report'}, do: power_cut, answer: lost}\n\
                - {at: {request: 'GET */wait*'}, do: server_kill, seconds: 3}\n\
                - {at: {request: 'GET /a'}, do: server_stop, seconds: 3}\n\
                - {at: {request: 'POST */register'}, do: cancel}\n\
                - {at: {image_bytes: 7}, do: power_cut, after: 2}\n";
    let scenario = crate::scenario_parser::parse(text, "x".into(), ".".into()).expect("a scenario");
    let events = &scenario.runs[0].events;
    let trap = |request: &str, swallow, act, seconds| ResponseTrap {
        request: request.to_owned(),
        swallow,
        act,
        time: Duration::from_secs(seconds),
    };
    let expected = [
        trap("POST */report", true, EventAction::PowerCut, 0),
        trap("GET */wait*", false, EventAction::ServerKill, 3),
        trap("POST */register", false, EventAction::Cancel, 0),
    ];
    assert_eq!(list_traps(events), expected);
    assert_eq!(list_holds(events), [7]);
    assert_eq!(events[4].after, 2);
    let failed = "+ swapon /dev/vdb\ndrophammer: before-agent: status 1\nmore\n";
    assert!(script_failure(failed).is_some_and(|words| words.ends_with("ended with 1")));
    assert_eq!(script_failure(&failed.replace("status 1", "status 0")), None);
    assert_eq!(
        script_failure("drophammer: before-agent: status 1"),
        Some("the script of `before_agent` ended with 1".into())
    );
}
