//! Events, progress, timings and the console log: printed on the console immediately, and sent to the control plane when possible. Never
//! blocks or fails an installation.

mod sender;

use crate::console::{SAID, say};
use crate::control::Control;
use crate::error::Result;
use crate::facts::{Event, EventName, Progress, StageTime};
use crate::text;
use sender::Sender;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Minimum interval of progress lines on the console: serial consoles are slow, and logged.
const CONSOLE_PAUSE: Duration = Duration::from_secs(2);

/// Minimum interval of progress events for the control plane.
const EVENT_PAUSE: Duration = Duration::from_millis(500);

/// Reporter of the progress of an installation, on the console and to the control plane.
pub struct Reporter {
    sender: Sender,
    state: Mutex<State>,
}

struct State {
    event: EventName,
    stage: Option<String>,
    timings: Vec<StageTime>,
    progress_shown: Option<Instant>,
    progress_sent: Option<Instant>,
}

impl Reporter {
    pub fn new(control: Arc<dyn Control>) -> Reporter {
        let state = State {
            event: EventName::Preparing,
            stage: None,
            timings: Vec::new(),
            progress_shown: None,
            progress_sent: None,
        };
        Reporter { sender: Sender::new(control, &SAID), state: Mutex::new(state) }
    }

    /// Starts a new phase.
    pub fn phase(&self, event: EventName, message: &str) {
        say(&text::folded(&format!("{event:<18}  {message}"), text::CONSOLE_COLUMNS));
        self.state().event = event;
        self.send(None, None, None, message);
    }

    /// Runs a stage, and reports its start and its duration.
    ///
    /// # Errors
    /// Returns the error of `work`.
    pub fn stage<T>(&self, name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let event = {
            let mut state = self.state();
            state.stage = Some(name.to_owned());
            (state.progress_shown, state.progress_sent) = (None, None);
            state.event
        };
        say(&format!("{event:<18}  {name}"));
        self.send(Some(name), None, None, "begins");
        let began = Instant::now();
        let result = work();
        let seconds = began.elapsed().as_secs_f64();
        let message = match &result {
            Ok(_) => format!("took {}", text::seconds(seconds)),
            Err(_) => format!("failed after {}", text::seconds(seconds)),
        };
        say(&format!("{event:<18}  {name} {message}"));
        {
            let mut state = self.state();
            state.stage = None;
            state.timings.push(StageTime { stage: name.to_owned(), seconds });
        }
        self.send(Some(name), Some(seconds), None, &message);
        result
    }

    /// Prints a line that belongs to the running stage.
    pub fn say(&self, line: &str) {
        say(&text::folded(&format!("{:20}{line}", ""), text::CONSOLE_COLUMNS));
    }

    /// Reports the progress of the image. Called often; printed and sent at intervals.
    pub fn progress(&self, progress: Progress) {
        let now = Instant::now();
        let due = |last: Option<Instant>, pause| last.is_none_or(|last| now.duration_since(last) >= pause);
        let (show, send, stage) = {
            let mut state = self.state();
            let (show, send) = (due(state.progress_shown, CONSOLE_PAUSE), due(state.progress_sent, EVENT_PAUSE));
            if show {
                state.progress_shown = Some(now);
            }
            if send {
                state.progress_sent = Some(now);
            }
            (show, send, state.stage.clone())
        };
        if show {
            self.say(&progress.to_string());
        }
        if send {
            self.send(stage.as_deref(), None, Some(progress), &progress.to_string());
        }
    }

    /// Returns the duration of each completed stage.
    pub fn timings(&self) -> Vec<StageTime> {
        self.state().timings.clone()
    }

    /// Waits until queued events and the rest of the log are sent, or for at most `patience`.
    pub fn flush(&self, patience: Duration) {
        self.sender.flush(patience);
    }

    fn send(&self, stage: Option<&str>, seconds: Option<f64>, progress: Option<Progress>, message: &str) {
        let event = self.state().event;
        let stage = stage.map(str::to_owned);
        self.sender.send(Event { event, message: message.to_owned(), stage, seconds, progress });
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic while it was locked leaves no inconsistent state here.
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Error, Phase};
    use crate::testing::control::FakeControl;

    fn listener(delay: Duration) -> Arc<FakeControl> {
        Arc::new(FakeControl { delay, ..FakeControl::default() })
    }

    #[test]
    fn a_stage_is_told_before_and_after_and_timed() {
        let listener = listener(Duration::ZERO);
        let reporter = Reporter::new(listener.clone());
        reporter.phase(EventName::Installing, "debian-12");
        reporter.stage("storage.wipe", || Ok(())).unwrap();
        let failed: Result<()> = reporter.stage("image.burn", || Err(Error::new(Phase::Image, "no")));
        assert!(failed.is_err());
        reporter.flush(Duration::from_secs(10));
        let heard = listener.heard.lock().unwrap();
        let steps: Vec<_> = heard.iter().map(|event| (event.stage.as_deref(), event.seconds.is_some())).collect();
        assert_eq!(
            steps,
            [
                (None, false),
                (Some("storage.wipe"), false),
                (Some("storage.wipe"), true),
                (Some("image.burn"), false),
                (Some("image.burn"), true)
            ]
        );
        assert!(heard.iter().all(|event| event.event == EventName::Installing));
        assert_eq!(reporter.timings().len(), 2);
    }

    #[test]
    fn a_slow_control_plane_does_not_slow_the_install() {
        let reporter = Reporter::new(listener(Duration::from_secs(5)));
        let began = Instant::now();
        for _ in 0..1000 {
            reporter.phase(EventName::Installing, "on and on");
        }
        reporter.flush(Duration::from_millis(50));
        assert!(began.elapsed() < Duration::from_secs(4));
    }
}
