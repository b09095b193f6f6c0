"""Lists the tests that failed among the workers and passed alone.

python -m tests.flaky BEFORE AFTER

BEFORE and AFTER are what pytest keeps of the failures of its last run, before and after the failed
tests have run again: JSON, {node ID: true}. On GitHub the list stands in the summary of the job.
"""

import json
import os
import sys


def flaky(before: str, after: str) -> list[str]:
    """The node IDs of the tests that failed at first only."""
    passed_again = set(json.loads(before)) - set(json.loads(after))
    return sorted(passed_again)


def main(before: str, after: str) -> None:
    """Prints them, one on a line."""
    tests = flaky(before, after)
    if not tests:
        return
    lines = [f"test.sh: flaky, failed and then passed: {len(tests)}"]
    lines += [f"  {test}" for test in tests]
    text = "\n".join(lines)
    print(text)
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary:
        with open(summary, "a") as file:
            file.write(f"{text}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
