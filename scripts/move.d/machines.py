"""Machines of QEMU are moved: A, with two SATA disks, becomes B, with two NVMe disks. The server, the machines and a recorder are on one
bridge, in a network namespace that scripts/move has made.

Usage: machines.py PROGRAM DIRECTORY TARGET [SCENARIO]. TARGET has what scripts/build-ramdisk and scripts/build-tiny have built.
"""

import os
import shutil
import subprocess
import sys
import time

from wire import Recorder
from rack import Failed, Machine, Rack, check, shell

# Both: a mirror for the system, and a group over both disks. The image's tree fills all of it.
DISK = """- device: %s
  wipeonreinstall: true
  partitions:
  - {number: 1, label: efi, size: 100, gpttype: fd00}
  - {number: 2, label: root, size: 700, gpttype: fd00}
  - {number: 3, label: data, size: 0, gpttype: 8e00}
"""
LAYOUT = f"""id: mirrored
disks:
{DISK % "/dev/sda"}{DISK % "/dev/sdb"}raid:
- {{arrayname: /dev/md/efi, level: "1", devices: [/dev/sda1, /dev/sdb1], createoptions: ["--metadata=1.0"]}}
- {{arrayname: /dev/md/root, level: "1", devices: [/dev/sda2, /dev/sdb2]}}
volumegroups:
- {{name: data, devices: [/dev/sda3, /dev/sdb3]}}
logicalvolumes:
- {{name: lib, volumegroup: data, size: 400, lvmtype: linear}}
- {{name: srv, volumegroup: data, size: 0, lvmtype: linear}}
filesystems:
- {{path: /boot/efi, device: /dev/md/efi, format: vfat}}
- {{path: /, device: /dev/md/root, format: ext4}}
- {{path: /var/lib, device: /dev/data/lib, format: xfs}}
- {{path: /srv, device: /dev/data/srv, format: ext4}}
constraints: {{sizes: [], images: {{}}}}
"""
PROOFS = ["/data-proof/random", "/var/lib/data-proof/random", "/srv/data-proof/random"]
# Its disks have nothing to write any more: what lies on them is clean.
REST = "umount /srv /var/lib /boot/efi\nmount -o remount,ro /\nsync\npoweroff -f\n"


def proofs(facts):
    data = facts.partition("--- data\n")[2].partition("\n---")[0]
    found = dict(line.split(" ") for line in data.splitlines())
    check(sorted(found) == sorted(PROOFS), f"not all proofs are there: {found}")
    return found


def section(facts, name):
    return facts.partition(f"--- {name}\n")[2].partition("\n---")[0]


def prepared(rack, a_mib, b_mib):
    """A is installed, and rests; B waits in its ramdisk."""
    a = Machine(rack, "a", bus="sata", sda=a_mib, sdb=a_mib)
    b = Machine(rack, "b", bus="nvme", nvme0=b_mib, nvme1=b_mib)
    rack.write("machines/a.yaml", a.file() + rack.allocation())
    rack.write("machines/b.yaml", b.file())
    a.on()
    before = a.is_up()
    a.on(script=REST)
    a.is_up()
    a.ends()
    b.on()
    b.says("Waiting")
    return a, b, before


def judge(a, b, before, digests):
    """B runs what A was, and A is as it was."""
    after = b.is_up()
    check(proofs(before) == proofs(after), f"{proofs(before)}\n{proofs(after)}")
    check(section(before, "fstab") == section(after, "fstab"), section(after, "fstab"))
    check(b.uuid in section(after, "marker"), section(after, "marker"))
    check("nvme" in section(after, "arrays"), section(after, "arrays"))
    check(a.digests() == digests, "a byte of A has changed")
    return after


def runs_from_its_disk(b, before):
    b.on()
    check(b.from_disk, "B is not told to boot its disk")
    check(proofs(b.is_up()) == proofs(before), "from its disk it has other data")


def whole(rack):
    """a mirror and a group go from SATA to larger NVMe disks, over a wire that is recorded"""
    a, b, before = prepared(rack, 2048, 3072)
    digests = a.digests()
    print(rack.cli("machine", "move", "a", "b"))
    recorder = Recorder(rack.file("wire.pcap"))
    began = time.monotonic()
    a.on()
    a.says("no byte of them changes")
    b.says("point of no return")
    plan = b.read("console")
    b.says("move.copy took")
    judge(a, b, before, digests)
    took = time.monotonic() - began
    a.says("this one is free")
    print(plan[plan.find("machine " + b.uuid):].partition("\nInstalling")[0])
    print("\n".join(line for line in b.read("console").splitlines() if " took " in line))
    print(f"from power on of A until B is up: {took:.0f} s")
    print(recorder.judged(a.address(), b.address(), rack.secrets()))
    runs_from_its_disk(b, before)
    a.on()
    check(not a.from_disk, "A is told to boot its disk")
    print(rack.cli("machine", "list"))
    check(a.digests() == digests, "a byte of A has changed")


def cuts(rack):
    """the power of A, of B and of the server goes in the middle of the copy, each"""
    a, b, before = prepared(rack, 2048, 3072)
    digests = a.digests()
    rack.cli("machine", "move", "a", "b")
    rack.slow(b, "24mbit")
    a.on()
    b.copies()
    print("the power of A is cut")
    a.off()
    time.sleep(2)
    a.on()
    a.says("no byte of them changes")
    b.copies()
    print("the server is killed")
    rack.dies()
    time.sleep(10)
    b.copies()
    print("the power of B is cut, while there is no server")
    b.off()
    rack.serves()
    check(a.digests() == digests, "a byte of A has changed")
    b.on()
    b.says("point of no return")
    rack.slow(b, "400mbit")
    b.says("move.copy took")
    print("\n".join(line for line in b.read("console").splitlines() if " took " in line or "resumed" in line))
    judge(a, b, before, digests)
    runs_from_its_disk(b, before)
    a.on()
    check(not a.from_disk, "A is told to boot its disk")


def small(rack):
    """B's disks are too small: it is refused before a byte of any disk is written, and A boots its own"""
    a, b, before = prepared(rack, 2048, 700)
    digests = a.digests()
    blank = b.digests()
    rack.cli("machine", "move", "a", "b")
    a.on()
    b.says("is not big enough")
    print("\n".join(line for line in b.read("console").splitlines() if "enough" in line))
    check(b.digests() == blank, "something was written to B")
    a.says("the move is over")
    a.ends()
    check(a.digests() == digests, "a byte of A has changed")
    a.on()
    check(a.from_disk, "A is not told to boot its disk")
    check(proofs(a.is_up()) == proofs(before), "A has other data")
    print(rack.cli("machine", "list"))


SCENARIOS = [whole, cuts, small]


def main():
    program, directory, target = sys.argv[1:4]
    wanted = sys.argv[4] if len(sys.argv) > 4 else ""
    passed = failed = 0
    for scenario in SCENARIOS:
        if wanted not in scenario.__name__:
            continue
        folder, began = os.path.join(directory, scenario.__name__), time.monotonic()
        shutil.rmtree(folder, ignore_errors=True)
        rack = Rack(program, folder, target, LAYOUT, PROOFS)
        try:
            scenario(rack)
            passed += 1
            print(f"MOVED {scenario.__name__}: {scenario.__doc__}; {time.monotonic() - began:.0f} s", flush=True)
        except (Failed, subprocess.SubprocessError, OSError) as why:
            failed += 1
            print(f"FAILED {scenario.__name__}: {why}", flush=True)
        finally:
            rack.end()
    print(f"test result: {'ok' if failed == 0 and passed else 'FAILED'}. {passed} passed; {failed} failed; 0 ignored")
    sys.exit(0 if passed and not failed else 1)


if __name__ == "__main__":
    main()
