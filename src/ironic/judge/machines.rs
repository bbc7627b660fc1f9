//! Machines of QEMU, from an empty disk to their own system: `scripts/ironic machines`.

use super::super::*;
use super::conductor::{Ironic, step};
use super::qemu::{Images, Machine, driver_info, free_port, shell};
use crate::yaml;
use marked_yaml::LoaderOptions;
use reqwest::Method;
use serde_json::{Value, json};

const TINY: &str = "tiny-12.0.1.tar.zst";
const NO_CLEANING: &str = "/automated_clean";

/// A machine, and the node that it is.
fn plugged_in(ironic: &Ironic, name: &str, disks: &[(&'static str, u64)]) -> Machine {
    let properties = json!({"cpu_arch": "x86_64", "capabilities": "boot_mode:uefi"});
    let mac = ironic.enroll(name, "ipxe", &properties);
    let port = free_port();
    let told = driver_info(port)
        .map(|(key, value)| json!({"op": "add", "path": format!("/driver_info/{key}"), "value": value}));
    change(ironic, name, &json!(told));
    Machine::new(ironic, name, mac, port, disks)
}

fn change(ironic: &Ironic, name: &str, patch: &Value) {
    ironic.ask(Method::PATCH, &format!("nodes/{name}"), patch);
}

/// Straight to a deploy.
fn without_cleaning(ironic: &Ironic, name: &str) {
    change(ironic, name, &json!([{"op": "add", "path": NO_CLEANING, "value": false}]));
    ironic.target(name, "provide");
    ironic.until(name, &["available"]);
}

fn deployed(ironic: &Ironic, name: &str, machine: &Machine) -> (String, String) {
    ironic.target(name, "active");
    let history = ironic.until(name, &["active"]);
    (history, machine.is_up())
}

fn tiny(images: &Images) -> Value {
    let (url, digest) = images.made(TINY, "cp tiny/tiny.tar.zst \"$1\"");
    json!({"url": url, "digest": format!("sha256:{digest}")})
}

/// The layout of the proposal for filesystem layouts, as somebody has written it.
fn default_layout() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/layouts/default.yaml");
    let text = std::fs::read_to_string(path).unwrap();
    yaml::json(&yaml::read(&text, LoaderOptions::default().prevent_coercion(true)).unwrap())
}

pub fn whole_life(ironic: &mut Ironic) -> String {
    let images = Images::start(ironic);
    let machine = plugged_in(ironic, "whole", &[("sda", 8)]);
    ironic.target("whole", "provide");
    let cleaned = ironic.until("whole", &["available"]);
    ironic.choose("whole", &json!([step("install", 90, &json!({"layout": default_layout(), "image": tiny(&images)}))]));
    let (history, facts) = deployed(ironic, "whole", &machine);
    for mount in ["/dev/sda1 /boot/efi vfat", "/dev/sda2 / ext4", "/dev/sda3 /var/lib ext4"] {
        assert!(facts.contains(mount), "{facts}");
    }
    format!("{cleaned}; then {history}; up from its own disk")
}

/// The system on one disk, and data on another that stays in a reinstall.
fn with_data() -> Value {
    let mut layout = super::super::steps::tests::one_disk();
    let partitions = json!([{"number": 1, "label": "data", "size": 0, "gpttype": "8300"}]);
    let data = json!({"device": "/dev/sdb", "wipeonreinstall": false, "partitions": partitions});
    layout["disks"].as_array_mut().unwrap().push(data);
    let data = json!({"path": "/srv", "device": "/dev/sdb1", "format": "ext4", "label": "data"});
    layout["filesystems"].as_array_mut().unwrap().push(data);
    layout
}

/// Files and a hole full of bytes that no filesystem knows of: both are there after a rebuild.
pub fn rebuild(ironic: &mut Ironic) -> String {
    let images = Images::start(ironic);
    let machine = plugged_in(ironic, "rebuilt", &[("sda", 4), ("sdb", 2)]);
    without_cleaning(ironic, "rebuilt");
    let install = |mode: &str| {
        json!([step("install", 90, &json!({"layout": with_data(), "image": tiny(&images), "mode": mode}))])
    };
    ironic.choose("rebuilt", &install("install"));
    let (first, facts) = deployed(ironic, "rebuilt", &machine);
    assert!(facts.contains("/dev/sdb1 /srv ext4"), "{facts}");
    // The power goes first: nobody else has the disk while it is written. Whatever the system had not yet written is its own affair.
    switch(ironic, "rebuilt", "power off");
    let data = machine.disk("sdb");
    shell(PUT, &data);
    let before = shell(BYTES, &data);
    let wish = json!({"target": "rebuild", "deploy_steps": install("reinstall")});
    ironic.wish("rebuilt", &wish);
    let second = ironic.until("rebuilt", &["active"]);
    let facts = machine.is_up();
    assert!(facts.contains("/dev/sdb1 /srv ext4") && facts.contains("/srv/data-proof/random "), "{facts}");
    switch(ironic, "rebuilt", "power off");
    let after = shell(BYTES, &data);
    assert_eq!(before, after);
    format!(
        "{first}; up; {second}; up; of the data the same sums before and after: {}",
        before.trim().replace('\n', ", ")
    )
}

/// A file of 64 MiB on the only filesystem of the disk, which begins at 1 MiB. (`debugfs` takes no place within a file.)
const PUT: &str = r#"dd if="$1" of="$1.fs" bs=1M skip=1 conv=sparse status=none
e2fsck -fy "$1.fs" >/dev/null 2>&1 || [ $? = 1 ]
head -c 64M /dev/urandom >"$1.random"
printf 'mkdir data-proof\nwrite %s data-proof/random\n' "$1.random" | debugfs -w -f - "$1.fs" >/dev/null 2>&1
dd if="$1.fs" of="$1" bs=1M seek=1 conv=notrunc status=none
rm "$1.fs""#;

/// The partition table but its sums of changes (there are none), the UUID of the filesystem, and the file.
const BYTES: &str = r#"dd if="$1" of="$1.fs" bs=1M skip=1 conv=sparse status=none
echo "table $(head -c 1M "$1" | sha256sum | cut -c1-16)"
echo "filesystem $(blkid -p -s UUID -o value "$1.fs")"
debugfs -R "dump data-proof/random $1.found" "$1.fs" >/dev/null 2>&1
cmp "$1.random" "$1.found"
echo "64 MiB $(sha256sum <"$1.found" | cut -c1-16)"
rm "$1.fs" "$1.found""#;

fn switch(ironic: &Ironic, name: &str, power: &str) {
    ironic.ask(Method::PUT, &format!("nodes/{name}/states/power"), &json!({"target": power}));
    let end = Instant::now() + ironic.place.patience;
    while ironic.node(name)["power_state"] != power {
        assert!(Instant::now() < end);
        thread::sleep(Duration::from_millis(200));
    }
    // The machine follows what it is told a moment later.
    thread::sleep(Duration::from_secs(2));
}

pub fn mirror(ironic: &mut Ironic) -> String {
    let images = Images::start(ironic);
    let machine = plugged_in(ironic, "mirrored", &[("sda", 4), ("sdb", 4)]);
    without_cleaning(ironic, "mirrored");
    let arrays = json!({"logical_disks": [
        {"size_gb": 2, "raid_level": "1", "controller": "software", "is_root_volume": true},
        {"size_gb": "MAX", "raid_level": "0", "controller": "software"},
    ]});
    let raid = json!({"interface": "raid", "step": "apply_configuration", "priority": 95,
        "args": {"raid_config": arrays, "delete_existing": true}});
    ironic.choose("mirrored", &json!([raid, step("burn_image", 80, &json!({"image": tiny(&images)}))]));
    let (history, facts) = deployed(ironic, "mirrored", &machine);
    let root = facts.lines().find(|line| line.starts_with("/dev/md") && line.contains(" / "));
    assert!(root.is_some() && facts.contains("raid1") && facts.contains("raid0"), "{facts}");
    assert_eq!(ironic.node("mirrored")["raid_config"]["logical_disks"], arrays["logical_disks"]);
    format!("{history}; up, root {}", root.unwrap_or_default())
}

/// gzip of "drive".
const DRIVE: &str = "H4sIAAAAAAACA0spyixLBQCP9R1oBQAAAA==";

fn whole_disk(ironic: &Ironic, name: &str, image: &str, command: &str) -> String {
    let images = Images::start(ironic);
    let machine = plugged_in(ironic, name, &[("sda", 4)]);
    without_cleaning(ironic, name);
    let (url, digest) = images.made(image, command);
    let patch = json!([
        {"op": "add", "path": "/deploy_interface", "value": "direct"},
        {"op": "add", "path": "/instance_info/image_source", "value": url},
        {"op": "add", "path": "/instance_info/image_os_hash_algo", "value": "sha256"},
        {"op": "add", "path": "/instance_info/image_os_hash_value", "value": digest},
        {"op": "add", "path": "/instance_info/image_type", "value": "whole-disk"},
        {"op": "add", "path": "/instance_info/configdrive", "value": DRIVE},
    ]);
    change(ironic, name, &patch);
    let (history, facts) = deployed(ironic, name, &machine);
    assert!(facts.contains("config-2"), "{facts}");
    format!("{history}; up, with a partition config-2")
}

pub fn direct_raw(ironic: &mut Ironic) -> String {
    whole_disk(ironic, "direct-raw", "disk.raw", "zstd -dqf tiny/tiny.raw.zst -o \"$1\"")
}

pub fn direct_qcow2(ironic: &mut Ironic) -> String {
    let command = "zstd -dqf tiny/tiny.raw.zst -o \"$1.raw\" && qemu-img convert -q -O qcow2 \"$1.raw\" \"$1\"";
    whole_disk(ironic, "direct-qcow2", "disk.qcow2", command)
}

/// A person logs in on the console, with the password that an operator has given to Ironic; the machine is in use again after it.
pub fn rescue(ironic: &mut Ironic) -> String {
    let images = Images::start(ironic);
    let machine = plugged_in(ironic, "saved", &[("sda", 4)]);
    change(ironic, "saved", &json!([{"op": "add", "path": "/rescue_interface", "value": "agent"}]));
    without_cleaning(ironic, "saved");
    let layout = super::super::steps::tests::one_disk();
    ironic.choose("saved", &json!([step("install", 90, &json!({"layout": layout, "image": tiny(&images)}))]));
    // Nothing else reads it here, but the conductor asks for one before a rescue.
    change(
        ironic,
        "saved",
        &json!([{"op": "add", "path": "/instance_info/image_source", "value": tiny(&images)["url"]}]),
    );
    let (first, _) = deployed(ironic, "saved", &machine);
    ironic.wish("saved", &json!({"target": "rescue", "rescue_password": "correct horse"}));
    let second = ironic.until("saved", &["rescue"]);
    machine.says("login:");
    for (line, answer) in [("rescue", "Password:"), ("wrong horse", "incorrect"), ("rescue", "Password:")] {
        machine.types(line);
        machine.says(answer);
    }
    machine.types("correct horse");
    machine.says("# ");
    machine.types("echo in as $(id -u) with $((6 * 7))");
    machine.says("in as 0 with 42");
    ironic.target("saved", "unrescue");
    let third = ironic.until("saved", &["active"]);
    machine.is_up();
    format!("{first}; up; {second}; a wrong password was refused, root with the right one; {third}; up")
}
