"""Counts test cases in JUnit XML files: Bazel's logs and pytest's reports.

    count_tests.py BAZEL_TESTLOGS REPORTS

Prints the name of each case that failed, then "N passed, N failed, N skipped"; ends with status 1 when a case failed or none ran.
"""

import pathlib
import sys
import xml.etree.ElementTree as ElementTree


def count(path):
    """(passed, failed, skipped) of one file, whose failed cases are printed. A file that can't be read is one failure."""
    try:
        root = ElementTree.parse(path).getroot()
    except (OSError, ElementTree.ParseError) as error:
        print(f"{path}: {error}", file=sys.stderr)
        return 0, 1, 0
    passed = failed = skipped = 0
    for case in root.iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            failed += 1
            print(f"FAILED: {case.get('classname')}.{case.get('name')}")
        elif case.find("skipped") is not None or case.get("status") == "notrun" or case.get("result") in ("skipped", "suppressed"):
            skipped += 1
        else:
            passed += 1
    return passed, failed, skipped


def main():
    totals = [0, 0, 0]
    files = []
    for folder in sys.argv[1:]:
        root = pathlib.Path(folder).resolve()
        files += [p for p in root.rglob("*.xml") if p.name == "test.xml" or p.name.startswith("python-")]
    for path in sorted(files):
        for i, number in enumerate(count(path)):
            totals[i] += number
    print(f"{totals[0]} passed, {totals[1]} failed, {totals[2]} skipped")
    return 0 if totals[0] > 0 and totals[1] == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
