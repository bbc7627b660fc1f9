//! Problems of the server itself, such as a full disk. They are printed above the list of machines.

use super::{OperatorClient, OperatorResponse};
use crate::object_list::OutputFormat;
use crate::terminal_output::{wants_color, wants_colored_messages};
use ::api::server_problems::ServerProblem;
use common::format::terminal_escaping::TextStyle;
use common::format::{format_count, replace_hidden};
use common::output::print_alert;
use reqwest::Method;

/// Maximum number of problems that are printed, except in the format `wide`.
const MAXIMUM_PRINTED_PROBLEMS: usize = 5;

/// Requests the current problems. Returns none if the request fails: servers of earlier versions do not have this
/// endpoint, and any other error also occurs in the request for the list of machines, which reports the error.
fn fetch_problems(server: &OperatorClient) -> Vec<String> {
    match server.send_json::<Vec<ServerProblem>>(server.request(Method::GET, "/v1/problems")) {
        Ok(OperatorResponse::Good(problems)) => problems.into_iter().map(|problem| problem.message).collect(),
        Ok(OperatorResponse::Refused(_)) | Err(_) => Vec::new(),
    }
}

/// Prints red lines with the problems on standard error. Only the first problems are printed, unless the format of the
/// list is `wide`.
pub(super) fn print_problems(server: &OperatorClient, format: OutputFormat) {
    for line in describe_problems(&fetch_problems(server), format) {
        print_alert(&line, wants_colored_messages());
    }
}

/// Returns the same lines as [`print_problems`] prints, for a list that is redrawn on the terminal.
pub(super) fn format_problems(server: &OperatorClient, format: OutputFormat) -> String {
    format_lines(&describe_problems(&fetch_problems(server), format), wants_color())
}

/// Returns a line for each problem, and, if problems are omitted, a line with their number.
fn describe_problems(problems: &[String], format: OutputFormat) -> Vec<String> {
    let most = if format == OutputFormat::Wide { problems.len() } else { MAXIMUM_PRINTED_PROBLEMS };
    let (printed, omitted) = problems.split_at(problems.len().min(most));
    let lines = printed.iter().map(|problem| format!("server problem: {problem}"));
    let rest = (!omitted.is_empty()).then(|| {
        let count = format_count(omitted.len(), "further server problem", "further server problems");
        format!("{count}: `drophammer machine list -o wide` lists all problems")
    });
    lines.chain(rest).collect()
}

fn format_lines(lines: &[String], is_styled: bool) -> String {
    let lines = lines.iter().map(|line| {
        let line = replace_hidden(line);
        if is_styled { TextStyle::Red.paint_text(&line) } else { line }
    });
    lines.map(|line| line + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use common::format::terminal_escaping::render_styles;

    #[test]
    fn problems_are_red_and_do_not_control_the_terminal() {
        let problems = ["/srv: no space is free (DH-714)".to_owned(), "a\u{1b}[2J".to_owned()];
        let lines = describe_problems(&problems, OutputFormat::Table);
        let text = render_styles(&format_lines(&lines, true));
        assert!(text.starts_with("\u{1b}[31mserver problem: /srv: no space is free (DH-714)\u{1b}["), "{text:?}");
        assert_eq!(text.lines().count(), 2);
        assert!(!text.contains("\u{1b}[2J"), "{text:?}");
        assert!(format_lines(&lines[..1], false).ends_with("is free (DH-714)\n"));
        assert_eq!(format_lines(&[], true), "");
    }

    #[test]
    fn only_a_wide_list_has_all_problems() {
        let problems: Vec<String> = (1..=7).map(|number| format!("problem {number}")).collect();
        let lines = describe_problems(&problems, OutputFormat::Table);
        assert_eq!(lines.len(), 6);
        assert_eq!(lines[4], "server problem: problem 5");
        assert_eq!(lines[5], "2 further server problems: `drophammer machine list -o wide` lists all problems");
        assert_eq!(describe_problems(&problems, OutputFormat::Wide).len(), 7);
        assert_eq!(describe_problems(&problems[..5], OutputFormat::Table).len(), 5);
    }
}
