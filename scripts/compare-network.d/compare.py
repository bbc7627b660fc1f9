"""Compares the files that this program writes with those of netplan, and the networks that result from them.
Usage: compare.py --documents
       compare.py WORK TREE TREE [DOCUMENT]...   WORK contains rendered.json, DOCUMENT is the beginning of a name"""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import kernel
import units
from debian import Debian
from differences import KNOWN
from documents import ACCEPTED, DEGRADED, MACHINES, NICS, REFUSED


class Judgement:
    """Result of one comparison."""

    def __init__(self, document, debian, stack, judge, found):
        self.document, self.debian, self.stack, self.judge, self.found = document, debian, stack, judge, found


def wrapped(document):
    return json.dumps(document if "network" in document else {"network": document})


def select(files, folder):
    return {path: text for path, text in files.items() if folder in path}


def networkd_units(files):
    return select(files, "/systemd/network/")


def keyfiles(debian, files):
    return {path: debian.read_keyfile(text) for path, text in select(files, "/system-connections/").items()}


def compare_units(debian, name, document, ours):
    """Compares the files of this program with those of netplan, for networkd and for NetworkManager, and netplan's files for the netplan
    document of this program with those for the original."""
    for stack, renderer in (("systemd-networkd", "networkd"), ("NetworkManager", "NetworkManager")):
        theirs, error = debian.generate(wrapped(document), renderer)
        passed, own_error = debian.generate(ours["netplan"]["/etc/netplan/50-drophammer.yaml"], renderer)
        if error or own_error:
            yield Judgement(name, debian.name, "netplan", renderer, [error or "the written document: " + own_error])
            continue
        meaning = meaning_of(debian, stack, theirs)
        yield Judgement(name, debian.name, stack, "files", units.differences(meaning_of(debian, stack, ours[stack]), meaning))
        yield Judgement(name, debian.name, "netplan", renderer, units.differences(meaning_of(debian, stack, passed), meaning))


def meaning_of(debian, stack, files):
    links = networkd_units(files)
    if stack == "NetworkManager":
        return units.keyfile_meaning(keyfiles(debian, files), units.nic_names(links))
    return units.networkd_meaning(links)


def compare_networks(debian, name, document, ours):
    """Compares the networks that the daemons create from the files of this program with those from netplan's files. Nothing converts
    documents for ifupdown: its network is compared with that of networkd."""
    machine = kernel.Machine(document)

    def state(stack, files):
        return kernel.apply_files(machine.job(debian.tree, stack, files))

    theirs, _ = debian.generate(wrapped(document), "networkd")
    networkd = state("systemd-networkd", theirs)
    found = kernel.difference(state("systemd-networkd", ours["systemd-networkd"]), networkd)
    yield Judgement(name, debian.name, "systemd-networkd", "network", found)
    theirs, _ = debian.generate(wrapped(document), "NetworkManager")
    found = kernel.difference(state("NetworkManager", ours["NetworkManager"]), state("NetworkManager", theirs), machine.given_names())
    yield Judgement(name, debian.name, "NetworkManager", "network", found)
    ifupdown = state("ifupdown", ours["ifupdown"])
    found = kernel.difference(ifupdown, networkd, machine.given_names(), cross_stack=True)
    yield Judgement(name, debian.name, "ifupdown", "network", found)
    if machine.bonds or machine.vlans:
        # Keyfiles use the kernel's parameter names.
        created = units.created_devices(meaning_of(debian, "NetworkManager", theirs))
        yield Judgement(name, debian.name, "ifupdown", "commands", units.differences(units.command_meaning(ifupdown["commands"]), created))


def check_degraded(debian, name, document, ours):
    """Applies the files for a bond on a machine that lacks one of the bond's NICs, and on a machine with one of them
    unplugged."""
    machine = kernel.Machine(document)
    for stack in ("systemd-networkd", "NetworkManager", "ifupdown"):
        for nic in ("eth0", "eth1"):
            for state in ("absent", "unplugged"):
                # Only the other NIC is connected to the LAN.
                job = machine.job(debian.tree, stack, ours[stack], lan=[other for other in NICS if other != nic], **{state: [nic]})
                found = kernel.bond_problems(machine, kernel.apply_files(job))
                yield Judgement(name, debian.name, stack, "%s %s" % (nic, state), found)


def compare_refusal(debian, name, document, reason, ours):
    if "refused" not in ours:
        yield Judgement(name, "-", "refusal", "this program", ["this program accepts it"])
    _, error = debian.generate(wrapped(document))
    message = "netplan refuses it too: %s; remove the reason" % error if error else "netplan accepts it"
    yield Judgement(name, debian.name, "refusal", "generate", [] if bool(error) == (reason is None) else [message])


def report_refusal(debian, name, message):
    yield Judgement(name, debian.name, "refusal", "this program", [message])


def unexplained(judgement, used):
    """Returns the differences that no entry of the table explains."""
    rest = []
    for difference in judgement.found:
        entry = next((entry for entry in KNOWN if entry.explains(judgement, difference)), None)
        if entry:
            used.add(entry)
        else:
            rest.append(difference)
    return rest


def comparisons_of(name, rendered):
    """Returns the comparisons of a document with one Debian, each with its arguments."""
    if name in REFUSED:
        return [(compare_refusal, (*REFUSED[name], rendered["refused-" + name]))]
    if "refused" in rendered[name]:
        return [(report_refusal, (rendered[name]["refused"],))]
    more = (check_degraded,) if name in DEGRADED else ()
    return [(compare, (ACCEPTED[name], rendered[name])) for compare in (compare_units, compare_networks, *more)]


def run_comparison(compare, debian, name, *arguments):
    """Returns the results of a comparison. A failure of the comparison itself is one of them."""
    try:
        return list(compare(debian, name, *arguments))
    except (OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
        return [Judgement(name, debian.name, "none", compare.__name__, ["%s: %s" % (type(error).__name__, error)])]


def judgements(work, trees, is_wanted):
    """Yields the results of each document, in order."""
    with open(os.path.join(work, "rendered.json"), encoding="utf-8") as file:
        rendered = json.load(file)
    jobs = []
    debians = list(map(Debian, trees))
    # There are more threads than processors, because sandboxes mostly wait for daemons.
    with ThreadPoolExecutor(6 * os.cpu_count()) as pool:
        for name in filter(is_wanted, [*ACCEPTED, *REFUSED]):
            submitted = []
            for debian in debians:
                for compare, arguments in comparisons_of(name, rendered):
                    submitted.append(pool.submit(run_comparison, compare, debian, name, *arguments))
            jobs.append((name, submitted))
        for name, submitted in jobs:
            yield name, [judgement for job in submitted for judgement in job.result()]


def print_document(name, results, used):
    """Prints a line for each stack, and returns the numbers of comparisons, of known differences and of others."""
    known, others, stacks = 0, 0, {}
    for judgement in results:
        stacks.setdefault(judgement.stack, []).append(judgement)
    for stack, of_stack in stacks.items():
        different = []
        for judgement in of_stack:
            rest = unexplained(judgement, used)
            known, others = known + len(judgement.found) - len(rest), others + len(rest)
            different += ["%s %s: %s" % (judgement.debian, judgement.judge, difference) for difference in rest]
        judges = ", ".join(dict.fromkeys(judgement.judge for judgement in of_stack))
        expected = sum(len(judgement.found) for judgement in of_stack) - len(different)
        state = "differs" if different else "ok, %d known differences" % expected if expected else "ok"
        print("%-22s %-17s %s (%s)" % (name, stack, state, judges))
        for line in different:
            print("    " + line)
    sys.stdout.flush()
    return len(results), known, others


def main(work, trees, names):
    used, documents, totals = set(), 0, (0, 0, 0)
    for name, results in judgements(work, trees, lambda name: not names or name.startswith(tuple(names))):
        documents += 1
        totals = tuple(map(sum, zip(totals, print_document(name, results, used))))
    if not documents:
        sys.exit("no document has a name that begins with " + " or ".join(names))
    comparisons, known, others = totals
    for entry in [] if names else KNOWN:
        if entry not in used:
            others += 1
            print("no difference matches %r: remove this entry from differences.py" % entry.pattern)
    print("%d documents, %d comparisons, %d differences, and %d known ones" % (documents, comparisons, others, known))
    return 1 if others else 0


if __name__ == "__main__":
    if sys.argv[1] == "--documents":
        refused = {"refused-" + name: document for name, (document, _) in REFUSED.items()}
        machines = {"machine-" + name: machine["document"] for name, machine in MACHINES.items()}
        print(json.dumps({**ACCEPTED, **refused, **machines}))
    else:
        sys.exit(main(sys.argv[1], sys.argv[2:4], sys.argv[4:]))
