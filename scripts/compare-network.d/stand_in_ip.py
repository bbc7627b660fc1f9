#!/usr/bin/python3
"""`ip` for the sandbox: a bridge stands in for each bond, and a NIC on the LAN for each VLAN. Settings that only the drivers of
bonds and VLANs support are recorded in /run/ip.log, and so is the creation of these devices."""

import os
import subprocess
import sys

argv = sys.argv[1:]
real = ["/bin/ip.real", *argv]


def option(name):
    return argv[argv.index(name, 2) + 1] if name in argv[2:] else None


def record():
    with open("/run/ip.log", "a", encoding="utf-8") as log:
        log.write(" ".join(argv) + "\n")


kind = option("type")
if argv[:2] == ["link", "add"] and kind == "bond":
    record()
    real[1:] = ["link", "add", "name", option("name"), "type", "bridge", "forward_delay", "0"]
elif argv[:2] == ["link", "add"] and kind == "vlan":
    record()
    name = option("name")
    if not os.path.exists("/sys/class/net/" + option("link")):
        sys.exit("Cannot find device %s" % option("link"))
    add = ["link", "add", "name", name, "type", "veth", "peer", "name", name, "netns", "lan"]
    subprocess.run(["/bin/ip.real", *add], check=True)
    real[1:] = ["-n", "lan", "link", "set", name, "master", "lan", "up"]
elif argv[:2] == ["link", "set"] and kind == "bond":
    record()
    sys.exit(0)
elif option("master"):
    # A bond brings its members up.
    subprocess.run(real, check=True)
    real[1:] = ["link", "set", "dev", option("dev"), "up"]
os.execv(real[0], real)
