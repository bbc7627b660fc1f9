//! Problems of the server itself, such as a full disk. They are printed above the list of machines.

use super::{OperatorClient, OperatorResponse};
use crate::terminal_output::{wants_color, wants_colored_messages};
use ::api::server_problems::ServerProblem;
use common::format::replace_hidden;
use common::format::terminal_escaping::TextStyle;
use common::output::print_alert;
use reqwest::Method;

/// Requests the current problems. Returns none if the request fails: servers of earlier versions do not have this
/// endpoint, and any other error also occurs in the request for the list of machines, which reports the error.
fn fetch_problems(server: &OperatorClient) -> Vec<String> {
    match server.send_json::<Vec<ServerProblem>>(server.request(Method::GET, "/v1/problems")) {
        Ok(OperatorResponse::Good(problems)) => problems.into_iter().map(|problem| problem.message).collect(),
        Ok(OperatorResponse::Refused(_)) | Err(_) => Vec::new(),
    }
}

/// Prints a red line for each problem on standard error.
pub(super) fn print_problems(server: &OperatorClient) {
    for problem in fetch_problems(server) {
        print_alert(&format!("server problem: {problem}"), wants_colored_messages());
    }
}

/// Returns a red line for each problem, for a list that is redrawn on the terminal.
pub(super) fn format_problems(server: &OperatorClient) -> String {
    format_lines(&fetch_problems(server), wants_color())
}

fn format_lines(problems: &[String], is_styled: bool) -> String {
    let lines = problems.iter().map(|problem| {
        let line = replace_hidden(&format!("server problem: {problem}"));
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
        let text = render_styles(&format_lines(&problems, true));
        assert!(text.starts_with("\u{1b}[31mserver problem: /srv: no space is free (DH-714)\u{1b}["), "{text:?}");
        assert_eq!(text.lines().count(), 2);
        assert!(!text.contains("\u{1b}[2J"), "{text:?}");
        assert!(format_lines(&problems[..1], false).ends_with("is free (DH-714)\n"));
        assert_eq!(format_lines(&[], true), "");
    }
}
