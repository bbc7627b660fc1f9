"""Tests of the suite itself: the judge must report the loss that planted installers cause, and an error must not end a run."""
import copy
import tempfile
import time
from pathlib import Path

import suite

PLANTED = Path(__file__).resolve().parent / "planted"
PARTITIONS = [
    {"number": 1, "start_mib": 1, "size_mib": 10, "name": "root", "filesystem": "ext4", "mount": "/", "fate": "renewed"},
    {"number": 3, "start_mib": 12, "size_mib": 16, "name": "data", "filesystem": "ext4", "mount": "/srv", "fate": "preserved"},
]
CASE = {"name": "planted", "disks": [{"id": "a", "size_mib": 32, "partitions": PARTITIONS}]}
MEMBERS = [
    {"number": 1, "start_mib": 1, "size_mib": 30, "type": "raid", "name": "data", "fate": "preserved-by-array"},
]
STACKED = [
    {
        "name": "planted-array", "needs": ["md"],
        "disks": [{"id": "a", "size_mib": 40, "partitions": MEMBERS}, {"id": "b", "size_mib": 40, "partitions": MEMBERS}],
        "arrays": [{"name": "suite-data", "level": 1, "members": ["a1", "b1"], "filesystem": "ext4", "mount": "/srv", "fate": "preserved"}],
    },
    {
        "name": "planted-volume", "needs": ["dm"],
        "disks": [{"id": "a", "size_mib": 64, "partitions": [
            {"number": 1, "start_mib": 1, "size_mib": 60, "type": "lvm", "name": "lvm", "fate": "preserved-by-group"}]}],
        "groups": [{"name": "suiteplanted", "devices": ["a1"], "volumes": [
            {"name": "data", "size_mib": 24, "filesystem": "ext4", "mount": "/srv", "fate": "preserved"}]}],
    },
    {
        "name": "planted-luks", "needs": ["dm"],
        "disks": [{"id": "a", "size_mib": 64, "partitions": [
            {"number": 1, "start_mib": 1, "size_mib": 60, "name": "data", "filesystem": "ext4", "encrypted": True, "fate": "preserved"}]}],
    },
]


class Tally:
    def __init__(self):
        self.passed, self.failed, self.skipped = 0, 0, 0

    def check(self, name, is_right, shown):
        self.passed, self.failed = self.passed + bool(is_right), self.failed + (not is_right)
        print(f"test {name} ... {'ok' if is_right else f'FAILED: {shown}'}", flush=True)

    def skip(self, name, reason):
        self.skipped += 1
        print(f"test {name} ... ignored: {reason}", flush=True)


def run():
    began, tally = time.monotonic(), Tally()
    with tempfile.TemporaryDirectory(prefix="safety-suite-") as out:
        check_planted_loss(tally, Path(out))
        check_stacked_loss(tally, Path(out))
        check_foreign_disk(tally, Path(out))
        check_errors(tally, Path(out))
    word = "FAILED" if tally.failed else "ok"
    print(f"test result: {word}. {tally.passed} passed; {tally.failed} failed; {tally.skipped} ignored; "
          f"0 measured; 0 filtered out; finished in {time.monotonic() - began:.2f}s")
    return 1 if tally.failed else 0


def run_planted(case, name, out, limit=60):
    return suite.run_case(case, {name: PLANTED / name}, out, limit)[0]


def changed(result):
    return {item["name"]: item["changed_bytes"] for item in result["objects"] if item["changed_bytes"]}


def check_planted_loss(tally, out):
    result = run_planted(CASE, "correct", out)
    is_right = result["data"] == "kept" and result["renewed"] == "yes" and result["outcome"] == "done"
    tally.check("judge::a_correct_installer_loses_nothing", is_right, result)

    result = run_planted(CASE, "overwrites-one-byte", out)
    is_right = result["data"] == "LOST" and changed(result) == {"partition 3 of disk a": 1}
    tally.check("judge::one_overwritten_byte_is_reported", is_right, result)

    result = run_planted(CASE, "moves-data", out)
    is_right = result["data"] == "LOST" and "partition 3 of disk a" in changed(result)
    tally.check("judge::moved_data_are_reported", is_right, result)

    result = run_planted(CASE, "changes-guid", out)
    entries = {f"entry 3 of the {copy} GPT of disk a" for copy in ("primary", "backup")}
    is_right = result["data"] == "LOST" and set(changed(result)) == entries
    tally.check("judge::a_changed_guid_is_reported", is_right, result)


def check_stacked_loss(tally, out):
    for case in STACKED:
        lacking = suite.lacking_features(case)
        for name, verdict in (("correct", "kept"), ("overwrites-one-byte", "LOST")):
            test = f"judge::{case['name'].replace('-', '_')}_with_{name.replace('-', '_')}"
            if lacking:
                tally.skip(test, f"this kernel lacks {', '.join(lacking)}")
                continue
            result = run_planted(case, name, out)
            tally.check(test, result["data"] == verdict, result)


def check_foreign_disk(tally, out):
    """An installer that writes to a disk which its input does not mention."""
    case = copy.deepcopy(CASE)
    case["disks"].append({"id": "b", "size_mib": 16, "filesystem": "ext4", "fate": "foreign"})
    result = run_planted(case, "correct", out)
    names = [item["name"] for item in result["objects"]]
    tally.check("judge::a_foreign_disk_is_compared_completely", result["data"] == "kept" and "disk b" in names, result)


def check_errors(tally, out):
    result = run_planted(CASE, "ends-with-an-exception", out)
    is_right = result["outcome"] == "failed" and result["data"] == "kept" and "planted" in result["note"]
    tally.check("suite::an_installer_that_fails_is_judged", is_right, result)

    began = time.monotonic()
    result = run_planted(CASE, "never-ends", out, limit=1)
    is_right = result["outcome"] == "failed" and "no end after 1 s" in result["note"] and time.monotonic() - began < 15
    tally.check("suite::an_installer_that_never_ends_is_killed", is_right, result)

    broken = copy.deepcopy(CASE)
    broken["disks"][0]["partitions"][1]["size_mib"] = 500
    programs = {name: PLANTED / name for name in ("correct", "moves-data")}
    results = suite.run_case(broken, programs, out)
    is_right = [result["outcome"] for result in results] == ["error", "error"] and all(result["note"] for result in results)
    tally.check("suite::disks_that_cannot_be_created_are_an_error", is_right, results)

    results = suite.run_case(CASE, {"missing": PLANTED / "missing", "correct": PLANTED / "correct"}, out)
    is_right = [result["outcome"] for result in results] == ["error", "done"]
    tally.check("suite::an_adapter_that_cannot_be_started_is_an_error", is_right, results)
