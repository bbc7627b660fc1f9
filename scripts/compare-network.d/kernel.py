"""Compares the networks that result from files: the real daemons of a Debian tree apply them in namespaces (sandbox.py)."""

import json
import os
import re
import subprocess
import tempfile

from documents import NICS

SANDBOX = os.path.join(os.path.dirname(os.path.abspath(__file__)), "sandbox.py")


class Machine:
    """A document, and the machine that its files need."""

    def __init__(self, document):
        self.document = document.get("network", document)
        self.bonds, self.vlans = self.document.get("bonds", {}), self.document.get("vlans", {})
        self.ethernets = self.document.get("ethernets", {})

    def devices(self):
        return {**self.ethernets, **self.bonds, **self.vlans}

    def kernel_name(self, ethernet):
        match = self.ethernets[ethernet].get("match", {"name": ethernet})
        return match.get("name") or next(name for name, mac in NICS.items() if mac == match["macaddress"])

    def given_names(self):
        """Returns the kernel names of the NICs that ifupdown's files name by their ids, by id."""
        unnamed = [name for name, nic in self.ethernets.items() if "macaddress" in nic.get("match", {}) and "set-name" not in nic]
        return {name: self.kernel_name(name) for name in unnamed}

    def job(self, tree, stack, files, **more):
        members = [list(map(self.kernel_name, bond["interfaces"])) for bond in self.bonds.values()]
        # If all members were on one LAN, they would form a loop.
        second = [name for names in members for name in names[1:]]
        mtus = {name: bond["mtu"] for names, bond in zip(members, self.bonds.values()) for name in names if "mtu" in bond}
        return {
            "tree": tree, "stack": stack, "files": files, "nics": NICS, "lan": [name for name in NICS if name not in second],
            "unplugged": [], "absent": [], "mtus": mtus, "vlans": list(self.vlans),
            "dhcp6": any("dhcp6" in device for device in self.devices().values()), "wants": self.wanted_lines(), **more}

    def wanted_lines(self):
        wanted, accepts_ra = [], False
        for name, device in self.devices().items():
            if name in self.ethernets and self.kernel_name(name) not in NICS:
                continue
            wanted += device.get("addresses", [])
            wanted += ["198.18."] * device.get("dhcp4", False)
            wanted += ["fd00:18::x/128"] * device.get("dhcp6", False)
            if device.get("accept-ra", True) and not self.is_member(name):
                wanted.append("fd00:18::x/64")
                accepts_ra = True
        wanted += ["fd00:18::/64 dev", "default via router"] * accepts_ra
        return wanted

    def is_member(self, name):
        return any(name in bond["interfaces"] for bond in self.bonds.values())


def apply_files(job):
    """Returns the state of the network that results from a job."""
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
        json.dump(job, file)
        file.flush()
        argv = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "python3", "-B", SANDBOX, file.name]
        result = subprocess.run(argv, capture_output=True, text=True, timeout=150, check=False)
    if result.returncode:
        raise ValueError("%s: exit status %d: %s" % (job["stack"], result.returncode, result.stderr))
    return json.loads(result.stdout)


def facts(state, names, cross_stack):
    """Returns a state as a set of lines. `cross_stack` omits properties that each stack chooses itself: metrics, host routes to servers, the names
    of NICs without a configured name, and what a bond prevents on its members, but a bridge does not."""
    lines = set()
    for name, device in state["devices"].items():
        shown = names.get(name, name)
        lines.add("%s: up %s, MTU %d, below %s" % (shown, device["up"], device["mtu"], device["master"]))
        if not (cross_stack and device["master"]):
            lines |= {"%s: %s" % (shown, address) for address in device["addresses"]}
    # networkd 257 replaces a route if another NIC on the same LAN adds a route with the same metric.
    is_ambiguous = sum("fd00:18::x/64 slaac" in device["addresses"] for device in state["devices"].values()) > 1
    for line in state["routes"]:
        if is_ambiguous and re.match("fd00:18::/64 dev|default via router", line):
            continue
        line = re.sub(r"(?<= dev )\S+", lambda device: names.get(device[0], device[0]), line)
        if cross_stack:
            if re.match(r"198\.18\.0\.\d+ dev|fd00:18::x dev", line):
                continue
            if "via router" in line or not " via " in line:
                line = re.sub(" metric .*", "", line)
        lines.add("route " + re.sub(r"metric (1[01]|42)\d$", "metric 100", line))
    return lines | {"name server or domain " + word for word in state["dns"]}


def difference(ours, theirs, names=None, cross_stack=False):
    ours, theirs = (facts(state, names or {}, cross_stack) for state in (ours, theirs))
    return ["only ours: " + line for line in sorted(ours - theirs)] + ["missing: " + line for line in sorted(theirs - ours)]


def bond_problems(machine, state):
    """Lists the reasons why a bond does not work with one of its NICs."""
    problems = []
    for name, bond in machine.bonds.items():
        device = state["devices"].get(name, {"addresses": [], "up": False})
        problems += ["%s lacks %s" % (name, address) for address in bond.get("addresses", []) if address not in device["addresses"]]
        if not any(other["master"] == name for other in state["devices"].values()):
            problems.append("%s has no NIC" % name)
    if not state.get("online", True):
        problems.append("the boot waits for the network until a timeout")
    return problems
