"""Tests of migrations between QEMU machines: from A, with two SATA disks, to B, with two NVMe disks. The server, the machines and a recorder
are on one bridge, in a network namespace that scripts/move has created.

Usage: machines.py PROGRAM DIRECTORY TARGET [SCENARIO]. TARGET has the results of scripts/build-ramdisk and scripts/build-tiny.
"""

import os
import shutil
import subprocess
import sys
import time

# rack.py adds lib.d, with qemu.py, to the search path.
from rack import CARDS, Machine, Rack
import rate
from qemu import Failed, check
from wire import Recorder

# Both machines have a mirror for the system, and a group on both disks. The image fills all filesystems.
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
# Afterwards, the disks have no pending writes, so that their filesystems are clean.
REST = "umount /srv /var/lib /boot/efi\nmount -o remount,ro /\nsync\npoweroff -f\n"
# Prints the NICs of the system.
TELL = "".join(f"echo '--- {name}'\ncat {name}\n" for name in CARDS) + "echo '--- end of cards'\n"


def proofs(facts):
    data = facts.partition("--- data\n")[2].partition("\n---")[0]
    found = dict(line.split(" ") for line in data.splitlines())
    check(sorted(found) == sorted(PROOFS), f"not all proofs are there: {found}")
    return found


def section(facts, name):
    return facts.partition(f"--- {name}\n")[2].partition("\n---")[0]


def prepared(rack, a_mib, b_mib):
    """Installs A, which is idle afterwards; B waits in its ramdisk."""
    a = Machine(rack, "a", bus="sata", sda=a_mib, sdb=a_mib)
    b = Machine(rack, "b", bus="nvme", nvme0=b_mib, nvme1=b_mib)
    rack.write("machines/a.yaml", a.file() + rack.allocation())
    rack.write("machines/b.yaml", b.file())
    a.on()
    before = a.is_up()
    a.on(script=REST)
    a.is_up()
    a.ends()
    # MAC of the system that is migrated.
    b.on(script=TELL)
    b.says("Waiting")
    return a, b, before


def judge(a, b, before, digests):
    """Checks that B runs A's system, and that A is unchanged."""
    after = b.is_up()
    check(proofs(before) == proofs(after), f"{proofs(before)}\n{proofs(after)}")
    check(section(before, "fstab") == section(after, "fstab"), section(after, "fstab"))
    check(b.uuid in section(after, "marker"), section(after, "marker"))
    check("nvme" in section(after, "arrays"), section(after, "arrays"))
    check(a.digests() == digests, "a byte of A has changed")
    return after


def has_its_own_cards(a, b):
    """Checks that the network files contain B's NIC instead of A's, and are otherwise unchanged."""
    b.says("--- end of cards")
    console = b.read("console")
    for name, text in CARDS.items():
        now = section(console, name)
        check(now == text.replace(a.mac, b.mac).strip(), f"{name} has {now!r}")
    return f"{', '.join(CARDS)}: {a.mac} is {b.mac} now"


def runs_from_its_disk(b, before):
    b.on()
    check(b.from_disk, "B is not told to boot its disk")
    check(proofs(b.is_up()) == proofs(before), "the data differ after the boot from disk")


def whole(rack):
    """a mirror and a group go from SATA to larger NVMe disks, with a secret in the ramdisks, with a recorder on the network"""
    a, b, before = prepared(rack, 2048, 3072)
    digests = a.digests()
    print(rack.cli("machine", "move", "a", "b"))
    recorder = Recorder(rack.file("wire.pcap"))
    began = time.monotonic()
    a.on()
    a.says("They are read, but not written")
    for machine in [a, b]:
        machine.says("both certificates are signed with the secret in the ramdisks")
    b.says("point of no return")
    plan = b.read("console")
    b.says("move.copy took")
    judge(a, b, before, digests)
    took = time.monotonic() - began
    print(has_its_own_cards(a, b))
    a.says("for the receiving machine: it has received everything")
    print(rack.cli("machine", "move", "a", "--finish"))
    a.says("this machine has no allocation")
    print(plan[plan.find("machine " + b.uuid):].partition("\nInstalling")[0])
    print("\n".join(line for line in b.read("console").splitlines() if " took " in line))
    print(f"from power on of A until B is up: {took:.0f} s")
    print(recorder.judged(a.address(), b.address(), rack.secrets()))
    runs_from_its_disk(b, before)
    a.on()
    check(not a.from_disk, "A is told to boot its disk")
    print(rack.cli("machine", "list"))
    check(a.digests() == digests, "a byte of A has changed")


def copying(rack):
    """Waits until B has begun to receive, over a slow link. Returns the digests of A's disks."""
    a, b, before = prepared(rack, 2048, 3072)
    digests = a.digests()
    rack.cli("machine", "move", "a", "b")
    rack.slow(b, "24mbit")
    a.on()
    a.says("for the operator's approval")
    b.says("for the operator's approval")
    check(b.came() == 0, "B begins without an approval")
    rack.approve("a", a, b)
    b.copies()
    return a, b, before, digests


def cuts(rack):
    """the power of A, of B and of the server is cut in the middle of the copy"""
    a, b, before, digests = copying(rack)
    print("the power of A is cut")
    a.off()
    time.sleep(2)
    a.on()
    a.says("They are read, but not written")
    rack.approve("a", a)
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
    rack.approve("a", b)
    b.says("point of no return")
    rack.slow(b, "400mbit")
    b.says("move.copy took")
    print("\n".join(line for line in b.read("console").splitlines() if " took " in line or "resumed" in line))
    judge(a, b, before, digests)
    runs_from_its_disk(b, before)
    a.on()
    check(not a.from_disk, "A is told to boot its disk")


def wire(rack):
    """A's file is missing for a while, then the network is cut for longer than TCP waits: nothing fails, and each filesystem is resumed"""
    a, b, before, digests = copying(rack)
    file = rack.file("site/machines/a.yaml")
    os.rename(file, file + ".away")
    b.says("the migration is copying, but the control plane does not specify the sender")
    b.copies()
    print(f"B, without a file of A, after {b.came() / 1e6:.1f} MB: the migration continues, and received data is written")
    os.rename(file + ".away", file)
    b.copies()
    rack.cable(b, "down")
    came, cut = b.came(), time.monotonic()
    a.says("connection lost, resuming")
    rack.cable(b, "up")
    print(f"the network was cut for {time.monotonic() - cut:.0f} s, after {came / 1e6:.1f} MB")
    b.copies()
    check(b.came() > came, f"B begins again: {b.came()} after {came}")
    rack.slow(b, "400mbit")
    b.says("move.copy took")
    figures = [line for line in a.read("console").splitlines() if "resumed" in line]
    print("\n".join(figures))
    check(any("resumed 1 times" in line for line in figures), "nothing was resumed")
    judge(a, b, before, digests)
    has_its_own_cards(a, b)


def small(rack):
    """B's disks are too small: the migration is refused before a disk is written, and A boots its own system"""
    a, b, before = prepared(rack, 2048, 700)
    digests = a.digests()
    blank = b.digests()
    rack.cli("machine", "move", "a", "b")
    a.on()
    b.says("is not big enough")
    print("\n".join(line for line in b.read("console").splitlines() if "enough" in line))
    check(b.digests() == blank, "something was written to B")
    a.says("the migration has ended")
    a.ends()
    check(a.digests() == digests, "a byte of A has changed")
    a.on()
    check(a.from_disk, "A is not told to boot its disk")
    check(proofs(a.is_up()) == proofs(before), "A has other data")
    print(rack.cli("machine", "list"))


def pace(rack):
    """speed compared with dd and nc, on this host"""
    rate.Host(os.path.join(rack.target, "ramdisk/drophammer"), rack.file("host")).table()


SCENARIOS = [whole, cuts, wire, small]
# A measurement without a verdict: only run by name.
MEASURED = {"rate": pace}


def main():
    program, directory, target = sys.argv[1:4]
    wanted = sys.argv[4] if len(sys.argv) > 4 else ""
    passed = failed = 0
    named = [MEASURED[wanted]] if wanted in MEASURED else [scenario for scenario in SCENARIOS if wanted in scenario.__name__]
    for scenario in named:
        folder, began = os.path.join(directory, scenario.__name__), time.monotonic()
        shutil.rmtree(folder, ignore_errors=True)
        rack = Rack(program, folder, target, LAYOUT, PROOFS, secret=scenario is whole)
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
