"""What the agent has to remember: the last good policy, what its GPUs serve, their health.

Everything else can be observed. ``<state-dir>/state.json`` is replaced atomically, so that an agent that is
killed at any moment leaves the old or the new one; ``<state-dir>/lock`` keeps a second agent out.

The caller's clock means nothing to the next process, so times are written as seconds passed or left. Time in
which no agent runs does not count: the node was not watched.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, field, json
from msgspec.structs import replace

from partage.codec.values import CodecError, decode, encode
from partage.edges.files.directory_lock import take_lock
from partage.edges.host.read_file import read_regular
from partage.edges.host.replace_file import replace_file, set_aside
from partage.errors import InputError
from partage.model.health import PROBATION_CAP_S, PROBATION_S, Health, HealthState, HealthStatus
from partage.model.ids import GpuUuid, parse_resource_name
from partage.model.share import DeviceOffer
from partage.plan.reconcile.settings_steps import OriginalSettings
from partage.plan.reconcile.transition import GpuServing
from partage.values import Frozen

MOST_SHARES = 1_000_000
"""More than any kubelet message holds."""

Seconds = Annotated[float, Meta(ge=0)]
Probation = Annotated[float, Meta(ge=PROBATION_S, le=PROBATION_CAP_S)]


class WrittenPolicy(Frozen):
    """The last good policy. sha256: of the text, in hexadecimal. Older agents wrote no labels or layouts."""

    text: str
    source: str
    config: str | None
    sha256: str
    labels: dict[str, str] = field(default_factory=dict)
    layouts: str = ""
    layouts_source: str = ""


class WrittenServing(Frozen):
    """One GPU's serving. How long it has been empty is not written: the next agent waits for itself."""

    offer: tuple[DeviceOffer, ...]
    leaving: tuple[DeviceOffer, ...]
    draining: bool
    draining_for_s: Seconds | None

    @classmethod
    def of(cls, serving: GpuServing, now_s: float) -> WrittenServing:
        """What is written of it."""
        drains_for_s = _passed(serving.draining_since_s, now_s)
        return cls(serving.offer, serving.leaving, serving.draining, drains_for_s)

    def serving(self, now_s: float) -> GpuServing:
        """Inverse of ``of``. Raises ValueError for offers that cannot be."""
        serving = GpuServing(self.offer, self.leaving, self.draining, _since(self.draining_for_s, now_s))
        check_offers(serving)
        return serving


class WrittenStatus(Frozen):
    """A HealthStatus: times are for how long, ``left_s`` is the time until it is quiet."""

    state: HealthState
    reason: str
    for_s: Seconds
    left_s: Seconds | None
    probation_s: Probation
    needs_proof: bool
    action_seen: bool
    fault_for_s: Seconds | None
    passed_for_s: Seconds | None

    @classmethod
    def of(cls, status: HealthStatus, now_s: float) -> WrittenStatus:
        """What is written of it."""
        quiet_s = status.quiet_until_s
        return cls(
            state=status.state,
            reason=status.reason,
            for_s=max(0.0, now_s - status.since_s),
            left_s=None if quiet_s is None else max(0.0, quiet_s - now_s),
            probation_s=status.probation_s,
            needs_proof=status.needs_proof,
            action_seen=status.action_seen,
            fault_for_s=_passed(status.fault_s, now_s),
            passed_for_s=_passed(status.passed_s, now_s),
        )

    def status(self, now_s: float) -> HealthStatus:
        """Inverse of ``of``."""
        return HealthStatus(
            state=self.state,
            reason=self.reason,
            since_s=now_s - self.for_s,
            quiet_until_s=None if self.left_s is None else now_s + self.left_s,
            probation_s=self.probation_s,
            needs_proof=self.needs_proof,
            action_seen=self.action_seen,
            fault_s=_since(self.fault_for_s, now_s),
            passed_s=_since(self.passed_for_s, now_s),
        )


class WrittenHealth(Frozen):
    """One GPU's health. instances: by GI id."""

    gpu: WrittenStatus
    instances: dict[int, WrittenStatus]
    resets: int | None

    @classmethod
    def of(cls, health: Health, now_s: float) -> WrittenHealth:
        """What is written of it."""
        instances = {gi: WrittenStatus.of(status, now_s) for gi, status in health.instances.items()}
        return cls(WrittenStatus.of(health.gpu, now_s), instances, health.resets)

    def health(self, now_s: float) -> Health:
        """Inverse of ``of``."""
        instances = {gi: status.status(now_s) for gi, status in self.instances.items()}
        return Health(self.gpu.status(now_s), instances, self.resets)


class StateDocument(Frozen, kw_only=True):
    """The whole file. original, serving, health: by GPU UUID."""

    version: Literal["partage-state/2"] = "partage-state/2"
    boot_id: str
    policy: WrittenPolicy | None
    original: dict[GpuUuid, OriginalSettings]
    serving: dict[GpuUuid, WrittenServing]
    health: dict[GpuUuid, WrittenHealth]


def check_offers(serving: GpuServing) -> None:
    """Raises ValueError. Shares are written out id by id later, so their number had better be sane."""
    for offer in (*serving.offer, *serving.leaving):
        parse_resource_name(offer.resource)
        for number in (offer.replicas, offer.first, offer.count):
            if not 0 <= number <= MOST_SHARES:
                raise ValueError(f"{number} shares of {offer.device}")


def _passed(since_s: float | None, now_s: float) -> float | None:
    return None if since_s is None else max(0.0, now_s - since_s)


def _since(passed_s: float | None, now_s: float) -> float | None:
    return None if passed_s is None else now_s - passed_s


STATE_FILE = "state.json"
LIMIT_BYTES = 16 * 1024 * 1024
"""Nothing larger is read or written; 10,000 offerings and a policy of 1 MiB stay below half of it."""


class SavedPolicy(Frozen):
    """The last good policy.

    source: the file's name as given. config: which of its several configurations; None where it has one.
    labels: of the node, those on which it depends. layouts: text of the file in which the MIG layout of the
    node's label stands, layouts_source its name; empty where there is none.
    """

    text: str
    source: str
    config: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    layouts: str = ""
    layouts_source: str = ""

    @property
    def digest(self) -> str:
        """SHA-256 of the text, in hexadecimal."""
        return sha256(self.text.encode("utf-8", "surrogatepass")).hexdigest()


class SavedState(Frozen):
    """What is remembered. boot_id: of the node, when it was written. serving, health: by GPU UUID.

    original: how GPUs were set before they were changed, by UUID.
    """

    boot_id: str = ""
    policy: SavedPolicy | None = None
    serving: Mapping[GpuUuid, GpuServing] = field(default_factory=dict)
    health: Mapping[GpuUuid, Health] = field(default_factory=dict)
    original: Mapping[GpuUuid, OriginalSettings] = field(default_factory=dict)

    def original_in(self, boot_id: str) -> Mapping[GpuUuid, OriginalSettings]:
        """How GPUs were set, if that was in this boot: compute modes and time slices do not survive one."""
        return self.original if self.boot_id == boot_id else {}


class LoadedState(Frozen):
    """state: None where there is none that can be used. problems: sentences for the log and the report."""

    state: SavedState | None
    problems: tuple[str, ...] = ()


class _Served(Frozen):
    served: dict[GpuUuid, GpuServing]


class _PlannedFrom(Frozen):
    snapshot: _Served


class _ReportedServing(Frozen):
    """What of ``<run-dir>/report.json`` is read here. planned_from: None: that agent had no policy yet."""

    planned_from: _PlannedFrom | None


class NotSaved(Frozen):
    """The state could not be written; the agent warns and runs on."""

    reason: str


def read_state(state_dir: Path) -> SavedState | None:
    """What is saved there, without the lock and without changing anything; None: nothing that can be used.

    Times in it are on a clock that shows 0.
    """
    try:
        return _decode(read_regular(state_dir / STATE_FILE, LIMIT_BYTES + 1), 0.0)
    except (OSError, ValueError):
        return None


def served_by_report(report: Path, now_s: float) -> Mapping[GpuUuid, GpuServing]:
    """What each GPU served by the last report of an agent, for an agent without a state.

    It is written at most a second after what it reports. So a GPU is left out that was about to change, and
    nothing is known of any without a report, or with one that has another form.
    """
    try:
        content = read_regular(report, LIMIT_BYTES)
        planned_from = decode(_ReportedServing, content, strict=False).planned_from
        served = {} if planned_from is None else planned_from.snapshot.served
        for serving in served.values():
            check_offers(serving)
    except (OSError, ValueError):
        return {}
    return {
        gpu: replace(gpu_serving, draining_since_s=now_s if gpu_serving.draining else None)
        for gpu, gpu_serving in served.items()
        if gpu_serving.empty_since_s is None
    }


def state_problem(state_dir: Path) -> str:
    """Why what is saved there cannot be used; empty if it can, or if there is nothing. Changes nothing."""
    try:
        _decode(read_regular(state_dir / STATE_FILE, LIMIT_BYTES + 1), 0.0)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    except ValueError as error:
        return f"cannot be used: {error}"
    return ""


class StateDir:
    """The state directory, locked for one agent. All calls block (fsync): call them in a thread.

    problem: why the directory could not be made or locked; None where all is well. The agent runs without.
    """

    def __init__(self, path: Path, wait_s: float = 0) -> None:
        """Make the directory and lock it. Raises InputError where another agent has it longer than
        ``wait_s``.
        """
        self._file = path / STATE_FILE
        self._lock: int | None = None
        self.problem: str | None = None
        self._open(path, wait_s)

    def load(self, now_s: float) -> LoadedState:
        """Read the state. An unusable file is set aside as ``state.json.corrupt-N``. Never raises."""
        try:
            content = read_regular(self._file, LIMIT_BYTES + 1)
        except FileNotFoundError:
            return LoadedState(None)
        except OSError as error:
            return LoadedState(None, (f"cannot read {self._file}: {error.strerror}",))
        try:
            return LoadedState(_decode(content, now_s))
        except ValueError as error:
            return LoadedState(None, (f"{self._file} cannot be used: {error}; {set_aside(self._file)}",))

    def save(self, state: SavedState, now_s: float) -> NotSaved | None:
        """Replace the state atomically: whatever happens meanwhile, the old or the new one is there."""
        try:
            content = _encode(state, now_s)
        except CodecError as error:
            return NotSaved(f"the state cannot be written: {error}")
        if len(content) > LIMIT_BYTES:
            return NotSaved(f"the state is {len(content)} bytes long, more than {LIMIT_BYTES}")
        if self.problem is not None and (still := self._open_again()) is not None:
            return NotSaved(still)
        try:
            replace_file(self._file, content)
        except OSError as error:
            return NotSaved(f"cannot write {self._file}: {error.strerror}")
        return None

    def close(self) -> None:
        """Give the lock back. Idempotent."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _open(self, path: Path, wait_s: float) -> None:
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            self.problem = f"cannot make the state directory {path}: {error.strerror}"
            return
        try:
            self._lock = take_lock(path, wait_s=wait_s)
        except OSError as error:
            self.problem = f"cannot lock the state directory {path}: {error.strerror}"

    def _open_again(self) -> str | None:
        """Try once more what did not work before (a full disk, a directory that is mounted late)."""
        self.problem = None
        try:
            self._open(self._file.parent, 0)
        except InputError as error:
            self.problem = str(error)
        return self.problem


def _encode(state: SavedState, now_s: float) -> bytes:
    """Raises CodecError."""
    policy = state.policy
    document = StateDocument(
        boot_id=state.boot_id,
        policy=None if policy is None else _written(policy),
        original=dict(state.original),
        serving={gpu: WrittenServing.of(serving, now_s) for gpu, serving in state.serving.items()},
        health={gpu: WrittenHealth.of(health, now_s) for gpu, health in state.health.items()},
    )
    return json.format(encode(document), indent=1)


def _decode(content: bytes, now_s: float) -> SavedState:
    """Raises ValueError for anything that ``_encode`` does not write."""
    if len(content) > LIMIT_BYTES:
        raise ValueError(f"it is longer than {LIMIT_BYTES} bytes")
    document = decode(StateDocument, content)
    return SavedState(
        boot_id=document.boot_id,
        policy=None if document.policy is None else _policy(document.policy),
        serving={gpu: serving.serving(now_s) for gpu, serving in document.serving.items()},
        health={gpu: health.health(now_s) for gpu, health in document.health.items()},
        original=document.original,
    )


def _written(policy: SavedPolicy) -> WrittenPolicy:
    source = policy.source.encode("utf-8", "backslashreplace").decode()  # a file name may be any bytes
    layouts_source = policy.layouts_source.encode("utf-8", "backslashreplace").decode()
    return WrittenPolicy(
        policy.text, source, policy.config, policy.digest, dict(policy.labels), policy.layouts, layouts_source
    )


def _policy(written: WrittenPolicy) -> SavedPolicy:
    """Raises ValueError if the text is not what was written."""
    policy = SavedPolicy(
        written.text, written.source, written.config, written.labels, written.layouts, written.layouts_source
    )
    if written.sha256 != policy.digest:
        raise ValueError("the policy in it does not have the digest that was written with it")
    return policy
