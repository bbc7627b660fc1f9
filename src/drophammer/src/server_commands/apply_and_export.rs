//! `drophammer apply` and `drophammer export`: copy the documents of a directory to the database that several servers
//! share, and back.

mod exported_files;
mod redacted_diff;
mod unified_diff;

use super::connection::ServerOptions;
use super::{OperatorClient, OperatorResponse, print_json, print_refusal};
use ::api::site_documents::{
    DocumentAction, DocumentApplication, DocumentEffect, DocumentExport, DocumentReport, SiteDocument,
};
use clap::Args;
use clap::builder::FalseyValueParser;
use common::command_outcome::CommandOutcome;
use common::error::{Context, Error, Phase, Result};
use common::error_code::ErrorCode;
use common::format::terminal_escaping::escape_line;
use common::output::{print_error, print_text};
use reqwest::Method;
use site::documents::directory_import::{ImportedDirectory, read_directory};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// Time limit for the response. The server checks all documents before it stores them.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(300);

#[derive(Debug, Args)]
pub struct ApplyOptions {
    /// Directory with machines/, layouts/, images/ and the other documents.
    #[arg(short = 'f', long = "file", value_name = "DIR")]
    pub dir: PathBuf,
    /// Check the documents and print what would change, with a unified diff, but change nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// Delete the stored documents that the directory does not contain. Machines that are in use are never deleted.
    #[arg(long)]
    pub prune: bool,
    /// Permit the documents to replace the lock, the disk key and the allocation of this machine, which were changed at
    /// the server. The machine is specified by id or name; the option may be repeated.
    #[arg(long, value_name = "MACHINE")]
    pub overwrite: Vec<String>,
    /// Exit with 4 if documents have changed, or would change with --dry-run, and with 3 if documents are deleted.
    #[arg(long)]
    pub detailed_exitcode: bool,
    /// Print passwords, keys and other hidden lines in the diff.
    #[arg(long, requires = "dry_run")]
    pub show_secrets: bool,
    #[command(flatten)]
    pub of: ServerOptions,
    /// Print the server's response as JSON.
    #[arg(long, env = "DROPHAMMER_JSON", value_parser = FalseyValueParser::new())]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ExportOptions {
    /// Empty or new directory to which the documents are written.
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Write to a directory that is not empty. Documents in the directory are overwritten; other files are preserved.
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub of: ServerOptions,
}

/// Stores the documents of a directory in the server's database.
///
/// # Errors
/// Returns an error if the directory cannot be read, or the server cannot be reached or fails.
pub fn run_apply(options: &ApplyOptions) -> Result<CommandOutcome> {
    let imported =
        read_directory(&options.dir).context(Phase::Settings, || format!("read {}", options.dir.display()))?;
    let ImportedDirectory { documents, problems, readable_secrets, ignored } = imported;
    for path in &readable_secrets {
        let what = "contains secrets and is readable by all users of this host";
        print_error(&format!("{} {what}: run chmod o-r {0}", path.display()));
    }
    if !problems.is_empty() {
        return Ok(print_refusal(&ErrorCode::SiteFile.annotate(problems.join("\n"))));
    }
    if documents.is_empty() {
        let why = format!(
            "{}: contains no documents; specify a directory with machines/, layouts/ or images/",
            options.dir.display()
        );
        return Err(Error::refusal(Phase::Settings, why));
    }
    let documents: Vec<SiteDocument> = documents
        .into_iter()
        .map(|(path, content)| SiteDocument { path, text: content.text, executable: content.executable })
        .collect();
    let texts: BTreeMap<String, String> = documents.iter().map(|one| (one.path.clone(), one.text.clone())).collect();
    let document_application = DocumentApplication {
        documents,
        prune: options.prune,
        dry_run: options.dry_run,
        overwrite: options.overwrite.clone(),
    };
    let server = OperatorClient::new(&options.of)?;
    let request =
        server.request(Method::POST, "/v1/documents/apply").timeout(REQUEST_TIMEOUT).json(&document_application);
    let report: DocumentReport = match server.send_json(request)? {
        OperatorResponse::Refused(why) => return Ok(print_refusal(&why)),
        OperatorResponse::Good(report) => report,
    };
    match options.json {
        true => drop(print_json(&report)?),
        false => {
            print_text(&describe_report(&report, &texts, options.show_secrets))?;
            for path in &ignored {
                print_error(&format!("{}: not a document; the file stays in the directory", path.display()));
            }
        }
    }
    Ok(choose_outcome(&report, options.detailed_exitcode))
}

fn choose_outcome(report: &DocumentReport, is_detailed: bool) -> CommandOutcome {
    let has = |is_counted: fn(&DocumentEffect) -> bool| report.documents.iter().any(is_counted);
    match () {
        () if !is_detailed => CommandOutcome::Good,
        () if has(|one| one.action == DocumentAction::Deleted) => CommandOutcome::Erases,
        () if has(|one| one.action.is_change()) => CommandOutcome::Changes,
        () => CommandOutcome::Good,
    }
}

/// Returns a line for each document that changes, the diffs of a dry run, and the number of documents.
fn describe_report(report: &DocumentReport, texts: &BTreeMap<String, String>, show_secrets: bool) -> String {
    let mut text = String::new();
    let mut counts = BTreeMap::<DocumentAction, usize>::new();
    for one in &report.documents {
        *counts.entry(one.action).or_default() += 1;
        if one.action == DocumentAction::Unchanged {
            continue;
        }
        text += &format!("{:<9} {}\n", action_name(one.action, report.dry_run), escape_line(&one.path));
        if report.dry_run && one.action.is_change() && one.action != DocumentAction::Imported {
            let after = texts.get(&one.path).filter(|_| one.action != DocumentAction::Deleted);
            let pair = (one.before.as_deref(), after.map(String::as_str));
            text += &redacted_diff::render_difference(&one.path, pair, show_secrets);
        }
    }
    let counts: Vec<String> =
        counts.iter().map(|(action, count)| format!("{count} {}", action_name(*action, report.dry_run))).collect();
    let revision = report.revision.map(|revision| format!(", revision {revision}")).unwrap_or_default();
    let end = if report.dry_run { "; nothing was stored" } else { "" };
    text + &format!("{}{revision}{end}\n", counts.join(", "))
}

fn action_name(action: DocumentAction, dry_run: bool) -> &'static str {
    match (action, dry_run) {
        (DocumentAction::Created, false) => "created",
        (DocumentAction::Created, true) => "create",
        (DocumentAction::Changed, false) => "changed",
        (DocumentAction::Changed, true) => "change",
        (DocumentAction::Deleted, false) => "deleted",
        (DocumentAction::Deleted, true) => "delete",
        (DocumentAction::Imported, false) => "imported",
        (DocumentAction::Imported, true) => "import",
        (DocumentAction::Retained, _) => "retained",
        (DocumentAction::Unchanged, _) => "unchanged",
    }
}

/// Writes all documents of the server to a directory.
///
/// # Errors
/// Returns an error if the directory cannot be written, or the server cannot be reached or fails.
pub fn run_export(options: &ExportOptions) -> Result<CommandOutcome> {
    exported_files::check_directory(&options.dir, options.force)?;
    let server = OperatorClient::new(&options.of)?;
    let request = server.request(Method::POST, "/v1/documents/export").timeout(REQUEST_TIMEOUT);
    let exported: DocumentExport = match server.send_json(request)? {
        OperatorResponse::Refused(why) => return Ok(print_refusal(&why)),
        OperatorResponse::Good(exported) => exported,
    };
    exported_files::write_documents(&options.dir, &exported.documents)?;
    let count = exported.documents.len();
    let revision = exported.revision.map(|revision| format!(", revision {revision}")).unwrap_or_default();
    print_text(&format!("{count} documents written to {}{revision}\n", options.dir.display()))?;
    Ok(CommandOutcome::Good)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effect(path: &str, action: DocumentAction, before: Option<&str>) -> DocumentEffect {
        DocumentEffect { path: path.to_owned(), action, sha256: None, before: before.map(str::to_owned) }
    }

    fn report(documents: Vec<DocumentEffect>) -> DocumentReport {
        DocumentReport { dry_run: true, revision: Some(3), documents }
    }

    #[test]
    fn a_dry_run_prints_changes_without_secrets() {
        let documents = vec![
            effect("layouts/a.yaml", DocumentAction::Unchanged, None),
            effect("machines/b.yaml", DocumentAction::Changed, Some("id: b\nname: b\nbmc:\n  password: hunter2\n")),
            effect("sizes/c.yaml", DocumentAction::Deleted, Some("id: c\n")),
        ];
        let new = "id: b\nname: bee\nbmc:\n  password: hunter3\n".to_owned();
        let texts = BTreeMap::from([("machines/b.yaml".to_owned(), new)]);
        let text = describe_report(&report(documents.clone()), &texts, false);
        for expected in
            ["change    machines/b.yaml\n", "-name: b\n", "+name: bee\n", "delete    sizes/c.yaml\n", "-id: c\n"]
        {
            assert!(text.contains(expected), "{expected:?}: {text}");
        }
        assert!(text.ends_with("1 change, 1 unchanged, 1 delete, revision 3; nothing was stored\n"), "{text}");
        assert!(!text.contains("hunter"), "{text}");
        assert!(describe_report(&report(documents), &texts, true).contains("+  password: hunter3\n"));
    }

    #[test]
    fn the_exit_code_distinguishes_changes_and_deletions() {
        let change = || effect("layouts/a.yaml", DocumentAction::Changed, None);
        let same = || effect("layouts/b.yaml", DocumentAction::Unchanged, None);
        let deleted = || effect("layouts/c.yaml", DocumentAction::Deleted, None);
        for (documents, expected) in [
            (vec![same()], CommandOutcome::Good),
            (vec![same(), change()], CommandOutcome::Changes),
            (vec![change(), deleted()], CommandOutcome::Erases),
        ] {
            let report = report(documents);
            assert_eq!(choose_outcome(&report, true), expected);
            assert_eq!(choose_outcome(&report, false), CommandOutcome::Good);
        }
    }
}
