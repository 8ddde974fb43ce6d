"""Runs commands of one checkout, each in a fork of a process that has everything imported.

A program of its own, started with the ``src`` of the checkout in PYTHONPATH: it imports nothing of the tool.
Arguments: the entry point (``module:function``), a JSON file with the commands, and where answers go.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import re
import sys
import tempfile
from pathlib import Path

WORKERS = 2
_MOMENT = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:\+00:00|Z)")
"""When a proof was made: no option of ours decides it."""


def main() -> None:
    """Carry them out in two workers; the exit code is not 0 if one of them could not."""
    module, _, function = sys.argv[1].partition(":")
    commands = json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))
    answers = Path(sys.argv[3])
    call = getattr(importlib.import_module(module), function)
    for words in (
        ["show", "--machine", "l4"],
        ["plan", "--machine", "8xh100-sxm5-80gb"],
        ["check", "/dev/null"],
    ):
        _import_what_it_imports(call, words)
    gc.freeze()
    files = sorted({file for file, _, _ in commands})
    mine: dict[str, list[tuple[list[str], int]]] = {file: [] for file in files}
    for file, words, columns in commands:
        mine[file].append((words, columns))
    workers = []
    for number in range(WORKERS):
        pid = os.fork()
        if pid == 0:
            for file in files[number::WORKERS]:
                path = answers / (file + ".txt")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(b"".join(_answer(call, words, columns) for words, columns in mine[file]))
            os._exit(0)
        workers.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in workers]
    sys.exit(max(map(abs, codes)))


def _answer(call: object, words: list[str], columns: int) -> bytes:
    """The command, its exit code, stdout, stderr, and the file that it wrote."""
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder) / name for name in ("stdout", "stderr")]
        given = [
            word.replace("WRITTEN", f"{folder}/written") if word.startswith("WRITTEN") else word
            for word in words
        ]
        pid = os.fork()
        if pid == 0:
            _become(call, given, columns, outputs)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        said = [f"$ partage {' '.join(words)}  # {columns} columns\nexit {code}\n".encode()]
        written = [
            (path.name, path.read_bytes()) for path in (*outputs, *sorted(Path(folder).glob("written*")))
        ]
        named = f"{folder}/written".encode()
    said += [_part(name, text.replace(named, b"WRITTEN")) for name, text in written]
    return b"".join(said)


def _part(name: str, text: bytes) -> bytes:
    end = b"" if text.endswith(b"\n") else b"\n"
    return f"--- {name}\n".encode() + _MOMENT.sub(b"TIME", text) + end if text else b""


def _become(call: object, words: list[str], columns: int, outputs: list[Path]) -> None:
    sys.argv = ["partage", *words]
    os.environ["COLUMNS"] = str(columns)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for descriptor, path in enumerate(outputs, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), descriptor)
    _call(call, words)


def _call(call: object, words: list[str]) -> None:
    import traceback

    code = 70
    try:
        call(words)  # type: ignore[operator]
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:  # noqa: BLE001 - a traceback is an answer, too
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _import_what_it_imports(call: object, words: list[str]) -> None:
    """A child carries the command out and says which modules it has then; they are imported here."""
    readable, writable = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(readable)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        leave = os._exit

        def say_and_leave(code: int) -> None:
            os.write(writable, "\n".join(sys.modules).encode())
            leave(code)

        os._exit = say_and_leave  # type: ignore[assignment]
        _call(call, words)
    os.close(writable)
    with os.fdopen(readable, encoding="utf-8") as said:
        names = said.read().split()
    os.waitpid(pid, 0)
    for name in names:
        if name.startswith("partage.") and name not in sys.modules:
            importlib.import_module(name)


if __name__ == "__main__":
    main()
