"""Who has the pipe directory of an MPS daemon: containers and jobs, and what their processes may become.

Whoever reaches a socket in that directory may send commands to the daemon; which of them it carries out
depends on the user (``plan/offer/mps_command.py``).
"""

from __future__ import annotations

from collections.abc import Collection

from partage.model.cgroup import Owner
from partage.model.ids import ContainerId, DeviceUuid, PodUid
from partage.values import Frozen

MOST_RIGHTS = 16
"""Different rights of the processes of one tenant that are told. Usually there are one or two."""

NO_HOST_PIDS = "without the node's process ids (hostPID) nobody sees who has the pipe of an MPS daemon"


class ProcessRights(Frozen):
    """What one process may do and become, from ``/proc/<pid>/status`` and ``uid_map`` (proc_pid_status(5)).

    uid, effective_uid, saved_uid: as the node counts them. no_new_privs: a set-uid program gives it nothing.
    permitted: its permitted capabilities (CapPrm). maps_root: its user namespace has the node's user 0 in
    it, so a process of it can be that user.
    """

    pid: int
    uid: int
    effective_uid: int
    saved_uid: int
    no_new_privs: bool
    permitted: int
    maps_root: bool = True

    @property
    def uids(self) -> frozenset[int]:
        """Real, effective and saved user id."""
        return frozenset((self.uid, self.effective_uid, self.saved_uid))

    @property
    def why_root(self) -> str:
        """Why it is the node's user 0, or can become it; empty if it cannot."""
        if 0 in self.uids:
            return f"process {self.pid} is the node's user 0"
        if not self.maps_root:
            return ""
        if self.permitted:
            return f"process {self.pid} has capabilities"
        if not self.no_new_privs:
            return f"process {self.pid} can become user 0 by a set-uid program"
        return ""


class PipeTenant(Frozen):
    """A container or a Slurm job with the pipe directory of one daemon.

    pod, container, job: as its cgroup says; job: empty for a container of a pod.
    whole: it reaches the daemon's own sockets; else only directories of namespaces (protocol 3).
    rights: of its processes, and of all other processes of its pod, which can be handed an open directory;
    each kind once. more: there are more than MOST_RIGHTS kinds, or they changed too fast to be read.
    beside: the other containers of its pod that run. pids: its pid namespace, where no cgroup names it.
    """

    device: DeviceUuid
    pod: PodUid = PodUid("")
    container: ContainerId = ContainerId("")
    job: str = ""
    whole: bool = True
    rights: tuple[ProcessRights, ...] = ()
    more: bool = False
    beside: tuple[ContainerId, ...] = ()
    pids: str = ""

    def __str__(self) -> str:
        if self.job:
            return f"job {self.job}"
        if self.container:
            return f"container {self.container[:12]}"
        return f"pod {self.pod}" if self.pod else "a container without a name"


class PipeTenants(Frozen):
    """All of a node. unseen: why nobody can tell; then ``rows`` says nothing."""

    rows: tuple[PipeTenant, ...] = ()
    unseen: str = ""

    def without(self, owners: Collection[Owner]) -> PipeTenants:
        """Without the pods and containers of Partage itself."""
        pods = {owner.pod for owner in owners if owner.pod}
        containers = {owner.container for owner in owners if owner.container}
        kept = (row for row in self.rows if row.pod not in pods and row.container not in containers)
        return PipeTenants(tuple(kept), self.unseen)
