"""Server with a temporary directory, and simulated agents."""

import copy
import json
import os
import subprocess
import urllib.error
import urllib.request
import zlib

LAYOUT = """id: storage
description: a system that is renewed, and data that stay
disks:
  - device: /dev/sda
    wipeonreinstall: true
    partitions:
      - {number: 1, label: efi, size: 500, gpttype: ef00}
      - {number: 2, label: root, size: 0, gpttype: "8300"}
  - device: /dev/sdb
    wipeonreinstall: false
    partitions: [{number: 1, label: varlib, size: 0, gpttype: "8300"}]
filesystems:
  - {path: /boot/efi, device: /dev/sda1, format: vfat, label: efi}
  - {path: /, device: /dev/sda2, format: ext4, label: root}
  - {path: /var/lib, device: /dev/sdb1, format: ext4, label: varlib}
"""


def machine_id(number):
    return f"4c4c4544-0051-3010-8031-{number:012x}"


def disk(name, gigabytes, model, serial, partitions):
    """Returns a disk with a GPT and a filesystem in each partition: (label, GB, format)."""
    parts, start = [], 1 << 20
    for number, (label, size, format) in enumerate(partitions, 1):
        uuid = f"{number:08x}-0000-4000-8000-{zlib.crc32((name + serial).encode()):012x}"
        signature = {"kind": format, "usage": "filesystem", "label": label, "uuid": uuid}
        parts.append({"number": number, "device": f"/dev/{name}{number}", "start_bytes": start, "size_bytes": int(size * 10**9),
                      "label": label, "kind": "0fc63daf-8483-4772-8e79-3d69d8477de4", "signatures": [signature]})
        start += int(size * 10**9)
    guid = f"11111111-2222-4333-8444-{zlib.crc32((name + serial).encode()):012x}"
    table = {"kind": "gpt", "guid": guid, "partitions": parts} if parts else None
    return {"name": name, "device": f"/dev/{name}", "size_bytes": gigabytes * 10**9, "sector_bytes": 512, "model": model,
            "serial": serial, "transport": "sata", "rotational": gigabytes > 4000, "table": table, "blank": not parts}


def inventory(number, installed=False):
    system = {"uuid": machine_id(number), "vendor": "Dell Inc.", "product": "PowerEdge R640", "serial": f"7XK{number:04d}",
              "bios_vendor": "Dell Inc.", "bios_version": "2.21.2", "bios_date": "02/19/2026", "firmware": "uefi"}
    cpu = {"vendor": "GenuineIntel", "model": "Intel(R) Xeon(R) Gold 6230", "cores": 20, "threads": 40}
    old = [("efi", 0.524, "vfat"), ("root", 470, "ext4")] if installed else []
    data = [("varlib", 3800, "ext4")] if installed else []
    disks = [disk("sda", 480, "SAMSUNG MZ7LH480", f"S45NNE0M{number:05d}", old),
             disk("sdb", 3840, "SAMSUNG MZ7L33T8", f"9150A0{number:05d}", data),
             disk("sdc", 8001, "ST8000NM000A", f"ZA1B{number:05d}", [("archive", 8000, "xfs")])]
    return {"system": system, "cpus": [cpu, cpu], "memory_bytes": 384 << 30, "disks": disks,
            "nics": [{"name": "eth0", "mac": mac(number), "driver": "i40e", "link": True}]}


def mac(number):
    return f"52:54:00:{number >> 16 & 255:02x}:{number >> 8 & 255:02x}:{number & 255:02x}"


class Rack:
    def __init__(self, program, dir, machines):
        self.dir = dir
        for folder in ("machines", "layouts", "images", "boot"):
            os.makedirs(f"{dir}/{folder}")
        for name in ("boot/vmlinuz", "boot/initrd", "images/debian.tar"):
            self.write(name, name)
        self.write("layouts/storage.yaml", LAYOUT)
        for image in ("debian-12.0.20261101", "debian-13.1.20261101"):
            self.write(f"images/{image}.yaml", f"id: {image}\nname: Debian\nfile: debian.tar\n")
        for number in range(1, machines + 1):
            self.machine(number)
        command = [program, "serve", dir, "--listen", "127.0.0.1:0", "--any-source-port", "--json"]
        self.server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.url = json.loads(self.server.stdout.readline())["listening"]
        self.log = open(f"{dir}.log", "w")
        self.copying = subprocess.Popen(["cat"], stdin=self.server.stdout, stdout=self.log)
        with open(f"{dir}/operator.token") as file:
            self.operator = file.read().strip()

    def write(self, name, text):
        with open(f"{self.dir}/{name}.new", "w") as file:
            file.write(text)
        os.rename(f"{self.dir}/{name}.new", f"{self.dir}/{name}")

    def machine(self, number, more=""):
        name = f"storage-{number}"
        self.write(f"machines/{name}.yaml", f"""id: {machine_id(number)}
name: {name}
macs: ["{mac(number)}"]
size: c1-large-x86
{more}allocation:
  id: 6f0c3b9e-3d57-4c57-8f0e-{number:012x}
  hostname: {name}
  project: p1
  image: debian-12.0.20261101
  filesystemlayout: storage
""")

    def free_machine(self, number):
        """Replaces the machine file by one without an allocation."""
        name = f"storage-{number}"
        self.write(f"machines/{name}.yaml", f"# spare\nid: {machine_id(number)}\nname: {name}\nmacs: ['{mac(number)}']\nsize: c1-large-x86\n")

    def ask(self, method, path, body=None, token=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, method=method)
        if token:
            request.add_header("Authorization", f"Bearer {token}")
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return answer.read().decode()
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{method} {path}: {error.code} {error.read().decode()}") from None

    def end(self):
        self.server.terminate()
        self.server.wait()
        self.copying.wait()
        self.log.close()


class Agent:
    """Machine in the ramdisk."""

    def __init__(self, rack, number, installed=False, change=None, is_free=False):
        self.rack, self.id = rack, machine_id(number)
        script = rack.ask("GET", f"/boot.ipxe?uuid={self.id}")
        self.token = script.split("drophammer.token=")[1].split(" ")[0]
        has = inventory(number, installed)
        if change:
            change(has)
        disks = [{"name": one["device"], "size": one["size_bytes"]} for one in has["disks"]]
        hardware = {"memory": has["memory_bytes"], "cpu_cores": 40, "disks": disks,
                    "nics": [{"mac": one["mac"], "name": one["name"]} for one in has["nics"]]}
        bios = {"vendor": "Dell Inc.", "version": "2.21.2", "date": "02/19/2026"}
        register = {"uuid": self.id, "hardware": hardware, "bios": bios, "inventory": has, "agent": "drophammer 0.1.0"}
        self.call("POST", "register", register, "/v1/machine/")
        self.logged = 0
        if is_free:
            return
        self.call("GET", "wait?seconds=60")
        self.told = json.loads(rack.ask("GET", f"/v1/machine/{self.id}", token=self.token))["allocation"]

    def call(self, method, what, body=None, before=None):
        return self.rack.ask(method, (before or f"/v1/machine/{self.id}/") + what, body, self.token)

    def event(self, event, message="", **more):
        self.call("POST", "event", {"event": event, "message": message, **more})

    def log(self, text):
        self.call("POST", "log", {"start": self.logged, "log": text})
        self.logged += len(text.encode())

    def burn(self, percent, rate=114_000_000):
        total = 1_212_000_000
        done = total * percent // 100 + 1000
        progress = {"bytes": done, "total_bytes": total, "bytes_per_second": rate, "seconds_left": (total - done) // rate}
        self.event("Installing", step="image.burn", progress=progress)

    def begin(self):
        order = (self.told.get("order") or {}).get("id", "")
        disks = [{"device": "/dev/sda", "serial": "S", "size_bytes": 1}]
        self.call("POST", "point-of-no-return", {"allocationuuid": self.told["allocationuuid"], "order": order, "disks": disks})

    def report(self, success, message, **more):
        order = (self.told.get("order") or {}).get("id", "")
        return self.call("POST", "report", {"success": success, "message": message, "allocationuuid": self.told["allocationuuid"],
                                            "order": order, **copy.deepcopy(more)})
