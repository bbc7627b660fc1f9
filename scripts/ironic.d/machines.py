"""Tests in which a real Ironic installs QEMU machines, which then boot from their own disks.

Usage: machines.py VENV DIRECTORY TARGET [SCENARIO]. VENV has Ironic, TARGET the results of scripts/build-ramdisk and scripts/build-tiny.
"""

import base64
import hashlib
import os
import re
import signal
import subprocess
import sys
import time

import yaml
from conductor import TOLD, Failed, Ironic, free_port
from machine import UP, Machine


def step(name, args, priority=90):
    return {"interface": "deploy", "step": name, "priority": priority, "args": args}


def check(holds, what):
    if not holds:
        raise Failed(what)


def shell(command, *arguments):
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", command, "bash", *arguments], capture_output=True, text=True)
    check(done.returncode == 0, f"{command}: {done.stderr}")
    return done.stdout


class World:
    """Conductor, and a web server for images."""

    def __init__(self, venv, directory, target):
        self.target, self.ramdisk = target, os.path.join(target, "ramdisk")
        self.ironic = Ironic(venv, directory, self.ramdisk)
        self.served = os.path.join(directory, "served")
        os.makedirs(self.served)
        self.port = free_port()
        server = [sys.executable, os.path.join(os.path.dirname(__file__), "served.py"), self.served, str(self.port)]
        self.server = subprocess.Popen(server, **self.ironic.quiet("served.log"))

    def end(self):
        self.server.kill()
        self.ironic.end()

    def image(self, name, command):
        """Runs a command that creates `$2` from `$1`, the folder of the build results, and returns its URL and sha256."""
        path = os.path.join(self.served, name)
        if not os.path.exists(path):
            shell(command, os.path.join(self.target, "tiny"), path)
        with open(path, "rb") as file:
            return f"http://{TOLD}:{self.port}/{name}", hashlib.file_digest(file, "sha256").hexdigest()

    def tiny(self):
        url, digest = self.image("tiny-12.0.1.tar.zst", 'cp "$1/tiny.tar.zst" "$2"')
        return {"url": url, "digest": "sha256:" + digest}

    def machine(self, name, clock="", words="", card="", **disks):
        return Machine(self.ironic, self.ramdisk, name, disks, clock, words, card)

    def available(self, name):
        """Provides the node without cleaning."""
        self.ironic.set(name, {"/automated_clean": False})
        self.ironic.wish(name, target="provide")
        self.ironic.until(name, "available")

    def deploy(self, machine):
        self.ironic.wish(machine.name, target="active")
        history = self.ironic.until(machine.name, "active")
        return history, machine.is_up()


def one_disk():
    return {
        "id": "one",
        "disks": [{"device": "/dev/vda", "wipeonreinstall": True, "partitions": [
            {"number": 1, "label": "efi", "size": 100, "gpttype": "ef00"},
            {"number": 2, "label": "root", "size": 0, "gpttype": "8300"}]}],
        "filesystems": [
            {"path": "/boot/efi", "device": "/dev/vda1", "format": "vfat", "label": "efi"},
            {"path": "/", "device": "/dev/vda2", "format": "ext4", "label": "root"}],
    }


def whole(world):
    """cleaning, then a deployment by a template with the layout `default`, with a clock that is years off"""
    ironic = world.ironic
    with open("testdata/layouts/default.yaml") as file:
        layout = yaml.safe_load(file)
    with world.machine("whole", clock="2045-06-01", sda=8) as machine:
        ironic.wish("whole", target="provide")
        cleaned = ironic.until("whole", "available")
        ironic.choose("whole", [step("install", {"layout": layout, "image": world.tiny()})])
        deployed, facts = world.deploy(machine)
        for mount in ["/dev/sda1 /boot/efi vfat", "/dev/sda2 / ext4", "/dev/sda3 /var/lib ext4"]:
            check(mount in facts, facts)
    return f"{cleaned}; then {deployed}; up from its own disk"


# Writes a file of 64 MiB, and a copy for comparison, to the only filesystem of the disk, which begins at 1 MiB.
PUT = """dd if="$1" of="$1.fs" bs=1M skip=1 conv=sparse status=none
e2fsck -fy "$1.fs" >/dev/null 2>&1 || [ $? = 1 ]
head -c 64M /dev/urandom >"$1.random"
printf 'mkdir data-proof\\ncd data-proof\\nwrite %s random\\n' "$1.random" | debugfs -w -f - "$1.fs" >/dev/null 2>&1
dd if="$1.fs" of="$1" bs=1M seek=1 conv=notrunc status=none
rm "$1.fs" """

# Prints the partition table, the filesystem, and the file compared with its copy.
BYTES = """dd if="$1" of="$1.fs" bs=1M skip=1 conv=sparse status=none
echo "table $(head -c 1M "$1" | sha256sum | cut -c1-16)"
echo "filesystem $(blkid -p -s UUID -o value "$1.fs")"
debugfs -R "dump data-proof/random $1.found" "$1.fs" >/dev/null 2>&1
cmp "$1.random" "$1.found"
echo "64 MiB $(sha256sum <"$1.found" | cut -c1-16)"
rm "$1.fs" "$1.found" """


def rebuild(world):
    """rebuild that keeps a data disk"""
    ironic, layout = world.ironic, one_disk()
    layout["disks"].append({"device": "/dev/vdb", "wipeonreinstall": False, "partitions": [
        {"number": 1, "label": "data", "size": 0, "gpttype": "8300"}]})
    layout["filesystems"].append({"path": "/srv", "device": "/dev/vdb1", "format": "ext4", "label": "data"})
    image = world.tiny()
    with world.machine("rebuilt", vda=4, vdb=1) as machine:
        world.available("rebuilt")
        ironic.choose("rebuilt", [step("install", {"layout": layout, "mode": "install"})])
        # Ironic 39 responds 500 to a rebuild of a node without image_source.
        ironic.set("rebuilt", {"/instance_info/image_source": image["url"], "/instance_info/image_os_hash_algo": "sha256",
                               "/instance_info/image_os_hash_value": image["digest"].removeprefix("sha256:")})
        first, facts = world.deploy(machine)
        check("/dev/vdb1 /srv ext4" in facts, facts)
        # No other program has the disk open while it is written and inspected.
        switched_off(ironic, machine)
        shell(PUT, machine.disk("vdb"))
        before = shell(BYTES, machine.disk("vdb"))
        ironic.wish("rebuilt", target="rebuild", deploy_steps=[step("install", {"layout": layout, "mode": "reinstall"})])
        second = ironic.until("rebuilt", "active")
        facts = machine.is_up()
        check("/dev/vdb1 /srv ext4" in facts and "/srv/data-proof/random " in facts, facts)
        switched_off(ironic, machine)
        after = shell(BYTES, machine.disk("vdb"))
    check(before == after, f"{before}\n{after}")
    return f"{first}; up; {second}; up. Of the data, before and after: {', '.join(before.splitlines())}"


def erased(world):
    """manual cleaning: no data of a disk are left, with a proof"""
    with world.machine("erased", vda=1) as machine:
        put = 'for at in 0 300 1020; do head -c 4M /dev/urandom | dd of="$1" bs=1M seek=$at conv=notrunc status=none; done'
        shell(put, machine.disk("vda"))
        world.ironic.wish("erased", target="clean", clean_steps=[{"interface": "deploy", "step": "erase_devices"}])
        history = world.ironic.until("erased", "manageable")
        shell('cmp -n "$(stat -c %s "$1")" "$1" /dev/zero', machine.disk("vda"))
        with open(os.path.join(world.ironic.directory, "ironic.log")) as log:
            proof = re.search(r"'device': '/dev/vda', 'method': '(\w+)', 'proof': '([^']+)'", log.read())
        check(proof, "the conductor has no proof")
    return f"{history}; {proof[1]}: {proof[2]}"


def half(world):
    """apply_layout alone, then a power cut: nothing is bootable"""
    ironic, image = world.ironic, world.tiny()
    with world.machine("half", vda=4) as machine:
        world.available("half")
        ironic.choose("half", [step("install", {"layout": one_disk(), "image": image})])
        ironic.set("half", {"/instance_info/image_source": image["url"]})
        first, _ = world.deploy(machine)
        ironic.set("half", {"/instance_info/traits": []})
        ironic.wish("half", target="rebuild", deploy_steps=[step("apply_layout", {"layout": one_disk(), "mode": "install"})])
        second = ironic.until("half", "active")
        # The firmware has tried its entries for the disk, and boots over the network.
        machine.says("failed to load", from_disk=True)
        machine.says("Start PXE", from_disk=True)
        check(UP not in machine.read("console"), "something boots")
    return f"{first}; up; {second}; nothing boots from its disk"


def unknown(world):
    """a machine without a node fails, and offers a shell"""
    with world.machine("unknown", words="ipa-lookup-timeout=20", card="52:54:00:00:00:01", vda=1) as machine:
        world.available("unknown")
        world.ironic.choose("unknown", [step("erase_devices_metadata", {})])
        world.ironic.set("unknown", {"/instance_info/image_source": "http://127.0.0.1/none"})
        world.ironic.wish("unknown", target="active")
        machine.says("Ironic did not accept this machine within 20 s: Ironic does not have a node with these MACs")
        machine.says("this machine waits until the conductor switches it off")
        machine.types("")
        machine.says("# ")
        machine.types("echo in a shell with $((6 * 7))")
        machine.says("in a shell with 42")
        world.ironic.wish("unknown", target="abort")
        world.ironic.until("unknown", "deploy failed")
        shell('cmp -n "$(stat -c %s "$1")" "$1" /dev/zero', machine.disk("vda"))
    return "nothing is written, and a person has a shell"


def switched_off(ironic, machine):
    ironic.power(machine.name, "power off")
    while machine.qemu:
        time.sleep(0.3)


def mirror(world):
    """a mirror by raid.apply_configuration"""
    arrays = {"logical_disks": [
        {"size_gb": 2, "raid_level": "1", "controller": "software", "is_root_volume": True},
        {"size_gb": "MAX", "raid_level": "0", "controller": "software"}]}
    with world.machine("mirrored", vda=4, vdb=4) as machine:
        world.available("mirrored")
        raid = {"interface": "raid", "step": "apply_configuration", "priority": 95,
                "args": {"raid_config": arrays, "delete_existing": True}}
        world.ironic.choose("mirrored", [raid, step("burn_image", {"image": world.tiny()}, 80)])
        history, facts = world.deploy(machine)
        root = [line for line in facts.splitlines() if line.startswith("/dev/md") and " / " in line]
        check(root and "raid1" in facts and "raid0" in facts, facts)
        check(world.ironic.node("mirrored")["raid_config"]["logical_disks"] == arrays["logical_disks"], "raid_config")
        # In the filesystem on the mirror, which is found by drophammer's marker.
        told = base64.b64encode(b"told by a service").decode()
        files = {"files": [{"path": "/srv/data-proof/told", "content": told, "mode": "0600"}]}
        world.ironic.wish("mirrored", target="service", service_steps=[
            {"interface": "deploy", "step": "inject_files", "args": files}])
        serviced = world.ironic.until("mirrored", "active")
        facts = machine.is_up()
        check(f"/srv/data-proof/told {hashlib.sha256(b'told by a service').hexdigest()}" in facts, facts)
    return f"{history}; up, with {root[0]}; {serviced}; up, with the file"


# The word "drive", compressed with gzip.
DRIVE = "H4sIAAAAAAACA0spyixLBQCP9R1oBQAAAA=="


def whole_disk(world, name, file, command, loader):
    with world.machine(name, vda=4) as machine:
        world.available(name)
        url, digest = world.image(file, command)
        world.ironic.set(name, {
            "/deploy_interface": "direct", "/instance_info/image_source": url, "/instance_info/image_os_hash_algo": "sha256",
            "/instance_info/image_os_hash_value": digest, "/instance_info/image_type": "whole-disk",
            "/instance_info/configdrive": DRIVE})
        history, facts = world.deploy(machine)
        check("config-2" in facts, facts)
        table = shell('sfdisk --dump "$1" | grep config-2', machine.disk("vda"))
        start = int(table.split("start=")[1].split(",")[0]) * 512
        with open(machine.disk("vda"), "rb") as disk:
            disk.seek(start)
            check(disk.read(5) == b"drive", table)
        # The firmware prints the boot entry that it starts.
        started = re.search(f'BdsDxe: starting (Boot....) "drophammer: {name}" from [^\n]*', machine.read("console"))
        check(started and started[0].lower().endswith(loader.lower()), machine.read("console"))
    return f"{history}; up by {started[1]}, {loader}, with the config drive behind it"


def raw(world):
    """direct, raw, with a config drive"""
    make = 'zstd -dqf "$1/tiny.raw.zst" -o "$2"'
    return whole_disk(world, "direct-raw", "disk.raw", make, r"\EFI\BOOT\BOOTX64.EFI")


# The loader is not at the fallback path; the image specifies its path.
ELSEWHERE = """zstd -dqf "$1/tiny.raw.zst" -o "$2.raw"
dd if="$2.raw" of="$2.esp" bs=1M skip=1 count=4 status=none
mmd -i "$2.esp" ::/EFI/own
mmove -i "$2.esp" ::/EFI/BOOT/BOOTX64.EFI ::/EFI/own/loader.efi
printf 'loader.efi,own,,a system of its own\n' | iconv -t UTF-16LE | mcopy -i "$2.esp" - ::/EFI/own/BOOTX64.CSV
dd if="$2.esp" of="$2.raw" bs=1M seek=1 conv=notrunc status=none
qemu-img convert -q -O qcow2 "$2.raw" "$2" """


def qcow2(world):
    """direct, qcow2, with a config drive, and a loader that requires a boot entry"""
    return whole_disk(world, "direct-qcow2", "disk.qcow2", ELSEWHERE, r"\EFI\own\loader.efi")


def rescue(world):
    """rescue, with a login on the console and over SSH, and back"""
    ironic, image = world.ironic, world.tiny()
    key = os.path.join(ironic.directory, "key")
    shell('ssh-keygen -q -t ed25519 -N "" -C operator -f "$1"', key)
    with open(key + ".pub") as file:
        words = f'sshkey="{file.read().strip()}"'
    with world.machine("saved", words=words, vda=4) as machine:
        world.available("saved")
        ironic.choose("saved", [step("install", {"layout": one_disk(), "image": image})])
        # The conductor requires an image_source before a rescue.
        ironic.set("saved", {"/instance_info/image_source": image["url"]})
        first, _ = world.deploy(machine)
        ironic.wish("saved", target="rescue", rescue_password="correct horse")
        second = ironic.until("saved", "rescue")
        machine.says("login:")
        for line, answer in [("rescue", "Password:"), ("wrong horse", "incorrect"), ("rescue", "Password:"), ("correct horse", "# ")]:
            machine.types(line)
            machine.says(answer)
        machine.types("echo in as $(id -u) with $((6 * 7))")
        machine.says("in as 0 with 42")
        over_ssh = [ssh(machine, key, command) for command in ["id -u", "hostname"]]
        check(over_ssh == ["0", "drophammer"], over_ssh)
        shell('ssh-keygen -q -t ed25519 -N "" -f "$1"', key + ".other")
        check(ssh(machine, key + ".other", "id -u") == "refused", "an unauthorized key is accepted")
        ironic.wish("saved", target="unrescue")
        third = ironic.until("saved", "active")
        machine.is_up()
    return f"{first}; up; {second}; a wrong password is refused, the right one is root, and so is the key over SSH; {third}; up"


def ssh(machine, key, command):
    """Runs ssh and returns its output. TinySSH delays clients whose key it does not accept."""
    options = ["-F", "/dev/null", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "BatchMode=yes",
               "-o", "IdentitiesOnly=yes", "-o", "LogLevel=ERROR", "-i", key, "-p", str(machine.ssh_port)]
    told = ["ssh", *options, "rescue@127.0.0.1", command]
    try:
        done = subprocess.run(told, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        return "refused"
    return done.stdout.strip() if done.returncode == 0 else "refused"


def main(venv, directory, target, wanted=""):
    # Ending this program also ends the conductor and the machine.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    world = World(venv, directory, target)
    failed, passed = [], 0
    try:
        for scenario in [whole, unknown, erased, half, rebuild, mirror, raw, qcow2, rescue]:
            if wanted not in scenario.__doc__:
                continue
            began = time.monotonic()
            try:
                print(f"JUDGED {scenario.__doc__}: {scenario(world)}; {time.monotonic() - began:.0f} s", flush=True)
                passed += 1
            except (Failed, OSError) as why:
                print(f"FAILED {scenario.__doc__}: {why}; logs are in {directory}", flush=True)
                failed.append(scenario)
    finally:
        world.end()
    verdict = "FAILED" if failed else "ok"
    print(f"test result: {verdict}. {passed} passed; {len(failed)} failed; 0 ignored")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
