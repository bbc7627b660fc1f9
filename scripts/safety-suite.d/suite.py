"""Runs cases with adapters, and writes the results. An exception in a case becomes a result, so that the other cases run."""
import json
import subprocess
import tempfile
from pathlib import Path

import yaml

import commands
import judge
import table
from recipe import Machine

HERE = Path(__file__).resolve().parent
# Time limit of an adapter, in seconds.
LIMIT = 900
OUTCOMES = {0: "done", 2: "refused", 77: "not run"}


def run(adapters, names, out):
    cases = [yaml.safe_load(path.read_text()) for path in sorted((HERE / "cases").glob("*.yaml"))]
    unknown = set(names or []) - {case["name"] for case in cases}
    if unknown:
        raise SystemExit(f"unknown case: {', '.join(sorted(unknown))}; known cases: {', '.join(case['name'] for case in cases)}")
    programs = {name: HERE / "adapters" / name for name in adapters}
    results = []
    out.mkdir(parents=True, exist_ok=True)
    for case in cases:
        if names and case["name"] not in names:
            continue
        for result in run_case(case, programs, out):
            results.append(result)
            print(f"{case['name']:44} {result['adapter']:12} {result['outcome']:8} data {result['data']:5} {result['note']}", flush=True)
            # The results of an interrupted run are complete up to this case.
            (out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
            (out / "results.md").write_text(table.format_results(results))
    return results


def run_case(case, programs, out, limit=LIMIT):
    """Runs a case with each adapter, on the same disks. `programs` contains the program of each adapter. Returns the results."""
    lacking = lacking_features(case)
    if lacking:
        return [describe(case, name, "not run", f"this kernel lacks {', '.join(lacking)}") for name in programs]
    results = []
    try:
        with tempfile.TemporaryDirectory(prefix="safety-suite-") as work, Machine(case, Path(work)) as machine:
            before, ranges = prepare(case, machine)
            for name, program in programs.items():
                log = out / f"{case['name']}.{name}.log"
                results.append(run_adapter(case, machine, (before, ranges), (name, program, log), limit))
    except Exception as error:  # pylint: disable=broad-exception-caught
        done = {result["adapter"] for result in results}
        results += [describe(case, name, "error", explain(error)) for name in programs if name not in done]
    return results


def run_adapter(case, machine, prepared, adapter, limit):
    """Runs an adapter on copies of the prepared disks, and judges the result."""
    (before, ranges), (name, program, log) = prepared, adapter
    try:
        machine.restore_images(before)
        machine.attach()
        outcome, note = call_adapter(program, machine.describe_intent(), log, limit)
        machine.detach()
        verdict = judge.compare(case, ranges, before, machine.images, outcome)
        return {**describe(case, name, outcome, note), **verdict}
    except Exception as error:  # pylint: disable=broad-exception-caught
        machine.detach()
        return describe(case, name, "error", explain(error))


def describe(case, adapter, outcome, note):
    result = {"case": case.get("name", "?"), "adapter": adapter, "expected": case.get("expected", "done")}
    return {**result, "outcome": outcome, "data": "-", "objects": [], "note": note}


def explain(error):
    """Returns the description of an exception: of the suite, of a program that it uses, or of a case that is not valid."""
    text = str(error).strip() or type(error).__name__
    return shorten(text if isinstance(error, commands.CommandError) else f"{type(error).__name__}: {text}")


def prepare(case, machine):
    """Creates the disks, and returns copies of them with the ranges that must not change."""
    machine.create()
    ranges = judge.find_protected_ranges(case, machine)
    machine.detach()
    return machine.copy_images(machine.work / "before"), ranges


def lacking_features(case):
    devices = Path("/proc/devices").read_text()
    present = {"md": Path("/proc/mdstat").exists(), "dm": "device-mapper" in devices}
    return [feature for feature in case.get("needs", []) if not present[feature]]


def call_adapter(program, intent, log, limit):
    """Runs the program of an adapter in a directory of its own."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="safety-suite-adapter-") as work, open(log, "wb") as output:
        (Path(work) / "intent.json").write_text(json.dumps(intent, indent=1))
        try:
            code, _, _ = commands.call([str(program), work], limit, stdout=output, stderr=subprocess.STDOUT)
        except commands.CommandError:
            return "failed", f"no end after {limit} s"
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    outcome = OUTCOMES.get(code, "failed")
    return outcome, "" if outcome == "done" or not lines else shorten(lines[-1])


def shorten(line):
    return " ".join(line.split())[:160]
