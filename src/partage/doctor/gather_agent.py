"""The agent of Partage on the node, its MPS daemons, and the kubelet that it speaks to."""

from __future__ import annotations

import datetime as dt
import os
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from partage.agent.endpoints.container_limits import HOOK_DIR, KEPT_DIR
from partage.agent.options import SIMULATED_CDI, pod_resources_of
from partage.doctor.decide.observation import (
    Agent,
    AgentReason,
    ClaimFile,
    Kubelet,
    LimitFile,
    MpsDirectory,
    MpsState,
    Unseen,
)
from partage.doctor.host.cdi_files import DIRECTORIES, claim_files, limit_files
from partage.doctor.host.kubelet import kubelet_seen
from partage.doctor.host.processes import agent_processes, mps_processes
from partage.doctor.host.root import DoctorPlace
from partage.edges.files.directory_lock import RUN_LOCK, STATE_LOCK, is_locked
from partage.edges.files.state import STATE_FILE, read_state, state_problem
from partage.edges.host import file_lock
from partage.edges.host.unix_sockets import listener
from partage.edges.kubelet.checkpoint import CheckpointFile
from partage.edges.kubelet.other_plugins import serving_gpus
from partage.edges.kubelet.sockets import marked_sockets, socket_identity, sockets_of
from partage.errors import Unreachable
from partage.model.gpu import devices_of
from partage.model.ids import device_uuid
from partage.plan.serve.limit_edits import HOOK_NAME

if TYPE_CHECKING:
    from partage.answers.documents.report import ReportDocument
    from partage.doctor.gather_policy import Looked

_ROOT_ONLY = Unseen("only root may look at the locks of the agent")
_NOT_SAVED = "state-not-saved"
_NO_REPORT = "an agent runs, and there is no report of it: name its run directory with --run-dir"
_DEVICES = ("GPU-", "MIG-")


def agent_seen(place: DoctorPlace, report: ReportDocument | None, report_problem: str) -> Agent | Unseen:
    """The agent, as its processes, locks, files and its report show it."""
    state, run = place.state_path, place.run_path
    processes = agent_processes(place.root)
    hidden = [
        path
        for path in (state / STATE_LOCK, run / RUN_LOCK)
        if os.access(path, os.F_OK) and not os.access(path, os.W_OK)
    ]
    if (hidden or _closed(state)) and not processes and report is None:
        return _ROOT_ONLY
    locked = is_locked(state, STATE_LOCK) or is_locked(run, RUN_LOCK) or report is not None
    saved = read_state(state)
    file = state / STATE_FILE
    problem = "" if _closed(state) else state_problem(state)
    served = bool(problem) or (saved is not None and saved.policy is not None)
    return Agent(
        processes=processes,
        locked=locked,
        served=_date(file) if served else "",
        state_file=f"{place.state_dir}/{STATE_FILE}",
        state_problem=problem,
        missing=() if report is None else _missing(place, report),
        report_problem=report_problem,
        ahead_s=_ahead_s(file, run / "report.json"),
    )


def why_ended(place: DoctorPlace) -> str:
    """Why a report that is there does not count: its agent has ended, and nobody could tell by its pid."""
    lock = place.run_path / RUN_LOCK
    if not place.files or not os.access(lock, os.W_OK) or is_locked(place.run_path, RUN_LOCK):
        return ""
    return f"{place.run_dir}/report.json is not used: its agent has ended, nobody holds {RUN_LOCK} beside it"


def reasons_of(
    agent: Agent | Unseen | None, report: ReportDocument | None
) -> tuple[AgentReason, ...] | Unseen | None:
    """What the running agent reports; None if none runs."""
    if report is not None:
        return tuple(
            AgentReason(reason.code, reason.message) for reason in (*report.reasons, *report.degraded)
        )
    if isinstance(agent, Agent) and agent.runs:
        return Unseen(agent.report_problem or _NO_REPORT)
    return agent if isinstance(agent, Unseen) else None


def _closed(directory: Path) -> bool:
    """Whether there is such a directory that this user may not look into."""
    return os.access(directory, os.F_OK) and not os.access(directory, os.R_OK | os.X_OK)


def _missing(place: DoctorPlace, report: ReportDocument) -> tuple[str, ...]:
    """Directories that the agent cannot do without. One with other directories does not miss these."""
    if not any(reason.code == _NOT_SAVED for reason in (*report.reasons, *report.degraded)):
        return ()
    return () if place.root.exists(place.state_dir) else (place.state_dir,)


def _date(path: Path) -> str:
    try:
        return dt.datetime.fromtimestamp(path.stat().st_mtime, dt.UTC).strftime("%Y-%m-%d %H:%M UTC")
    except OSError:
        return ""


def _ahead_s(*files: Path) -> float:
    """How far the newest of these files is ahead of the clock."""
    ahead = [0.0]
    for file in files:
        try:
            ahead.append(file.stat().st_mtime - time.time())
        except OSError:
            continue
    return max(ahead)


# --- MPS ---------------------------------------------------------------------------------------


def mps_seen(place: DoctorPlace) -> MpsState | Unseen:
    """MPS processes of the node, and the directories of Partage's daemons."""
    processes = mps_processes(place.root)
    if isinstance(processes, Unseen):
        return processes
    below = f"{place.run_dir}/mps"
    here = place.root.at(below)
    try:
        homes = sorted(
            path.name for path in here.iterdir() if path.name.startswith(_DEVICES) and path.is_dir()
        )
    except FileNotFoundError:
        homes = []
    except OSError as error:
        return Unseen(f"{below} cannot be read: {error.strerror}")
    directories = tuple(
        MpsDirectory(
            f"{below}/{name}",
            device_uuid(name),
            alive=any(process.pipe.startswith(f"{below}/{name}/") for process in processes)
            or file_lock.is_locked(here / f"{name}.lock"),
        )
        for name in homes
    )
    return MpsState(below, processes, directories)


# --- claims --------------------------------------------------------------------------------------


def claim_files_of(place: DoctorPlace) -> tuple[ClaimFile, ...]:
    """The CDI files of claims; those of a simulated node are in the run directory."""
    directories = (DIRECTORIES[-1], f"{place.run_dir}/{SIMULATED_CDI}")
    return claim_files(place.root, directories, pod_resources_of(place.root.at(place.kubelet_dir)))


def limit_files_of(place: DoctorPlace) -> tuple[LimitFile, ...]:
    """What memory limits of containers have left: CDI files, their copies, and the hook."""
    directories = (DIRECTORIES[-1], f"{place.run_dir}/{SIMULATED_CDI}", f"{place.state_dir}/{KEPT_DIR}")
    program = f"{place.state_dir}/{HOOK_DIR}/{HOOK_NAME}"
    return limit_files(place.root, directories, program, pod_resources_of(place.root.at(place.kubelet_dir)))


# --- the kubelet -------------------------------------------------------------------------------


def kubelet_seen_by_agent(
    place: DoctorPlace, agent: Agent | Unseen | None, report: ReportDocument | None, looked: Looked
) -> Kubelet | Unseen | None:
    """The kubelet, other device plugins, and what is left of plugins that have ended."""
    kubelet = kubelet_seen(place.root, place.kubelet_dir)
    if not isinstance(kubelet, Kubelet) or not kubelet.there:
        return kubelet
    directory = place.root.at(place.kubelet_dir)
    return replace(
        kubelet,
        checkpoint_problem=_checkpoint_problem(directory),
        other_plugin=_other_plugin(directory, agent, report, looked),
        kept_sockets=tuple(f"{place.kubelet_dir}/{path.name}" for path in marked_sockets(directory)),
        idle_sockets=tuple(
            f"{place.kubelet_dir}/{path.name}"
            for name in looked.resources
            for path in sockets_of(directory, name)
            if listener(path) is None
        ),
    )


def _checkpoint_problem(directory: Path) -> str:
    try:
        CheckpointFile(directory).held()
    except Unreachable as error:
        return str(error)
    return ""


def _other_plugin(
    directory: Path, agent: Agent | Unseen | None, report: ReportDocument | None, looked: Looked
) -> str | Unseen:
    """The running agent's own word counts: it knows which sockets are its own."""
    if report is not None:
        return ""
    pids = {process.pid for process in agent.processes} if isinstance(agent, Agent) else set[int]()
    if not pids and isinstance(agent, Agent) and agent.runs:
        return Unseen("an agent runs, and its sockets cannot be told from others: its report is not there")
    ours = [
        identity
        for path in _sockets(directory)
        if listener(path) in pids and (identity := socket_identity(path))
    ]
    other = serving_gpus(directory, looked.resources, devices_of(looked.inventory.gpus), ours)
    return "" if other is None else str(other)


def _sockets(directory: Path) -> list[Path]:
    try:
        return [path for path in sorted(directory.iterdir()) if stat.S_ISSOCK(path.lstat().st_mode)]
    except OSError:
        return []
