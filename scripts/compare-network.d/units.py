"""Meaning of units of systemd-networkd and keyfiles of NetworkManager: sections, keys and values without notation and order."""

import ipaddress
import re

from documents import NICS

# Sections that may occur several times. Each section is compared as one value.
REPEATED = ("Route", "Address")
# Values that systemd assumes if a key is missing.
DEFAULTS = {("Link", "RequiredForOnline"): "yes", ("Route", "GatewayOnLink"): "no", ("Network", "DHCP"): "no",
            ("DHCP", "UseMTU"): "no", ("Bond", "Mode"): "balance-rr"}
# Alternative names of sections.
SECTIONS = {"DHCPv4": "DHCP"}
LISTS = {"DNS", "Domains", "VLAN", "Address", "ARPIPTargets", "NTP"}
BOOLEAN = {"true": "yes", "on": "yes", "1": "yes", "false": "no", "off": "no", "0": "no"}
BOOLEANS = {"RequiredForOnline", "UseMTU", "GatewayOnLink", "ConfigureWithoutCarrier", "IPv6AcceptRA", "PrimarySlave", "DHCP"}


def parse(text):
    """Returns the sections of a file, in order, each with a list of keys and values."""
    sections = []
    for line in text.splitlines():
        line = line.strip()
        if line.startswith("["):
            sections.append((line.strip("[]"), []))
        elif line and line[0] not in "#;":
            key, value = line.split("=", 1)
            sections[-1][1].append((key.strip(), value.strip()))
    return sections


def normalized(key, value):
    if key in BOOLEANS:
        return BOOLEAN.get(value.lower(), value)
    if key.endswith("Sec"):
        number, unit = re.fullmatch(r"(\d+) *(ms|s|)", value).groups()
        return "%sms" % (int(number) * (1 if unit == "ms" else 1000))
    if key.endswith("MACAddress"):
        return value.lower()
    if key == "Destination" and "/" not in value:
        return str(ipaddress.ip_network(value))
    return value


def settings(text):
    """Returns the settings of a unit: (section, key) with a value, or with a set of values."""
    found = {}
    for section, lines in parse(text):
        section = SECTIONS.get(section, section)
        lines = [(key, normalized(key, value)) for key, value in lines]
        if section in REPEATED:
            lines = [(key, value) for key, value in lines if DEFAULTS.get((section, key)) != value]
            found.setdefault((section, ""), set()).add(" ".join(sorted("%s=%s" % line for line in lines)))
            continue
        for key, value in lines:
            if (section, key) == ("Network", "Gateway"):
                found.setdefault(("Route", ""), set()).add("Destination=%s Gateway=%s" % (default_network(value), value))
            elif key in LISTS:
                known = found.setdefault((section, key), [])
                known.extend(value.replace(",", " ").split())
            elif DEFAULTS.get((section, key)) != value:
                found[section, key] = value
    # The order of addresses of one family matters to the kernel, that of VLANs does not.
    for key, order in ("VLAN", None), ("Address", is_v6):
        if ("Network", key) in found:
            found["Network", key].sort(key=order)
    return found


def is_v6(address):
    return ":" in address


def default_network(gateway):
    return "::/0" if is_v6(gateway) else "0.0.0.0/0"


def nic_names(units):
    """Returns the kernel names of the NICs that `.link` files rename, by their new names."""
    names = {}
    for path, text in units.items():
        values = settings(text) if path.endswith(".link") else {}
        kernel_name = kernel_name_of(values.get(("Match", "PermanentMACAddress"))) or values.get(("Match", "OriginalName"))
        if ("Link", "Name") in values:
            names[values["Link", "Name"]] = kernel_name
    return names


def kernel_name_of(mac):
    return next((name for name, nic in NICS.items() if nic == mac), None)


def networkd_meaning(units):
    """Returns the meaning of a folder of units: the settings of each device, `.netdev` and `.link` of each, by kernel name."""
    names, found = nic_names(units), {}
    for path, text in units.items():
        kind = path.rsplit(".", 1)[1]
        if kind not in ("network", "netdev", "link"):
            continue
        values = settings(text)
        name = values.pop(("Match", "Name"), None)
        device = (kernel_name_of(values.pop(("Match", "PermanentMACAddress"), None)) or values.pop(("Match", "OriginalName"), None)
                  or names.get(name, name) or values.get(("NetDev", "Name")))
        for (section, key), value in values.items():
            # A property of the device, which each stack sets in one or both files.
            where = "device" if key == "MTUBytes" else kind
            found["%s %s [%s] %s" % (device, where, "Link" if key == "MTUBytes" else section, key)] = shown(value)
    return found


def shown(value):
    return value if isinstance(value, str) else " | ".join(value if isinstance(value, list) else sorted(value))


def keyfile_meaning(files, names):
    """Returns the meaning of keyfiles that libnm has read and written: the settings of each connection, by the id of its device. `names`
    are the kernel names of renamed NICs."""
    parsed = {path: {(section, key): value for section, lines in parse(text) for key, value in lines} for path, text in files.items()}
    ids, found = {}, {}
    for values in parsed.values():
        ids[values.get(("connection", "uuid"))] = re.sub("^(drophammer|netplan)-", "", values["connection", "id"])
    for values in parsed.values():
        device = ids[values.pop(("connection", "uuid"), None)]
        values.pop(("connection", "id"))
        mac = values.pop(("ethernet", "mac-address"), "").lower()
        name = values.pop(("connection", "interface-name"), None)
        found["%s [connection] device" % device] = kernel_name_of(mac) or names.get(name, name)
        for (section, key), value in without_routes(values, device, found):
            # NetworkManager 1.46 and later write the second of these names.
            key = {"controller": "master", "port-type": "slave-type"}.get(key, key)
            if key in ("parent", "master"):
                value = ids.get(value, value)
            if key == "dns-search":
                section = "ip"
            found["%s [%s] %s" % (device, section, key)] = value
    return found


def command_meaning(commands):
    """Returns the meaning of `ip` commands that create bonds and VLANs, in the terms of keyfiles."""
    found = {}
    for words in map(str.split, commands):
        if "bond" in words and words[1] == "set":
            options = words[words.index("bond") + 1:]
            found.update({"%s [bond] %s" % (words[words.index("dev") + 1], key): value for key, value in zip(options[::2], options[1::2])})
        if "vlan" in words:
            values = dict(zip(words[2::2], words[3::2]))
            found["%s [vlan] id" % values["name"]] = values["id"]
            found["%s [vlan] parent" % values["name"]] = values["link"]
    return found


def created_devices(meaning):
    """Returns the part of a meaning of keyfiles that `command_meaning` also returns."""
    return {key: value for key, value in meaning.items() if re.search(r" \[bond\] | \[vlan\] (id|parent)$", key)}


def without_routes(values, device, found):
    """Adds all routes of a connection to `found`, as one value, and returns its other settings. libnm writes gateways behind the first
    address, or separately."""
    routes, others = set(), []
    for (section, key), value in values.items():
        gateway = value if key == "gateway" else None
        if key == "address1" and "," in value:
            value, gateway = value.split(",")
        if gateway:
            routes.add("%s,%s" % (default_network(gateway), gateway))
        if re.fullmatch("route[0-9]+", key):
            routes.add(" ".join(filter(None, [value, values.get((section, key + "_options"))])))
        elif key != "gateway" and not key.startswith("route"):
            others.append(((section, key), value))
    if routes:
        found["%s [ip] routes" % device] = shown(routes)
    return others


def differences(ours, theirs):
    """Returns the differences between two meanings, one line for each."""
    refused = [value for key, value in theirs.items() if key.endswith("[connection] refused")]
    if refused:
        return ["NetworkManager refuses netplan's file: " + message for message in refused]
    keys = sorted(key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key))
    return ["%s: %s, not %s" % (key, ours.get(key), theirs.get(key)) for key in keys]
