"""The support bundle: what somebody else needs to understand a node, in one file, each of its parts without
its secrets.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import io
import json
import os
import platform
import shutil
import subprocess
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from partage import __version__
from partage.codec.values import to_plain
from partage.doctor.decide.observation import ContainerRuntime, Observation
from partage.doctor.decide.redact import redact_text, redact_value
from partage.doctor.host.root import DoctorPlace
from partage.edges.host.read_file import read_regular, read_tail
from partage.errors import PartageError, wrong_input
from partage.model.gpu import Driver, Inventory
from partage.model.paths import CONTAINER_LOGS
from partage.values import Frozen

if TYPE_CHECKING:
    from partage.doctor.document import DoctorDocument
    from partage.edges.kube.port import ClusterNode


_TAIL_BYTES = 2**20
_LARGEST_BYTES = 64 * 2**20
_LOG_LINES = "5000"
_LOG_SECONDS = 20.0
_UNITS = ("partage-agent", "partage-slurm-agent", "partage-boot")
_SLURM_KEYS = (
    "nodename=", "grestypes=", "selecttype", "taskplugin", "proctracktype", "prolog", "epilog", "taskprolog",
    "slurmdparameters", "jobsubmitplugins", "returntoservice", "accountingstoragetres", "debugflags",
    "include", "autodetect", "name=", "constrain", "cgroupplugin",
)  # fmt: skip
"""How the lines begin that are taken from Slurm's files; others may have passwords and names of users."""

_OWN_ANNOTATIONS = ("partage.dev/", "nvidia.com/")


class BundleInput(Frozen):
    """What goes into a bundle beside what is read from the node.

    policy_file: of ``--policy``. node: the Node object, where it was asked for. logs: more log files.
    """

    document: DoctorDocument
    observation: Observation
    policy_file: str | None = None
    node: ClusterNode | None = None
    logs: tuple[str, ...] = ()


class Entry(Frozen):
    """One file of the bundle."""

    name: str
    what: str
    content: bytes


def entries_of(place: DoctorPlace, given: BundleInput) -> Iterator[Entry]:
    """All files of the bundle. Raises InputError for a log that cannot be read."""
    now = given.observation
    yield _document("doctor.json", "the doctor's findings", to_plain(given.document))
    yield _document("observation.json", "what the doctor looked at", _plain(now))
    yield _document("versions.json", "versions of Partage, Python, kernel and driver", _versions(now))
    if machine := _machine(now.inventory):
        what = "the GPUs as a machine file, without serial numbers"
        yield _document("machine.json", what, json.loads(machine))
    if given.node is not None:
        yield _document("node.json", "the Node object, its own annotations left out", _node(given.node))
    if given.policy_file is not None and given.policy_file != "-":
        yield from _policies(Path(given.policy_file))
    if place.files:
        yield from _of_partage(place)
        yield from _of_slurm(place)
        yield from _logs(place)
    for number, log in enumerate(given.logs):
        content = _tail(Path(log))
        if content is None:
            raise wrong_input(log, "cannot be read", "--log names a text file")
        yield _text(f"logs/given-{number}-{Path(log).name}", "a log that was given", content)


def _versions(now: Observation) -> dict[str, Any]:
    driver = now.inventory.driver
    kernel = platform.uname()
    runtime = now.runtime.name if isinstance(now.runtime, ContainerRuntime) else None
    return {
        "partage": __version__,
        "python": platform.python_version(),
        "kernel": {"release": kernel.release, "machine": kernel.machine},
        "driver": driver.version if isinstance(driver, Driver) else None,
        "containerRuntime": runtime,
        "madeAt": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
    }


def _machine(inventory: Inventory) -> str:
    """The recording, if one can be made; nothing that names one board for ever."""
    from partage.sim.node.files.machine_writer import machine_text
    from partage.sim.node.machine import Machine

    if not isinstance(inventory.driver, Driver) or any(gpu.mig_hidden for gpu in inventory):
        return ""
    gpus = tuple(replace(gpu, serial=None) for gpu in inventory)
    try:
        return machine_text(Machine("", replace(inventory, gpus=gpus)), as_yaml=False)
    except (PartageError, ValueError):
        return ""


def _node(node: ClusterNode) -> Any:  # noqa: ANN401 - values of JSON
    """Annotations of others may contain anything; kubectl's has whole objects."""
    own = {key: value for key, value in node.annotations.items() if key.startswith(_OWN_ANNOTATIONS)}
    return to_plain(replace(node, annotations=own, address=""))


def _policies(path: Path) -> Iterator[Entry]:
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    for file in files:
        content = _tail(file)
        if content is not None and not file.name.startswith("."):
            yield _text(f"policy/{file.name}", "the policy that was given", content)


def _of_partage(place: DoctorPlace) -> Iterator[Entry]:
    for name, path, what in (
        ("report.json", place.run_path / "report.json", "the agent's last report"),
        ("state.json", place.state_path / "state.json", "what the agent remembers, with its last policy"),
    ):
        if (found := _json(path)) is not None:
            yield _document(name, what, found)
    if (journal := _tail(place.state_path / "journal.jsonl")) is not None:
        yield _text("journal.jsonl", "the last change of MIG layouts", journal)
    for home in _directories(place.run_path / "mps"):
        for file in ("daemon.json", "start.log", "log/control.log", "log/server.log"):
            if (content := _tail(home / file)) is not None:
                yield _text(f"mps/{home.name}/{file}", "an MPS daemon", content)


def _of_slurm(place: DoctorPlace) -> Iterator[Entry]:
    from partage.doctor.gather_slurm import slurm_files

    for file in slurm_files(place, os.environ):
        if (content := _tail(Path(file))) is not None:
            lines = content.splitlines()
            kept = "\n".join(line for line in lines if line.strip().lower().startswith(_SLURM_KEYS)) + "\n"
            yield _text(f"slurm/{Path(file).name}", "lines of it that concern GPUs", kept)


def _logs(place: DoctorPlace) -> Iterator[Entry]:
    if not place.elsewhere and (journal := _unit_log()):
        yield _text("logs/systemd.log", "the agent's log, from journalctl", journal)
    try:
        names = sorted(path.name for path in place.root.at(CONTAINER_LOGS).iterdir())
    except OSError:
        return
    for name in names:
        if name.startswith("partage-") and (content := _tail(place.root.at(f"{CONTAINER_LOGS}/{name}"))):
            yield _text(f"logs/{name}", "a container of Partage", content)


def _unit_log() -> str:
    program = shutil.which("journalctl")
    if program is None:
        return ""
    units = [word for unit in _UNITS for word in ("-u", unit)]
    try:
        done = subprocess.run(  # noqa: S603 - no shell, and no argument from outside
            [program, *units, "-n", _LOG_LINES, "--no-pager", "-o", "short-iso", "-q"],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_LOG_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout[-_TAIL_BYTES:].decode("utf-8", "replace")


# --- one file ----------------------------------------------------------------------------------


def _document(name: str, what: str, value: Any) -> Entry:  # noqa: ANN401 - values of JSON
    text = json.dumps(redact_value(value), indent=1, ensure_ascii=False, default=str) + "\n"
    return Entry(name, what, text.encode())


def _text(name: str, what: str, text: str) -> Entry:
    return Entry(name, what, redact_text(text).encode())


def _plain(now: Observation) -> Any:  # noqa: ANN401 - values of JSON
    plain = to_plain(now)
    return (
        {key: value for key, value in plain.items() if value is not None}
        if isinstance(plain, Mapping)
        else plain
    )


def _json(path: Path) -> Any:  # noqa: ANN401 - values of JSON
    try:
        return json.loads(read_regular(path, _LARGEST_BYTES))
    except (OSError, ValueError, RecursionError):
        return None


def _tail(path: Path) -> str | None:
    """The last part of a text file; None if it cannot be read."""
    try:
        return read_tail(path, _TAIL_BYTES).decode("utf-8", "replace")
    except OSError:
        return None


def _directories(path: Path) -> list[Path]:
    try:
        return [below for below in sorted(path.iterdir()) if below.is_dir() and not below.is_symlink()]
    except OSError:
        return []


ROOT = "partage-doctor"
"""The folder in the archive."""


def write_bundle(path: str, place: DoctorPlace, given: BundleInput) -> tuple[Entry, ...]:
    """Write the archive, for its owner only, whole or not at all. Returns its files. Raises InputError."""
    target = Path(path)
    entries = tuple(entries_of(place, given))
    contents = "".join(f"{entry.name}\t{len(entry.content)} bytes\t{entry.what}\n" for entry in entries)
    listing = Entry("CONTENTS.txt", "this list", contents.encode())
    try:
        _write(target, _archive((listing, *entries)))
    except OSError as error:
        raise wrong_input(path, f"cannot be written: {error.strerror}", "name another file") from error
    return (listing, *entries)


def _archive(entries: Sequence[Entry]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for entry in entries:
            about = tarfile.TarInfo(f"{ROOT}/{entry.name}")
            about.size, about.mode, about.mtime = len(entry.content), 0o600, int(time.time())
            archive.addfile(about, io.BytesIO(entry.content))
    return packed.getvalue()


def _write(target: Path, content: bytes) -> None:
    """Beside it first, then in its place: another file of that name is replaced by a whole one."""
    beside = target.with_name(f".{target.name}.{os.getpid()}.new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(beside, flags, 0o600)
    try:
        with open(descriptor, "wb") as stream:  # noqa: PTH123 - Path cannot open with these flags
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        beside.replace(target)
    except OSError:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise
