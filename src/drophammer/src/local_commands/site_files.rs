//! `drophammer site list`: the files of a server's directory.

use super::check::DocumentType;
use super::{decode_layouts, read_bytes};
use crate::object_list::{ListColumn, ObjectList};
use crate::server_commands::OperatorResponse;
use crate::server_commands::watched_output::{WatchedListOptions, print_watched_list};
use clap::Args;
use common::command_outcome::CommandOutcome;
use common::error::{Error, Phase, Result};
use model::layout;
use serde::Serialize;
use site::documents::directory_import::find_document_files;
use site::operator_files::parse_unvalidated;
use std::path::{Path, PathBuf};

#[derive(Debug, Args)]
pub struct ListSiteOptions {
    /// The server's directory.
    pub dir: PathBuf,
    #[command(flatten)]
    pub list: WatchedListOptions,
    /// Print the list as JSON.
    #[arg(long)]
    pub json: bool,
}

/// File of a server's directory.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct SiteFile {
    /// Path relative to the directory. OS definitions are folders.
    file: String,
    #[serde(rename = "type")]
    document_type: &'static str,
    /// Name or id of the object that the file describes.
    name: Option<String>,
    /// Number of problems of the file itself; `None` for files that are checked only together with other files.
    problems: Option<usize>,
}

/// Lists the files of a server's directory.
///
/// # Errors
/// Returns an error if the directory does not exist.
pub(crate) fn list_site_files(options: &ListSiteOptions) -> Result<CommandOutcome> {
    if !options.dir.is_dir() {
        let what = format!("{dir} is not a directory", dir = options.dir.display());
        return Err(Error::refusal(Phase::Settings, what));
    }
    print_watched_list(&file_columns(), &options.list, options.json, || {
        let files = find_document_files(&options.dir).into_iter();
        Ok(OperatorResponse::Good(files.map(|file| SiteFile::read_file(&options.dir, file)).collect()))
    })
}

fn file_columns() -> ObjectList<'static, SiteFile> {
    let columns = vec![
        ListColumn::new("file", |one: &SiteFile| one.file.clone()),
        ListColumn::new("type", |one: &SiteFile| one.document_type),
        ListColumn::new("name", |one: &SiteFile| one.name.clone().unwrap_or_default()),
        ListColumn::new("problems", |one: &SiteFile| match one.problems {
            Some(0) | None => String::new(),
            Some(count) => count.to_string(),
        }),
    ];
    ObjectList { command: "site", noun: "files", name: |one| one.file.clone(), columns }
}

impl SiteFile {
    fn read_file(dir: &Path, file: String) -> SiteFile {
        let path = dir.join(&file);
        if path.is_dir() {
            let document_type = DocumentType::OsDefinition;
            let name = file.rsplit('/').next().map(str::to_owned);
            let problems = Some(document_type.find_problems(&path, "", None).len());
            return SiteFile { file, document_type: document_type.nouns()[0], name, problems };
        }
        let text = match read_bytes(&path).map(|bytes| decode_layouts(&path, &bytes)) {
            Ok(Ok(text)) => text,
            Ok(Err(problems)) => {
                let document_type = DocumentType::recognize(&path, "").map_or("layout", |found| found.nouns()[0]);
                return SiteFile { file, document_type, name: None, problems: Some(problems.len()) };
            }
            Err(_) => return SiteFile { file, document_type: "unreadable", name: None, problems: Some(1) },
        };
        if file.starts_with("approved/") {
            return SiteFile { file, document_type: "approved plan", name: None, problems: None };
        }
        match DocumentType::recognize(&path, &text) {
            Some(document_type) => SiteFile {
                file,
                document_type: document_type.nouns()[0],
                name: read_name(Some(document_type), &text),
                problems: Some(document_type.find_problems(&path, &text, None).len()),
            },
            None => {
                let layouts = layout::read_all_layouts(&text);
                let problems = layouts.iter().filter_map(|one| one.as_ref().err()).map(Vec::len).sum();
                SiteFile { file, document_type: "layout", name: read_name(None, &text), problems: Some(problems) }
            }
        }
    }
}

/// Returns the name that commands use for the object in a document: for a machine, its name; otherwise its id, or its
/// name if it has no id.
fn read_name(document_type: Option<DocumentType>, text: &str) -> Option<String> {
    let document = parse_unvalidated(text).ok()?;
    let fields = if document_type == Some(DocumentType::Machine) { ["name", "id"] } else { ["id", "name"] };
    fields.into_iter().find_map(|field| document[field].as_str()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object_list::format_wide;
    use std::fs;

    #[test]
    fn files_are_listed_with_type_name_and_problems() {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("machines/a.yaml", "id: 4c4c4544-0051-3010-8052-b4c04f4d3132\nname: storage-7\n"),
            ("machines/b.yaml", "id: x\nmac: y\n"),
            ("layouts/l.yaml", "id: default\n"),
            ("sizes/c1.yaml", "id: c1\nconstraints: [{type: cores, max: 4}]\n"),
            ("images/i.yaml", "id: i\nfile: i.tar\n"),
            ("images/i.tar", ""),
            ("os/web/ganeti_api_version", "10\n"),
            ("os/web/image", "debian-12\n"),
            ("os/p.yaml", "web: [a=b]\n"),
            ("registries.json", "{"),
        ] {
            fs::create_dir_all(dir.path().join(name).parent().unwrap()).unwrap();
            fs::write(dir.path().join(name), text).unwrap();
        }
        let files = find_document_files(dir.path());
        let files: Vec<SiteFile> = files.into_iter().map(|file| SiteFile::read_file(dir.path(), file)).collect();
        let table = format_wide(&file_columns(), &files);
        let rows: Vec<Vec<&str>> = table
            .lines()
            .map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect())
            .collect();
        for expected in [
            &["FILE", "TYPE", "NAME", "PROBLEMS"][..],
            &["machines/a.yaml", "machine", "storage-7", "-"],
            &["machines/b.yaml", "machine", "x", "2"],
            &["sizes/c1.yaml", "size", "c1", "-"],
            &["images/i.yaml", "image", "i", "-"],
            &["os/web", "OS definition", "web", "-"],
            &["os/p.yaml", "file with OS parameters", "-", "-"],
            &["registries.json", "file with registry credentials", "-", "1"],
        ] {
            assert!(rows.iter().any(|row| row == expected), "{expected:?}\n{table}");
        }
        assert!(!table.contains("i.tar"), "{table}");
    }
}
