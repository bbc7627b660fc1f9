//! Refused plans: the reasons, for events and reports, and the text of the refused plan, for the console.

use crate::failure_handling::InstallFailure;
use common::error::{Error, Phase};
use common::format::{CONSOLE_COLUMNS, fold_lines};
use linux::console_log::print_line;
use plan::PlanRefusal;

/// Returns the error of a refused plan: the reasons in one line, each with its code, because lists display only the
/// beginning of a message.
pub(crate) fn plan_refusal_error(refusal: &PlanRefusal) -> Error {
    Error::new(Phase::Plan, format!("{}; nothing was written", refusal.reasons())).with_code(refusal.code())
}

/// Prints the refused plan, with the verdict about each disk.
pub(crate) fn print_refused_plan(refusal: &PlanRefusal) {
    print_line(&format!("\n{}", fold_lines(&refusal.to_string(), CONSOLE_COLUMNS)));
}

impl InstallFailure {
    /// Creates the failure of an installation whose plan was refused. The text of the refused plan is reported as the
    /// plan.
    pub(crate) fn from_plan_refusal(refusal: &PlanRefusal) -> InstallFailure {
        let failure = InstallFailure::new_before_plan("plan", plan_refusal_error(refusal));
        InstallFailure { plan: refusal.to_string(), ..failure }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use common::diagnostic::Diagnostic;
    use common::error_code::ErrorCode;
    use plan::{InstallMode, PlanSubject};

    #[test]
    fn the_message_of_a_refused_plan_consists_of_its_reasons() {
        let problems = vec![
            Diagnostic::new("disks[0]", "/dev/sda does not exist").with_code(ErrorCode::DiskMissing),
            Diagnostic::new("", "two\nlines").with_code(ErrorCode::TooSmall),
        ];
        let refusal = PlanRefusal {
            mode: InstallMode::Install,
            subject: PlanSubject::default(),
            layout: "default".to_owned(),
            disks: Vec::new(),
            opaque: Vec::new(),
            problems,
        };
        let failure = InstallFailure::from_plan_refusal(&refusal);
        assert_eq!(
            failure.error.to_coded_text(),
            "disks[0]: /dev/sda does not exist (DH-210); two lines (DH-211); nothing was written"
        );
        assert!(failure.plan.contains("refused, for these reasons:") && failure.plan == refusal.to_string());
    }
}
