"""What failed in a run of the tests is tried once more, alone; what passes then is named at the very end.

``make test`` runs it after a run with failed tests, with the options of the second run.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

FAILED = Path(".pytest_cache/v/cache/lastfailed")
"""Where pytest keeps the names of the tests that failed in the last run."""
BAR = "=" * 80
_GROUP = re.compile(r"@[\w-]+$")
"""What xdist adds to the names of the tests of a group (``--dist loadgroup``): ``test_a[b]@slurm``."""


def main(options: list[str]) -> int:
    """The exit code of the second run: 0 if all passed now."""
    failed = _failed()
    # pytest knows no test by the name that xdist gives one of a group, and would not try it.
    FAILED.write_text(json.dumps(dict.fromkeys(sorted(failed), True)), encoding="utf-8")
    print(f"test: {len(failed)} failed, and are tried once more, one after the other", flush=True)
    again = [sys.executable, "-m", "pytest", "--last-failed", "--last-failed-no-failures", "none", *options]
    code = subprocess.run(again, check=False).returncode
    passed = sorted(failed - _failed())
    if passed:
        lines = [BAR, f"passed only at the second try: {len(passed)}", *(f"  {name}" for name in passed)]
        lines.append("Each depends on how busy the machine is: a fault of the test or of Partage. Mend it.")
        print("\n".join([*lines, BAR]), flush=True)
    return code


def _failed() -> set[str]:
    named = json.loads(FAILED.read_text(encoding="utf-8")) if FAILED.exists() else {}
    return {_GROUP.sub("", name) for name in named}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
