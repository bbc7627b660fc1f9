//! Update of the operator's files after a migration: the allocation is moved from one machine's file to the other's. The database has
//! recorded the new owner before, and takes precedence until the files agree. An update that was interrupted by a crash or an edit is
//! completed at the next scan.

use super::Move;
use crate::carried::Part;
use crate::serve::App;
use crate::serve::input::{self, Machine};
use crate::serve::v1::machines::FIELDS;
use crate::serve::v1::{Refused, kept};
use crate::yaml::edit;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Updates the files with the results of migrations, at the start and whenever the snapshot of the directory changes. Returns when the
/// server ends.
pub async fn keep_right(app: Arc<App>) {
    let (mut directory, mut said) = (app.directory.clone(), BTreeSet::new());
    loop {
        directory.mark_unchanged();
        let behind = app.state.live_moves().await.unwrap_or_default().into_iter().filter(|is| is.files);
        for is in behind {
            // A restored record may be outdated, and the files correct.
            let unconfirmed = app.state.unconfirmed(vec![is.a.clone(), is.b.clone()]).await;
            if !matches!(unconfirmed, Ok(None)) {
                continue;
            }
            let _turn = app.templates.turn().await;
            match settle(&app, &is).await {
                Ok(()) => {
                    // The error will recur in the next request, which reports it.
                    let _ = app.state.move_files_are_right(&is.id, is.state).await;
                    app.state_has_changed();
                }
                Err(why) if said.insert(why.clone()) => app.watch.problem(why),
                Err(_) => {}
            }
        }
        if directory.changed().await.is_err() {
            return;
        }
    }
}

/// File of a machine as it is now.
struct File {
    path: PathBuf,
    text: String,
    machine: Machine,
}

impl File {
    async fn read(app: &App, id: &str) -> Result<Option<File>, String> {
        let Some(path) = app.directory().machine_files.get(id).cloned() else { return Ok(None) };
        let Some(text) = kept::read(&path).await.map_err(|why| why.words())? else { return Ok(None) };
        let wrong = |why: String| format!("{}: {why}", path.display());
        let machine = input::machine(&text).map_err(wrong)?;
        if machine.id != id {
            return Err(wrong(format!("it now describes machine {}, not {id}", machine.id)));
        }
        Ok(Some(File { path, text, machine }))
    }

    fn allocation(&self) -> Option<&str> {
        self.machine.allocation.as_ref().map(|allocation| allocation.id.as_str())
    }

    fn document(&self) -> Result<Value, String> {
        input::written(&self.text)
    }

    async fn put(&self, app: &App, new: &str) -> Result<(), String> {
        match kept::put(&self.path, &self.text, new).await.map_err(|why| why.words())? {
            true => Ok(()),
            false => {
                app.state_has_changed();
                Err(format!("{} was changed in the meantime", self.path.display()))
            }
        }
    }
}

/// Moves the allocation to its owner's file. It is added there before it is removed from the other file, so that some file always has it.
async fn settle(app: &App, is: &Move) -> Result<(), String> {
    let (owner, other) = match is.state.owner() {
        Part::Send => (&is.a, &is.b),
        Part::Receive => (&is.b, &is.a),
    };
    let said = |why: &str| {
        format!(
            "allocation {} of the migration of {} to {} now belongs to machine {owner}: {why}",
            is.allocation, is.a, is.b
        )
    };
    let to = File::read(app, owner).await?.ok_or_else(|| said("create a file for that machine"))?;
    let from = File::read(app, other).await?.filter(|file| file.allocation() == Some(&is.allocation));
    let now = match (to.allocation(), &from) {
        (Some(own), _) if own == is.allocation => to.text.clone(),
        (Some(own), _) => return Err(said(&format!("remove allocation {own} from its file"))),
        (None, Some(from)) => {
            let text = with_allocation(&to, from).map_err(|why| said(&why))?;
            to.put(app, &text).await?;
            text
        }
        (None, None) => return Err(said("no file contains it; add it to that machine's file")),
    };
    if let Some(from) = from {
        let edited = without_allocation(&from).map_err(|why| said(&why))?;
        from.put(app, &edited.text).await?;
        // Comments that were moved with the allocation are not lost.
        let gone: Vec<String> = edited.gone.into_iter().filter(|comment| !now.contains(comment)).collect();
        kept::note_gone(app, &from.path, &gone);
    }
    Ok(())
}

fn with_allocation(to: &File, from: &File) -> Result<String, String> {
    let allocation = from.document()?.get("allocation").cloned().unwrap_or_default();
    let old = to.document()?;
    let mut new = old.clone();
    new.as_object_mut().into_iter().for_each(|all| drop(all.insert("allocation".to_owned(), allocation.clone())));
    let is_right = |text: &str| input::written(text).as_ref() == Ok(&new) && input::machine(text).is_ok();
    // As the operator wrote it, with its comments.
    if let Some(block) = block(&from.text) {
        let end = if to.text.is_empty() || to.text.ends_with('\n') { "" } else { "\n" };
        let text = format!("{}{end}{block}", to.text);
        if is_right(&text) {
            return Ok(text);
        }
    }
    changed(&to.path, &to.text, &old, &new, is_right).map(|edited| edited.text)
}

fn without_allocation(from: &File) -> Result<edit::Edited, String> {
    let old = from.document()?;
    let mut new = old.clone();
    new.as_object_mut().into_iter().for_each(|all| drop(all.remove("allocation")));
    let is_right = |text: &str| input::written(text).as_ref() == Ok(&new) && input::machine(text).is_ok();
    changed(&from.path, &from.text, &old, &new, is_right)
}

fn changed(
    path: &Path,
    text: &str,
    old: &Value,
    new: &Value,
    is_right: impl Fn(&str) -> bool,
) -> Result<edit::Edited, String> {
    let anew = edit::written(new, &FIELDS);
    kept::changed_text(path, text, |text| edit::edit(text, old, new), anew, is_right).map_err(Refused::words)
}

/// Returns the lines of the allocation and everything below it, if these are separate lines.
fn block(text: &str) -> Option<&str> {
    let mut at = 0;
    let mut begin = None;
    for line in text.split_inclusive('\n') {
        let is_top = line.starts_with(|c: char| !c.is_whitespace() && c != '#');
        match begin {
            None if line.starts_with("allocation:") => begin = Some(at),
            Some(begin) if is_top => return text.get(begin..at),
            _ => {}
        }
        at += line.len();
    }
    text.get(begin?..)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "id: 4c4c4544-0051-3010-8031-b2c04f333633
name: a # the old one
allocation: # of the shop
  id: a1
  hostname: h # as it is called
  # the image
  image: debian-12
size: c1
";
    const B: &str = "# new\nid: 4c4c4544-0051-3010-8031-b2c04f333634\nname: b # the new one";

    fn file(text: &str) -> File {
        File { path: PathBuf::new(), text: text.to_owned(), machine: input::machine(text).unwrap() }
    }

    #[test]
    fn the_allocation_goes_with_its_comments_and_the_others_stay() {
        let with = with_allocation(&file(B), &file(A)).unwrap();
        let block =
            "allocation: # of the shop\n  id: a1\n  hostname: h # as it is called\n  # the image\n  image: debian-12\n";
        assert_eq!(with, format!("{B}\n{block}"));
        let without = without_allocation(&file(A)).unwrap();
        assert!(
            without.text.contains("name: a # the old one") && without.text.contains("size: c1"),
            "{}",
            without.text
        );
        assert!(input::machine(&without.text).unwrap().allocation.is_none());
        // And back again.
        let back = with_allocation(&file(&without.text), &file(&with)).unwrap();
        assert!(back.ends_with(block), "{back}");
    }

    #[test]
    fn a_file_in_one_line_is_written_as_yaml_allows() {
        let a = "{id: 4c4c4544-0051-3010-8031-b2c04f333633, allocation: {id: a1, hostname: h, image: i}}\n";
        let with = with_allocation(&file(B), &file(a)).unwrap();
        assert!(with.starts_with(B), "{with}");
        assert_eq!(*input::machine(&with).unwrap().allocation.unwrap().id, "a1");
        let without = without_allocation(&file(a)).unwrap();
        assert!(input::machine(&without.text).unwrap().allocation.is_none(), "{}", without.text);
    }
}
