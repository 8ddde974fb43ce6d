"""How long a verb that only reads takes, next to ``partage --version``: ``python -m bench.bench_verbs``.

Whole processes on a simulated node. Each round runs every verb once, and ``--version`` in between, so a busy
minute is shared by all. The ratio is of the fastest runs: what other processes take is not the verb's.
"""

from __future__ import annotations

import compileall
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
EXAMPLE = Path(__file__).parents[1] / "examples" / "07-mixed-node"
BUDGET = 3.0
"""At most so many times the time of ``partage --version``."""

_NODE = ["--machine", str(EXAMPLE / "machine.json")]
_POLICY = ["--policy", str(EXAMPLE / "policy.yaml")]
VERBS: Mapping[str, list[str]] = {
    "show": ["show", *_NODE],
    "show --policy": ["show", *_NODE, *_POLICY],
    "plan": ["plan", *_NODE, *_POLICY],
    "apply --dry-run": ["apply", "--dry-run", *_NODE, *_POLICY],
    "assert": ["assert", *_NODE, *_POLICY],
    "export": ["export", *_NODE],
    "check": ["check", *_NODE, str(EXAMPLE / "policy.yaml")],
}


def measure(rounds: int) -> tuple[float, dict[str, float]]:
    """Milliseconds of ``--version``, and of each verb; each the fastest of its rounds."""
    compileall.compile_dir(str(SOURCE), quiet=1)  # as an installed package is
    base, found = float("inf"), dict.fromkeys(VERBS, float("inf"))
    for _ in range(rounds):
        for name, arguments in VERBS.items():
            base = min(base, _ms(["--version"]))
            found[name] = min(found[name], _ms(arguments))
    return base, found


def lines(base: float, verbs: Mapping[str, float]) -> list[str]:
    """A line for each verb."""
    said = [f"partage --version: {base:.0f} ms from exec to exit; verbs that only read, in ms and times that"]
    said += [f"  {name:18}{ms:6.0f}{ms / base:7.2f}" for name, ms in verbs.items()]
    return said


def _ms(arguments: list[str]) -> float:
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "partage", *arguments], capture_output=True, text=True, check=False
    )
    spent = (time.perf_counter() - began) * 1000
    # 1: assert says that the node is not as the policy wants it
    if done.returncode not in (0, 1):
        raise RuntimeError(f"partage {' '.join(arguments)} ended with {done.returncode}: {done.stderr}")
    return spent


def main() -> None:
    """Print the lines."""
    print("\n".join(lines(*measure(10))))


if __name__ == "__main__":
    main()
