"""Server and agent for the tests of API clients (scripts/metal.d/client.py, scripts/clients.d): starts `drophammer serve` on the loopback interface
in a directory that it creates, and takes machines through registration and installation with the agent's requests."""

import copy
import http.client
import json
import pathlib
import subprocess
import time

INVENTORY = json.loads(pathlib.Path("testdata/inventories/sata-1.json").read_text())
LAYOUT = """id: default # of the rack
constraints:
  sizes: [c1, c2]
  images: {debian: ">= 12", ubuntu: "*"}
disks:
  - device: /dev/sda
    wipeonreinstall: true
    partitions:
      - {number: 1, label: efi, size: 500, gpttype: ef00}
      - {number: 2, label: root, size: 0}
filesystems:
  - {path: /boot/efi, device: /dev/sda1, format: vfat, createoptions: ["-F", "32"]}
  - {path: /, device: /dev/sda2, format: ext4, label: root}
"""
FULL = """# Every object that a layout can contain.
id: full
constraints: {sizes: [], images: {}}
disks:
  - {device: /dev/sda, wipeonreinstall: true, partitions: [{number: 1, size: 500, gpttype: fd00}, {number: 2, size: 0, gpttype: "8e00"}]}
  - {device: /dev/sdb, wipeonreinstall: true, partitions: [{number: 1, size: 500, gpttype: fd00}, {number: 2, size: 0, gpttype: "8e00"}]}
raid: [{arrayname: /dev/md/efi, level: 1, devices: [/dev/sda1, /dev/sdb1], createoptions: ["--metadata=1.0"]}]
volumegroups: [{name: vg, devices: [/dev/sda2, /dev/sdb2], tags: [t]}]
logicalvolumes: [{name: root, volumegroup: vg, size: 5000, lvmtype: raid1}, {name: data, volumegroup: vg, size: 0, lvmtype: linear}]
filesystems:
  - {path: /boot/efi, device: /dev/md/efi, format: vfat}
  - {path: /, device: /dev/vg/root, format: ext4}
  - {path: /data, device: /dev/vg/data, format: xfs, mountoptions: [noatime]}
"""
SIZE = """id: c1
name: small
constraints:
  - {type: cores, min: 1, max: 4}
  - {type: memory, min: 1, max: 4294967296}
  - {type: storage, max: 1099511627776}
"""


def machine_id(number):
    return f"4c4c4544-0051-3010-8052-b4c04f4d{number:04x}"


def mac(number):
    return f"52:54:00:00:00:{number:02x}"


def machine_text(number, name, more):
    return f"id: {machine_id(number)}\nname: {name} # in the rack\nmacs: ['{mac(number)}']\n{more}"


INSTALLED, SMALL, LARGE, UNSEEN, LOCKED, DESCRIBED = range(1, 7)
ALLOCATION = """size: c1
allocation:
  id: 0b5b3a3c-8ed1-4c9a-9a0e-000000000001
  hostname: one
  image: debian-12.0.20260101
  filesystemlayout: default
  ssh_pub_keys: [ssh-ed25519 AAAA]
  user_data: c2VjcmV0
"""
# Networks, servers and rules as in metal-stack, without some of the fields that its clients require.
NETWORKS = """size: unlisted
allocation:
  id: 0b5b3a3c-8ed1-4c9a-9a0e-000000000006
  hostname: six
  role: firewall
  image: debian-12.0.20260101
  filesystemlayout: full
  networks: [{networkid: internet, asn: 4200000001, ips: [10.0.0.6], prefixes: [10.0.0.0/24]}, {private: true, vrf: 7}]
  dns_servers: [{ip: 10.0.0.53}]
  ntp_servers: [{address: ntp.example.org}, {address: 10.0.0.123}]
  firewall_rules:
    egress: [{comment: out, protocol: TCP, ports: [443], to: [0.0.0.0/0]}, {comment: all}]
    ingress: [{protocol: udp, from: [10.0.0.0/8]}]
"""
MACHINES = {
    INSTALLED: ("one", ALLOCATION),
    SMALL: ("two", "size: c2\n"),
    LARGE: ("three", "size: c2\nnetworks: [{networkid: internet, asn: 42, ips: [10.0.0.3]}, {networkid: storage}]\n"),
    UNSEEN: ("four", "size: c2\n"),
    LOCKED: ("five", "size: c2\nlocked: repair\n"),
    DESCRIBED: ("six", NETWORKS),
}


class Site:
    """A directory and the server that serves it."""

    def __init__(self, program, folder, port):
        self.program, self.folder, self.port, self.process = program, pathlib.Path(folder), port, None
        files = {
            "layouts/default.yaml": LAYOUT,
            "layouts/full.yaml": FULL,
            "sizes/c1.yaml": SIZE,
            "images/debian-12.yaml": "id: debian-12.0.20260101\nname: Debian 12\nfile: debian.tar.zst # of the build\n",
            "images/debian-13.yaml": "id: debian-13.0.20261101\nfile: debian.tar.zst\n",
            "images/debian.tar.zst": "0123456789",
            "boot/vmlinuz": "kernel",
            "boot/initrd": "ramdisk",
        }
        files |= {f"machines/{name}.yaml": machine_text(number, name, more) for number, (name, more) in MACHINES.items()}
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def start(self):
        log = open(self.folder.with_suffix(".log"), "wb")
        arguments = [self.program, "serve", str(self.folder), "--listen", f"127.0.0.1:{self.port}"]
        self.process = subprocess.Popen(arguments, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        self.until(lambda: self.ask("GET", "/readyz", "")[0] == 200, "the server does not start")
        self.token = (self.folder / "operator.token").read_text().strip()

    def stop(self):
        if self.process:
            self.process.terminate()
            self.process.wait()

    def until(self, is_so, what):
        for _ in range(600):
            try:
                if is_so():
                    return
            except OSError:
                pass
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        raise SystemExit(f"{what}: {self.folder.with_suffix('.log').read_text()[-2000:]}")

    def files(self):
        """The operator's files, which a refused request must not change."""
        folders = ["machines", "layouts", "sizes", "images"]
        paths = [path for folder in folders for path in (self.folder / folder).rglob("*")] + [self.folder / "image-states.yaml"]
        return {str(path): path.read_bytes() for path in paths if path.is_file()}

    def text(self, name):
        return (self.folder / name).read_text()

    def ask(self, method, path, token, body=None):
        """Sends a request of the agent. A registration must come from a privileged process: its source port is below 1024."""
        for source in range(1023, 600, -1):
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60, source_address=("127.0.0.1", source))
            try:
                connection.connect()
            except PermissionError:
                raise SystemExit("the agent's requests require a source port below 1024: run this as root")
            except OSError as error:
                if error.errno != 98 and error.errno != 99:
                    raise
                continue
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Authorization": f"Bearer {token}"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        raise SystemExit("no privileged port is free")

    def boot(self, number, disk_bytes):
        """Boots the machine over PXE and registers it with a disk of this size; returns its token."""
        _, script = self.ask("GET", f"/boot.ipxe?uuid={machine_id(number)}&mac={mac(number)}", "")
        token = script.split("drophammer.token=")[1].split()[0]
        inventory = copy.deepcopy(INVENTORY)
        inventory["disks"] = inventory["disks"][:1]
        inventory["disks"][0]["size_bytes"] = disk_bytes
        inventory["nics"] = [inventory["nics"][0] | {"mac": mac(number)}]
        register = {
            "uuid": machine_id(number),
            "hardware": {
                "memory": inventory["memory_bytes"],
                "cpu_cores": 2,
                "disks": [{"name": "/dev/sda", "size": disk_bytes}],
                "nics": [{"mac": mac(number), "name": "eth0"}],
            },
            "bios": {"vendor": "v", "version": "1", "date": "01/01/2026"},
            "inventory": inventory,
            "agent": "drophammer 0.1.0",
        }
        self.request(token, "POST", "/v1/machine/register", register)
        return token

    def install(self, number, disk_bytes, allocation):
        """Takes the machine through an installation that succeeds."""
        token = self.boot(number, disk_bytes)
        machine = f"/v1/machine/{machine_id(number)}"
        self.request(token, "GET", f"{machine}/wait?seconds=60", None)
        self.request(token, "GET", machine, None)
        self.request(token, "POST", f"{machine}/event", {"event": "Installing", "message": "image"})
        self.request(token, "POST", f"{machine}/point-of-no-return", {"allocationuuid": allocation, "order": "", "disks": []})
        report = {"success": True, "message": "m", "allocationuuid": allocation, "console_password": "hunter2"}
        self.request(token, "POST", f"{machine}/report", report)

    def request(self, token, method, path, body):
        status, text = self.ask(method, path, token, body)
        if status != 200:
            raise SystemExit(f"{method} {path}: {status}: {text}")
        return text
