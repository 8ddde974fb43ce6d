"""``make on-gpu``: one slice of a run, its result file and its table.
``docs/how-to/one-hour-on-a-gpu.md``.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import sys
from pathlib import Path

HOME = Path(__file__).resolve().parents[2]
"""The repository, or the kit."""
INTERRUPTED = 130


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="on-gpu",
        description="See on a real GPU what has only been simulated so far, in order of what matters. "
        "Exit codes: 0 nothing is left to be done, 1 some steps are, 2 the input is wrong, "
        "3 not possible here, "
        "4 no GPU, or its settings were not put back.",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--read-only", action="store_true", help="change no setting of a GPU (default)")
    what.add_argument(
        "--change",
        action="store_true",
        help="also change compute mode, time slices and MIG, and put them back",
    )
    parser.add_argument(
        "--minutes", type=float, metavar="N", help="stop after that time; the next run goes on"
    )
    parser.add_argument("--gpu", metavar="INDEX|UUID", help="which GPU (default: the first)")
    parser.add_argument("--only", metavar="STEP,...", default="", help="only these steps")
    parser.add_argument("--again", action="store_true", help="also do what is done already")
    parser.add_argument("--new", action="store_true", help="begin a new result file")
    parser.add_argument("--result", type=Path, metavar="FILE", help="the result file (default: the newest)")
    parser.add_argument(
        "--python", metavar="PATH", help="the interpreter that has PyTorch (default: python3)"
    )
    parser.add_argument(
        "--driver-root", type=Path, default=Path("/"), metavar="DIR", help="where the driver is (/)"
    )
    parser.add_argument(
        "--state-dir", type=Path, metavar="DIR", help="where it is noted what has to be put back"
    )
    parser.add_argument("--table", action="store_true", help="only write the table of the result, and end")
    parser.add_argument("--list", action="store_true", help="list the steps and end")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """The exit code."""
    asked = _options(arguments)
    from partage.errors import InputError, PartageError
    from tools.on_gpu.journal import default_directory
    from tools.on_gpu.result import EVIDENCE
    from tools.on_gpu.runner import Interrupted, RunOptions, run_slice
    from tools.on_gpu.steps import STEPS
    from tools.on_gpu.table import table, untouched_table, write_page

    if asked.list:
        for step in STEPS:
            sys.stdout.write(
                f"{step.name}: {step.limit_s:g} s at most{', with --change' if step.changes else ''}\n"
            )
        return 0
    try:
        only = tuple(name for name in asked.only.split(",") if name)
        names = [step.name for step in STEPS]
        if unknown := [name for name in only if name not in names]:
            raise InputError(f"no step is called {unknown[0]!r}", f"there are {', '.join(names)}")
        result, page = _files(asked)
        if asked.table:
            write_page(
                page, table(EVIDENCE.read(str(result)), result.name) if result.exists() else untouched_table()
            )
            return 0
        options = RunOptions(
            result=result,
            state_dir=asked.state_dir or default_directory(),
            driver_root=asked.driver_root.resolve(),
            gpu=asked.gpu,
            python=asked.python,
            change=asked.change,
            minutes=asked.minutes,
            only=only,
            again=asked.again,
        )
        end = run_slice(options, _tell)
    except Interrupted as signal:
        _tell(f"ended by {signal}; what was done until then is in the result file")
        return INTERRUPTED
    except PartageError as error:
        for problem in error.problems:
            sys.stderr.write(f"error: {problem}\n")
        return error.exit_code
    except OSError as error:
        sys.stderr.write(f"error: {error.filename or 'a file'} cannot be used: {error.strerror}\n")
        return InputError.exit_code
    write_page(page, table(end.evidence, result.name))
    _tell(f"{result}: everything that was seen; {page}: the table")
    if end.open:
        _tell(f"still to be done: {', '.join(end.open)}; the same command goes on")
    return int(bool(end.open))


def _files(asked: argparse.Namespace) -> tuple[Path, Path]:
    """The result file and the page with the table beside it."""
    from tools.on_gpu.result import newest

    evidence = HOME / "docs/evidence"
    folder = evidence if (evidence / "hardware.md").exists() else HOME / "results"
    result: Path | None = asked.result
    if result is None:
        folder.mkdir(exist_ok=True)
        result = None if asked.new else newest(folder)
        result = result or _fresh_name(folder)
    elif asked.new and result.exists():
        from partage.errors import InputError

        raise InputError(f"{result} is there already", "leave --new out to go on with it")
    return result, (folder if asked.result is None else result.parent) / "hardware.md"


def _fresh_name(folder: Path) -> Path:
    """``hardware-DATE.json``; the second of a day has a number."""
    day = dt.datetime.now(dt.UTC).date().isoformat()
    names = (folder / f"hardware-{day}{number}.json" for number in ("", *(f"-{n}" for n in range(2, 1000))))
    return next(path for path in names if not path.exists())


def _tell(text: str) -> None:
    """Progress is for people, on stderr. Names come from the machine: nothing of them is a control
    character.
    """
    from partage.text import printable

    sys.stderr.write(f"on-gpu: {printable(text)}\n")


if __name__ == "__main__":
    sys.stdout.flush()
    code = main()
    sys.stderr.flush()
    os._exit(code)
