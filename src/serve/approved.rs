//! Plans that the operator has approved: `approved/ID.yaml`, written by `drophammer rack plan --approve`, one for each machine.
//!
//! An approval is for one installation. What has begun is still that installation; when its success is reported, the machine has
//! another marker than it had when it was approved, and the approval is spent. Taking the file away withdraws it. A file that cannot be
//! used does not: the machine is given nothing to install until somebody has looked.

use super::api_error::ApiError;
use super::directory::Directory;
use super::folder::{Folder, say};
use super::state::Standing;
use super::{App, wanted};
use crate::allocation::Approved;
use crate::plan::{Verdicts, approved};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

pub const FOLDER: &str = "approved";

/// A machine with a thousand disks has less.
const MAX_BYTES: usize = 4 << 20;

const HEAD: &str = "# Written by `drophammer rack plan --approve`. Nothing but this plan is carried out on the machine; take the file away to withdraw it.\n";

/// A file, as it is written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// RFC 3339, UTC.
    approved: String,
    /// See [`installed`].
    installed: String,
    sha256: String,
    verdicts: Value,
}

/// A file that is good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Approval {
    file: File,
    pub verdicts: Verdicts,
}

impl Approval {
    /// Is the installation over that it was for? `standing` is that of its allocation.
    fn is_spent(&self, standing: &Standing) -> bool {
        self.file.installed != installed(standing)
    }

    /// As the agent is given it.
    fn told(&self) -> Approved {
        let File { sha256, verdicts, .. } = self.file.clone();
        Approved { sha256, verdicts }
    }
}

/// What tells one finished installation of an allocation from the next; empty before the first.
pub fn installed(standing: &Standing) -> String {
    match (&standing.marker, standing.succeeded) {
        (_, false) => String::new(),
        (Some(marker), true) => format!("{} {}", marker.time, marker.order.as_deref().unwrap_or("first")),
        (None, true) => "without a marker".to_owned(),
    }
}

/// The text of a file.
///
/// # Errors
/// It would be too long to be read.
pub fn text(verdicts: &Verdicts, installed: String, time: String) -> Result<String, String> {
    let value = serde_json::to_value(verdicts).map_err(|error| error.to_string())?;
    let file = File { approved: time, installed, sha256: verdicts.digest(), verdicts: value };
    let json = serde_json::to_string_pretty(&file).map_err(|error| error.to_string())?;
    let text = format!("{HEAD}{json}\n");
    match text.len() <= MAX_BYTES {
        true => Ok(text),
        false => Err(format!("the approval would have {} bytes, and {MAX_BYTES} are read", text.len())),
    }
}

/// Reads and checks a file.
///
/// # Errors
/// Why it cannot be used.
pub fn read(text: &str) -> Result<Approval, String> {
    if text.len() > MAX_BYTES {
        return Err(format!("it has {} bytes, more than any approval needs", text.len()));
    }
    // YAML would break lines where JSON does not (U+2028): a program has written it, and it is JSON below its first line.
    let json: String = text.split_inclusive('\n').skip_while(|line| line.starts_with('#')).collect();
    let file: File = serde_json::from_str(&json).map_err(|error| format!("this is no approval: {error}"))?;
    let verdicts = approved::read(&file.verdicts, &file.sha256)?;
    Ok(Approval { file, verdicts })
}

/// All of them.
#[derive(Debug, Clone, Default)]
pub struct Approvals {
    /// By the machine's id.
    all: BTreeMap<String, Result<Arc<Approval>, String>>,
    /// Why the folder cannot be read: nobody knows then who has an approval.
    unread: Option<String>,
    /// Nothing is installed without one (`--approved-only`).
    pub only: bool,
}

impl Approvals {
    /// What the folder has now.
    pub fn new(folder: &Folder<Approval>, only: bool, problems: &mut Vec<String>) -> Approvals {
        let before = problems.len();
        folder.say_unread(problems);
        let unread = problems.get(before).cloned();
        let mut all = BTreeMap::new();
        for (path, entry) in &folder.entries {
            let id = path.file_stem().unwrap_or_default().to_string_lossy().to_lowercase();
            let read =
                entry.newest.as_ref().map_err(ToString::to_string).and_then(|read| is_of(read, &id).map(|()| read));
            let read = read.map_err(|why| say(path, &why, false));
            problems.extend(read.as_ref().err().cloned());
            all.insert(id, read.map(|read| Arc::new(read.clone())));
        }
        Approvals { all, unread, only }
    }

    /// The allocation that the machine's approval is for, where it is another one than this.
    pub fn of_other(&self, machine: &str, allocation: &str) -> Option<String> {
        let approved = &self.all.get(machine)?.as_ref().ok()?.verdicts.allocation;
        (approved != allocation).then(|| approved.clone())
    }

    /// The machine's approval, as long as it is not spent. `standing` is that of the allocation that it is for.
    pub fn in_force(&self, machine: &str, standing: &Standing) -> Option<Result<Arc<Approval>, String>> {
        let approval = self.all.get(machine).cloned().or_else(|| self.unread.clone().map(Err))?;
        let is_spent = approval.as_ref().is_ok_and(|approval| approval.is_spent(standing));
        (!is_spent).then_some(approval)
    }

    /// What the machine may be given to install, by the approval that is in force for it.
    ///
    /// # Errors
    /// It may be given nothing.
    pub fn told(&self, machine: &str, standing: &Standing) -> Result<Option<Approved>, String> {
        match &standing.approved {
            Some(Ok(approval)) => Ok(Some(approval.told())),
            Some(Err(why)) => Err(format!(
                "its approval cannot be used, and nothing is installed without it: {why}; approve its plan again: \
                 `drophammer rack plan DIR --machine {machine} --approve`"
            )),
            None if self.only => Err(format!(
                "no plan of it is approved, and --approved-only installs nothing else: `drophammer rack plan DIR --machine {machine} --approve`"
            )),
            None => Ok(None),
        }
    }
}

fn is_of(approval: &Approval, id: &str) -> Result<(), String> {
    let machine = &approval.verdicts.machine;
    match machine == id {
        true => Ok(()),
        false => Err(format!("it approves a plan of machine {machine}, and its name says {id}")),
    }
}

/// Where a machine's is.
pub fn path(dir: &Path, machine: &str) -> std::path::PathBuf {
    dir.join(FOLDER).join(format!("{machine}.yaml"))
}

/// Has the agent compared its plan with the approval that is in force? One of an earlier version compares nothing.
///
/// # Errors
/// The database's; the inner one is why it may not destroy.
pub async fn compared(
    app: &App,
    directory: &Directory,
    id: &str,
    allocation: &str,
    said: Option<&str>,
) -> Result<Result<(), String>, ApiError> {
    let standing = app.state.standing(id, allocation).await?;
    let standing = wanted::approved(app, id, allocation, standing, &directory.known).await?;
    Ok(match (directory.known.approvals.told(id, &standing), said) {
        (Err(why), _) => Err(why),
        (Ok(None), _) => Ok(()),
        (Ok(Some(approved)), Some(said)) if approved.sha256 == said => Ok(()),
        (Ok(Some(approved)), Some(said)) => {
            Err(format!("the plan was compared with the approval {said}, and {} is in force now", approved.sha256))
        }
        (Ok(Some(approved)), None) => Err(format!(
            "the approval {} is in force, and this agent has not compared its plan with it: it came later, or the ramdisk is of an earlier version",
            approved.sha256
        )),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::marker::Marker;
    use crate::plan::Mode;
    use crate::plan::verdicts::{DiskVerdict, VERSION};
    use proptest::prelude::*;

    fn verdicts(serial: &str) -> Verdicts {
        let disk = DiskVerdict {
            contents: Some(vec!["table gpt".to_owned()]),
            partitions: vec!["1 root rest".to_owned()],
            serial: serial.to_owned(),
            size_bytes: 1,
            verdict: crate::plan::Verdict::Wipe,
            ..DiskVerdict::default()
        };
        let text = |text: &str| text.to_owned();
        Verdicts {
            allocation: text("a1"),
            disks: vec![disk],
            image: text("i"),
            layout: text("l"),
            layout_digest: text("sha256:1"),
            machine: text("m"),
            mode: Mode::Install,
            things: Vec::new(),
            torn: Vec::new(),
            version: VERSION,
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_whatever_a_disk_calls_itself(serial in any::<String>(), installed in any::<String>()) {
            let wanted = verdicts(&serial);
            let text = text(&wanted, installed.clone(), "2026-01-01T00:00:00Z".to_owned()).unwrap();
            let read = read(&text).unwrap();
            prop_assert_eq!(&read.verdicts, &wanted);
            prop_assert_eq!(read.file.installed, installed);
        }
    }

    #[test]
    fn it_is_for_one_installation() {
        let with = |installed: String| read(&text(&verdicts("S"), installed, String::new()).unwrap()).unwrap();
        let marker = |time: &str, order: Option<&str>| {
            let order = order.map(str::to_owned);
            Some(Marker { time: time.to_owned(), order, ..Marker::default() })
        };
        let standings = [
            Standing::default(),
            Standing { succeeded: true, ..Standing::default() },
            Standing { succeeded: true, marker: marker("1", None), ..Standing::default() },
            Standing { succeeded: true, marker: marker("2", Some("o1")), ..Standing::default() },
            Standing { succeeded: true, marker: marker("2", Some("o2")), ..Standing::default() },
        ];
        for (one, then) in standings.iter().enumerate() {
            let approval = with(installed(then));
            for (other, now) in standings.iter().enumerate() {
                assert_eq!(approval.is_spent(now), one != other, "{one} {other}");
            }
        }
        // What the machine still waits with, or has begun, ends nothing.
        let waits = Standing { waits: marker("9", None), adopted: true, ..Standing::default() };
        assert!(!with(installed(&standings[0])).is_spent(&waits));
    }

    #[test]
    fn what_is_too_long_or_no_approval_is_refused() {
        let long = verdicts(&"S".repeat(MAX_BYTES));
        assert!(text(&long, String::new(), String::new()).unwrap_err().contains("are read"));
        let comment = "#".repeat(MAX_BYTES + 1);
        for (text, words) in [
            ("", "this is no approval"),
            ("# only a comment", "this is no approval"),
            ("{\"sha256\": \"\"}", "missing field"),
            (comment.as_str(), "more than any approval needs"),
        ] {
            assert!(read(text).unwrap_err().contains(words), "{words}");
        }
    }
}
