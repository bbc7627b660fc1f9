//! Progress lines on a terminal: one line for each of the most recently active machines, and one common line for all
//! other machines.

use super::MachineOrigin;
use common::format::terminal_escaping::escape_line;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use std::collections::{HashMap, HashSet};

/// Maximum number of lines. The line of a further machine replaces the line of the least recently active machine.
const LINES: usize = 40;

pub struct MachineBars {
    pub lines: MultiProgress,
    machines: HashMap<String, MachineBar>,
    /// Number of changes of all lines so far. Each line records this number at its last change, so that the least
    /// recently changed line can be found.
    changes: u64,
    /// Machines whose line was removed because other machines have changed more recently.
    hidden: HashSet<String>,
    hidden_line: Option<ProgressBar>,
}

struct MachineBar {
    bar: ProgressBar,
    changed: u64,
}

impl MachineBars {
    pub fn new(lines: MultiProgress) -> MachineBars {
        MachineBars { lines, machines: HashMap::new(), changes: 0, hidden: HashSet::new(), hidden_line: None }
    }

    /// Returns the line of a machine. Creates the line if it does not exist.
    pub fn machine_bar(&mut self, who: &MachineOrigin) -> ProgressBar {
        self.hidden.remove(&who.machine);
        if !self.machines.contains_key(&who.machine) && self.machines.len() >= LINES {
            self.hide_one();
        }
        self.changes += 1;
        let (lines, changed) = (&self.lines, self.changes);
        let new = || MachineBar { bar: lines.insert(0, ProgressBar::new_spinner()), changed };
        let machine = self.machines.entry(who.machine.clone()).or_insert_with(new);
        machine.changed = changed;
        machine.bar.set_prefix(escape_line(&who.to_string()).into_owned());
        machine.bar.clone()
    }

    /// Removes the line of the least recently active machine.
    fn hide_one(&mut self) {
        let oldest = self.machines.iter().min_by_key(|(_, machine)| machine.changed).map(|(id, _)| id.clone());
        let Some((machine_id, machine)) = oldest.and_then(|id| self.machines.remove_entry(&id)) else { return };
        self.lines.remove(&machine.bar);
        self.hidden.insert(machine_id);
        let new = || {
            let bar = self.lines.add(ProgressBar::new_spinner());
            bar.set_style(ProgressStyle::with_template("{wide_msg}").unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar
        };
        let line = self.hidden_line.get_or_insert_with(new);
        line.set_message(format!(
            "machines that are not shown, because they were active less recently: {count}",
            count = self.hidden.len()
        ));
    }

    /// Prints a line of the log above the progress lines of the machines.
    pub fn print_line(&self, line: &str) -> std::io::Result<()> {
        self.lines.println(escape_line(line))
    }

    pub fn end(&self) {
        self.machines.values().for_each(|machine| machine.bar.abandon());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client_address::ClientAddress;
    use indicatif::ProgressDrawTarget;

    #[test]
    fn progress_lines_are_limited_and_hidden_machines_counted() {
        let mut bars = MachineBars::new(MultiProgress::with_draw_target(ProgressDrawTarget::hidden()));
        let who = |number: u32| MachineOrigin::new(&number.to_string(), "n", ClientAddress([10, 0, 0, 1].into()));
        for number in 0..1000 {
            bars.machine_bar(&who(number));
            // Machine 0 is active all the time.
            bars.machine_bar(&who(0));
        }
        assert_eq!((bars.machines.len(), bars.hidden.len()), (LINES, 1000 - LINES));
        assert!(bars.machines.contains_key("0") && bars.machines.contains_key("999"));
        assert!(!bars.machines.contains_key("1"));
        let line = bars.hidden_line.as_ref().unwrap().message();
        assert!(line.ends_with("active less recently: 960"), "{line}");
    }

    #[test]
    fn machine_that_regains_its_line_is_no_longer_counted() {
        let mut bars = MachineBars::new(MultiProgress::with_draw_target(ProgressDrawTarget::hidden()));
        let who = |number: usize| MachineOrigin::new(&number.to_string(), "n", ClientAddress([10, 0, 0, 1].into()));
        for number in (0..=LINES).cycle().take(10 * LINES) {
            bars.machine_bar(&who(number));
        }
        assert_eq!((bars.machines.len(), bars.hidden.len()), (LINES, 1));
        let line = bars.hidden_line.as_ref().unwrap().message();
        assert!(line.ends_with("active less recently: 1"), "{line}");
    }
}
