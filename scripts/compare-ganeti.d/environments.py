"""Computes the environment of each case in a file with Ganeti's own functions, and compares it with the recorded one, or records it."""

import json
import sys
from types import SimpleNamespace

from ganeti import backend, objects

file, record = sys.argv[1], "--record" in sys.argv[2:]

# There is no disk to open: only its path is used.
backend._OpenRealBD = lambda disk: SimpleNamespace(dev_path=disk.params["path"])


def definition(case):
    of = case["definition"]
    return objects.OS(
        name=of["name"],
        path="/nowhere",
        api_versions=of["versions"],
        supported_variants=of["variants"],
        supported_parameters=[[name, ""] for name in of["parameters"]],
    )


def instance(case):
    of = case["instance"]
    disks = [
        objects.Disk(
            dev_type="plain", mode="rw", uuid=disk["uuid"], size=disk["size_mib"], name=disk.get("name"),
            params={"path": disk["path"]}, logical_id=("vg", "lv"),
        )
        for disk in of["disks"]
    ]
    cards = [
        objects.NIC(
            mac=card["mac"], uuid=card["uuid"], name=card.get("name"), ip=card.get("ip"),
            nicparams={"mode": card["mode"], "link": card.get("link", "")},
        )
        for card in of["cards"]
    ]
    return SimpleNamespace(
        name=of["name"], os=case["os"], uuid=of["uuid"], ctime=of["created"], mtime=of["changed"],
        primary_node=of["primary_node"], hypervisor=of["hypervisor"], osparams=case["parameters"],
        osparams_private=SimpleNamespace(Unprivate=dict), secondary_nodes=[], disks_info=disks, nics=cards,
        beparams={}, hvparams=of["settings"],
    )


with open(file) as text:
    cases = json.load(text)
different = 0
for number, case in enumerate(cases, 1):
    built = {"verify": backend.OSCoreEnv(case["os"], definition(case), case["parameters"])}
    if "instance" in case:
        built["create"] = backend.OSEnvironment(instance(case), definition(case))
        # backend.InstanceOsAdd adds this variable.
        if case["instance"]["reinstall"]:
            built["create"]["INSTANCE_REINSTALL"] = "1"
    same = all(case.get(name) == environment for name, environment in built.items())
    different += not same
    counts = ", ".join("%s %d variables" % (name, len(environment)) for name, environment in built.items())
    state = "as recorded" if same else "recorded" if record else "DIFFERENT"
    print("%2d %-22s %-55s %s" % (number, case["os"], counts, state))
    case.update({name: dict(sorted(environment.items())) for name, environment in built.items()})
if record:
    with open(file, "w") as text:
        json.dump(cases, text, indent=1, ensure_ascii=False)
        text.write("\n")
elif different:
    sys.exit("%d of %d cases differ from the record" % (different, len(cases)))
print("%d sets of parameters" % len(cases))
