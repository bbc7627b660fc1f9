//! Files that are changed over the API: atomically, one at a time, and without overwriting a concurrent edit. The
//! files are in the server's directory, or in the database if several servers share it. The response to a request is
//! sent once the requested change is in effect.

pub(crate) mod database_edits;
pub(crate) mod file_edits;

use super::api_refusal::{ApiRefusal, ApiResult};
use crate::AppState;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;
use common::encoding::encode_hex;
use common::error_code::ErrorCode;
use common::yaml::edit;
use file_edits::{EditResult, StagedFile};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use site::readable_secrets::OS_FOLDER;
use site::snapshot::SiteSnapshot;
use site::yaml_folder::format_problem;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Maximum time until a change takes effect. Reading even a large directory takes less time.
const EFFECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Interval at which the file is checked for concurrent edits.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum length of an id that is used as a file name. A longer id is shortened and followed by a digest, since file
/// names are limited to 255 bytes.
const LONGEST_NAME: usize = 200;

/// Object that a request changes.
#[derive(Clone, Copy)]
pub(crate) struct EditedObject<'a> {
    /// Type of the object, as metal-api names it in error messages.
    pub kind: &'a str,
    pub id: &'a str,
}

impl EditedObject<'_> {
    pub(crate) fn not_found(self) -> ApiRefusal {
        ApiRefusal::not_found(self.kind, self.id)
    }

    /// Returns the error for a concurrent change. The error contains the current text of the file, and the text in the
    /// request.
    pub(crate) fn conflict(self, path: &Path, now: Option<&str>, yours: &Value) -> ApiRefusal {
        let file = json!({"path": path.display().to_string(), "text": now});
        ApiRefusal::concurrent_change(self.kind, self.id, json!({"file": file, "yours": yours}))
    }
}

/// Returns the path of an object's file in a folder of the server's directory. An id cannot lead to a path outside of
/// the folder.
pub(crate) fn file_path(folder: &Path, id: &str) -> PathBuf {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let starts = id.starts_with(|c: char| c.is_ascii_alphanumeric());
    if starts && id.chars().all(plain) && id.len() <= LONGEST_NAME {
        return folder.join(format!("{id}.yaml"));
    }
    let name: String = id.chars().take(40).map(|c| if plain(c) { c } else { '-' }).collect();
    let name = name.trim_start_matches(['.', '-']);
    folder.join(format!("{name}-{}.yaml", &hex_digest(id.as_bytes())[..12]))
}

/// Returns a digest that identifies a version of a file.
pub fn hex_digest(bytes: &[u8]) -> String {
    encode_hex(Sha256::digest(bytes))
}

/// Returns whether the client's `If-Match` matches the version in effect. A request without `If-Match` always matches.
pub(crate) fn matches_version(headers: &HeaderMap, tag: &str) -> bool {
    let Some(given) = headers.get(header::IF_MATCH).and_then(|given| given.to_str().ok()) else { return true };
    given
        .split(',')
        .map(|one| one.trim().trim_start_matches("W/").trim_matches('"'))
        .any(|one| one == "*" || one == tag)
}

/// Adds the version to the response as `ETag`.
pub(crate) fn add_version(mut response: Response, tag: &str) -> Response {
    if let Ok(value) = HeaderValue::from_str(&format!("\"{tag}\"")) {
        response.headers_mut().insert(header::ETAG, value);
    }
    response
}

/// Returns the error for a file that cannot be changed automatically, because the operator's newest version of it is
/// invalid. The object is then in force as in the last valid version.
pub(crate) fn invalid_file(path: &Path, problems: &str) -> ApiRefusal {
    let problems = format_problem(path, problems, false).replace('\n', "; ");
    ApiRefusal::unprocessable(format!("{problems}; nothing was changed: correct the file, then repeat the command"))
        .with_error_code(ErrorCode::SiteFile)
}

/// Reads a document. Returns `None` if the document does not exist.
pub(crate) async fn read_file(app: &AppState, path: &Path) -> ApiResult<Option<String>> {
    database_edits::refresh(app).await?;
    let (documents, path) = (app.documents.clone(), path.to_owned());
    let what = format!("read {}", path.display());
    let read = tokio::task::spawn_blocking(move || match documents.read(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        read => read.map(Some),
    });
    flatten_result(&what, read.await)
}

/// Returns the mode of a new file. Machine files and parameters of OS definitions can contain secrets, so they are not
/// world-readable.
fn creation_mode(app: &AppState, path: &Path) -> u32 {
    let can_contain_secrets = path.starts_with(&app.machines) || path.starts_with(app.dir.join(OS_FOLDER));
    if can_contain_secrets { 0o640 } else { 0o644 }
}

/// Creates a document that must not exist yet.
pub(crate) async fn create_file(app: &AppState, path: &Path, text: &str) -> ApiResult<()> {
    if let Some(stored) = database_edits::change(app, path, None, Some(text)).await? {
        return stored.require_stored(path);
    }
    let (there, text, mode) = (path.to_owned(), text.to_owned(), creation_mode(app, path));
    match flatten_result(
        &format!("write {}", path.display()),
        tokio::task::spawn_blocking(move || file_edits::create_file(&there, &text, mode)).await,
    )? {
        EditResult::Written => Ok(()),
        EditResult::Changed => {
            Err(ApiRefusal::conflict(format!("{path} already exists with other content", path = path.display())))
        }
    }
}

/// Replaces the content `old` of the document by `new`. Returns false if the document is a file whose content is no
/// longer `old`.
///
/// # Errors
/// Returns an error if the content in the database is no longer `old`. The error names the author of the other change.
pub(crate) async fn replace_file(app: &AppState, path: &Path, old: &str, new: &str) -> ApiResult<bool> {
    if let Some(stored) = database_edits::change(app, path, Some(old), Some(new)).await? {
        return stored.require_stored(path).map(|()| true);
    }
    let (there, old, new) = (path.to_owned(), old.to_owned(), new.to_owned());
    let what = format!("write {}", path.display());
    let put = tokio::task::spawn_blocking(move || file_edits::replace_content(&there, &old, &new));
    Ok(matches!(flatten_result(&what, put.await)?, EditResult::Written))
}

/// Writes the new content of a document next to its file, without putting the content into effect. Returns `None` if
/// the document is in the database.
///
/// # Errors
/// Returns an error if the file cannot be replaced: it is a symbolic link, or the new content cannot be written.
pub(crate) async fn stage_file(app: &AppState, path: &Path, new: &str) -> ApiResult<Option<StagedFile>> {
    if app.documents.stored().is_some() {
        return Ok(None);
    }
    let (there, new) = (path.to_owned(), new.to_owned());
    let what = format!("write {}", path.display());
    let staged = tokio::task::spawn_blocking(move || StagedFile::write(&there, &new));
    flatten_result(&what, staged.await).map(Some)
}

/// Puts staged content into effect. Returns false if the content of the file is no longer `old`.
pub(crate) async fn replace_staged(path: &Path, staged: StagedFile, old: &str) -> ApiResult<bool> {
    let old = old.to_owned();
    let what = format!("write {}", path.display());
    let put = tokio::task::spawn_blocking(move || staged.replace(&old));
    Ok(matches!(flatten_result(&what, put.await)?, EditResult::Written))
}

/// Removes the document with the content `old`. Returns false if the document is a file whose content is no longer
/// `old`.
///
/// # Errors
/// Fails as [`replace_file`] does.
pub(crate) async fn remove_file(app: &AppState, path: &Path, old: &str) -> ApiResult<bool> {
    if let Some(stored) = database_edits::change(app, path, Some(old), None).await? {
        return stored.require_stored(path).map(|()| true);
    }
    let (there, old) = (path.to_owned(), old.to_owned());
    let what = format!("remove {}", path.display());
    let removed = tokio::task::spawn_blocking(move || file_edits::remove_unchanged(&there, &old));
    Ok(matches!(flatten_result(&what, removed.await)?, EditResult::Written))
}

fn flatten_result<T>(what: &str, result: Result<std::io::Result<T>, tokio::task::JoinError>) -> ApiResult<T> {
    let failed = |error: String| ApiRefusal::internal_error(format!("{what}: {error}"));
    result.map_err(|error| failed(error.to_string()))?.map_err(|error| failed(error.to_string()))
}

/// Requests a reload of the directory, and waits until the published snapshot meets the condition. `now` is the content
/// of the file after the change.
pub(crate) async fn wait_until_published(
    app: &AppState,
    path: &Path,
    now: Option<&str>,
    is_so: impl Fn(&SiteSnapshot) -> bool,
) -> ApiResult<()> {
    app.request_reload();
    wait_until_in_effect(app, path, now, is_so).await
}

/// Waits until the published snapshot meets the condition. `now` is the content of the file after the change.
pub(crate) async fn wait_until_in_effect(
    app: &AppState,
    path: &Path,
    now: Option<&str>,
    is_so: impl Fn(&SiteSnapshot) -> bool,
) -> ApiResult<()> {
    let mut directory = app.directory.clone();
    let began = tokio::time::Instant::now();
    while began.elapsed() < EFFECT_TIMEOUT {
        let seen = tokio::time::timeout(CHECK_INTERVAL, directory.wait_for(|directory| is_so(directory))).await;
        match seen.map(|seen| seen.map(drop)) {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(_)) => break,
            Err(_) if read_file(app, path).await?.as_deref() != now => {
                let why = "another process changed the file after this request: check the file and the server's output";
                return Err(ApiRefusal::conflict(format!("{path}: {why}", path = path.display())));
            }
            Err(_) => {}
        }
    }
    let why = "the file was changed, but the change is not in effect yet: see the server's output";
    Err(ApiRefusal::internal_error(format!("{path}: {why}", path = path.display())))
}

/// Applies a change to the text of a file. Refuses the change if it would misplace the operator's comments.
pub(crate) fn change_text(
    path: &Path,
    text: &str,
    change: impl FnOnce(&str) -> Option<edit::EditedYaml>,
    anew: String,
    is_right: impl Fn(&str) -> bool,
) -> ApiResult<edit::EditedYaml> {
    if let Some(edited) = change(text).filter(|edited| is_right(&edited.text)) {
        return Ok(edited);
    }
    let what = match (edit::has_comments(text), is_right(&anew)) {
        (false, true) => return Ok(edit::EditedYaml { text: anew, removed_comments: Vec::new() }),
        (true, true) => {
            "the file cannot be changed automatically, because comments would be misplaced: edit the file manually"
        }
        (_, false) => "the document cannot be represented in YAML without loss",
    };
    Err(ApiRefusal::unprocessable(format!("{}: {what}", path.display())))
}

/// Logs the comments that were removed by a change.
pub(crate) fn log_removed_comments(app: &AppState, path: &Path, removed_comments: &[String]) {
    if !removed_comments.is_empty() {
        let what = "comments were removed together with the fields that they describe";
        app.watch.log_note(format!("{}: {what}: {}", path.display(), removed_comments.join(" ")));
    }
}

/// Logs the removed comments, and adds a warning to the response.
pub(crate) fn warn_removed_comments(app: &AppState, path: &Path, removed_comments: &[String], response: &mut Response) {
    log_removed_comments(app, path, removed_comments);
    let text = format!("299 drophammer \"{} comments were removed with the removed fields\"", removed_comments.len());
    if let (false, Ok(value)) = (removed_comments.is_empty(), HeaderValue::from_str(&text)) {
        response.headers_mut().insert(header::WARNING, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_paths_of_ids_never_leave_their_folder() {
        let folder = Path::new("/d/layouts");
        assert_eq!(file_path(folder, "debian-12.0"), folder.join("debian-12.0.yaml"));
        let long = "x".repeat(4000);
        for id in ["", "..", "../../etc/passwd", "a/b", ".hidden", "-", "ü", "a\nb", long.as_str()] {
            let path = file_path(folder, id);
            assert_eq!(path.parent(), Some(folder), "{id:?}");
            let name = path.file_name().unwrap().to_str().unwrap();
            assert!(name.len() < 60 && name.ends_with(".yaml") && !name.starts_with('.'), "{name}");
        }
        assert_ne!(file_path(folder, "a/b"), file_path(folder, "a:b"));
    }

    #[test]
    fn if_match_header_is_compared_as_http_specifies() {
        let headers = |given: &str| HeaderMap::from_iter([(header::IF_MATCH, HeaderValue::from_str(given).unwrap())]);
        assert!(matches_version(&HeaderMap::new(), "a"));
        for good in ["\"a\"", "*", "\"b\", \"a\"", "W/\"a\"", "a"] {
            assert!(matches_version(&headers(good), "a"), "{good}");
        }
        assert!(!matches_version(&headers("\"b\""), "a") && !matches_version(&headers(""), "a"));
    }
}
