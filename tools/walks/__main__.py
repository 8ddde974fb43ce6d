"""Prints which files of src/partage run, in the order in which they begin to.

python -m tools.walks                 two changes on a simulated node
python -m tools.walks VERB WORD...    one verb of the command
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import partage
from partage.answers.process_start import lean_imports

_PACKAGE = Path(partage.__file__).parent
_NOT_LISTED = ("cli", "lab", "model", "sim", "values.py", "text.py", "units.py", "errors.py")
"""What every file uses, and what stands outside the way: the command, the stage, the simulated node."""

_READS_POLICIES = "edges/files/policy.py"
_MACHINE = "2xh100-sxm5-80gb"
_POLICY = "version: partage/v1\ngpus: [{{select: all, {sharing}}}]\n"
_WHOLE = _POLICY.format(sharing="exclusive: {}")
_CHANGES = {
    "From a policy to the kubelet: whole GPUs become four shares each": "time-slicing: {replicas: 4}",
    "From a MIG layout to an instance: whole GPUs are divided": "mig: {layout: [1g.10gb, 2g.20gb, 3g.40gb]}",
}


@contextmanager
def traced() -> Iterator[list[str]]:
    """The files, by their path in the package, whose functions are called meanwhile; each once, in order."""
    files: dict[str, None] = {}
    names: dict[str, str] = {}

    def called(frame: FrameType, event: str, _: object) -> None:
        if event != "call" or frame.f_code.co_name in ("<module>", "<lambda>"):
            return
        full = frame.f_code.co_filename
        if full not in names:
            path = Path(full)
            inside = path.relative_to(_PACKAGE).as_posix() if path.is_relative_to(_PACKAGE) else ""
            names[full] = "" if inside.startswith(_NOT_LISTED) else inside
        # The body of a class is a call, too, while its module is imported.
        if (name := names[full]) and "__qualname__" not in frame.f_locals:
            files.setdefault(name)

    walk: list[str] = []
    threading.setprofile(called)
    sys.setprofile(called)
    try:
        yield walk
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        walk.extend(files)


def sentence(name: str) -> str:
    """What a file says first."""
    lines = (_PACKAGE / name).read_text(encoding="utf-8").splitlines()
    return lines[0].strip('"') if lines else ""


def show(title: str, walk: Iterable[str], at_rest: frozenset[str] = frozenset()) -> None:
    """A line for each file. at_rest: those that run also where nothing changes, in brackets."""
    files = list(walk)
    width = max(len(name) for name in files) + 2
    sys.stdout.write(
        f"{title}: {len(files)} files, {len(at_rest & {*files})} of them (in brackets) also at rest\n\n"
    )
    for name in files:
        shown = f"({name})" if name in at_rest else name
        sys.stdout.write(f"  {shown:{width}}  {sentence(name)}\n")
    sys.stdout.write("\n")


async def change(sharing: str, folder: Path) -> tuple[list[str], frozenset[str]]:
    """What runs from the new policy to the node at rest, and what runs while nothing changes."""
    from partage.lab.stories.model import PolicyText, Story
    from partage.lab.stories.stage import StoryStage
    from partage.sim.node.files.load import load_machine

    before, after = (
        PolicyText("policy.yaml", text.encode()) for text in (_WHOLE, _POLICY.format(sharing=sharing))
    )
    stage = StoryStage(
        Story(folder, "walk", load_machine(_MACHINE), before, None, (), None), folder, 0, lambda _: None
    )
    await stage.open()
    try:
        await stage.rest()
        rest = [_READS_POLICIES]
        while _READS_POLICIES in rest:  # a file that is new is read once more, which is no rest
            with traced() as rest:
                await stage.noticed()
        with traced() as walk:
            stage.write_policy(after)
            await stage.noticed()
            await stage.rest()
    finally:
        await stage.close()
    return walk, frozenset(rest)


def main(words: list[str]) -> int:
    """The exit code."""
    if words:
        from partage.cli.main import run

        with traced() as walk, suppress(SystemExit):
            run(words)
        sys.stdout.write("\n")
        show(" ".join(words), walk)
        return 0
    for title, sharing in _CHANGES.items():
        with tempfile.TemporaryDirectory(prefix="partage-") as folder:
            show(title, *asyncio.run(change(sharing, Path(folder))))
    return 0


if __name__ == "__main__":
    with lean_imports():
        sys.exit(main(sys.argv[1:]))
