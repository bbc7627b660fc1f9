//! Selection of the finisher, and finished trees and raw images.

use super::testing::{capture_log, names, tree as made};
use super::*;
use crate::testing;
use model::allocation::Allocation;
use model::inventory::FirmwareType;
use operations::{Esp, FstabEntry, MachineFiles, PlanAssignment, RequestedNetwork};
use time::macros::datetime;

const NOW: OffsetDateTime = datetime!(2026-11-21 01:02:03 UTC);

fn finishing(way: FinisherChoice) -> FinishInputs {
    let allocation = Allocation {
        id: "a-1".into(),
        hostname: "web-1".into(),
        console_password: "secret".into(),
        user_data: "#cloud-config\n".into(),
        ..Allocation::default()
    };
    let entry = FstabEntry {
        source: "UUID=1".into(),
        path: "/".into(),
        format: model::layout::FilesystemFormat::Ext4,
        options: vec![],
        pass: 1,
    };
    let assigned = PlanAssignment { allocation, ..PlanAssignment::default() };
    let files = Box::new(MachineFiles { assigned, ..MachineFiles::default() });
    let esp = Esp { device: "/dev/sda1".into(), path: Some("/boot/efi".into()), ..Esp::default() };
    let (firmware, esps) = (FirmwareType::Uefi, vec![esp]);
    FinishInputs { way, firmware, esps, fstab: vec![entry], files, ..FinishInputs::default() }
}

/// Applies the settings to a tree without an installer, and returns the logged lines.
fn owned(root: &NewRoot, finishing: &FinishInputs) -> Vec<String> {
    let (distribution, overrides) = (Distribution::detect(root), OsInstallerSettings::read_settings(root).unwrap());
    let tree = TargetProperties { distribution: &distribution, overrides: &overrides, root_uuid: "r-uuid" };
    let (done, lines) = capture_log(|say| apply_settings(root, finishing, &tree, None, NOW, say));
    assert_eq!(done.unwrap(), None);
    lines
}

#[test]
fn finisher_depends_on_setting_and_image() {
    let (go, os) = (("install-go", ""), ("usr/bin/os-installer", ""));
    for (files, way, who) in [
        (&[][..], FinisherChoice::Auto, Some(FinishingComponent::Builtin)),
        (&[go, os], FinisherChoice::Auto, Some(FinishingComponent::Installer("/install-go"))),
        (&[os], FinisherChoice::Auto, Some(FinishingComponent::OsInstaller("/usr/bin/os-installer"))),
        (&[("etc/metal/os-installer.yaml", "")], FinisherChoice::Auto, Some(FinishingComponent::Builtin)),
        (&[go], FinisherChoice::Builtin, Some(FinishingComponent::Builtin)),
        (&[go], FinisherChoice::None, Some(FinishingComponent::Disabled)),
        (&[go], FinisherChoice::Image, Some(FinishingComponent::Installer("/install-go"))),
        (&[], FinisherChoice::Image, None),
    ] {
        let (_dir, root) = made(files);
        assert_eq!(FinishingComponent::choose(&root, way).ok(), who, "{files:?}");
    }
    let error = FinishingComponent::choose(&made(&[]).1, FinisherChoice::Image).unwrap_err().to_string();
    assert_eq!(error, "the image does not contain an installer: neither /install-go nor /install.sh nor os-installer");
}

#[test]
fn tree_without_installer_is_configured_for_the_owner() {
    let (_dir, root) = made(&[
        ("etc/os-release", "ID=debian\nVERSION_ID=\"13\"\n"),
        ("etc/passwd", "root:x:0:0:root:/root:/bin/bash\n"),
        ("etc/shadow", "root:*:1:0:99999:7:::\n"),
        ("usr/bin/cloud-init", ""),
    ]);
    assert_eq!(
        owned(&root, &finishing(FinisherChoice::Auto)),
        [
            "console password set for root",
            "the cloud-init seed was written to /var/lib/cloud/seed/nocloud",
            "the network is configured by cloud-init",
        ]
    );
    assert_eq!(root.read_text("/etc/hostname").unwrap(), "web-1\n");
    assert!(root.read_text("/etc/shadow").unwrap().starts_with("root:$6$"));
    assert!(!selinux::is_relabeling_pending(&root));
}

/// Returns a tree with the relevant files of metal-stack's Debian 12 of August 2026, without os-installer.
fn metal_tree(settings: &str) -> (tempfile::TempDir, NewRoot) {
    made(&[
        ("etc/os-release", "ID=debian\nVERSION_ID=\"12\"\n"),
        ("etc/debian_version", "12.11\n"),
        ("etc/hostname", "buildkit\n"),
        (".dockerenv", ""),
        ("etc/machine-id", "b08dfa6083e7567a1921a715000001fb\n"),
        ("etc/passwd", "root:x:0:0:root:/root:/bin/bash\n"),
        ("etc/group", "root:x:0:\nsudo:x:27:\n"),
        ("etc/shadow", "root:*:1:0:99999:7:::\n"),
        ("home/metal/.bashrc", ""),
        (
            "etc/chrony/chrony.conf",
            "pool 2.debian.pool.ntp.org iburst\nsourcedir /etc/chrony/sources.d\ndriftfile /d\n",
        ),
        ("etc/lvm/lvm.conf", ""),
        ("usr/lib/systemd/systemd", ""),
        ("usr/lib/systemd/systemd-networkd", ""),
        ("etc/metal/os-installer.yaml", settings),
    ])
}

fn of_metal_stack() -> FinishInputs {
    let mut finishing = finishing(FinisherChoice::Auto);
    let allocation = &mut finishing.files.assigned.allocation;
    allocation.user_data.clear();
    allocation.dns_servers = serde_json::json!([{"ip": "10.0.0.53"}]);
    allocation.ntp_servers = serde_json::json!([{"address": "10.0.0.123"}, {"address": "10.0.0.124"}]);
    finishing
}

#[test]
fn tree_for_os_installer_is_finished_like_os_installer() {
    let (_dir, root) = metal_tree("os_name: ubuntu\noverwrites: {bootloader_id: metal-own}\n");
    let lines = owned(&root, &of_metal_stack());
    assert_eq!(lines[0], "user metal was created with group sudo");
    assert_eq!(lines[1], "console password set for metal");
    assert!(root.read_text("/etc/shadow").unwrap().contains("\nmetal:$6$"));
    assert_eq!(root.read_text("/etc/resolv.conf").unwrap(), "nameserver 10.0.0.53\n");
    assert_eq!(
        root.read_text("/etc/chrony/chrony.conf").unwrap(),
        "server 10.0.0.123 iburst\nserver 10.0.0.124 iburst\ndriftfile /d\n"
    );
    let details = root.read_text("/etc/metal/machine-details.yaml").unwrap();
    assert!(details.contains("root_uuid: \"r-uuid\"\n") && details.contains("password: \"\"\n"), "{details}");
    assert!(root.read_text("/etc/metal/machine-allocation.yaml").unwrap().contains("hostname: \"web-1\"\n"));
    assert!(root.read_text("/etc/lvm/lvmlocal.conf").unwrap().contains("udev_sync = 0"));
    assert!(!root.path_exists("/.dockerenv") && root.read_text("/etc/machine-id").unwrap().is_empty());
    // The boot loader ID and the distribution are those that the image's settings specify.
    let overrides = OsInstallerSettings::read_settings(&root).unwrap();
    let distribution = Distribution::detect_or_named(&root, overrides.system.as_deref());
    assert_eq!((distribution.id.as_str(), distribution.doubt.as_deref()), ("ubuntu", None));
    let wants =
        machine_boot_requirements::collect_boot_requirements(&of_metal_stack(), &distribution, &overrides, "r-uuid");
    assert_eq!((wants.bootloader_id.as_str(), wants.keeps_loader), ("metal-own", false));
    let unknown = Distribution::detect_or_named(&root, Some("plan9"));
    assert_eq!(unknown.id, "debian");
    assert!(unknown.doubt.unwrap().contains("is configured as plan9"));
}

#[test]
fn tasks_that_os_installer_yaml_disables_are_skipped() {
    let (_dir, root) = metal_tree("only: [write hostname, write /etc/hosts]\nexcept: [write /etc/hosts]\n");
    let lines = owned(&root, &of_metal_stack());
    assert!(
        lines[0].starts_with("the image's /etc/metal/os-installer.yaml disables these tasks: persist "),
        "{lines:?}"
    );
    assert!(lines[0].contains("configure network") && !lines[0].contains("write hostname"), "{lines:?}");
    assert_eq!(root.read_text("/etc/hostname").unwrap(), "web-1\n");
    assert!(!root.read_text("/etc/machine-id").unwrap().is_empty());
    assert!(root.read_text("/etc/chrony/chrony.conf").unwrap().starts_with("pool "));
    for absent in ["/etc/hosts", "/etc/resolv.conf", "/etc/metal/machine-details.yaml", "/etc/systemd/network"] {
        assert!(!root.path_exists(absent), "{absent}");
    }
    assert!(!root.read_text("/etc/passwd").unwrap().contains("metal"));
    // The tasks for a firewall are not performed, and a warning is logged.
    let (_dir, root) = metal_tree("only: [write hostname]\n");
    let mut firewall = of_metal_stack();
    firewall.files.assigned.allocation.role = "firewall".into();
    let lines = owned(&root, &firewall);
    assert!(lines.iter().any(|line| line.starts_with("WARNING: this machine is a firewall")), "{lines:?}");
    // The disabled task leaves the image's boot loader unchanged.
    let (_dir, root) = metal_tree("except: [write booatloader config]\n");
    let overrides = OsInstallerSettings::read_settings(&root).unwrap();
    assert!(
        machine_boot_requirements::collect_boot_requirements(
            &firewall,
            &Distribution::detect(&root),
            &overrides,
            "r-uuid"
        )
        .keeps_loader
    );
}

#[test]
fn unknown_tree_is_configured_with_warnings() {
    let (_dir, root) = made(&[("etc/selinux/config", "# SELINUX=\nSELINUX=enforcing\n")]);
    let mut finishing = finishing(FinisherChoice::Builtin);
    finishing.files.assigned.allocation.console_password.clear();
    let lines = owned(&root, &finishing);
    assert!(lines[0].starts_with("WARNING: the image does not contain cloud-init"), "{lines:?}");
    assert!(lines.iter().any(|line| line.starts_with("SELinux: the image does not contain setfiles")), "{lines:?}");
    assert!(selinux::is_relabeling_pending(&root));
}

/// A raw image may have a `/boot` that the layout does not list and that is therefore not mounted.
#[test]
fn raw_image_with_pending_relabeling_is_labeled_later() {
    let (_dir, root) = made(&[
        ("etc/selinux/config", "SELINUX=enforcing\n"),
        ("etc/selinux/targeted/contexts/files/file_contexts", ""),
        ("usr/sbin/setfiles", ""),
        ("usr/bin/cloud-init", ""),
        (".autorelabel", "-F -T 0\n"),
    ]);
    let mut finishing = finishing(FinisherChoice::Builtin);
    finishing.files.assigned.allocation.console_password.clear();
    let lines = owned(&root, &finishing);
    assert!(lines.iter().all(|line| !line.contains("SELinux")), "{lines:?}");
    assert_eq!(root.read_text("/.autorelabel").unwrap(), "-F -T 0\n");
}

#[test]
fn unbootable_tree_is_not_changed() {
    let init = ("sbin/init", "");
    let modules = ("usr/lib/modules/6.1/modules.dep", "");
    let kernel = ("boot/vmlinuz-6.1", "MZ");
    let uefi = finishing(FinisherChoice::Auto);
    let bios = FinishInputs { firmware: FirmwareType::Bios, ..finishing(FinisherChoice::Builtin) };
    let no_esp = FinishInputs { esps: Vec::new(), ..finishing(FinisherChoice::Auto) };
    for (files, finishing, says) in [
        (
            &[kernel, modules][..],
            &uefi,
            "the image cannot boot, because it does not contain an init program; paths searched: /sbin/init, ",
        ),
        (
            &[init, modules],
            &uefi,
            "the image cannot boot, because it does not contain a kernel; paths searched: /boot/loader",
        ),
        (&[init, kernel], &no_esp, "boots in UEFI mode, but the layout does not contain an EFI system partition"),
        (
            &[init, kernel],
            &bios,
            "in BIOS mode, but the image does not contain GRUB for BIOS; paths searched: /usr/lib/grub/i386-pc, ",
        ),
    ] {
        let (_dir, root) = made(files);
        let (done, lines) = capture_log(|say| finish_tree(&root, finishing, "1", NOW, say));
        let error = done.unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
        assert!(lines.len() == 1 && lines[0].starts_with("WARNING: cannot read /etc/os-release"), "{lines:?}");
        assert!(!root.path_exists("/etc"));
    }
}

#[test]
fn nothing_is_written_without_a_finisher() {
    for (way, raw_too) in [(FinisherChoice::None, true), (FinisherChoice::Auto, false)] {
        let (dir, root) = made(&[("etc/hostname", "builder\n")]);
        let (done, lines) = capture_log(|say| finish_raw_image(&root, &finishing(way), "1", NOW, say));
        assert_eq!((done.unwrap(), lines.len()), (BootRecord::Unknown, 1));
        if raw_too {
            capture_log(|say| finish_tree(&root, &finishing(way), "1", NOW, say)).0.unwrap();
        }
        assert_eq!(root.read_text("/etc/hostname").unwrap(), "builder\n");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
    // For an image with cloud-init, only the seed is written, which cloud-init finds by itself.
    let (_dir, root) = made(&[("usr/bin/cloud-init", "")]);
    capture_log(|say| finish_raw_image(&root, &finishing(FinisherChoice::Auto), "1", NOW, say)).0.unwrap();
    assert!(root.path_exists("/var/lib/cloud/seed/nocloud/meta-data") && !root.path_exists("/etc/hostname"));
    let (_dir, root) = made(&[("etc/os-release", "ID=debian\n"), ("etc/passwd", "root:x:0:0::/root:/bin/sh\n")]);
    capture_log(|say| finish_raw_image(&root, &finishing(FinisherChoice::Builtin), "1", NOW, say)).0.unwrap();
    assert!(root.path_exists("/etc/hostname") && !root.path_exists("/etc/fstab"));
}

/// A raw image of EL 9 lists the disks of the machine on which it was built.
#[test]
fn volume_groups_of_the_layout_are_visible_in_raw_images() {
    let path = "/etc/lvm/devices/system.devices";
    let files = [
        ("etc/os-release", "ID=rocky\n"),
        ("etc/passwd", "root:x:0:0::/root:/bin/sh\n"),
        ("etc/lvm/devices/system.devices", "IDTYPE=devname IDNAME=/dev/vda3 DEVNAME=/dev/vda3\n"),
        ("etc/lvm/lvm.conf", "devices {\n\tfilter = [ \"a|/dev/vda|\", \"r|.*|\" ]\n}\n"),
    ];
    for (way, groups, is_removed) in [
        (FinisherChoice::Auto, &["vg"][..], true),
        (FinisherChoice::Builtin, &["vg"], true),
        (FinisherChoice::Auto, &[], false),
        (FinisherChoice::Builtin, &[], false),
        (FinisherChoice::None, &["vg"], false),
    ] {
        let (_dir, root) = made(&files);
        let mut finishing = finishing(way);
        finishing.files.assigned.allocation.console_password.clear();
        finishing.groups = groups.iter().map(|name| (*name).to_owned()).collect();
        let (done, lines) = capture_log(|say| finish_raw_image(&root, &finishing, "1", NOW, say));
        done.unwrap();
        assert_eq!(root.path_exists(path), !is_removed, "{way:?}");
        let warned = lines.iter().any(|line| line.ends_with("lvm.conf sets filter: LVM may ignore vg"));
        assert_eq!(warned, is_removed, "{lines:?}");
    }
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_programs_of_the_tree_apply_keys_and_user_data() {
    let (_dir, root) = testing::busybox();
    testing::script(&root, "usr/sbin/sshd", "exit 1");
    testing::script(&root, "usr/bin/ssh-keygen", "test \"$*\" = -A && echo key > /etc/ssh/ssh_host_ed25519_key");
    let ignite =
        "case \"$*\" in -version) echo Ignition 0.36.2;; *) cat /config.ign > /ignited; echo \"$*\" >> /ignited;; esac";
    testing::script(&root, "usr/bin/ignition", ignite);
    testing::script(&root, "opt/own", "echo own > done");
    let settings = b"custom_script: {executable_path: ./own, workdir: /opt}\n";
    for (path, text) in [
        ("/etc/os-release", b"ID=debian\n".as_slice()),
        ("/sbin/init", b""),
        ("/boot/vmlinuz-6.1", b"MZ kernel"),
        ("/boot/initrd.img-6.1", b""),
        ("/etc/ssh/ssh_host_rsa_key", b"builder"),
        ("/etc/metal/os-installer.yaml", settings),
    ] {
        root.write_file(path, 0o644, text).unwrap();
    }
    let mut finishing = finishing(FinisherChoice::Auto);
    finishing.files.assigned.allocation.console_password.clear();
    finishing.files.assigned.allocation.user_data = "{\"ignition\": {}}".into();
    let (done, lines) = capture_log(|say| finish_tree(&root, &finishing, "1", NOW, say));
    assert_eq!(lines[0], "debian: the image does not contain an installer, so drophammer configures the system");
    let BootRecord::Created(BootSetup { info, entries }) = done.unwrap() else { panic!("{lines:?}") };
    assert_eq!((info.kernel.as_str(), info.cmdline.as_str()), ("/boot/vmlinuz-6.1", "root=UUID=1 ro"));
    assert_eq!((entries.len(), entries[0].loader.as_str()), (1, r"\EFI\debian\vmlinuz-6.1"));
    assert_eq!(root.read_text("/boot/efi/EFI/debian/vmlinuz-6.1").unwrap(), "MZ kernel");
    assert!(root.read_text("/etc/fstab").unwrap().contains("UUID=1"));
    assert_eq!(names(&root, "/etc/ssh"), ["ssh_host_ed25519_key"]);
    assert_eq!(root.read_text("/ignited").unwrap(), "{\"ignition\": {}}-oem file -stage files -log-to-stdout\n");
    assert!(!root.path_exists("/config.ign"));
    assert_eq!(root.read_text("/opt/done").map_err(|_| &lines), Ok("own\n".to_owned()));
    assert!(lines.contains(&"Ignition applied the user data".to_owned()), "{lines:?}");
    assert_eq!(linux::storage::busy_device_users::list_mounts_below(root.path()), Vec::<std::path::PathBuf>::new());
}

/// The real order of the calls: labels are set after the installer has run, and in a raw image only on new filesystems.
#[test]
#[ignore = "needs root and loop devices"]
fn loop_files_are_labeled_after_the_installer() {
    const CONTEXTS: &str = "/etc/selinux/targeted/contexts/files/file_contexts";
    let everything = format!("-F -m -e /proc -e /sys -e /dev -e /run {CONTEXTS} / /srv");
    let new_only = format!("-F -m {CONTEXTS} /srv");
    for (is_raw, installer, labels) in [
        (false, "echo installed > /steps", format!("installed\n{everything}\n")),
        (false, "echo installed > /steps; touch /.autorelabel", "installed\n".to_owned()),
        (true, "echo installed > /steps", format!("installed\n{new_only}\n")),
        (true, "", format!("{new_only}\n")),
    ] {
        let (_dir, root) = testing::busybox();
        testing::script(&root, "usr/sbin/setfiles", "echo \"$*\" >> /steps");
        if !installer.is_empty() {
            testing::script(&root, "install.sh", installer);
        }
        for (path, text) in [("/etc/selinux/config", "SELINUX=enforcing\n"), (CONTEXTS, ""), ("/srv/x", "")] {
            root.write_file(path, 0o644, text.as_bytes()).unwrap();
        }
        let inputs = FinishInputs { new_mounts: vec!["/srv".to_owned()], ..finishing(FinisherChoice::Auto) };
        let (done, lines) = capture_log(|say| match is_raw {
            true => finish_raw_image(&root, &inputs, "1", NOW, say),
            false => finish_tree(&root, &inputs, "1", NOW, say),
        });
        done.unwrap();
        assert_eq!(root.read_text("/steps").unwrap(), labels, "{installer}: {lines:?}");
    }
}

/// The file belongs to the machine on which the image was built.
#[test]
#[ignore = "needs root and loop devices"]
fn loop_boot_info_of_the_image_is_removed_before_its_installer_runs() {
    let old = "kernel: /boot/vmlinuz-6.1\ninitrd: ''\ncmdline: root=UUID=old\nbootloader_id: old\n";
    for (installer, expected) in [("true", None), ("echo kernel > /etc/metal/boot-info.yaml", Some("kernel\n"))] {
        let (_dir, root) = testing::busybox();
        testing::script(&root, "install.sh", installer);
        root.write_file("/etc/metal/boot-info.yaml", 0o644, old.as_bytes()).unwrap();
        let inputs = finishing(FinisherChoice::Image);
        capture_log(|say| finish_tree(&root, &inputs, "1", NOW, say)).0.unwrap();
        assert_eq!(root.read_text("/etc/metal/boot-info.yaml").ok().as_deref(), expected, "{installer}");
    }
}

/// cloud-init would prefer the network settings in its own files to the network settings of the seed.
#[test]
fn described_network_is_not_overridden_by_a_raw_image() {
    let network = serde_json::json!({"version": 2, "ethernets": {"eth0": {"dhcp4": true}}});
    let described = RequestedNetwork::Described(netconfig::NetworkConfig::parse(&network).unwrap());
    let settings = "etc/cloud/cloud.cfg.d/50-installer.cfg";
    for (network, expected) in [(described, ""), (RequestedNetwork::Unsaid, "network: {config: disabled}\n")] {
        let (_dir, root) = made(&[("usr/bin/cloud-init", ""), (settings, "network: {config: disabled}\n")]);
        let inputs = FinishInputs { network, ..finishing(FinisherChoice::Auto) };
        capture_log(|say| finish_raw_image(&root, &inputs, "1", NOW, say)).0.unwrap();
        assert_eq!(root.read_text(&format!("/{settings}")).unwrap(), expected);
    }
}
