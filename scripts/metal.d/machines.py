"""Control planes of metal-stack install machines of QEMU: version 1 is first.py, version 2 server.py. Each machine has two cards, and at the
other end of each is a leaf, which is a thread here that says who it is (LLDP).

Usage: machines.py VENV DIRECTORY TARGET [SCENARIO]. TARGET has what scripts/build-ramdisk and scripts/build-tiny have built.
"""

import json
import mmap
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.request

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "ironic.d"))
from conductor import Failed, free_port  # noqa: E402
from machine import OVMF, SPARED, UP, accelerator  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
# How a machine of QEMU's own network calls the loopback interface of this host.
TOLD = "10.0.2.2"
# Switches speak every 10 to 30 seconds.
SPEAKS = 10
MACHINE = "4c4c4544-0051-3010-8052-b4c04f4e4232"
PROJECT = "0d95cd70-0000-4000-8000-000000000001"
PATIENCE = 300 * int(os.environ.get("DROPHAMMER_PATIENCE", "1"))


def check(holds, what):
    if not holds:
        raise Failed(what)


def shell(command, *arguments):
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", command, "bash", *arguments], capture_output=True, text=True)
    check(done.returncode == 0, f"{command}: {done.stderr}")
    return done.stdout


def lldp(number):
    """The frame of a leaf: a chassis that is a MAC, a port by its local name, 120 seconds, what the port is, who it is."""
    mac = bytes([0xAA, 0, 0, 0, 0, number])
    item = lambda kind, value: struct.pack("!H", kind << 9 | len(value)) + value
    items = [(1, b"\4" + mac), (2, b"\7Ethernet4"), (3, b"\0\x78"), (4, b"to the machine"), (5, b"leaf0%d" % number), (0, b"")]
    frame = bytes.fromhex("0180c200000e") + mac + b"\x88\xcc" + b"".join(item(*one) for one in items)
    return frame.ljust(60, b"\0")


class Leaf:
    """A port of a switch, to which one card is plugged in. Frames travel as QEMU's `socket` has them, each behind its length."""

    def __init__(self, number, speaks):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port, self.frame, self.speaks = self.listener.getsockname()[1], lldp(number), speaks
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            card, _ = self.listener.accept()
            # What the machine sends to others is nothing to a leaf.
            threading.Thread(target=self.swallow, args=[card], daemon=True).start()
            if self.speaks:
                threading.Thread(target=self.speak, args=[card], daemon=True).start()

    def speak(self, card):
        try:
            while True:
                card.sendall(struct.pack("!I", len(self.frame)) + self.frame)
                time.sleep(SPEAKS)
        except OSError:
            pass

    def swallow(self, card):
        try:
            while card.recv(1 << 16):
                pass
        except OSError:
            pass


class Rack:
    """Pixie and control plane of this version, and a web server with the image."""

    def __init__(self, version, directory, target):
        self.version, self.directory = version, directory
        os.makedirs(directory)
        self.http = free_port()
        self.started = []
        if version == 1:
            certificates(directory)
            arguments = ["first.py", directory, str(self.http), str(free_port()), TOLD]
        else:
            arguments = ["server.py", str(self.http)]
        self.start(arguments, wait="ready")
        served = os.path.join(directory, "served")
        os.makedirs(served)
        # As metal-stack publishes images.
        shutil.copy(os.path.join(target, "tiny", "tiny.tar.zst"), os.path.join(served, "tiny-12.0.1.tar.zst"))
        shell('cd "$1" && md5sum tiny-12.0.1.tar.zst >tiny-12.0.1.tar.zst.md5', served)
        port = free_port()
        self.start([os.path.join("..", "ironic.d", "served.py"), served, str(port)])
        self.image = f"http://{TOLD}:{port}/tiny-12.0.1.tar.zst"

    def start(self, arguments, wait=None):
        log = open(os.path.join(self.directory, os.path.basename(arguments[0]) + ".log"), "ab")
        command = [sys.executable, os.path.join(HERE, arguments[0]), *arguments[1:]]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE if wait else log, stderr=log, text=bool(wait))
        self.started.append(process)
        check(not wait or process.stdout.readline().strip() == wait, f"{command} did not start")

    def steer(self, what, how):
        request = urllib.request.Request(f"http://127.0.0.1:{self.http}/judge/{what}", json.dumps(how).encode(), method="POST")
        urllib.request.urlopen(request, timeout=30).read()

    def log(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http}/judge/log", timeout=30) as answer:
            return json.load(answer)

    def calls(self):
        """What was called, with the events; nothing was wrong with any. What came twice in a row is told once."""
        log = self.log()
        check(log["wrong"] == [], f"wrong: {log['wrong']}")
        names = []
        for call in log["calls"]:
            message = call["message"]
            event = message.get("event", {}).get("event", "").removeprefix("MACHINE_PROVISIONING_EVENT_TYPE_")
            event = event or next((one["value"]["event"] for one in message.get("events", [])), "")
            name = f"{call['call']} {event}".strip()
            if name.split(" ")[-1].lower() != "alive" and names[-1:] != [name]:
                names.append(name)
        return names

    def end(self):
        for process in self.started:
            process.kill()
            process.wait()


def certificates(folder):
    """A CA, with its server and its clients."""
    make = """cd "$1"
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj /CN=ca -keyout ca.key -out ca.pem 2>/dev/null
for name in server client; do
	openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$name" -keyout "$name.key" -out "$name.csr" 2>/dev/null
	printf 'subjectAltName=IP:%s\\n' "$2" >"$name.ext"
	openssl x509 -req -in "$name.csr" -CA ca.pem -CAkey ca.key -CAcreateserial -days 30 -extfile "$name.ext" -out "$name.pem" 2>/dev/null
done"""
    shell(make, folder, TOLD)


class Machine:
    """With these disks, by name and MiB. The first card leads to the control plane too."""

    def __init__(self, rack, target, name, leaves=(True, True), **disks):
        self.rack, self.ramdisk, self.disks, self.boots = rack, os.path.join(target, "ramdisk"), list(disks), 0
        self.folder = os.path.join(rack.directory, name)
        os.makedirs(self.folder)
        for disk, mib in disks.items():
            with open(self.disk(disk), "wb") as file:
                file.truncate(mib << 20)
        shutil.copy(OVMF % "VARS", os.path.join(self.folder, "efivars.fd"))
        self.leaves = [Leaf(number + 1, speaks) for number, speaks in enumerate(leaves)]
        self.qemu, self.heard, self.began = None, 0, 0.0

    def disk(self, name):
        return os.path.join(self.folder, name + ".raw")

    def on(self, network=True):
        """Over PXE, as its firmware has read pixie's words; or from its disks, without any card."""
        self.off()
        self.boots, self.heard, self.began = self.boots + 1, 0, time.monotonic()
        command = ["qemu-system-x86_64", "-nodefaults", "-machine", "q35,graphics=off", "-display", "none", "-no-reboot", "-m", "1024",
                   "-smp", "1,maxcpus=2", *accelerator(), "-uuid", MACHINE,
                   "-drive", f"if=pflash,format=raw,unit=0,readonly=on,file={OVMF % 'CODE'}",
                   "-drive", f"if=pflash,format=raw,unit=1,file={self.folder}/efivars.fd",
                   "-serial", f"file:{self.log('console')}", "-serial", f"file:{self.log('facts')}"]
        for disk in self.disks:
            command += ["-drive", f"if=none,id={disk},format=raw,cache=unsafe,discard=unmap,file={self.disk(disk)}",
                        "-device", f"virtio-blk-pci,serial=DH-{disk},drive={disk}"]
        if network:
            first, second = (leaf.port for leaf in self.leaves)
            command += ["-netdev", "user,id=lan", "-netdev", f"socket,id=leaf1,connect=127.0.0.1:{first}",
                        "-netdev", "hubport,id=hub-lan,hubid=0,netdev=lan", "-netdev", "hubport,id=hub-leaf,hubid=0,netdev=leaf1",
                        "-netdev", "hubport,id=card1,hubid=0", "-netdev", f"socket,id=card2,connect=127.0.0.1:{second}",
                        "-device", "virtio-net-pci,netdev=card1,romfile=,mac=52:54:00:00:00:01",
                        "-device", "virtio-net-pci,netdev=card2,romfile=,mac=52:54:00:00:00:02",
                        "-kernel", f"{self.ramdisk}/vmlinuz", "-initrd", f"{self.ramdisk}/quick", "-append",
                        # mini-lab's words, and what pixie adds to them.
                        f"console=ttyS0,115200n8 ip=dhcp carrier_timeout=10 panic=-1 {SPARED} "
                        f"PIXIE_API_URL=http://{TOLD}:{self.rack.http}/certs DEBUG=1"]
        with open(self.log("qemu"), "wb") as errors:
            self.qemu = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors)

    def off(self):
        if self.qemu:
            self.qemu.kill()
            self.qemu.wait()
            self.qemu = None

    def log(self, kind):
        return os.path.join(self.folder, f"{self.boots}.{kind}.log")

    def read(self, kind):
        try:
            with open(self.log(kind), "rb") as file:
                return file.read().decode(errors="replace").replace("\r", "")
        except FileNotFoundError:
            return ""

    def says(self, text):
        """Waits until this boot's console has that, after what was waited for before. How long the boot has lasted then."""
        end = time.monotonic() + PATIENCE
        while True:
            console = self.read("console")
            at = console.find(text, self.heard)
            if at >= 0:
                self.heard = at + len(text)
                return time.monotonic() - self.began
            if time.monotonic() > end or self.qemu.poll() is not None:
                raise Failed(f"no {text!r} in {self.log('console')}: " + "\n".join(console.splitlines()[-30:]))
            time.sleep(0.2)

    def is_up(self):
        """Waits until the tiny OS is up; what it has told."""
        self.says(UP)
        return self.read("facts")

    def __enter__(self):
        return self

    def __exit__(self, failed, *_):
        self.off()
        for disk in self.disks if failed is None else []:
            os.unlink(self.disk(disk))


def layout():
    """System on vda; data on vdb, which a reinstall keeps."""
    part = lambda number, label, size, kind: {"number": number, "label": label, "size": size, "gpttype": kind}
    return {
        "id": "kept", "constraints": {"sizes": ["v1-small-x86"], "images": {}},
        "disks": [
            {"device": "/dev/vda", "wipeonreinstall": True, "partitions": [part(1, "efi", 100, "ef00"), part(2, "root", 0, "8300")]},
            {"device": "/dev/vdb", "wipeonreinstall": False, "partitions": [part(1, "data", 0, "8300")]}],
        "filesystems": [
            {"path": "/boot/efi", "device": "/dev/vda1", "format": "vfat", "label": "efi", "createoptions": ["-F", "32"]},
            {"path": "/", "device": "/dev/vda2", "format": "ext4", "label": "root"},
            {"path": "/srv", "device": "/dev/vdb1", "format": "ext4", "label": "data"}],
    }


def allocation(rack, number, reinstall=False):
    return {
        "allocationuuid": f"00000000-0000-4000-8000-00000000000{number}", "name": "web", "project": PROJECT, "hostname": "web-1",
        "role": "machine", "created": "2026-11-24T09:00:00Z", "boot_info": None, "vpn": None,
        "image": {"id": "tiny-12.0.1", "url": rack.image, "name": "tiny"}, "filesystemlayout": layout(), "networks": [],
        "ssh_pub_keys": [], "user_data": None, "reinstall": reinstall, "succeeded": reinstall,
    }


def second_allocation(rack, number):
    """The same in the words of version 2."""
    part = lambda number, label, size, kind: {"number": number, "label": label, "gptType": kind} | ({"size": str(size)} if size else {})
    return {
        "uuid": f"00000000-0000-4000-8000-00000000000{number}", "name": "web", "project": PROJECT, "hostname": "web-1",
        "image": {"id": "tiny-12.0.1", "url": rack.image, "name": "tiny"}, "allocationType": "MACHINE_ALLOCATION_TYPE_MACHINE",
        "filesystemLayout": {
            "id": "one", "name": "one", "description": "one disk",
            "disks": [{"device": "/dev/vda", "partitions": [part(1, "efi", 100, "GPT_TYPE_BOOT"), part(2, "root", 0, "GPT_TYPE_LINUX")]}],
            "filesystems": [
                {"name": "efi", "description": "efi", "path": "/boot/efi", "device": "/dev/vda1", "format": "FORMAT_VFAT", "label": "efi"},
                {"name": "root", "description": "root", "path": "/", "device": "/dev/vda2", "format": "FORMAT_EXT4", "label": "root"}],
            "constraints": {"sizes": ["v1-small-x86"], "images": [{"os": "tiny", "versionConstraint": ">= 12"}]}},
    }


# What the last owner has left: a secret in the middle of each disk, and at its end.
SECRET = b"the last owner's secret " * 40


def leave_secrets(machine):
    for disk in machine.disks:
        size = os.path.getsize(machine.disk(disk))
        with open(machine.disk(disk), "r+b") as file:
            for at in [0, 64 << 20, size // 2, size - len(SECRET)]:
                file.seek(at)
                file.write(SECRET)
        check(secrets(machine, disk) > 0, f"no secret on {disk} to be erased")


def secrets(machine, disk):
    """How many of them are there. A disk of zeros is one line, which grep would hold in memory."""
    with open(machine.disk(disk), "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        found, at = 0, content.find(SECRET)
        while at >= 0:
            found, at = found + 1, content.find(SECRET, at + 1)
        return found


# A file of 16 MiB, and its like, on the only filesystem of the disk, which begins at 1 MiB.
PUT = """dd if="$1" of="$1.fs" bs=1M skip=1 conv=sparse status=none
e2fsck -fy "$1.fs" >/dev/null 2>&1 || [ $? = 1 ]
head -c 16M /dev/urandom >"$1.random"
printf 'mkdir data-proof\\ncd data-proof\\nwrite %s random\\n' "$1.random" | debugfs -w -f - "$1.fs" >/dev/null 2>&1
dd if="$1.fs" of="$1" bs=1M seek=1 conv=notrunc status=none
rm "$1.fs" """

# The partition table, the filesystem, and the file compared with its like.
BYTES = """dd if="$1" of="$1.fs" bs=1M skip=1 conv=sparse status=none
echo "table $(head -c 1M "$1" | sha256sum | cut -c1-16)"
echo "filesystem $(blkid -p -s UUID -o value "$1.fs")"
debugfs -R "dump data-proof/random $1.found" "$1.fs" >/dev/null 2>&1
cmp "$1.random" "$1.found"
echo "16 MiB $(sha256sum <"$1.found" | cut -c1-16)"
rm "$1.fs" "$1.found" """


def seconds(machine):
    """From the kernel's first word to `Waiting`, by the agent's own clock of the boot where it says so."""
    ready = re.search(r"ready after ([0-9.]+) s", machine.read("console"))
    return f"network after {ready[1]} s of the kernel's clock" if ready else "network at an unknown time"


def first(target, directory):
    """version 1: pool, install, accidental boot, reinstall that keeps a disk"""
    rack = Rack(1, os.path.join(directory, "first"), target)
    try:
        with Machine(rack, target, "first", vda=2048, vdb=512) as machine:
            leave_secrets(machine)
            machine.on()
            machine.says("point of no return")
            machine.says("\nWaiting")
            waiting = time.monotonic() - machine.began
            check(secrets(machine, "vda") == 0 and secrets(machine, "vdb") == 0, "something of the last owner's is left")
            time.sleep(9)
            rack.steer("allocate", allocation(rack, 1))
            facts = machine.is_up()
            for mount in ["/dev/vda1 /boot/efi vfat", "/dev/vda2 / ext4", "/dev/vdb1 /srv ext4"]:
                check(mount in facts, facts)
            calls = rack.calls()
            check(rack.log()["report"]["boot_info"]["kernel"].startswith("/boot/"), rack.log()["report"])
            told = [f"from the kernel to Waiting {waiting:.0f} s with the erasure ({seconds(machine)}); calls: {', '.join(calls)}"]
            # Somebody presses the wrong button.
            rack.steer("set", {"phase": None, "calls": []})
            machine.off()
            shell(PUT, machine.disk("vdb"))
            before = shell(BYTES, machine.disk("vdb"))
            machine.on()
            machine.says("is installed here already")
            facts = machine.is_up()
            check("/srv/data-proof/random " in facts, facts)
            check("WIPE" not in machine.read("console"), "an accidental boot erases")
            told.append(f"an accidental boot: {', '.join(rack.calls())}")
            # And now the button for a reinstall.
            rack.steer("set", {"phase": None, "calls": []})
            rack.steer("allocate", allocation(rack, 1, reinstall=True))
            machine.on()
            facts = machine.is_up()
            check("/dev/vdb1 /srv ext4" in facts and "/srv/data-proof/random " in facts, facts)
            machine.off()
            after = shell(BYTES, machine.disk("vdb"))
            check(before == after, f"{before}\n{after}")
            check(rack.log()["allocation"]["reinstall"] is False, "the flag is still there")
            told.append(f"a reinstall: {', '.join(rack.calls())}; of the data, before and after: {', '.join(before.splitlines())}")
            machine.on(network=False)
            machine.is_up()
            told.append("up from its own disk")
        return "\n    ".join(told)
    finally:
        rack.end()


def second(target, directory):
    """version 2: pool and install"""
    rack = Rack(2, os.path.join(directory, "second"), target)
    try:
        with Machine(rack, target, "second", vda=2048) as machine:
            leave_secrets(machine)
            machine.on()
            machine.says("\nWaiting")
            waiting = time.monotonic() - machine.began
            check(secrets(machine, "vda") == 0, "something of the last owner's is left")
            rack.steer("allocate", second_allocation(rack, 2))
            facts = machine.is_up()
            check("/dev/vda2 / ext4" in facts, facts)
            check(rack.log()["installed"], "no report")
            return f"from the kernel to Waiting {waiting:.0f} s with the erasure ({seconds(machine)}); calls: {', '.join(rack.calls())}"
    finally:
        rack.end()


def alone(target, directory):
    """version 1: one leaf"""
    rack = Rack(1, os.path.join(directory, "alone"), target)
    try:
        with Machine(rack, target, "alone", leaves=(True, False), vda=256) as machine:
            machine.on()
            machine.says("only leaf01 is heard of two leaves; nothing is heard on ")
            card = machine.read("console")[machine.heard:].split()[0]
            machine.says("is not connected to exactly two switches, found connections to 1 switches")
            return f"the console names the silent card ({card}), and what the control plane says of it"
    finally:
        rack.end()


def main(_, directory, target, wanted=""):
    # Whoever ends this ends the servers and the machine too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    shutil.rmtree(directory, ignore_errors=True)
    failed, passed = [], 0
    for scenario in [first, second, alone]:
        if wanted not in scenario.__doc__:
            continue
        began = time.monotonic()
        try:
            print(f"JUDGED {scenario.__doc__}: {scenario(target, directory)}; {time.monotonic() - began:.0f} s", flush=True)
            passed += 1
        except (Failed, OSError) as why:
            print(f"FAILED {scenario.__doc__}: {why}; logs are in {directory}", flush=True)
            failed.append(scenario)
    print(f"test result: {'FAILED' if failed else 'ok'}. {passed} passed; {len(failed)} failed; 0 ignored")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
