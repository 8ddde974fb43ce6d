"""The files of a Slurm node on its disk, and what the agent remembers of them."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from partage.codec.values import CodecError, decode
from partage.edges.files.catalogue import model_of
from partage.edges.files.generated import write_generated
from partage.edges.host.read_file import read_regular
from partage.errors import InputError, Problem
from partage.model.ids import DeviceUuid
from partage.plan.offer.desired import DesiredState
from partage.plan.offer.findings import Findings
from partage.slurm.agent.options import SlurmOptions
from partage.slurm.decide.gres import NodeToName, cluster_config, node_gres
from partage.slurm.decide.next_move import stamp
from partage.slurm.decide.node_files import (
    Files,
    Writes,
    compare,
    digest,
    node_devices,
    wanted_counts,
    wanted_files,
)
from partage.slurm.host import devices_file
from partage.slurm.host.agent_state import SlurmAgentState, read_agent_state, write_agent_state
from partage.slurm.model import LiveNode, NodeDevices, SlurmNode
from partage.slurm.text.conf_writer import GRES_CONF, MARK, gres_conf
from partage.values import Frozen

log = logging.getLogger(__name__)

_LARGEST_BYTES = 2**24
_STEP_S = 2
"""By how much a clock may be set right while nobody looks."""


class WantedFiles(Frozen):
    """conf: name to text of the files in the directory of Slurm; devices: text of devices.json.

    counts: ``Gres=``. lines: gres.conf, also where somebody else writes it.
    """

    conf: Mapping[str, str]
    devices: str
    counts: str
    lines: str


class NodeFiles(Struct):
    """Reads and writes them. All calls block."""

    options: SlurmOptions
    state_dir: Path
    state: SlurmAgentState

    @classmethod
    def of(cls, options: SlurmOptions, state_dir: Path) -> NodeFiles:
        """With what an earlier agent remembered."""
        return cls(options, state_dir, read_agent_state(state_dir))

    @property
    def by_others(self) -> str:
        """What somebody else has to do about files that the agent does not write; empty: it writes them."""
        if self.options.writes is not Writes.NOTHING:
            return ""
        return "write it (partage slurm config), then have slurmd read it"

    def compare(self, wanted: WantedFiles, node: LiveNode) -> Files:
        """Whether they are as wanted. Where somebody else writes them, they are once slurmd was started after
        the node had changed."""
        if self.options.writes is Writes.NOTHING:
            devices = (_text(self.options.devices), wanted.devices)
            if devices[0] != devices[1]:
                self._write_devices(wanted)
            return Files.RIGHT if self._loaded(digest({"": wanted.lines}), time.time(), node) else Files.WRONG
        return compare(self._have(wanted), wanted.conf, (_text(self.options.devices), wanted.devices))

    def told_devices(self) -> frozenset[DeviceUuid]:
        """The devices of devices.json; none where it cannot be read."""
        try:
            found = decode(NodeDevices, _text(self.options.devices).encode())
        except CodecError:
            return frozenset()
        return frozenset(device.uuid for device in found.devices)

    def write(self, wanted: WantedFiles) -> None:
        """Write those that differ. Raises InputError: one is somebody else's, or cannot be written.

        That slurmd has still to read them is on the disk before they are.
        """
        have = self._have(wanted)
        if digest(have) != digest(wanted.conf):
            told = self.options.writes is not Writes.SHARED
            self._remember(
                SlurmAgentState(digest(wanted.conf), time.time(), resumed=self.state.resumed, told=told)
            )
        self._write_devices(wanted)
        write_generated(self.options.directory, wanted.conf, MARK)

    def _write_devices(self, wanted: WantedFiles) -> None:
        path = self.options.devices
        write_generated(path.parent, {path.name: wanted.devices}, devices_file.MARK)

    def loaded(self, wanted: WantedFiles, node: LiveNode) -> bool:
        """Whether slurmd has read the files as they are: it was started in a later second than they were
        written."""
        if self.options.writes is Writes.NOTHING:
            return True  # ``compare`` has said it
        return self._loaded(digest(self._have(wanted)), self._written_s(wanted), node)

    def _loaded(self, now: str, written_s: float, node: LiveNode) -> bool:
        if self.state.digest != now:
            unseen = self.options.writes is Writes.NOTHING and not self.state.digest
            self._try_remember(SlurmAgentState(now, written_s, unseen, self.state.resumed))
        self._correct_clock()
        if not self.state.loaded and self._is_later(node.started_s):
            self._try_remember(replace(self.state, loaded=True))
        return self.state.loaded

    def _correct_clock(self) -> None:
        """A time to come is of a clock that was ahead when the files were written: they are taken as written
        now, so that the next start of slurmd counts."""
        if self.state.at_s > (now_s := time.time()):
            log.warning(
                "files of Slurm have a time to come: the clock was ahead",
                extra={"ahead_s": round(self.state.at_s - now_s)},
            )
            self._try_remember(replace(self.state, at_s=now_s))

    def _is_later(self, started_s: int | None) -> bool:
        """Whether a daemon that was started then has read the files. A start to come says nothing: the clock
        was ahead then."""
        return started_s is not None and math.floor(self.state.at_s) < started_s <= time.time() + _STEP_S

    def until_readable_s(self) -> float:
        """How long until a start of slurmd counts, in seconds, at most 2: its time has no fractions."""
        return min(max(0.0, math.floor(self.state.at_s) + 1 - time.time()), 2.0)

    def told(self, slurmctld_started_s: int | None) -> bool:
        """Whether slurmctld has read the files, where they are its own: by a reconfigure, this agent's or
        another one's, or because it was started since."""
        if not self.state.told and self._is_later(slurmctld_started_s):
            self._try_remember(replace(self.state, told=True))
        return self.state.told

    def reconfigured(self) -> None:
        """Slurm has followed this agent's request to reconfigure."""
        self._try_remember(replace(self.state, told=True, reconfigured=True))

    def resumed(self, node: LiveNode) -> None:
        """Partage has resumed the node."""
        self._try_remember(replace(self.state, resumed=stamp(node)))

    def _have(self, wanted: WantedFiles) -> dict[str, str]:
        found = {name: _text(self.options.directory / name) for name in wanted.conf}
        return {name: text for name, text in found.items() if text}

    def _written_s(self, wanted: WantedFiles) -> float:
        paths = [self.options.directory / name for name in wanted.conf]
        return max((path.stat().st_mtime for path in paths if path.exists()), default=time.time())

    def _remember(self, state: SlurmAgentState) -> None:
        try:
            write_agent_state(self.state_dir, state)
        except OSError as error:
            raise InputError(f"{self.state_dir} cannot be written: {error.strerror or error}") from error
        self.state = state

    def _try_remember(self, state: SlurmAgentState) -> None:
        self.state = state
        try:
            write_agent_state(self.state_dir, state)
        except OSError as error:
            log.warning("state cannot be written", extra={"reason": error.strerror or str(error)})


def _text(path: Path) -> str:
    """Empty for a file that is not there."""
    try:
        return read_regular(path, _LARGEST_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def check_own(options: SlurmOptions) -> None:
    """Raises InputError if a file that is to be written is somebody else's: it stays, and the agent does not
    start."""
    name = options.node
    names = {Writes.OWN: (GRES_CONF,), Writes.SHARED: (f"{name}.gres.conf", f"{name}.slurm.conf")}
    paths = [options.directory / file for file in names.get(options.writes, ())]
    foreign = [path for path in paths if (text := _text(path)) and not text.startswith(MARK)]
    hint = "move it away once what it says is in the policy, or choose another --slurm-writes"
    if foreign:
        said = "is there already, and Partage did not write it"
        raise InputError([Problem(str(path), "", "error", said, hint) for path in foreign])


def wanted_of(desired: DesiredState, options: SlurmOptions) -> WantedFiles:
    """The files of a node. Raises Unsatisfiable for what this release of Slurm cannot do."""
    findings = Findings("")
    root = desired.policy.options.dev_root
    named = NodeToName(options.node, desired.inventory, desired.offer, root, options.settings)
    gres = node_gres(named, options.version, options.types, model_of, findings)
    control = [root.rstrip("/") + path for path in desired.inventory.control_nodes]
    config = cluster_config(
        [SlurmNode(options.node, gres, options.settings)], options.version, control, findings
    )
    findings.raise_any()
    return WantedFiles(
        conf=wanted_files(config, options.writes),
        devices=devices_file.devices_text(node_devices(options.node, gres, desired, options.version)),
        counts=wanted_counts(config),
        lines=gres_conf(config),
    )
