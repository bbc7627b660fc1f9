//! Output of all `list` commands: filters, sort order, columns, and output formats.

mod list_columns;
mod show_format;
#[cfg(test)]
mod tests;

pub(crate) use list_columns::{ListCell, ListColumn, ObjectList, text_of_field};
pub use show_format::{DocumentOptions, RecordOptions, SingleObjectOptions};
pub(crate) use show_format::{ShowFormat, format_value, print_single_object, print_value};

use crate::terminal_output::{print_for_terminal, replaces_screen, table_width, wants_color};
use clap::builder::FalseyValueParser;
use clap::{Args, ValueEnum};
use common::command_outcome::{CommandOutcome, report_refusal};
use common::error::{Context, Error, Phase, Result};
use common::error_code::ErrorCode;
use common::format::replace_hidden;
use common::format::table::{TableCell, TableColumn, TableFormat, format_table};
use common::output::{is_output_closed, print_note, redraw_screen, to_json};
use common::yaml::block_writer::to_block_yaml;
use serde::Serialize;
use std::time::Duration;

/// Options of all `list` commands.
#[derive(Debug, Clone, Default, Args)]
pub struct ListOptions {
    /// Output format [env: DROPHAMMER_OUTPUT] [default: table].
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    pub output: Option<OutputFormat>,
    /// List only objects with this value, or with one of several values separated by commas. If the option is specified
    /// several times, objects must match all filters. The keys are the titles of the columns of `-o wide`. Case is
    /// ignored, and `*` in a value matches any text: phase=failed,waiting or image=debian-12*.
    #[arg(long, value_name = "KEY=VALUE[,VALUE]")]
    pub filter: Vec<String>,
    /// Sort by this column; -KEY sorts in descending order [default: the first column].
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    pub sort: Option<String>,
    /// Print only the names, like `-o name`.
    #[arg(short, long)]
    pub quiet: bool,
    /// Omit the titles of the columns.
    #[arg(long, env = "DROPHAMMER_NO_HEADERS", value_parser = FalseyValueParser::new())]
    pub no_headers: bool,
}

/// Output format of a list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// The most important columns, as wide as the terminal.
    #[default]
    #[value(alias = "text")]
    Table,
    /// All columns, in lines of any length.
    Wide,
    /// The server's response, like --json.
    Json,
    /// The server's response as YAML.
    Yaml,
    /// One name per line.
    Name,
}

impl ListOptions {
    /// Returns the output format. `as_json` is true if `--json` or `DROPHAMMER_JSON` is set. The options `--quiet` and
    /// `--output` take precedence over `as_json`, and `as_json` over `DROPHAMMER_OUTPUT`.
    ///
    /// # Errors
    /// Returns an error if `DROPHAMMER_OUTPUT` contains an unknown format.
    pub(crate) fn output_format(&self, as_json: bool) -> Result<OutputFormat> {
        match (self.quiet, self.output, as_json) {
            (true, _, _) => Ok(OutputFormat::Name),
            (false, Some(format), _) => Ok(format),
            (false, None, true) => Ok(OutputFormat::Json),
            (false, None, false) => read_default_format(),
        }
    }

    /// Returns whether the output is a table for people, not a format for programs.
    ///
    /// # Errors
    /// Returns an error if `DROPHAMMER_OUTPUT` contains an unknown format.
    pub(crate) fn is_for_readers(&self, as_json: bool) -> Result<bool> {
        Ok(matches!(self.output_format(as_json)?, OutputFormat::Table | OutputFormat::Wide))
    }
}

/// Returns the format in `DROPHAMMER_OUTPUT`.
fn read_default_format() -> Result<OutputFormat> {
    parse_default_format(std::env::var("DROPHAMMER_OUTPUT").ok().as_deref())
}

/// Parses the value of `DROPHAMMER_OUTPUT`. An absent or empty value is the default.
fn parse_default_format(value: Option<&str>) -> Result<OutputFormat> {
    let Some(value) = value.filter(|value| !value.is_empty()) else { return Ok(OutputFormat::default()) };
    OutputFormat::from_str(value, false).map_err(|_| {
        list_refusal(format!("DROPHAMMER_OUTPUT: unknown format {value:?}; formats: table, wide, json, yaml, name"))
    })
}

/// Prints the objects that match all filters.
///
/// # Errors
/// Returns an error if standard output cannot be written.
pub(crate) fn print_list<T: Serialize>(
    list: &ObjectList<'_, T>,
    objects: &[T],
    options: &ListOptions,
    as_json: bool,
) -> Result<CommandOutcome> {
    report_refusal(format_for_terminal(list, objects, options, as_json).and_then(|text| {
        if text.is_empty() {
            print_empty_note(list.noun, options);
        }
        print_for_terminal(&text).map(|()| CommandOutcome::Good)
    }))
}

fn print_empty_note(noun: &str, options: &ListOptions) {
    let filters = if options.filter.is_empty() { "" } else { " that match the filters" };
    print_note(&format!("No {noun}{filters}."));
}

/// Prints the object with this name as YAML or JSON.
///
/// # Errors
/// Returns an error if standard output cannot be written.
pub(crate) fn print_object<T: Serialize>(
    list: &ObjectList<'_, T>,
    objects: &[T],
    name: &str,
    format: ShowFormat,
) -> Result<CommandOutcome> {
    let ObjectList { command, noun, .. } = list;
    let Some(object) = objects.iter().find(|object| (list.name)(object) == name) else {
        let missing = format!("the server has no {command} {name:?}; `drophammer {command} list` lists its {noun}");
        return report_refusal(Err(list_refusal(missing).with_code(ErrorCode::ObjectMissing)));
    };
    print_value(object, format, |_| String::new())
}

pub(crate) fn to_yaml(value: &impl Serialize) -> Result<String> {
    let value = serde_json::to_value(value);
    Ok(to_block_yaml(&value.map_err(|error| Error::with_source(Phase::Settings, "print as YAML", error))?))
}

/// Formats the objects that match all filters, for standard output.
///
/// # Errors
/// Returns an error if a filter or the sort key is invalid.
pub(crate) fn format_for_terminal<T: Serialize>(
    list: &ObjectList<'_, T>,
    objects: &[T],
    options: &ListOptions,
    as_json: bool,
) -> Result<String> {
    let has_titles = !options.no_headers;
    let table = TableFormat { width: table_width(), has_titles, is_styled: wants_color() };
    format_list(list, objects, options, options.output_format(as_json)?, table)
}

fn format_list<T: Serialize>(
    list: &ObjectList<'_, T>,
    objects: &[T],
    options: &ListOptions,
    format: OutputFormat,
    table: TableFormat,
) -> Result<String> {
    let chosen = choose_objects(list, objects, options, format)?;
    Ok(match format {
        OutputFormat::Json => to_json(&chosen)? + "\n",
        OutputFormat::Yaml => to_yaml(&chosen)?,
        OutputFormat::Name => {
            chosen.iter().map(|object| format!("{}\n", replace_hidden(&(list.name)(object)))).collect()
        }
        OutputFormat::Table => format_columns_of(list, &chosen, |column| !column.is_wide, table),
        OutputFormat::Wide => format_columns_of(list, &chosen, |_| true, TableFormat { width: None, ..table }),
    })
}

/// Prints the next objects of a list that grows. The titles of the columns are printed only before the first objects.
/// JSON is printed as one object per line. Returns whether anything was printed.
///
/// # Errors
/// Returns an error if a filter or the sort key is invalid, or standard output cannot be written.
pub(crate) fn print_list_part<T: Serialize>(
    list: &ObjectList<'_, T>,
    objects: &[T],
    options: &ListOptions,
    as_json: bool,
    is_first: bool,
) -> Result<bool> {
    let text = match options.output_format(as_json)? {
        OutputFormat::Json => format_json_lines(list, objects, options)?,
        _ if objects.is_empty() && !is_first => String::new(),
        _ => {
            let options = ListOptions { no_headers: options.no_headers || !is_first, ..options.clone() };
            format_for_terminal(list, objects, &options, as_json)?
        }
    };
    print_for_terminal(&text)?;
    Ok(!text.is_empty())
}

/// Formats the objects that match all filters as JSON, one object per line.
fn format_json_lines<T: Serialize>(list: &ObjectList<'_, T>, objects: &[T], options: &ListOptions) -> Result<String> {
    let chosen = choose_objects(list, objects, options, OutputFormat::Json)?;
    let to_line = |object: &&T| serde_json::to_string(object).map(|line| line + "\n");
    chosen.iter().map(to_line).collect::<serde_json::Result<String>>().context(Phase::Settings, || "print as JSON")
}

/// Returns the objects that match all filters, in the order in which they are printed.
fn choose_objects<'a, T>(
    list: &ObjectList<'_, T>,
    objects: &'a [T],
    options: &ListOptions,
    format: OutputFormat,
) -> Result<Vec<&'a T>> {
    let mut chosen = select_objects(list, objects, &options.filter).map_err(list_refusal)?;
    // JSON and YAML keep the order of the server, unless another order is requested.
    if options.sort.is_some() || !matches!(format, OutputFormat::Json | OutputFormat::Yaml) {
        list.sort(&mut chosen, options.sort.as_deref()).map_err(list_refusal)?;
    }
    Ok(chosen)
}

/// Returns the objects that match all filters.
///
/// # Errors
/// Returns an error if a filter is invalid.
pub(crate) fn select_objects<'a, T>(
    list: &ObjectList<'_, T>,
    objects: &'a [T],
    filters: &[String],
) -> std::result::Result<Vec<&'a T>, String> {
    let mut chosen: Vec<&T> = objects.iter().collect();
    for filter in filters {
        let (column, patterns) = list.parse_filter(filter)?;
        let patterns = list.split_patterns(column, patterns)?;
        chosen.retain(|object| {
            let cell = (column.cell)(object);
            matches_any(&cell.text, &patterns) || cell.value.is_some_and(|value| matches_any(&value, &patterns))
        });
    }
    Ok(chosen)
}

/// Formats the selected columns as a table, or returns an empty string if there are no objects.
fn format_columns_of<T>(
    list: &ObjectList<'_, T>,
    objects: &[&T],
    is_shown: impl Fn(&ListColumn<'_, T>) -> bool,
    table: TableFormat,
) -> String {
    if objects.is_empty() {
        return String::new();
    }
    let columns: Vec<&ListColumn<'_, T>> = list.columns.iter().filter(|column| is_shown(column)).collect();
    let titles: Vec<TableColumn> = columns.iter().map(|column| column.table_column()).collect();
    let cells = |object: &&T| columns.iter().map(|column| (column.cell)(object).into_table_cell()).collect();
    let rows: Vec<Vec<TableCell>> = objects.iter().map(cells).collect();
    format_table(&titles, &rows, table)
}

/// Formats all columns of a list, as `-o wide` does.
#[cfg(test)]
pub(crate) fn format_wide<T: Serialize>(list: &ObjectList<'_, T>, objects: &[T]) -> String {
    let table = TableFormat { has_titles: true, ..TableFormat::default() };
    format_list(list, objects, &ListOptions::default(), OutputFormat::Wide, table).unwrap()
}

fn list_refusal(why: String) -> Error {
    Error::refusal(Phase::Settings, why)
}

/// Returns whether the text matches one of the patterns.
fn matches_any(text: &str, patterns: &[&str]) -> bool {
    patterns.iter().any(|pattern| matches_pattern(text, pattern))
}

/// Returns whether the text matches the pattern, regardless of case. `*` in the pattern matches any text.
fn matches_pattern(text: &str, pattern: &str) -> bool {
    // A cell without a value is printed as a hyphen, so the pattern `-` matches it.
    if pattern == "-" {
        return text.is_empty();
    }
    let (text, pattern) = (text.to_lowercase(), pattern.to_lowercase());
    let mut parts = pattern.split('*');
    let Some(mut rest) = text.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// Fetches and prints a list repeatedly, until a request fails. On a terminal, each list replaces the previous one.
/// Otherwise, a list is printed only if it differs from the previous one. Ends when the reader of standard output
/// closes the pipe.
///
/// # Errors
/// Returns the error of the request that has failed.
pub(crate) fn watch_list(pause: Duration, mut fetch: impl FnMut() -> Result<Option<String>>) -> Result<CommandOutcome> {
    let mut previous = None;
    while let Some(text) = fetch()? {
        if replaces_screen() {
            redraw_screen(&text)?;
        } else if previous.as_ref() != Some(&text) {
            print_for_terminal(&text)?;
        }
        if is_output_closed() {
            return Ok(CommandOutcome::Good);
        }
        previous = Some(text);
        std::thread::sleep(pause);
    }
    Ok(CommandOutcome::Refused)
}
