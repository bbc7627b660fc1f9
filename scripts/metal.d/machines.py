"""Tests in which control planes of metal-stack install QEMU machines: version 1 is first.py, version 2 server.py. Each machine has two NICs,
each connected to a leaf switch, which is a thread here that sends LLDP.

Usage: machines.py VENV DIRECTORY TARGET [SCENARIO]. TARGET has the results of scripts/build-ramdisk and scripts/build-tiny.
"""

import json
import os
import shutil
import signal
import sys
import time

import bmc
import protovalidate
from booted import BYTES, FILE, MACHINE, PUT, Machine, is_blank, leave_secrets, secrets
from google.protobuf.json_format import ParseDict
from metalstack.api.v2.machine_pb2 import MachineAllocation
from rack import HERE, SLOW, TOLD, Clock, Failed, Loki, Rack, certificate_until, check, shell, until

PROJECT = "0d95cd70-0000-4000-8000-000000000001"
# Seconds after the creation of the certificate, and after `Waiting`.
CERTIFICATE_ENDS = 170 * SLOW
LATE = 91


def part(number, label, size, kind):
    return {"number": number, "label": label, "size": size, "gpttype": kind}


def layout():
    """System on vda; data on vdb, which a reinstall preserves."""
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


def allocation(rack, number, **more):
    network = {"networkid": "n-1", "prefixes": ["10.0.0.0/24"], "ips": ["10.0.0.1"], "vrf": 42, "asn": 4200003073, "private": True,
               "underlay": False, "nat": False, "destinationprefixes": None, "networktype": "privateprimaryunshared"}
    return {
        "allocationuuid": f"00000000-0000-4000-8000-00000000000{number}", "name": "web", "project": PROJECT, "hostname": "web-1",
        "role": "machine", "created": "2026-11-24T09:00:00Z", "boot_info": None, "vpn": None,
        "image": {"id": "tiny-12.0.1", "url": rack.image, "name": "tiny"}, "filesystemlayout": layout(), "networks": [network],
        "ssh_pub_keys": [], "user_data": None, "reinstall": False, "succeeded": False,
    } | more


def second_layout(description):
    """The same in version 2, which does not support preserved disks."""
    part = lambda number, label, size, kind: {"number": number, "label": label, "gptType": kind} | ({"size": str(size)} if size else {})
    filesystem = lambda path, device, kind, label, **more: {
        "name": label, "description": label, "path": path, "device": device, "format": kind, "label": label} | more
    return {
        "id": "kept", "name": "kept", "description": description,
        "disks": [
            {"device": "/dev/vda", "partitions": [part(1, "efi", 100, "GPT_TYPE_BOOT"), part(2, "root", 0, "GPT_TYPE_LINUX")]},
            {"device": "/dev/vdb", "partitions": [part(1, "data", 0, "GPT_TYPE_LINUX")]}],
        "filesystems": [
            filesystem("/boot/efi", "/dev/vda1", "FORMAT_VFAT", "efi", createOptions=["-F", "32"]),
            filesystem("/", "/dev/vda2", "FORMAT_EXT4", "root"), filesystem("/srv", "/dev/vdb1", "FORMAT_EXT4", "data")],
        "constraints": {"sizes": ["v1-small-x86"]},
    }


def second_allocation(rack, number, layout):
    return {
        "uuid": f"00000000-0000-4000-8000-00000000000{number}", "name": "web", "project": PROJECT, "hostname": "web-1",
        # The later image, which contains os-installer.
        "image": {"id": "tiny-13.0.1", "url": rack.image.replace("tiny-12", "tiny-13"), "name": "tiny"}, "filesystemLayout": layout,
        "allocationType": "MACHINE_ALLOCATION_TYPE_MACHINE", "userdata": "#!/bin/sh",
        "networks": [{"network": "n-1", "prefixes": ["10.0.0.0/24"], "ips": ["10.0.0.1"], "vrf": "42", "asn": 4200003073,
                      "networkType": "NETWORK_TYPE_CHILD", "natType": "NAT_TYPE_NONE", "project": PROJECT}],
        "dnsServers": [{"ip": "10.0.0.53"}], "ntpServers": [{"address": "10.0.0.123"}],
    }


def yaml(text):
    """Reads a file with one key per line, whose values are JSON."""
    return {key: json.loads(value) for key, value in (line.split(": ", 1) for line in text.splitlines() if ": " in line)}


def leaves_of(nics):
    return [(nic["name"], [leaf["hostname"] for leaf in nic["neighbors"]]) for nic in nics]


BOTH = [("eth0", ["leaf01"]), ("eth1", ["leaf02"])]


def install_yaml(facts):
    return yaml(facts.partition("--- install.yaml\n")[2].partition("\n---")[0])


def has(facts, *mounts):
    for mount in mounts:
        check(mount in facts, f"no {mount!r} in {facts}")



def to_waiting(machine):
    """Measures the time until Waiting. If the disks contain data, version 2 wipes them for 27 s, in which the machine must not be allocated."""
    kernel, before = machine.says("Linux version"), machine.processor()
    waiting, used = machine.says("\nWaiting"), machine.processor() - before
    return f"from the kernel to Waiting {waiting - kernel:.0f} s, of which {used:.0f} s of processor"


def first(target, directory):
    """version 1: pool, an invalid allocation, install, accidental boot, reinstall that preserves a disk"""
    rack = Rack(1, os.path.join(directory, "first"), target)
    loki = Loki(basic=("rack", "word-of-the-rack"))
    try:
        with Machine(rack, target, "first", leaves=(True, False), vda=640, vdb=256) as machine:
            told = [first_pool(rack, machine, loki), first_install(rack, machine)]
            # An operator boots the machine over PXE by mistake.
            rack.begin()
            rack.steer("set", {"phase": None})
            machine.off()
            shell(PUT, machine.disk("vdb"))
            before = shell(BYTES, machine.disk("vdb"))
            machine.on()
            machine.says("is already installed on this machine")
            has(machine.is_up(), "/srv/data-proof/random ")
            check("WIPE" not in machine.read("console"), "an accidental boot erases disks")
            check(not rack.heard("Report"), "an accidental boot reports again")
            told.append(f"an accidental boot: {', '.join(rack.calls())}")
            # Then the reinstall is ordered.
            rack.begin()
            rack.steer("set", {"phase": None})
            rack.steer("reinstall", {})
            machine.on()
            has(machine.is_up(), "/dev/vdb1 /srv ext4", "/srv/data-proof/random ")
            machine.off()
            after = shell(BYTES, machine.disk("vdb"))
            check(before == after, f"{before}\n{after}")
            log = rack.log()
            check(log["allocation"]["reinstall"] is False, "the reinstall flag is still set")
            told.append(f"a reinstall: {', '.join(rack.calls())}; of the data, before and after: {', '.join(before.splitlines())}")
            secret = log["report"]["console_password"]
            told.append(f"Loki: {loki.judge(MACHINE, [secret, 'view-key', 'word-of-the-rack', 'PRIVATE KEY'])}")
            machine.on(network=False)
            machine.is_up()
            told.append("up from its own disk")
        return "\n    ".join(told)
    finally:
        loki.end()
        rack.end()


def first_pool(rack, machine, loki):
    """A clock six years off; a late leaf; data of the previous owner; a killed control plane, and a certificate that expires meanwhile; a late and
    invalid allocation."""
    leave_secrets(machine)
    ends = time.time() + CERTIFICATE_ENDS
    certificate_until(rack.directory, ends)
    rack.logs_to(loki, client="short")
    machine.on(clock="2020-02-02")
    machine.says("clock: set from pixie's answer")
    machine.says("found only leaf01 of two leaf switches; no LLDP frames were received on eth1")
    machine.leaves[1].speaks.set()
    machine.says("point of no return")
    waiting = machine.says("\nWaiting")
    check(rack.log()["ipmi"] == bmc.KNOWN, "the registration has changed the record of the BMC")
    check(secrets(machine, "vda") == 0 and secrets(machine, "vdb") == 0, "data of the previous owner are left")
    check(rack.log()["offered"] == 1, "its certificate expired too early")
    rack.steer("set", {"client": "client"})
    time.sleep(max(0, ends + 3 - time.time()))
    waits = rack.heard("Wait")
    rack.dies()
    until(lambda: rack.heard("Wait") > waits, "it waits again")
    offered = rack.log()["offered"]
    check(offered > 0, "pixie was not asked for another certificate")
    time.sleep(max(0, waiting + LATE - time.monotonic()))
    broken = layout()
    broken["filesystems"][1]["format"], broken["disks"][1]["partitions"][0]["gpttype"] = "ext9", "boat"
    rack.allocate(allocation(rack, 1, filesystemlayout=broken))
    for problem in ["invalid layout: ", "boat", "ext9", "nothing was written"]:
        machine.says(problem)
    until(lambda: rack.log()["phase"] == "Crashed", "the event")
    message = next(call["message"]["events"][0]["value"]["message"] for call in reversed(rack.log()["calls"]) if call["call"] == "Send")
    check("invalid layout" in message and ("boat" in message or "ext9" in message), message)
    machine.stays(10)
    check(is_blank(machine, "vda") and is_blank(machine, "vdb"), "something was written for an impossible allocation")
    return f"the pool: {', '.join(rack.calls())}; the event says {message!r}"


def first_install(rack, machine):
    """The control plane is killed while it receives the report, and the switches move the ports immediately after the report."""
    rack.begin()
    rack.allocate(allocation(rack, 2))
    rack.refuse("Report", hang=True)
    machine.on()
    lasts = to_waiting(machine)
    until(lambda: rack.heard("Report") == 1, "it reports")
    rack.dies()
    until(lambda: rack.log()["report"], "it reports again")
    machine.says("report.final took")
    machine.unplug()
    facts = machine.is_up()
    has(facts, "/dev/vda1 /boot/efi vfat", "/dev/vda2 / ext4", "/dev/vdb1 /srv ext4")
    leaves = leaves_of(install_yaml(facts)["nics"])
    check(leaves == BOTH, f"install.yaml: {leaves}")
    report = rack.log()["report"]
    check(report["boot_info"]["kernel"].startswith("/boot/"), report)
    return f"an install, {lasts}: {', '.join(rack.calls())}"


def second(target, directory):
    """version 2: pool, install, a refused report, accidental boot, reinstall by drophammer.keep"""
    rack = Rack(2, os.path.join(directory, "second"), target)
    loki, clock = Loki(certificates=rack.directory), Clock()
    try:
        with Machine(rack, target, "second", vda=640, vdb=256) as machine:
            leave_secrets(machine)
            rack.logs_to(loki, ntp_servers=[TOLD], stream=60.0)
            machine.on(clock="2020-02-02")
            told = [to_waiting(machine) + ", with the erasure of two disks"]
            waiting = time.monotonic()
            check(f"clock: set from {TOLD}" in machine.read("console"), "the time server did not set the clock")
            check(secrets(machine, "vda") == 0 and secrets(machine, "vdb") == 0, "data of the previous owner are left")
            waits = rack.heard("Wait")
            # The machine's token is lost with the control plane.
            rack.dies()
            until(lambda: rack.heard("Wait") > waits + 1, "it waits again")
            time.sleep(max(0, waiting + LATE - time.monotonic()))
            rack.refuse("InstallationSucceeded", code="failed_precondition", message="the machine is not allocated")
            rack.allocate(second_allocation(rack, 1, second_layout("drophammer.keep=/dev/vdb")))
            until(lambda: rack.log()["phase"] == "CRASHED", "a report that is refused")
            machine.stays(10)
            told.append(f"the pool, and an install whose report is refused: {', '.join(rack.calls())}")
            # The operator power cycles the machine.
            rack.begin()
            machine.on()
            machine.says("is already installed on this machine")
            facts = machine.is_up()
            has(facts, "/dev/vda2 / ext4", "/dev/vdb1 /srv ext4")
            check("WIPE" not in machine.read("console"), "an accidental boot erases disks")
            check(rack.log()["installed"], "no report")
            told.append(f"the next boot, whose report is accepted: {', '.join(rack.calls())}")
            check(leaves_of(install_yaml(facts)["nics"]) == BOTH, facts)
            told.append(later_image(machine, rack.allocation))
            told.append(second_accident(rack, machine))
            told.append(second_keeps(rack, machine))
            told.append(f"Loki: {loki.judge(MACHINE, [rack.log()['installed'], 'token-', 'PRIVATE KEY'])}")
            machine.on(network=False)
            machine.is_up()
            told.append("up from its own disk")
        return "\n    ".join(told)
    finally:
        loki.end()
        clock.end()
        rack.end()


def second_accident(rack, machine):
    """A firmware variable records that the report was accepted: another one would replace the console password."""
    rack.begin()
    rack.steer("set", {"phase": None})
    machine.on()
    machine.says("is already installed on this machine")
    machine.is_up()
    check(not rack.heard("InstallationSucceeded"), "an accidental boot reports again")
    return f"an accidental boot: {', '.join(rack.calls())}"


def later_image(machine, allocated):
    """Checks the input of os-installer by the published rules of the API."""
    machine.off()
    kept = lambda name: yaml(shell(FILE, machine.disk("vda"), "2", f"/var/lib/judge/{name}"))
    details, found = kept("machine-details.yaml"), ParseDict(kept("machine-allocation.yaml"), MachineAllocation())
    check(details["id"] == MACHINE and len(details["password"]) == 16 and leaves_of(details["nics"]) == BOTH, details)
    wanted = ParseDict(allocated, MachineAllocation())
    for name in ["uuid", "project", "hostname", "userdata", "networks", "dns_servers", "ntp_servers", "allocation_type"]:
        check(getattr(found, name) == getattr(wanted, name), f"{name}: {getattr(found, name)}, not {getattr(wanted, name)}")
    for network in found.networks:
        protovalidate.validate(network)
    left = yaml(shell(FILE, machine.disk("vda"), "2", "/etc/metal/machine-details.yaml"))
    check(left["password"] == "", "the password is still in a file")
    lvm = shell(FILE, machine.disk("vda"), "2", "/etc/lvm/lvmlocal.conf")
    check("udev_sync = 0" in lvm, f"lvmlocal.conf: {lvm}")
    return "os-installer has found machine-details.yaml, machine-allocation.yaml and lvmlocal.conf"


def second_keeps(rack, machine):
    """The same project gets the machine again before it has booted without an owner."""
    shell(PUT, machine.disk("vdb"))
    before = shell(BYTES, machine.disk("vdb"))
    rack.begin()
    rack.steer("free", {})
    rack.allocate(second_allocation(rack, 2, second_layout("drophammer.keep=/dev/vdb")))
    machine.on()
    facts = machine.is_up()
    has(facts, "/dev/vdb1 /srv ext4", "/srv/data-proof/random ", "00000000-0000-4000-8000-000000000002")
    machine.off()
    after = shell(BYTES, machine.disk("vdb"))
    check(before == after, f"{before}\n{after}")
    check(rack.log()["installed"], "no report")
    return f"a reinstall by drophammer.keep: {', '.join(rack.calls())}; of the data, before and after: {', '.join(before.splitlines())}"


def minilab(target, directory):
    """version 2: mini-lab's three layouts, as they are"""
    rack = Rack(2, os.path.join(directory, "mini-lab"), target)
    mounts = {
        "default": ["/dev/vda1 /boot/efi vfat", "/dev/vda2 / ext4", "/dev/vda3 /var/lib ext4"],
        "raid": ["/dev/vda1 /boot/efi vfat", "/dev/vda2 / ext4", " /var/lib ext4", "raid1"],
        "lvm": ["/dev/vda1 /boot/efi vfat", "/dev/vda2 / ext4", "vg00-varlib /var/lib ext4"],
    }
    told = []
    try:
        with Machine(rack, target, "machine", memory=2048, vda=6144) as machine:
            for number, (name, expected) in enumerate(mounts.items(), 1):
                rack.begin()
                rack.steer("free", {})
                with open(os.path.join(HERE, "..", "..", "testdata", "metal", f"mini-lab-{name}.json")) as file:
                    rack.allocate(second_allocation(rack, number, json.load(file)))
                machine.on()
                has(machine.is_up(), *expected, "tmpfs /tmp tmpfs")
                check(rack.log()["installed"], "no report")
                told.append(f"{name}: {', '.join(rack.calls())}")
        return "\n    ".join(told)
    finally:
        rack.end()


def alone(target, directory):
    """version 1: one leaf"""
    rack = Rack(1, os.path.join(directory, "alone"), target)
    try:
        with Machine(rack, target, "alone", leaves=(True, False), vda=64) as machine:
            machine.on()
            began = machine.says("found only leaf01 of two leaf switches; no LLDP frames were received on eth1")
            ended = machine.says("is not connected to exactly two switches, found connections to 1 switches")
            return f"the console names the NIC without LLDP, and {ended - began:.0f} s later shows the control plane's refusal"
    finally:
        rack.end()


def main(_, directory, target, wanted=""):
    # Ending this program also ends the servers and the machine.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    shutil.rmtree(directory, ignore_errors=True)
    failed, passed = [], 0
    for scenario in [first, second, minilab, alone]:
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
