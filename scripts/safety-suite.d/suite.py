"""Runs cases with adapters, and writes the table of results."""
import json
import subprocess
import tempfile
from pathlib import Path

import yaml

import judge
import table
from recipe import Machine

HERE = Path(__file__).resolve().parent
# Time limit of an adapter, in seconds.
LIMIT = 300
OUTCOMES = {0: "done", 2: "refused", 77: "not run"}


def run(adapters, names, out):
    cases = [yaml.safe_load(path.read_text()) for path in sorted((HERE / "cases").glob("*.yaml"))]
    unknown = set(names or []) - {case["name"] for case in cases}
    if unknown:
        raise SystemExit(f"there is no case {', '.join(sorted(unknown))}; remove it from the command line")
    results = []
    for case in cases:
        if names and case["name"] not in names:
            continue
        for result in run_case(case, adapters, out):
            results.append(result)
            print(f"{case['name']:44} {result['adapter']:12} {result['outcome']:8} data {result['data']:5} {result['note']}", flush=True)
    out.mkdir(parents=True, exist_ok=True)
    (out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    (out / "results.md").write_text(table.format_results(results))
    return results


def run_case(case, adapters, out):
    """Runs a case with each adapter, on the same disks. Yields the results."""
    lacking = lacking_features(case)
    with tempfile.TemporaryDirectory(prefix="safety-suite-") as work, Machine(case, Path(work)) as machine:
        before, ranges = ({}, []) if lacking else prepare(case, machine)
        for adapter in adapters:
            result = {"case": case["name"], "adapter": adapter, "expected": case.get("expected", "done"), "objects": []}
            if lacking:
                yield {**result, "outcome": "not run", "data": "-", "note": f"this kernel lacks {', '.join(lacking)}"}
                continue
            machine.restore_images(before)
            machine.attach()
            outcome, note = call_adapter(adapter, machine.describe_intent(), Path(work), out / f"{case['name']}.{adapter}.log")
            machine.detach()
            yield {**result, "outcome": outcome, "note": note, **judge.compare(case, ranges, before, machine.images, outcome)}


def prepare(case, machine):
    """Creates the disks, and returns copies of them with the ranges that must not change."""
    machine.create()
    ranges = judge.find_protected_ranges(case, machine)
    machine.detach()
    return machine.copy_images(machine.work / "before"), ranges


def lacking_features(case):
    present = {
        "md": Path("/proc/mdstat").exists(),
        "dm": "device-mapper" in Path("/proc/devices").read_text(),
    }
    return [feature for feature in case.get("needs", []) if not present[feature]]


def call_adapter(adapter, intent, work, log):
    (work / "intent.json").write_text(json.dumps(intent, indent=1))
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "wb") as output:
        try:
            code = subprocess.run(
                [HERE / "adapters" / adapter, work], stdout=output, stderr=subprocess.STDOUT, timeout=LIMIT, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            return "failed", f"no end after {LIMIT} s"
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    outcome = OUTCOMES.get(code, "failed")
    return outcome, "" if outcome == "done" or not lines else shorten(lines[-1])


def shorten(line):
    return line.strip()[:160]
