"""What the doctor looks at: the node's root, and the directories of kubelet and agent on it."""

from __future__ import annotations

from pathlib import Path

from partage.doctor.host.root import NodeRoot
from partage.edges.hardware.host import Host
from partage.values import Frozen


class DoctorPlace(Frozen):
    """All paths are those of the node.

    machine: simulates the GPUs. driver_root: None: the root. node_name: of the Node, or of Slurm's node;
    empty: the host name. slurm_bin: where scontrol is; None: a fixed PATH. own_run_dir: the run directory was
    named, so its report counts also for a simulated node.
    """

    root: NodeRoot
    kubelet_dir: str
    state_dir: str
    run_dir: str
    machine: str | None = None
    driver_root: Path | None = None
    node_name: str = ""
    slurm_version: str | None = None
    slurm_bin: Path | None = None
    own_run_dir: bool = False

    @property
    def files(self) -> bool:
        """Whether there are files to look at: a simulated node without a root has none."""
        return self.machine is None or self.elsewhere

    @property
    def elsewhere(self) -> bool:
        """Whether the node's root is another directory than this process's."""
        return self.root.path != Path("/")

    @property
    def run_path(self) -> Path:
        """The run directory, here."""
        return self.root.at(self.run_dir)

    @property
    def state_path(self) -> Path:
        """The state directory, here."""
        return self.root.at(self.state_dir)


def driver_root(place: DoctorPlace) -> Path:
    """The root of the driver, here."""
    return place.driver_root or place.root.path


def host(place: DoctorPlace) -> Host:
    """The directory of the driver's files."""
    root = place.root
    return Host(driver=driver_root(place), proc=root.proc, sys=root.sys, dev=root.dev, run=place.run_path)
