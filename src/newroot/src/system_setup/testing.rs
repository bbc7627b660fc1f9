//! Test support: small target trees, and mock programs that only record their runs.

use crate::NewRoot;
use crate::chroot::TargetRunner;
use linux::process::{CommandError, ProcessFailure, ToolOutput};
use std::fs;
use std::sync::Mutex;
use std::time::Duration;
use tempfile::TempDir;

pub(crate) fn tree(files: &[(&str, &str)]) -> (TempDir, NewRoot) {
    let dir = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let root = NewRoot::open(dir.path()).unwrap();
    (dir, root)
}

/// Returns the names in a directory without hidden ones.
pub(crate) fn names(root: &NewRoot, directory: &str) -> Vec<String> {
    root.list_names(directory).unwrap().into_iter().filter(|name| !name.starts_with('.')).collect()
}

/// Returns the result of `run`, and the messages it logged.
pub(crate) fn capture_log<T>(run: impl FnOnce(&(dyn Fn(&str) + Sync)) -> T) -> (T, Vec<String>) {
    let lines = Mutex::new(Vec::new());
    let result = run(&|line| lines.lock().unwrap().push(line.to_owned()));
    (result, lines.into_inner().unwrap())
}

/// Mock of all programs of the target.
pub(crate) struct Programs {
    says: Option<String>,
    ran: Mutex<Vec<String>>,
}

impl Programs {
    pub(crate) fn saying(words: &str) -> Programs {
        Programs { says: Some(words.to_owned()), ran: Mutex::default() }
    }

    pub(crate) fn failing() -> Programs {
        Programs { says: None, ran: Mutex::default() }
    }

    pub(crate) fn is_good(&self) -> bool {
        self.says.is_some()
    }

    /// Returns the recorded command lines.
    pub(crate) fn ran(&self) -> Vec<String> {
        self.ran.lock().unwrap().clone()
    }
}

impl TargetRunner for Programs {
    fn run_program(&self, program: &str, args: &[&str], _: Duration) -> Result<ToolOutput, CommandError> {
        let argv = [&[program], args].concat().join(" ");
        self.ran.lock().unwrap().push(argv.clone());
        let failed = || CommandError { argv, end: ProcessFailure::Exited(1), tail: vec!["no".to_owned()] };
        self.says.clone().map(|stdout| ToolOutput { stdout }).ok_or_else(failed)
    }
}
