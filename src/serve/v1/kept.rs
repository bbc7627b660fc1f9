//! Files that the calls change: whole or not at all, one at a time, and never over the edit of a person. A change is answered
//! when it is in force.

mod disk;

use super::answer::{Answered, Refused};
use crate::serve::App;
use crate::serve::directory::Directory;
use crate::yaml::edit;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;
use disk::Done;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A look at the directory takes less, also where it is long.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often it is looked whether a person has changed the file meanwhile.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Names of files have 255 bytes at most.
const LONGEST_NAME: usize = 200;

/// What a call is about.
#[derive(Clone, Copy)]
pub struct What<'a> {
    /// metal-api's word.
    pub kind: &'a str,
    pub id: &'a str,
}

impl What<'_> {
    pub fn unknown(self) -> Refused {
        Refused::unknown(self.kind, self.id)
    }

    /// Both sides: what the file says now, and what the call would have it say.
    pub fn changed(self, path: &Path, now: Option<&str>, yours: &Value) -> Refused {
        let file = json!({"path": path.display().to_string(), "text": now});
        Refused::changed(self.kind, self.id, json!({"file": file, "yours": yours}))
    }
}

/// Where something of that id is kept, in a folder of the server's directory. No id leads out of it.
pub fn path(folder: &Path, id: &str) -> PathBuf {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let starts = id.starts_with(|c: char| c.is_ascii_alphanumeric());
    if starts && id.chars().all(plain) && id.len() <= LONGEST_NAME {
        return folder.join(format!("{id}.yaml"));
    }
    let name: String = id.chars().take(40).map(|c| if plain(c) { c } else { '-' }).collect();
    let name = name.trim_start_matches(['.', '-']);
    folder.join(format!("{name}-{}.yaml", &hex(id.as_bytes())[..12]))
}

/// Tells one version from another.
pub fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Does the caller know the version that is in force? Whoever does not say so is believed.
pub fn knows(headers: &HeaderMap, tag: &str) -> bool {
    let Some(given) = headers.get(header::IF_MATCH).and_then(|given| given.to_str().ok()) else { return true };
    given
        .split(',')
        .map(|one| one.trim().trim_start_matches("W/").trim_matches('"'))
        .any(|one| one == "*" || one == tag)
}

/// With the version in its head.
pub fn tagged(mut response: Response, tag: &str) -> Response {
    if let Ok(value) = HeaderValue::from_str(&format!("\"{tag}\"")) {
        response.headers_mut().insert(header::ETAG, value);
    }
    response
}

/// What the file says; none where it is gone.
pub async fn read(path: &Path) -> Answered<Option<String>> {
    let path = path.to_owned();
    let what = format!("read {}", path.display());
    let read = tokio::task::spawn_blocking(move || match std::fs::read_to_string(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        read => read.map(Some),
    });
    done(&what, read.await)
}

/// Makes a file that must not be there yet.
pub async fn make(path: &Path, text: &str) -> Answered<()> {
    let (there, text) = (path.to_owned(), text.to_owned());
    match done(
        &format!("write {}", path.display()),
        tokio::task::spawn_blocking(move || disk::make(&there, &text)).await,
    )? {
        Done::Yes => Ok(()),
        Done::Changed => Err(Refused::taken(format!("{} is there, and says something else", path.display()))),
    }
}

/// Puts `new` in the place of `old`. False where the file no longer says `old`.
pub async fn put(path: &Path, old: &str, new: &str) -> Answered<bool> {
    let (there, old, new) = (path.to_owned(), old.to_owned(), new.to_owned());
    let what = format!("write {}", path.display());
    let put = tokio::task::spawn_blocking(move || disk::put(&there, &old, &new));
    Ok(matches!(done(&what, put.await)?, Done::Yes))
}

/// Takes the file away. False where it no longer says `old`.
pub async fn remove(path: &Path, old: &str) -> Answered<bool> {
    let (there, old) = (path.to_owned(), old.to_owned());
    let what = format!("remove {}", path.display());
    let removed = tokio::task::spawn_blocking(move || disk::remove(&there, &old));
    Ok(matches!(done(&what, removed.await)?, Done::Yes))
}

fn done<T>(what: &str, result: Result<std::io::Result<T>, tokio::task::JoinError>) -> Answered<T> {
    let failed = |error: String| Refused::failed(format!("{what}: {error}"));
    result.map_err(|error| failed(error.to_string()))?.map_err(|error| failed(error.to_string()))
}

/// Has the directory looked at, and waits until the picture of it is so. `now` is what the call has made of the file.
pub async fn published(app: &App, path: &Path, now: Option<&str>, is_so: impl Fn(&Directory) -> bool) -> Answered<()> {
    app.state_has_changed();
    let mut directory = app.directory.clone();
    let began = tokio::time::Instant::now();
    while began.elapsed() < PATIENCE {
        let seen = tokio::time::timeout(LOOK_EVERY, directory.wait_for(|directory| is_so(directory))).await;
        match seen.map(|seen| seen.map(drop)) {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(_)) => break,
            Err(_) if read(path).await?.as_deref() != now => {
                let why =
                    "has been changed again since this call has written it: look at it, and at the server's output";
                return Err(Refused::taken(format!("{} {why}", path.display())));
            }
            Err(_) => {}
        }
    }
    let why = "is changed, and the change is not in force yet: see the server's output";
    Err(Refused::failed(format!("{} {why}", path.display())))
}

/// A text with a change, or the reason why it would lose what a person has written.
pub fn changed_text(
    path: &Path,
    text: &str,
    change: impl FnOnce(&str) -> Option<edit::Edited>,
    anew: String,
    is_right: impl Fn(&str) -> bool,
) -> Answered<edit::Edited> {
    if let Some(edited) = change(text).filter(|edited| is_right(&edited.text)) {
        return Ok(edited);
    }
    let what = match (edit::has_comments(text), is_right(&anew)) {
        (false, true) => return Ok(edit::Edited { text: anew, gone: Vec::new() }),
        (true, true) => {
            "this change cannot be written so that its comments stay where they belong: change the file itself"
        }
        (_, false) => "YAML has no way to write this so that the same is read again",
    };
    Err(Refused::unprocessable(format!("{}: {what}", path.display())))
}

/// Says in the output what has gone with a change.
pub fn note_gone(app: &App, path: &Path, gone: &[String]) {
    if !gone.is_empty() {
        let what = "with what a call took out, these comments have gone";
        app.watch.note(format!("{}: {what}: {}", path.display(), gone.join(" ")));
    }
}

/// Says it to the caller too.
pub fn tell_gone(app: &App, path: &Path, gone: &[String], response: &mut Response) {
    note_gone(app, path, gone);
    let text = format!("299 drophammer \"{} comments have gone with what was taken out\"", gone.len());
    if let (false, Ok(value)) = (gone.is_empty(), HeaderValue::from_str(&text)) {
        response.headers_mut().insert(header::WARNING, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_id_leads_out_of_its_folder() {
        let folder = Path::new("/d/layouts");
        assert_eq!(path(folder, "debian-12.0"), folder.join("debian-12.0.yaml"));
        let long = "x".repeat(4000);
        for id in ["", "..", "../../etc/passwd", "a/b", ".hidden", "-", "ü", "a\nb", long.as_str()] {
            let path = path(folder, id);
            assert_eq!(path.parent(), Some(folder), "{id:?}");
            let name = path.file_name().unwrap().to_str().unwrap();
            assert!(name.len() < 60 && name.ends_with(".yaml") && !name.starts_with('.'), "{name}");
        }
        assert_ne!(path(folder, "a/b"), path(folder, "a:b"));
    }

    #[test]
    fn versions_are_compared_as_http_has_them() {
        let headers = |given: &str| HeaderMap::from_iter([(header::IF_MATCH, HeaderValue::from_str(given).unwrap())]);
        assert!(knows(&HeaderMap::new(), "a"));
        for good in ["\"a\"", "*", "\"b\", \"a\"", "W/\"a\"", "a"] {
            assert!(knows(&headers(good), "a"), "{good}");
        }
        assert!(!knows(&headers("\"b\""), "a") && !knows(&headers(""), "a"));
    }
}
