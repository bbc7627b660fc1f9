//! Volumes that are added to a preserved group, in a virtual machine with LVM: refusals by LVM are detected before
//! anything is wiped.

use super::*;
use crate::probe::{self, ProbeDepth};
use model::layout::{LvmType, explain_excessive_name};

fn volume(name: &str, physical: &[DevicePath], size_mib: u64) -> CreateVolume {
    CreateVolume {
        name: name.to_owned(),
        group: "kube".to_owned(),
        device: format!("/dev/kube/{name}").into(),
        physical: physical.to_vec(),
        size: size_mib.into(),
        kind: LvmType::Linear,
    }
}

fn adding(physical: &[DevicePath], sizes_mib: &[u64]) -> ActivationRehearsal {
    let over: Vec<&DevicePath> = physical.iter().collect();
    let volumes = sizes_mib.iter().enumerate();
    let volumes = volumes.map(|(index, mib)| RestoreOp::CreateVolume(volume(&format!("new{index}"), physical, *mib)));
    rehearsal(&over, volumes.collect())
}

/// Creates a group of two disks of 1 GiB each, with one volume. Returns the disks.
fn kube(disks: &TestDisks) -> Vec<DevicePath> {
    let physical = disks.all().to_vec();
    ran(&format!("lvm vgcreate -y kube {} {}", physical[0], physical[1]));
    ran(&format!("lvm lvcreate -y -n srv -L 64m kube {}", physical[0]));
    ran("lvm vgchange -an kube");
    physical
}

#[test]
#[ignore = "needs LVM: scripts/test vm runs it in a machine"]
fn vm_rehearsed_group_extensions_are_refused_with_the_lvm_message() {
    let disks = TestDisks::take("vda vdb");
    let physical = kube(&disks);
    let (vda, vdb) = (&physical[0], &physical[1]);
    let try_out = |sizes: &[u64]| unchanged(&disks, || run_rehearsal(&adding(&physical, sizes)));
    try_out(&[100, 100]).unwrap();
    try_out(&[1500]).unwrap();
    let cases = [
        (format!("lvm pvchange -x n {vda}"), format!("lvm pvchange -x y {vda}"), &[1500][..], "nsufficient"),
        (format!("lvm pvchange -x n {vda} {vdb}"), format!("lvm pvchange -x y {vda} {vdb}"), &[4], "nsufficient"),
        ("lvm vgchange -l 2 kube".to_owned(), "lvm vgchange -l 0 kube".to_owned(), &[4, 4], "Maximum number"),
        (
            "lvm vgchange --alloc contiguous kube".to_owned(),
            "lvm vgchange --alloc normal kube".to_owned(),
            &[1500],
            "nsufficient",
        ),
    ];
    for (change, undo, sizes, words) in cases {
        ran(&change);
        let error = try_out(sizes).unwrap_err();
        assert!(error.is_refusal() && error.to_string().contains(words), "{change}: {error}");
        ran(&undo);
        // The accepted rehearsals above have shown that the disks do not change.
        run_rehearsal(&adding(&physical, sizes)).unwrap();
    }
    // A group whose limits permit the new volume.
    ran("lvm vgchange -l 2 --alloc contiguous kube");
    try_out(&[900]).unwrap();
    // The inventory from which a plan would be made.
    ran(&format!("lvm pvchange -x n {vda}"));
    let inventory = probe::read_inventory(ProbeDepth::Deep).unwrap();
    let found = inventory.groups.iter().find(|group| group.name == "kube").unwrap().allocation.clone().unwrap();
    assert_eq!((found.policy.as_str(), found.max_volumes, found.volumes, found.read_only), ("contiguous", 2, 1, false));
    let free: Vec<(bool, u64)> = found.free.iter().map(|free| (free.is_allocatable, free.bytes >> 20)).collect();
    assert!(free.contains(&(false, 1020 - 64)) && free.contains(&(true, 1020)), "{found:?}");
}

#[test]
#[ignore = "needs LVM: scripts/test vm runs it in a machine"]
fn vm_rehearsed_extensions_of_a_read_only_group_are_refused() {
    let disks = TestDisks::take("vda vdb");
    let physical = kube(&disks);
    let (good, bad) = ("/tmp/kube", "/tmp/kube-read-only");
    ran(&format!("lvm vgcfgbackup -f {good} kube"));
    let metadata = fs::read_to_string(good).unwrap();
    let first = metadata.find("\"WRITE\"").expect("the status of the group");
    fs::write(bad, format!("{}{}", &metadata[..first].trim_end_matches([',', ' ']), &metadata[first + 7..])).unwrap();
    ran(&format!("lvm vgcfgrestore -f {bad} kube"));
    let error = unchanged(&disks, || run_rehearsal(&adding(&physical, &[4]))).unwrap_err();
    assert!(error.is_refusal() && error.to_string().contains("read"), "{error}");
    let inventory = probe::read_inventory(ProbeDepth::Deep).unwrap();
    assert!(inventory.groups[0].allocation.as_ref().unwrap().read_only, "{:?}", inventory.groups);
    ran(&format!("lvm vgcfgrestore -f {good} kube"));
    unchanged(&disks, || run_rehearsal(&adding(&physical, &[4]))).unwrap();
}

/// The maximum length of a volume name according to [`explain_excessive_name`] matches the limit of LVM and the kernel.
#[test]
#[ignore = "needs LVM: scripts/test vm runs it in a machine"]
fn vm_rehearsed_names_are_accepted_up_to_the_limit() {
    let disks = TestDisks::take("vda vdb");
    let physical = kube(&disks);
    let create = |name: &str, kind: LvmType| {
        lvm::create_volume(&CreateVolume { kind, ..volume(name, &physical, 8) })?;
        // A mirror with a name that is too long can be created, but not deactivated.
        lvm::deactivate_group("kube", &physical)?;
        ran(&format!("lvm lvremove -y kube/{name}"));
        Ok::<(), Error>(())
    };
    // LVM does not double the hyphens in the names of temporary mappings, so names of mirrors with hyphens may be
    // somewhat longer.
    for (pattern, kind, beyond) in [
        ("a", LvmType::Linear, false),
        ("a-", LvmType::Linear, false),
        ("a", LvmType::Raid1, false),
        ("a-", LvmType::Raid1, true),
    ] {
        let name = |length: usize| pattern.repeat(length)[..length].to_owned();
        let fits = |length: usize| explain_excessive_name("kube", &name(length), kind).is_none();
        let longest = (1..128).rev().find(|length| fits(*length)).unwrap();
        let created = [longest, longest + 1].map(|length| create(&name(length), kind));
        let is_created = created.each_ref().map(Result::is_ok);
        assert_eq!(is_created, [true, beyond], "{kind} {pattern} {longest}: {created:#?}");
    }
}
