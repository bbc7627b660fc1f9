"""QEMU machine in a rack: two NICs connected to leaf switches, disks, firmware with variables, a console that is read; and inspection of its
disks from the host."""

import json
import mmap
import os
import shutil
import socket
import subprocess
import time

from rack import PATIENCE, TOLD, Leaf, check, shell
# From lib.d, which rack.py also uses.
from qemu import OVMF, SPARED, UP, Consoles, accelerator

MACHINE = "4c4c4544-0051-3010-8052-b4c04f4e4232"


class Machine(Consoles):
    """Machine with these disks, by name and MiB. The first NIC also leads to the control plane."""

    patience = PATIENCE

    def __init__(self, rack, target, name, leaves=(True, True), memory=1024, **disks):
        self.rack, self.ramdisk, self.disks, self.boots = rack, os.path.join(target, "ramdisk"), list(disks), 0
        self.folder, self.memory = os.path.join(rack.directory, name), memory
        os.makedirs(self.folder)
        for disk, mib in disks.items():
            with open(self.disk(disk), "wb") as file:
                file.truncate(mib << 20)
        shutil.copy(OVMF % "VARS", os.path.join(self.folder, "efivars.fd"))
        self.leaves = [Leaf(number + 1, speaks) for number, speaks in enumerate(leaves)]
        self.qemu, self.heard = None, 0

    def disk(self, name):
        return os.path.join(self.folder, name + ".raw")

    def on(self, network=True, clock="utc"):
        """Boots over PXE, as if its firmware had read pixie's script; or from its disks, without any NIC."""
        self.off()
        self.boots, self.heard = self.boots + 1, 0
        command = ["qemu-system-x86_64", "-nodefaults", "-machine", "q35,graphics=off", "-display", "none", "-no-reboot", "-m", str(self.memory),
                   "-smp", "1,maxcpus=2", *accelerator(), "-uuid", MACHINE, "-rtc", f"base={clock}",
                   "-drive", f"if=pflash,format=raw,unit=0,readonly=on,file={OVMF % 'CODE'}",
                   "-drive", f"if=pflash,format=raw,unit=1,file={self.folder}/efivars.fd",
                   "-qmp", f"unix:{self.folder}/qmp,server=on,wait=off",
                   "-serial", f"file:{self.log('console')}", "-serial", f"file:{self.log('facts')}"]
        for disk in self.disks:
            command += ["-drive", f"if=none,id={disk},format=raw,cache=unsafe,discard=unmap,file={self.disk(disk)}",
                        "-device", f"virtio-blk-pci,serial=DH-{disk},drive={disk}"]
        if network:
            first, second = (leaf.port for leaf in self.leaves)
            command += ["-netdev", "user,id=lan", "-netdev", f"socket,id=leaf1,connect=127.0.0.1:{first}",
                        "-netdev", "hubport,id=hub-lan,hubid=0,netdev=lan", "-netdev", "hubport,id=hub-leaf,hubid=0,netdev=leaf1",
                        "-netdev", "hubport,id=card1,hubid=0", "-netdev", f"socket,id=card2,connect=127.0.0.1:{second}",
                        "-device", "virtio-net-pci,id=eth0,netdev=card1,romfile=,mac=52:54:00:00:00:01",
                        "-device", "virtio-net-pci,id=eth1,netdev=card2,romfile=,mac=52:54:00:00:00:02",
                        "-kernel", f"{self.ramdisk}/vmlinuz", "-initrd", f"{self.ramdisk}/quick", "-append",
                        # mini-lab's parameters, and those that pixie adds.
                        f"console=ttyS0,115200n8 ip=dhcp carrier_timeout=10 panic=-1 {SPARED} "
                        f"PIXIE_API_URL=http://{TOLD}:{self.rack.http}/certs DEBUG=1"]
        with open(self.log("qemu"), "wb") as errors:
            self.qemu = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors)

    def unplug(self):
        """Disconnects both NICs, as if the switches had moved their ports into another network."""
        with socket.socket(socket.AF_UNIX) as monitor:
            monitor.settimeout(30)
            monitor.connect(os.path.join(self.folder, "qmp"))
            answers = monitor.makefile()
            answers.readline()
            wishes = [("qmp_capabilities", {}), *(("set_link", {"name": card, "up": False}) for card in ["eth0", "eth1"])]
            for wish, how in wishes:
                monitor.sendall(json.dumps({"execute": wish, "arguments": how}).encode())
                answer = next(answer for answer in map(json.loads, answers) if "event" not in answer)
                check("return" in answer, answer)

    def processor(self):
        """Returns the CPU seconds used in this boot, which hardly depend on the load of the host."""
        with open(f"/proc/{self.qemu.pid}/stat") as file:
            used = file.read().rpartition(") ")[2].split()
        return (int(used[11]) + int(used[12])) / os.sysconf("SC_CLK_TCK")

    def stays(self, seconds):
        """Checks that the machine neither boots a system nor powers off in that time."""
        time.sleep(seconds)
        console = self.read("console")
        check(self.qemu.poll() is None and UP not in console, f"the machine has started a system, or is off: {console[-2000:]}")

    def __enter__(self):
        return self

    def __exit__(self, failed, *_):
        self.off()
        for disk in self.disks if failed is None else []:
            os.unlink(self.disk(disk))


# Data of the previous owner: a secret in the middle of each disk, and at its ends.
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
    """Returns the number of secrets on the disks. A disk of zeros is one line, which grep would hold in memory."""
    with open(machine.disk(disk), "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        found, at = 0, content.find(SECRET)
        while at >= 0:
            found, at = found + 1, content.find(SECRET, at + 1)
        return found


def is_blank(machine, disk):
    size = os.path.getsize(machine.disk(disk))
    return subprocess.run(["cmp", "-s", "-n", str(size), machine.disk(disk), "/dev/zero"]).returncode == 0


# Writes a file of 16 MiB, and a copy for comparison, to the only filesystem of the disk, which begins at 1 MiB.
PUT = """dd if="$1" of="$1.fs" bs=1M skip=1 conv=sparse status=none
e2fsck -fy "$1.fs" >/dev/null 2>&1 || [ $? = 1 ]
head -c 16M /dev/urandom >"$1.random"
printf 'mkdir data-proof\\ncd data-proof\\nwrite %s random\\n' "$1.random" | debugfs -w -f - "$1.fs" >/dev/null 2>&1
dd if="$1.fs" of="$1" bs=1M seek=1 conv=notrunc status=none
rm "$1.fs" """

# Prints the partition table, the filesystem, and the file compared with its copy.
BYTES = """dd if="$1" of="$1.fs" bs=1M skip=1 conv=sparse status=none
echo "table $(head -c 1M "$1" | sha256sum | cut -c1-16)"
echo "filesystem $(blkid -p -s UUID -o value "$1.fs")"
debugfs -R "dump data-proof/random $1.found" "$1.fs" >/dev/null 2>&1
cmp "$1.random" "$1.found"
echo "16 MiB $(sha256sum <"$1.found" | cut -c1-16)"
rm "$1.fs" "$1.found" """

# Prints a file of a filesystem that was in use until just now.
FILE = """sectors=$(sfdisk -d "$1" | sed -n "s/.* start= *\\([0-9]*\\), size= *\\([0-9]*\\).*/\\1 \\2/p" | sed -n "${2}p")
dd if="$1" of="$1.part" bs=512 skip="${sectors% *}" count="${sectors#* }" conv=sparse status=none
e2fsck -fy "$1.part" >/dev/null 2>&1 || [ $? = 1 ]
debugfs -R "cat $3" "$1.part" 2>/dev/null
rm "$1.part" """
