"""Carries out what ``--fix`` may do. Each repair looks again before it acts: the node may have changed."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import assert_never

from partage.doctor.decide.finding import (
    MakeDirectory,
    RemoveCdiFile,
    RemoveClaimFile,
    RemoveMpsDirectory,
    RemoveSocket,
    Repair,
)
from partage.doctor.decide.observation import Unseen
from partage.doctor.decide.runtime import cdi_problem
from partage.doctor.gather_agent import claim_files_of
from partage.doctor.host.cdi_files import cdi_files
from partage.doctor.host.processes import mps_processes
from partage.doctor.host.root import DoctorPlace, host
from partage.edges.files.directory_lock import RUN_LOCK, is_locked
from partage.edges.host.file_lock import try_lock
from partage.edges.host.unix_sockets import is_listening
from partage.edges.mps.directories import remove_directories
from partage.edges.mps.holders import Holders, Programs, holders
from partage.edges.mps.paths import DaemonPaths
from partage.errors import PartageError
from partage.values import Frozen


class Repaired(Frozen):
    """What became of a repair. left: why it was not done; empty: it was."""

    repair: Repair
    left: str = ""


def carry_out(place: DoctorPlace, repair: Repair) -> Repaired:
    """Do it, if it is still right. Never raises for what goes wrong on the node."""
    try:
        match repair:
            case RemoveMpsDirectory():
                left = _remove_daemon(place, repair)
            case RemoveSocket():
                left = _remove_socket(place, place.root.at(repair.path))
            case RemoveCdiFile():
                left = _remove_cdi(place, repair.path)
            case RemoveClaimFile():
                left = _remove_claim_file(place, repair.path)
            case MakeDirectory():
                place.root.at(repair.path).mkdir(mode=repair.mode, parents=True, exist_ok=True)
                left = ""
            case _:
                assert_never(repair)
    except OSError as error:
        return Repaired(repair, error.strerror or str(error))
    except PartageError as error:
        return Repaired(repair, str(error))
    return Repaired(repair, left)


def _remove_daemon(place: DoctorPlace, repair: RemoveMpsDirectory) -> str:
    home = place.root.at(repair.path)
    if home.parent != place.run_path / "mps" or not stat.S_ISDIR(home.lstat().st_mode):
        return "it is no directory of an MPS daemon of Partage"
    if is_locked(place.run_path, RUN_LOCK):
        return "an agent runs now, and looks after it"
    with _locked(home.with_name(f"{home.name}.lock")) as free:
        processes = mps_processes(place.root)
        if not free or isinstance(processes, Unseen):
            return "it is not known whether a process uses it now"
        paths = DaemonPaths(home)
        inside = holders(place.root.proc, paths, Programs())
        if inside != Holders() or any(process.pipe.startswith(f"{repair.path}/") for process in processes):
            return "a process uses it now"
        remove_directories(paths)
    return ""


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Whether nobody else is at this daemon; nobody can begin during the block."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        yield try_lock(handle)
    finally:
        os.close(handle)


def _remove_socket(place: DoctorPlace, path: Path) -> str:
    if is_locked(place.run_path, RUN_LOCK):  # it makes its sockets before it listens there
        return "an agent runs now"
    if not stat.S_ISSOCK(path.lstat().st_mode):
        return "it is no socket"
    if is_listening(path):
        return "a process listens there now"
    path.unlink()
    return ""


def _remove_cdi(place: DoctorPlace, path: str) -> str:
    file = next((cdi_file for cdi_file in cdi_files(place.root) if cdi_file.path == path), None)
    if file is None or not file.ours:
        return "somebody else has written it since"
    if not cdi_problem(file, host(place).kernel_module_version() or ""):
        return "it fits again"
    here = place.root.at(path)
    here.unlink()
    here.with_suffix(".digest").unlink(missing_ok=True)
    return ""


def _remove_claim_file(place: DoctorPlace, path: str) -> str:
    if is_locked(place.run_path, RUN_LOCK):
        return "an agent runs now, and looks after it"
    file = next((file for file in claim_files_of(place) if file.path == path), None)
    if file is None or file.pods is None:
        return "it is not known whether a pod has its claim now"
    if file.pods:
        return f"pod {file.pods[0]} has its claim now"
    place.root.at(path).unlink()
    return ""
