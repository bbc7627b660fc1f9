//! Events, progress, timings and the console log. They are printed on the console immediately, and sent to the control
//! plane when possible. Reporting never blocks an installation, and never makes it fail.

mod event_sender;

use common::error::Result;
use common::format;
use common::sync::lock_mutex;
use control::ControlPlane;
use event_sender::EventSender;
use linux::console_log::{CONSOLE_LOG, print_line};
use model::install_report::{EventName, ProgressEvent, StageTime, TransferProgress};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Minimum interval between progress lines on the console. Serial consoles are slow, and their output is often stored.
const CONSOLE_PAUSE: Duration = Duration::from_secs(2);

/// Minimum interval between progress events for the control plane.
const EVENT_PAUSE: Duration = Duration::from_millis(500);

/// Reporter of the progress of an installation, on the console and to the control plane.
pub(crate) struct ProgressReporter {
    sender: EventSender,
    state: Mutex<ReporterState>,
}

struct ReporterState {
    event: EventName,
    stage: Option<String>,
    timings: Vec<StageTime>,
    progress_shown: Option<Instant>,
    progress_sent: Option<Instant>,
}

impl ProgressReporter {
    pub(crate) fn new(control: Arc<dyn ControlPlane>) -> ProgressReporter {
        let state = ReporterState {
            event: EventName::Preparing,
            stage: None,
            timings: Vec::new(),
            progress_shown: None,
            progress_sent: None,
        };
        ProgressReporter { sender: EventSender::new(control, &CONSOLE_LOG), state: Mutex::new(state) }
    }

    /// Starts a new phase of the installation, and reports it.
    pub(crate) fn start_phase(&self, event: EventName, message: &str) {
        print_line(&format::fold_lines(&format!("{event:<18}  {message}"), format::CONSOLE_COLUMNS));
        self.lock_state().event = event;
        self.send_event(None, None, None, message);
    }

    /// Runs a stage, and reports its start and its duration.
    ///
    /// # Errors
    /// Returns the error of `work`.
    pub(crate) fn run_stage<T>(&self, name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let event = {
            let mut state = self.lock_state();
            state.stage = Some(name.to_owned());
            (state.progress_shown, state.progress_sent) = (None, None);
            state.event
        };
        print_line(&format!("{event:<18}  {name}"));
        self.send_event(Some(name), None, None, "begins");
        let began = Instant::now();
        let result = work();
        let seconds = began.elapsed().as_secs_f64();
        let message = match &result {
            Ok(_) => format!("took {}", format::format_seconds(seconds)),
            Err(_) => format!("failed after {}", format::format_seconds(seconds)),
        };
        print_line(&format!("{event:<18}  {name} {message}"));
        {
            let mut state = self.lock_state();
            state.stage = None;
            state.timings.push(StageTime { stage: name.to_owned(), seconds });
        }
        self.send_event(Some(name), Some(seconds), None, &message);
        result
    }

    /// Prints a line that belongs to the running stage.
    pub(crate) fn print_line(&self, line: &str) {
        print_line(&format::fold_lines(&format!("{:20}{line}", ""), format::CONSOLE_COLUMNS));
    }

    /// Reports the progress of the image. The function may be called at any rate, because progress is printed and sent
    /// only at intervals.
    pub(crate) fn report_progress(&self, progress: TransferProgress) {
        let now = Instant::now();
        let due = |last: Option<Instant>, pause| last.is_none_or(|last| now.duration_since(last) >= pause);
        let (show, send, stage) = {
            let mut state = self.lock_state();
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
            self.print_line(&progress.to_string());
        }
        if send {
            self.send_event(stage.as_deref(), None, Some(progress), &progress.to_string());
        }
    }

    /// Returns the duration of each completed stage.
    pub(crate) fn stage_times(&self) -> Vec<StageTime> {
        self.lock_state().timings.clone()
    }

    /// Waits until queued events and the rest of the log are sent. Returns after `patience` even if they are not sent.
    pub(crate) fn wait_until_sent(&self, patience: Duration) {
        self.sender.wait_until_sent(patience);
    }

    fn send_event(&self, stage: Option<&str>, seconds: Option<f64>, progress: Option<TransferProgress>, message: &str) {
        let event = self.lock_state().event;
        let stage = stage.map(str::to_owned);
        self.sender.queue_event(ProgressEvent { event, message: message.to_owned(), stage, seconds, progress });
    }

    fn lock_state(&self) -> MutexGuard<'_, ReporterState> {
        // A poisoned lock is ignored, because the state is consistent even if a thread panicked while it held the lock.
        lock_mutex(&self.state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use common::error::{Error, Phase};
    use control::fake_control_plane::FakeControl;

    fn listener(delay: Duration) -> Arc<FakeControl> {
        Arc::new(FakeControl { delay, ..FakeControl::default() })
    }

    #[test]
    fn stage_is_reported_before_and_after_and_timed() {
        let listener = listener(Duration::ZERO);
        let reporter = ProgressReporter::new(listener.clone());
        reporter.start_phase(EventName::Installing, "debian-12");
        reporter.run_stage("storage.wipe", || Ok(())).unwrap();
        let failed: Result<()> = reporter.run_stage("image.burn", || Err(Error::new(Phase::Image, "no")));
        assert!(failed.is_err());
        reporter.wait_until_sent(Duration::from_secs(10));
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
        assert_eq!(reporter.stage_times().len(), 2);
    }

    #[test]
    fn slow_control_plane_does_not_slow_the_installation() {
        let reporter = ProgressReporter::new(listener(Duration::from_secs(5)));
        let began = Instant::now();
        for _ in 0..1000 {
            reporter.start_phase(EventName::Installing, "on and on");
        }
        reporter.wait_until_sent(Duration::from_millis(50));
        assert!(began.elapsed() < Duration::from_secs(4));
    }
}
