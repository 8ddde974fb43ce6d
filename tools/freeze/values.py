"""Names that are interfaces without looking so: tags in JSON, and which modules a program loads."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from tools.freeze.place import Checkout, keep

_TAGS = """
import importlib, pkgutil, partage
for module in pkgutil.walk_packages(partage.__path__, "partage."):
    if ".guard" not in module.name and "__main__" not in module.name:
        try:
            importlib.import_module(module.name)
        except ImportError as error:
            assert not str(error.name).startswith("partage"), (module.name, error)
        except SystemExit:
            pass
from msgspec import Struct
def below(kind):
    for sub in kind.__subclasses__():
        yield sub
        yield from below(sub)
rows = set()
for kind in below(Struct):
    if kind.__module__.startswith("partage") and kind.__struct_config__.tag is not None:
        config = kind.__struct_config__
        optional = len(kind.__struct_defaults__)
        needed = len(kind.__struct_fields__) - optional
        marks = [""] * needed + ["?"] * optional
        keys = map("".join, zip(kind.__struct_encode_fields__, marks))
        rows.add(f"{kind.__name__} {config.tag_field}={config.tag} omit={config.omit_defaults} "
                 f"strict={config.forbid_unknown_fields} {' '.join(keys)}")
print(*sorted(rows), sep="\\n")
"""

_MODULES = """
import runpy, os, sys
def say():
    print(*sys.modules, sep="\\n", file=open(target, "w"))
target, first = sys.argv[1], sys.argv[2]
leave = os._exit
def say_and_leave(code):
    say()
    leave(code)
os._exit = say_and_leave
sys.argv = ["partage", *sys.argv[2:]]
try:
    runpy.run_module("partage", run_name="__main__")
finally:
    say()
"""

_SHORT = {
    "show": ("show", "--machine", "4xl40s"),
    "plan": ("plan", "--machine", "4xl40s", "-f", "examples/02-time-slicing/policy.yaml"),
    "check": ("check", "examples/02-time-slicing/policy.yaml"),
    "export": ("export", "--machine", "4xl40s"),
    "labels": ("labels", "--machine", "4xl40s"),
    "help": ("--help",),
    "agent-help": ("agent", "--help"),
    "hardware-help": ("hardware", "--help"),
    "prolog": ("slurm", "prolog", "--run-dir", "none", "--devices", "none"),
    "task-prolog": ("slurm", "task-prolog"),
}


def tags(checkout: Checkout, folder: Path) -> None:
    """Every value that says its kind in JSON, with its keys. ``?``: may be left out."""
    keep(folder, "tags.txt", checkout.python(_TAGS).splitlines())


def modules(checkout: Checkout, folder: Path) -> None:
    """What short verbs and the programs of a job have loaded at their end; packages are left out."""
    home = Path(checkout.environment["HOME"])
    for name, words in _SHORT.items():
        target = home / "modules"
        given = [sys.executable, "-c", _MODULES, str(target), *words]
        subprocess.run(given, env=checkout.environment, cwd=home, check=False, capture_output=True)
        keep(folder, f"modules/{name}.txt", _loaded(target.read_text(encoding="utf-8").split(), checkout))

    options = ("--machine", "4xl40s", "--state-dir", "state", "--run-dir", "run", "--kubelet-dir", "dp")
    (home / "dp").mkdir()
    _of_service(checkout, folder, "agent", ("agent", "--http", "127.0.0.1:0", "--cluster", "off", *options))
    _of_service(checkout, folder, "hardware", ("hardware", "--socket", "hw.sock", *options[:2]))


def _of_service(checkout: Checkout, folder: Path, name: str, words: tuple[str, ...]) -> None:
    """After five seconds of rest."""
    target = Path(checkout.environment["HOME"]) / "modules"
    given = [sys.executable, "-c", _MODULES, str(target), *words]
    with subprocess.Popen(
        given,
        env=checkout.environment,
        cwd=target.parent,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as service:
        try:
            service.wait(5)
        except subprocess.TimeoutExpired:
            service.send_signal(signal.SIGTERM)
    keep(folder, f"modules/{name}.txt", _loaded(target.read_text(encoding="utf-8").split(), checkout))


def _loaded(names: list[str], checkout: Checkout) -> list[str]:
    """Modules in their order; those of Partage that are packages are no files of their own."""
    source = checkout.root / "src"
    return sorted(name for name in names if not (source / name.replace(".", "/")).is_dir())
