//! Tests with a directory as the target.

use super::*;
use model::layout::FilesystemFormat;
use operations::{InitialVolumeContent, MakeFilesystem, ManifestVolume, VolumePath};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use uuid::Uuid;

const UID: &str = "9474cda7-0dbe-40fc-9842-3cb0404a725a";

fn sparse(make: bool) -> SparseVolume {
    let filling = InitialVolumeContent::Filesystem(MakeFilesystem {
        device: "/x".into(),
        format: FilesystemFormat::Ext4,
        label: None,
        uuid: UID.to_owned(),
        createoptions: Vec::new(),
    });
    SparseVolume {
        name: "small".to_owned(),
        uid: UID.parse().unwrap(),
        path: format!("{SPARSE}/{UID}"),
        size_bytes: 8 << 20,
        make: make.then_some(filling),
    }
}

fn of(sparse: SparseVolume) -> WriteK8sVolumeFiles {
    let list = serde_json::json!([{"metadata": {"name": "small", "uid": UID}, "spec": {"nodeName": "n", "mode": "Block",
        "storageClassName": "fast", "sparseLoopDevice": {"size": "8Mi"}}}]);
    let volume = model::k8s_volume::parse_volumes(&list).unwrap().remove(0);
    let persistent = VolumePath::Known(format!("/dev/disk/by-uuid/{UID}"));
    let device = sparse.path.as_str().into();
    let volumes =
        vec![ManifestVolume { volume, device, is_part: false, persistent, size_bytes: Some(sparse.size_bytes) }];
    WriteK8sVolumeFiles { sparse: vec![sparse], volumes }
}

#[test]
fn file_unit_and_manifest_are_written() {
    let dir = tempfile::tempdir().unwrap();
    let root = NewRoot::open(dir.path()).unwrap();
    let path = dir.path().join(SPARSE.trim_start_matches('/')).join(UID);
    write_volumes(&root, &of(sparse(true)), &|_| ()).unwrap();
    let metadata = fs::metadata(&path).unwrap();
    assert_eq!((metadata.len(), metadata.permissions().mode() & 0o7777), (8 << 20, 0o600));
    let blkid = linux::process::ToolCommand::new("blkid").args(["-p", "-o", "value", "-s", "UUID"]).arg(&path).run();
    assert_eq!(blkid.unwrap().stdout.trim(), UID);
    let wants =
        dir.path().join(format!("etc/systemd/system/multi-user.target.wants/metalk8s-sparse-volume@{UID}.service"));
    let unit = "/etc/systemd/system/metalk8s-sparse-volume@.service";
    assert_eq!(fs::read_link(wants).unwrap().to_str(), Some(unit));
    assert!(root.read_text(unit).unwrap().contains("losetup --find --partscan"));
    let manifests = root.read_text(MANIFESTS).unwrap();
    assert!(
        manifests.contains(&format!("/dev/disk/by-uuid/{UID}")) && manifests.contains("\"8388608\""),
        "{manifests}"
    );

    // A volume that is marked for deletion is reported, but gets no PersistentVolume, so that it is not used again.
    let mut going = of(sparse(false));
    going.volumes[0].volume.deleted = true;
    assert_eq!(write_volumes(&root, &going, &|_| ()).unwrap().len(), 1);
    assert!(root.read_text(MANIFESTS).unwrap().contains("\"items\": []"));

    // In a second run, a new volume does not replace the existing file, and the file of a preserved volume is not
    // written.
    let error = write_volumes(&root, &of(sparse(true)), &|_| ()).unwrap_err().to_string();
    assert!(error.contains(" of volume small"), "{error}");
    let before = (fs::metadata(&path).unwrap().modified().unwrap(), fs::read(&path).unwrap());
    write_volumes(&root, &of(sparse(false)), &|_| ()).unwrap();
    assert!((fs::metadata(&path).unwrap().modified().unwrap(), fs::read(&path).unwrap()) == before);
}

/// The next attempt treats a file with the final name as complete.
#[test]
fn file_gets_its_name_only_when_complete() {
    let dir = tempfile::tempdir().unwrap();
    let root = NewRoot::open(dir.path()).unwrap();
    let folder = dir.path().join(SPARSE.trim_start_matches('/'));
    let names = || fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();
    let mut bad = sparse(true);
    let Some(InitialVolumeContent::Filesystem(make)) = &mut bad.make else { unreachable!() };
    make.createoptions = vec!["-O".to_owned(), "no_such_feature".to_owned()];
    assert!(write_volumes(&root, &of(bad), &|_| ()).is_err());
    assert!(names().is_empty(), "{:?}", names());
    let endless = SparseVolume { size_bytes: u64::MAX, ..sparse(true) };
    assert!(write_volumes(&root, &of(endless), &|_| ()).is_err() && names().is_empty());
    // An incomplete file, as after a power cut.
    fs::write(folder.join(format!("{UID}.new")), "half").unwrap();
    write_volumes(&root, &of(sparse(true)), &|_| ()).unwrap();
    assert_eq!(names(), [UID]);
    // An existing file with the final name is unchanged, and no temporary file remains.
    let before = fs::read(folder.join(UID)).unwrap();
    assert!(write_volumes(&root, &of(sparse(true)), &|_| ()).is_err());
    assert!(names() == [UID] && fs::read(folder.join(UID)).unwrap() == before);
}

#[test]
fn missing_preserved_file_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let root = NewRoot::open(dir.path()).unwrap();
    assert!(write_volumes(&root, &of(sparse(false)), &|_| ()).is_err());
    let other = SparseVolume { size_bytes: 4096, ..sparse(false) };
    write_volumes(&root, &of(sparse(true)), &|_| ()).unwrap();
    let error = write_volumes(&root, &of(other), &|_| ()).unwrap_err().to_string();
    assert!(error.contains("is 8388608 bytes, but must be 4096 bytes"), "{error}");
}

/// The image may contain a symlink in the path of the file.
#[test]
fn symlinks_of_the_image_do_not_lead_out() {
    let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::create_dir_all(dir.path().join("var/lib")).unwrap();
    symlink(outside.path(), dir.path().join("var/lib/metalk8s")).unwrap();
    let root = NewRoot::open(dir.path()).unwrap();
    assert!(write_volumes(&root, &of(sparse(true)), &|_| ()).is_err());
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    assert_eq!(Uuid::parse_str(UID).unwrap().to_string(), UID);
}
