//! Tests with a directory instead of efivarfs.

use super::*;
use linux::efi::BootVariables;
use linux::efi::variables::testing::write;
use std::cell::RefCell;

fn planned(name: &str, value: &[u8]) -> VariableRemoval {
    let digest = Some(format!("{:x}", Sha256::digest(value)));
    VariableRemoval { name: name.to_owned(), vendor: GLOBAL_VENDOR, digest }
}

fn run(directory: &Path, required: bool, variables: Vec<VariableRemoval>) -> (Result<()>, Vec<String>) {
    let lines = RefCell::new(Vec::new());
    let removal = RemoveVariables { variables, required };
    let result = remove_variables(directory, &removal, &|line| lines.borrow_mut().push(line.to_owned()));
    (result, lines.into_inner())
}

#[test]
fn variables_are_removed_together_with_their_order_entries() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    for (name, value) in [
        ("Boot0001", &b"foreign"[..]),
        ("Boot0002", b"stays"),
        ("Boot000A", b"foreign"),
        ("BootNext", &[1, 0]),
        ("BootOrder", &[1, 0, 2, 0, 10, 0]),
        ("Driver0001", b"driver"),
        ("DriverOrder", &[1, 0]),
        ("SysPrepOrder", &[1, 0]),
    ] {
        write(path, name, value);
    }
    let variables = vec![
        planned("Boot0001", b"foreign"),
        planned("Boot000A", b"foreign"),
        planned("BootNext", &[1, 0]),
        planned("Driver0001", b"driver"),
        planned("Boot0077", b"gone already"),
    ];
    let (result, lines) = run(path, true, variables);
    result.unwrap();
    assert_eq!(lines[0], "EFI variable Boot0001: removed");
    assert_eq!(lines[4], "EFI variable Boot0077: does not exist");
    let after = BootVariables::read(path).unwrap();
    assert_eq!((after.order, after.next, after.entries.len()), (vec![2], None, 1));
    assert!(variables::read_variable(path, "DriverOrder").is_none());
    assert_eq!(
        variables::read_variable(path, "SysPrepOrder").as_deref(),
        Some(&[1, 0][..]),
        "a number of another class is preserved"
    );
}

#[test]
fn variable_with_another_value_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    write(path, "Boot0001", b"of this installation");
    write(path, "BootOrder", &[1, 0]);
    let (result, lines) = run(path, false, vec![planned("Boot0001", b"former")]);
    result.unwrap();
    assert_eq!(
        lines,
        ["EFI variable Boot0001: not removed, because this installation has replaced the value of the variable"]
    );
    assert_eq!(BootVariables::read(path).unwrap().order, [1]);
    // A required removal runs before this installation writes boot entries.
    let error = run(path, true, vec![planned("Boot0001", b"former")]).0.unwrap_err().to_string();
    assert!(error.contains("Boot0001: the value of the variable has changed since the plan was made"), "{error}");
    assert_eq!(BootVariables::read(path).unwrap().entries.len(), 1);
}

/// The variables exist, but reads fail, as with firmware that returns an error.
#[test]
fn unreadable_variable_is_not_considered_removed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    fs::create_dir(variable_path(path, "Boot0001")).unwrap();
    let unreadable = || vec![planned("Boot0001", b"former")];
    let error = run(path, true, unreadable()).0.unwrap_err().to_string();
    assert!(error.contains("Boot0001: the value of the variable cannot be read"), "{error}");
    let (result, lines) = run(path, false, unreadable());
    result.unwrap();
    assert!(lines[0].starts_with("WARNING: EFI variables: cannot remove Boot0001: "), "{lines:?}");

    write(path, "Boot0002", b"foreign");
    fs::create_dir(variable_path(path, "BootOrder")).unwrap();
    let error = run(path, true, vec![planned("Boot0002", b"foreign")]).0.unwrap_err().to_string();
    assert!(error.contains("cannot remove entry numbers from BootOrder: BootOrder cannot be read"), "{error}");
    assert!(!variable_path(path, "Boot0002").exists());
}

#[test]
fn unreadable_value_is_removed_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    fs::write(variable_path(path, "Boot0001"), b"").unwrap();
    let any = VariableRemoval { digest: None, ..planned("Boot0001", b"") };
    run(path, true, vec![any]).0.unwrap();
    assert!(BootVariables::read(path).unwrap().entries.is_empty());
}

#[test]
fn failed_required_removal_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    fs::create_dir(variable_path(path, "Boot0007")).unwrap();
    write(path, "BootOrder", &[7, 0]);
    let stays = || vec![VariableRemoval { digest: None, ..planned("Boot0007", b"") }];
    let (result, lines) = run(path, false, stays());
    result.unwrap();
    assert!(lines[0].starts_with("WARNING: EFI variables: cannot remove Boot0007: "), "{lines:?}");
    let error = run(path, true, stays()).0.unwrap_err().to_string();
    assert!(error.contains("Boot0007") && error.contains("firmware's setup"), "{error}");
    assert_eq!(BootVariables::read(path).unwrap().order, [7]);
}
