"""QEMU machine whose power a conductor controls.

The conductor uses its power interface `fake`, which only records the requested power state. A thread polls this state, and switches
QEMU on and off. The machine boots the files that the conductor provides for iPXE, or its own disks if there are none.
"""

import os
import shutil
import socket
import subprocess
import threading
import time

from conductor import PATIENCE, TOLD
from qemu import OVMF, SPARED, UP, Consoles, Failed, accelerator, free_port

class Machine(Consoles):
    """Node with these empty disks, by name and GiB. It is off, and `manageable`."""

    patience = PATIENCE

    def __init__(self, ironic, ramdisk, name, disks, clock="", words="", card=""):
        self.ironic, self.name, self.disks, self.clock, self.words = ironic, name, list(disks), clock, words
        self.folder = os.path.join(ironic.directory, name)
        os.makedirs(self.folder)
        for disk, gib in disks.items():
            with open(self.disk(disk), "wb") as file:
                file.truncate(gib << 30)
        shutil.copy(OVMF % "VARS", os.path.join(self.folder, "efivars.fd"))
        self.ssh_port = free_port()
        self.port, self.mac = free_port(), "52:54:00:" + ":".join(f"{byte:02x}" for byte in os.urandom(3))
        # MAC of its NIC, if it differs from the one that the conductor has.
        self.card = card or self.mac
        self.enroll(ramdisk)
        self.lock, self.qemu, self.boots, self.from_disk, self.only_from_disk, self.heard, self.over = threading.Lock(), None, 0, False, False, 0, False
        self.follower = threading.Thread(target=self.follow)
        self.follower.start()

    def enroll(self, ramdisk):
        kernel, initrd = (f"file://{ramdisk}/{file}" for file in ["vmlinuz", "quick"])
        words = f"console=ttyS0,115200n8 panic=-1 {SPARED} ipa-advertise-host=127.0.0.1 ipa-advertise-port={self.port} {self.words}"
        node = self.ironic.ask("POST", "nodes", {
            "name": self.name, "driver": "fake-hardware", "power_interface": "fake", "management_interface": "noop",
            "network_interface": "noop", "boot_interface": "ipxe", "deploy_interface": "custom-agent", "raid_interface": "agent",
            "rescue_interface": "agent", "properties": {"cpu_arch": "x86_64", "capabilities": "boot_mode:uefi"},
            "driver_info": {"deploy_kernel": kernel, "deploy_ramdisk": initrd, "rescue_kernel": kernel, "rescue_ramdisk": initrd,
                            "kernel_append_params": words},
        })
        self.ironic.ask("POST", "ports", {"node_uuid": node["uuid"], "address": self.mac})
        self.ironic.wish(self.name, target="manage")
        self.ironic.until(self.name, "manageable")

    def disk(self, name):
        return os.path.join(self.folder, name + ".raw")

    def follow(self):
        """Applies the power changes of the conductor to QEMU. A change is recognized by its time, even if the power state
        stays the same."""
        last = None
        while not self.over:
            try:
                node = self.ironic.node(self.name)
            except (OSError, Failed):
                node = {"target_power_state": "unknown"}
            # While a conductor works on a node, its state may differ from the machine's (during a rescue it is on while the machine is
            # off).
            if not node["target_power_state"] and not node["reservation"]:
                when = node["driver_internal_info"].get("last_power_state_change")
                if when != last:
                    last = when
                    with self.lock:
                        self.off()
                        if node["power_state"] == "power on":
                            self.on()
            time.sleep(0.3)

    def on(self):
        self.boots, self.heard = self.boots + 1, 0
        log, folder = self.log, self.folder
        command = ["qemu-system-x86_64", "-nodefaults", "-machine", "q35,graphics=off", "-display", "none", "-no-reboot", "-m", "1024",
                   "-smp", "1,maxcpus=2", *accelerator(), "-device", "virtio-scsi-pci,id=scsi",
                   "-drive", f"if=pflash,format=raw,unit=0,readonly=on,file={OVMF % 'CODE'}",
                   "-drive", f"if=pflash,format=raw,unit=1,file={folder}/efivars.fd",
                   "-netdev", f"user,id=net,net={TOLD.rsplit('.', 1)[0]}.0/24,host={TOLD},hostfwd=tcp:127.0.0.1:{self.port}-:9999,"
                   f"hostfwd=tcp:127.0.0.1:{self.ssh_port}-:22",
                   "-device", f"virtio-net-pci,netdev=net,romfile=,mac={self.card}",
                   "-chardev", f"socket,id=console,path={folder}/console,server=on,wait=off,logfile={log('console')}",
                   "-serial", "chardev:console", "-serial", f"file:{log('facts')}"]
        for index, disk in enumerate(self.disks):
            # The kernel names SCSI disks in the order in which they respond: several disks must be virtio disks.
            model = "virtio-blk-pci" if disk.startswith("vd") else f"scsi-hd,bus=scsi.0,scsi-id={index}"
            command += ["-drive", f"if=none,id={disk},format=raw,cache=unsafe,discard=unmap,file={self.disk(disk)}",
                        "-device", f"{model},serial=DH-{disk},drive={disk}"]
        command += ["-rtc", f"base={self.clock}"] if self.clock else []
        network = self.network_boot()
        self.from_disk = not network
        command += network
        with open(log("qemu"), "wb") as errors:
            self.qemu = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors)

    def network_boot(self):
        """Returns kernel, ramdisk and command line, as iPXE would read them."""
        root = os.path.join(self.ironic.directory, "http")
        try:
            with open(os.path.join(root, "pxelinux.cfg", self.mac.replace(":", "-"))) as file:
                script = file.read()
        except FileNotFoundError:
            return []
        lines = {word: rest for word, _, rest in (line.partition(" ") for line in reversed(script.splitlines()))}
        kernel, _, cmdline = lines["kernel"].split(" || ")[0].partition(" ")
        kernel, initrd = (os.path.join(root, url.split("/", 3)[3]) for url in [kernel, lines["initrd"].split(" ")[0]])
        return ["-kernel", kernel, "-initrd", initrd, "-append", cmdline.replace("${mac}", self.card)]

    def says(self, text, from_disk=False):
        """Waits until this text appears on this boot's console, after the previously awaited text. `from_disk`: not in a ramdisk."""
        self.only_from_disk = from_disk
        return super().says(text)

    def hears(self, text):
        with self.lock:
            return (self.from_disk or not self.only_from_disk) and super().hears(text)

    def is_gone(self):
        """Lets the conductor power cycle the machine."""
        return False

    def is_up(self):
        """Waits until the tiny OS is up from the machine's own disks, and returns its facts."""
        self.says(UP, from_disk=True)
        return self.read("facts")

    def types(self, line):
        """Types at the console."""
        with socket.socket(socket.AF_UNIX) as keyboard:
            keyboard.connect(os.path.join(self.folder, "console"))
            keyboard.sendall(line.encode() + b"\r")
            # QEMU must read the data before the connection is closed.
            time.sleep(0.5)

    def __enter__(self):
        return self

    def __exit__(self, failed, *_):
        self.over = True
        self.follower.join()
        self.off()
        for disk in self.disks if failed is None else []:
            os.unlink(self.disk(disk))
