//! `--watch`: repeats the output of a command.

use super::{OperatorResponse, print_refusal};
use crate::object_list::{ListOptions, ObjectList, format_for_terminal, print_list, watch_list};
use clap::Args;
use clap::builder::FalseyValueParser;
use common::command_outcome::{CommandOutcome, report_refusal};
use common::error::Result;
use serde::Serialize;
use std::time::Duration;

/// Time between two requests.
const WATCH_PAUSE: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, Copy, Default, Args)]
pub struct WatchOptions {
    /// Repeat the output every two seconds, until Ctrl-C.
    #[arg(short, long, env = "DROPHAMMER_WATCH", value_parser = FalseyValueParser::new())]
    pub watch: bool,
}

/// Options of a list that can be repeated.
#[derive(Debug, Clone, Default, Args)]
pub struct WatchedListOptions {
    #[command(flatten)]
    pub list: ListOptions,
    #[command(flatten)]
    pub watch: WatchOptions,
}

/// Fetches objects and prints the list, repeatedly with `--watch`.
///
/// # Errors
/// Returns the error of the request that has failed.
pub(crate) fn print_watched_list<T: Serialize>(
    columns: &ObjectList<'_, T>,
    options: &WatchedListOptions,
    as_json: bool,
    fetch: impl Fn() -> Result<OperatorResponse<Vec<T>>>,
) -> Result<CommandOutcome> {
    if options.watch.watch {
        return watch_responses(fetch, |all| format_for_terminal(columns, all, &options.list, as_json));
    }
    match fetch()? {
        OperatorResponse::Refused(why) => Ok(print_refusal(&why)),
        OperatorResponse::Good(all) => print_list(columns, &all, &options.list, as_json),
    }
}

/// Sends a request and prints the response repeatedly, until a request fails or is refused.
///
/// # Errors
/// Returns the error of the request that has failed.
pub(super) fn watch_responses<T>(
    fetch: impl Fn() -> Result<OperatorResponse<T>>,
    format: impl Fn(&T) -> Result<String>,
) -> Result<CommandOutcome> {
    report_refusal(watch_list(WATCH_PAUSE, || match fetch()? {
        OperatorResponse::Good(response) => format(&response).map(Some),
        OperatorResponse::Refused(why) => {
            print_refusal(&why);
            Ok(None)
        }
    }))
}
