//! Output formats of all `show` commands.

use super::{ListOptions, ObjectList, OutputFormat, print_list, read_default_format, to_yaml};
use clap::builder::FalseyValueParser;
use clap::{Args, ValueEnum};
use common::command_outcome::CommandOutcome;
use common::error::Result;
use common::output::{print_text, to_json};
use serde::Serialize;

/// Options of `show` commands that print text for readers.
#[derive(Debug, Clone, Default, Args)]
pub struct RecordOptions {
    /// Output format [env: DROPHAMMER_OUTPUT] [default: table].
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    pub output: Option<RecordFormat>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RecordFormat {
    /// Text for readers.
    Table,
    /// The server's response, like --json.
    Json,
    /// The server's response as YAML.
    Yaml,
}

/// Options of `show` commands that print a document.
#[derive(Debug, Clone, Default, Args)]
pub struct DocumentOptions {
    /// Output format [env: DROPHAMMER_OUTPUT] [default: yaml].
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    pub output: Option<DocumentFormat>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DocumentFormat {
    /// The document as YAML.
    Yaml,
    /// The server's response, like --json.
    Json,
}

/// Options of commands that print one object as a table.
#[derive(Debug, Clone, Default, Args)]
pub struct SingleObjectOptions {
    /// Output format [env: DROPHAMMER_OUTPUT] [default: table].
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    pub output: Option<OutputFormat>,
    /// Omit the titles of the columns.
    #[arg(long, env = "DROPHAMMER_NO_HEADERS", value_parser = FalseyValueParser::new())]
    pub no_headers: bool,
}

/// Output format of a `show` command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShowFormat {
    /// Text for readers.
    Text,
    Json,
    Yaml,
}

impl ShowFormat {
    /// Returns the format of a command that has only the option `--json`.
    pub(crate) fn from_json_switch(as_json: bool) -> ShowFormat {
        if as_json { ShowFormat::Json } else { ShowFormat::Text }
    }

    /// Chooses the format with the same precedence as for lists: an option takes precedence over `--json`, and both
    /// take precedence over `DROPHAMMER_OUTPUT`. A format in `DROPHAMMER_OUTPUT` that only lists support is ignored.
    fn choose(given: Option<ShowFormat>, as_json: bool, default: ShowFormat) -> Result<ShowFormat> {
        match (given, as_json) {
            (Some(format), _) => Ok(format),
            (None, true) => Ok(ShowFormat::Json),
            (None, false) => Ok(match read_default_format()? {
                OutputFormat::Json => ShowFormat::Json,
                OutputFormat::Yaml => ShowFormat::Yaml,
                OutputFormat::Table | OutputFormat::Wide | OutputFormat::Name => default,
            }),
        }
    }
}

impl RecordOptions {
    /// Returns the output format. `as_json` is true if `--json` or `DROPHAMMER_JSON` is set.
    ///
    /// # Errors
    /// Returns an error if `DROPHAMMER_OUTPUT` contains an unknown format.
    pub(crate) fn show_format(&self, as_json: bool) -> Result<ShowFormat> {
        let given = self.output.map(|format| match format {
            RecordFormat::Table => ShowFormat::Text,
            RecordFormat::Json => ShowFormat::Json,
            RecordFormat::Yaml => ShowFormat::Yaml,
        });
        ShowFormat::choose(given, as_json, ShowFormat::Text)
    }
}

impl DocumentOptions {
    /// Returns the output format, as [`RecordOptions::show_format`] does.
    ///
    /// # Errors
    /// Returns an error if `DROPHAMMER_OUTPUT` contains an unknown format.
    pub(crate) fn show_format(&self, as_json: bool) -> Result<ShowFormat> {
        let given = self.output.map(|format| match format {
            DocumentFormat::Yaml => ShowFormat::Yaml,
            DocumentFormat::Json => ShowFormat::Json,
        });
        ShowFormat::choose(given, as_json, ShowFormat::Yaml)
    }
}

/// Prints one object as a table with one row, or in another format. JSON and YAML contain the object itself instead
/// of a list.
///
/// # Errors
/// Returns an error if standard output cannot be written.
pub(crate) fn print_single_object<T: Serialize>(
    columns: &ObjectList<'_, T>,
    object: T,
    options: &SingleObjectOptions,
    as_json: bool,
) -> Result<CommandOutcome> {
    let SingleObjectOptions { output, no_headers } = *options;
    let list = ListOptions { output, no_headers, ..ListOptions::default() };
    let format = match list.output_format(as_json)? {
        OutputFormat::Json => ShowFormat::Json,
        OutputFormat::Yaml => ShowFormat::Yaml,
        OutputFormat::Table | OutputFormat::Wide | OutputFormat::Name => {
            return print_list(columns, &[object], &list, as_json);
        }
    };
    print_value(&object, format, |_| String::new())
}

/// Prints a value in the requested format. `describe` returns the text for readers.
///
/// # Errors
/// Returns an error if standard output cannot be written.
pub(crate) fn print_value<T: Serialize>(
    value: &T,
    format: ShowFormat,
    describe: impl FnOnce(&T) -> String,
) -> Result<CommandOutcome> {
    print_text(&format_value(value, format, describe)?).map(|()| CommandOutcome::Good)
}

/// Formats a value as [`print_value`] does.
///
/// # Errors
/// Returns an error if the value cannot be formatted as JSON or YAML.
pub(crate) fn format_value<T: Serialize>(
    value: &T,
    format: ShowFormat,
    describe: impl FnOnce(&T) -> String,
) -> Result<String> {
    match format {
        ShowFormat::Text => Ok(describe(value)),
        ShowFormat::Json => Ok(to_json(value)? + "\n"),
        ShowFormat::Yaml => to_yaml(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_takes_precedence_over_the_switch() {
        let record = |output| RecordOptions { output };
        for (output, as_json, expected) in [
            (None, true, ShowFormat::Json),
            (Some(RecordFormat::Table), true, ShowFormat::Text),
            (Some(RecordFormat::Yaml), true, ShowFormat::Yaml),
            (Some(RecordFormat::Json), false, ShowFormat::Json),
        ] {
            assert_eq!(record(output).show_format(as_json).unwrap(), expected);
        }
        let document = |output| DocumentOptions { output };
        assert_eq!(document(Some(DocumentFormat::Yaml)).show_format(true).unwrap(), ShowFormat::Yaml);
        assert_eq!(document(None).show_format(true).unwrap(), ShowFormat::Json);
        assert_eq!(ShowFormat::from_json_switch(false), ShowFormat::Text);
    }
}
