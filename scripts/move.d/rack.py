"""A server and two machines on one bridge. The server decides what a machine boots: the script for iPXE is downloaded and
parsed here, and QEMU starts with that kernel and ramdisk, or from the machine's disks.
"""

import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import urllib.error
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.join(HERE, "..", "lib.d"))
from qemu import OVMF, SPARED, Consoles, accelerator, check  # noqa: E402

SERVER = "10.77.0.1"
URL = f"http://{SERVER}:8080"
PATIENCE = 420 * int(os.environ.get("DROPHAMMER_PATIENCE", "1"))
PROOF_BYTES = 24 << 20
# MACs of the machines, in the order of their creation.
MAC = "52:54:00:77:00:0%d"
# NIC files of the first machine's system.
CARDS = {
    "/etc/mactab": f"lan {MAC % 1}\n",
    "/etc/netplan/50-lan.yaml": f'network: {{version: 2, ethernets: {{lan: {{match: {{macaddress: "{MAC % 1}"}}, dhcp4: true}}}}}}\n',
    "/etc/systemd/network/10-lan.link": f"[Match]\nMACAddress={MAC % 1}\n[Link]\nName=lan\n",
}


def shell(command, *arguments):
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", command, "bash", *arguments], capture_output=True, text=True, timeout=PATIENCE)
    check(done.returncode == 0, f"{command}: {done.stderr}{done.stdout}")
    return done.stdout


class Rack:
    """Directory of `drophammer serve`, and the server."""

    def __init__(self, program, directory, target, layout, proofs, secret=False):
        self.program, self.directory, self.target, self.machines, self.server = program, directory, target, [], None
        for folder in ["machines", "layouts", "images"]:
            os.makedirs(self.file(f"site/{folder}"))
        self.write("layouts/mirrored.yaml", layout)
        self.write("images/tiny-12.0.1.yaml", "id: tiny-12.0.1\nfile: tiny.tar\n")
        self.image(proofs)
        self.starts, self.secret, self.initrd = 0, None, os.path.join(target, "ramdisk", "quick")
        if secret:
            self.put_secret()
        try:
            shell('"$1" serve "$2" --boot "$3" --check >&2', program, self.file("site"), os.path.join(target, "ramdisk"))
            self.serves()
        except BaseException:
            self.end()
            raise

    def file(self, name):
        return os.path.join(self.directory, name)

    def write(self, name, text):
        with open(self.file(f"site/{name}"), "w") as file:
            file.write(text)

    def put_secret(self):
        """Adds a secret to the ramdisk that both machines boot, with the commands of the documentation."""
        with open(os.path.join(HERE, "..", "..", "docs", "move-approval.md")) as page:
            commands = page.read().partition("```sh\n")[2].partition("```")[0]
        check("move-secret" in commands, "docs/move-approval.md has no commands for the secret")
        boot = self.file("boot")
        os.makedirs(boot)
        shutil.copy(self.initrd, os.path.join(boot, "initrd"))
        shell('PATH="${2%/*}:$PATH"\ncd "$1"\n' + commands, boot, os.path.abspath(self.program))
        self.initrd = os.path.join(boot, "initrd")
        with open(os.path.join(boot, "secret/etc/drophammer/move-secret"), "rb") as file:
            self.secret = file.read().strip()
        check(len(self.secret) > 32, "the secret is too short")

    def image(self, proofs):
        """Builds the tiny OS with the SATA driver, random data in each filesystem, and a network configuration that selects the NIC by its MAC."""
        image = self.file("site/images/tiny.tar")
        shell('zstd -qdc "$1" >"$2"', os.path.join(self.target, "tiny/sata.tar.zst"), image)
        self.samples = []
        with tarfile.open(image, "a") as tar:
            for proof in proofs:
                content = os.urandom(PROOF_BYTES)
                self.samples.append(content[PROOF_BYTES // 2 : PROOF_BYTES // 2 + 64])
                member = tarfile.TarInfo("." + proof)
                member.size = PROOF_BYTES
                tar.addfile(member, io.BytesIO(content))
            for name, text in CARDS.items():
                member = tarfile.TarInfo("." + name)
                member.size = len(text)
                tar.addfile(member, io.BytesIO(text.encode()))

    def allocation(self):
        return ("allocation:\n  id: 00000000-0000-4000-8000-00000000000a\n  hostname: web-1\n  image: tiny-12.0.1\n"
                "  filesystemlayout: mirrored\n")

    def secrets(self):
        """Returns the data that must not be readable on the network."""
        return [*self.samples, b"PRIVATE KEY", *([self.secret] if self.secret else [])]

    def serves(self):
        self.starts += 1
        with open(self.file(f"serve.{self.starts}.log"), "wb") as log:
            # QEMU gets the same kernel and ramdisk from files as it would from the server.
            command = [self.program, "serve", self.file("site"), "--boot", os.path.join(self.target, "ramdisk"), "--listen", f"{SERVER}:8080",
                       "--cmdline", f"console=ttyS0,115200n8 {SPARED}"]
            self.server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        end = time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen(f"{URL}/boot.ipxe?uuid=00000000-0000-4000-8000-0000000000ff", timeout=5):
                    return
            except urllib.error.HTTPError:
                return
            except OSError as why:
                check(time.monotonic() < end and self.server.poll() is None, f"the server does not answer: {why}")
                time.sleep(0.3)

    def dies(self):
        self.server.kill()
        self.server.wait()

    def cli(self, *words):
        done = subprocess.run([self.program, *words, "--server", URL, "--token-file", self.file("site/operator.token")],
                              capture_output=True, text=True, timeout=120)
        check(done.returncode == 0, f"{' '.join(words)}: {done.stderr}{done.stdout}")
        return f"$ drophammer {' '.join(words)}\n{done.stdout}"

    def approve(self, of, *machines):
        """Approves the certificates that these machines print on their consoles, after the server has received them."""
        shown = [machine.fingerprint() for machine in machines]
        words = ["machine", "move", of, *[word for one in shown for word in ("--approve", one)]]
        end = time.monotonic() + PATIENCE
        while subprocess.run([self.program, *words, "--server", URL, "--token-file", self.file("site/operator.token")],
                             capture_output=True, timeout=120).returncode != 0:
            check(time.monotonic() < end, f"the server does not know {shown}")
            time.sleep(1)
        print(f"approved: {', '.join(shown)}")

    def slow(self, machine, rate):
        """Limits the bandwidth to that machine."""
        shell("tc qdisc replace dev $1 root tbf rate $2 burst 128k latency 100ms", machine.tap, rate)

    def cable(self, machine, state):
        """Sets the link `down` or `up`."""
        shell('ip link set "$1" "$2"', machine.tap, state)

    def end(self):
        for machine in self.machines:
            machine.off()
        if self.server and self.server.poll() is None:
            self.dies()


class Machine(Consoles):
    """Machine with these disks, by name and MiB, on the bus `sata` or `nvme`. It uses the tap device of its name."""

    patience = PATIENCE

    def __init__(self, rack, name, bus, **disks):
        number = len(rack.machines) + 1
        self.rack, self.name, self.bus, self.disks, self.tap = rack, name, bus, list(disks), f"tap-{name}"
        self.uuid, self.mac = f"4c4c4544-0051-3010-8052-b4c04f4e000{number}", MAC % number
        self.folder, self.from_disk = rack.file(name), False
        os.makedirs(self.folder)
        for disk, mib in disks.items():
            with open(self.disk(disk), "wb") as file:
                file.truncate(mib << 20)
        shutil.copy(OVMF % "VARS", os.path.join(self.folder, "efivars.fd"))
        rack.machines.append(self)

    def file(self):
        return f'id: {self.uuid}\nname: {self.name}\nmacs: ["{self.mac}"]\n'

    def disk(self, name):
        return os.path.join(self.folder, name + ".raw")

    def digests(self):
        return shell('sha256sum "$@"', *map(self.disk, self.disks))

    def on(self, script=""):
        """Boots like its firmware: over the network first."""
        self.off()
        self.boots, self.heard = self.boots + 1, 0
        with urllib.request.urlopen(f"{URL}/boot.ipxe?uuid={self.uuid}&mac={self.mac}", timeout=30) as answer:
            words = answer.read().decode()
        kernel = re.search(r"^kernel \S+ initrd=initrd (.*?)( \|\| .*)?$", words, re.MULTILINE)
        self.from_disk = kernel is None
        check(kernel or "starting its disk" in words, f"the script for {self.name} boots neither the ramdisk nor the disk: {words}")
        ramdisk = os.path.join(self.rack.target, "ramdisk")
        boot = ["-kernel", f"{ramdisk}/vmlinuz", "-initrd", self.rack.initrd, "-append", kernel.group(1)] if kernel else []
        command = ["qemu-system-x86_64", "-nodefaults", "-machine", "q35,graphics=off", "-display", "none", "-no-reboot", "-m", "1024",
                   "-smp", "1,maxcpus=2", *accelerator(), "-uuid", self.uuid,
                   "-drive", f"if=pflash,format=raw,unit=0,readonly=on,file={OVMF % 'CODE'}",
                   "-drive", f"if=pflash,format=raw,unit=1,file={self.folder}/efivars.fd",
                   "-netdev", f"tap,id=net,ifname={self.tap},script=no,downscript=no",
                   "-device", f"virtio-net-pci,netdev=net,romfile=,mac={self.mac}",
                   "-serial", f"file:{self.log('console')}", "-serial", f"file:{self.log('facts')}", *boot]
        for index, disk in enumerate(self.disks):
            device = f"ide-hd,bus=ide.{index}" if self.bus == "sata" else "nvme"
            command += ["-drive", f"if=none,id={disk},format=raw,cache=unsafe,discard=unmap,file={self.disk(disk)}",
                        "-device", f"{device},serial=DH-{self.name}-{disk},drive={disk}"]
        if script:
            with open(os.path.join(self.folder, "script"), "w") as file:
                file.write(script)
            command += ["-fw_cfg", f"name=opt/drophammer,file={self.folder}/script"]
        with open(self.log("qemu"), "wb") as errors:
            self.qemu = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors)

    def fingerprint(self):
        """Returns the certificate that this boot prints."""
        end = time.monotonic() + PATIENCE
        while True:
            found = re.findall(r"Certificate of this machine:\s+(sha256:[0-9a-f]{64})\s", self.read("console"))
            if found:
                return found[-1]
            check(time.monotonic() < end, f"{self.name} prints no fingerprint")
            time.sleep(0.3)

    def ends(self):
        """Waits until the machine powers off or reboots."""
        self.qemu.wait(PATIENCE)
        self.qemu = None

    def copies(self):
        """Waits until more data has arrived."""
        before, end = self.came(), time.monotonic() + PATIENCE
        while self.came() <= before:
            check(time.monotonic() < end and self.qemu.poll() is None, f"no more data arrive: {self.log('console')}")
            time.sleep(0.2)

    def came(self):
        """Returns the number of bytes that the machine reported last."""
        units = {"kB": 1e3, "MB": 1e6, "GB": 1e9}
        said = re.findall(r"([\d.]+) (kB|MB|GB) of [\d.]+ GB, ", self.read("console"))
        return float(said[-1][0]) * units[said[-1][1]] if said else 0

    def address(self):
        found = re.findall(r"10\.77\.0\.\d+", self.read("console"))
        found = [one for one in found if one != SERVER]
        check(found, f"{self.name} has no address")
        return found[0]
