"""All kinds of answers of one checkout, into a folder."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from tools.freeze.agents import agents
from tools.freeze.commands import commands, write_inputs
from tools.freeze.frames import frames
from tools.freeze.place import Checkout, place
from tools.freeze.values import modules, tags


def write(checkout: Checkout, folder: Path, kinds: Iterable[str]) -> None:
    """Write them; the folder may not exist, or be empty."""
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        sys.exit(f"{folder} is not empty")
    folder = folder.resolve()
    with place() as home:
        write_inputs(home)
        for kind in kinds:
            _KINDS[kind](checkout, folder)
            print(
                f"{kind}: {sum(1 for path in folder.rglob('*') if path.is_file())} files so far", flush=True
            )


def _commands(checkout: Checkout, folder: Path) -> None:
    home = Path(checkout.environment["HOME"])
    said = checkout.run("--help").stdout.partition("Verbs:\n")[2]
    verbs = [line.split()[0] for line in said.splitlines() if line.startswith("  ") and line[2] != " "]
    rows = list(commands(home, [verb for verb in verbs if verb != "Without"]))
    listed = home / "commands.json"
    listed.write_text(json.dumps(rows), encoding="utf-8")
    program = Path(__file__).with_name("run_commands.py")
    given = [sys.executable, "-P", str(program), checkout.entry_point, str(listed), str(folder)]
    subprocess.run(given, env=checkout.environment, cwd=home, check=True)


_KINDS: dict[str, Callable[[Checkout, Path], None]] = {
    "tags": tags,
    "modules": modules,
    "frames": frames,
    "agents": agents,
    "commands": _commands,
}
KINDS = list(_KINDS)
