"""Command line of the safety suite. scripts/safety-suite installs the packages, and runs this program."""
import argparse
import signal
import sys
from pathlib import Path

import self_test
import suite

HERE = Path(__file__).resolve().parent


def main():
    parser = argparse.ArgumentParser(prog="scripts/safety-suite", description="Tests whether installers preserve data.")
    names = sorted(path.name for path in (HERE / "adapters").iterdir())
    parser.add_argument("--adapter", action="append", choices=names, help="installer to test (default: all)")
    parser.add_argument("--case", action="append", help="case to run (default: all)")
    parser.add_argument("--out", type=Path, default=HERE.parent.parent / "target/safety-suite", help="directory for the results")
    parser.add_argument("--self-test", action="store_true", help="test the judge with installers that are wrong on purpose")
    options = parser.parse_args()
    # The devices of the current case are removed before the program ends.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if options.self_test:
        return self_test.run()
    results = suite.run(options.adapter or names, options.case, options.out)
    failed = [result for result in results if result["data"] == "LOST" or result["outcome"] == "error"]
    return 1 if failed else 0


sys.exit(main())
