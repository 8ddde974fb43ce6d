"""The home of an MPS control daemon: what else ends when something on the node ends. Pure.

A daemon in a cgroup or a pid namespace of a container ends with that container. In a private cgroup namespace
the container's own cgroup is called ``/``, so a path says nothing about that.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from partage.errors import Unsupported
from partage.values import Frozen

UNIFIED = ""
"""The hierarchy of cgroup v2. Those of v1 are named by their controllers, ``cpu,cpuacct``."""


class HomeKind(StrEnum):
    """unit: a unit of the host's systemd. cgroup: cgroups of the host. session: no more than a session of its
    own. container: it ends with the container in which it was started.
    """

    UNIT = "unit"
    CGROUP = "cgroup"
    SESSION = "session"
    CONTAINER = "container"


class HomeChoice(StrEnum):
    """What the operator chose. auto: the best that can be had. systemd: units of the host's systemd, or no
    daemons. pod: the best without systemd; in a pod whose container cannot be left, daemons end with it.
    """

    AUTO = "auto"
    SYSTEMD = "systemd"
    POD = "pod"


class Surroundings(Frozen):
    """What the process that starts a daemon can reach.

    no_systemd: why the host's systemd takes no calls, a clause; empty: it does. contained: this process is in
    a container, or in a cgroup namespace that is not the host's. host_pids: it is in the host's pid
    namespace. hierarchies: names of those that it has a cgroup in. roots: hierarchy to the directory of the
    host's own root cgroup, where that can be written.
    """

    no_systemd: str = "no systemd runs on this node"
    contained: bool = False
    host_pids: bool = True
    hierarchies: tuple[str, ...] = (UNIFIED,)
    roots: Mapping[str, str] = {}


class DaemonHome(Frozen):
    """The home of a daemon. roots: host root cgroups to join, v2 first; in v2 it gets one of its own
    below. reason: why it is not better, a clause.
    """

    kind: HomeKind
    roots: tuple[str, ...] = ()
    unified: bool = False
    reason: str = ""


def choose_home(found: Surroundings, choice: HomeChoice = HomeChoice.AUTO) -> DaemonHome:
    """The home of a daemon. Raises Unsupported if it is to be a unit, and cannot be one."""
    if choice is not HomeChoice.POD and not found.no_systemd:
        return DaemonHome(HomeKind.UNIT)
    if choice is HomeChoice.SYSTEMD:
        raise Unsupported(
            f"MPS daemons are to be units of the node's systemd, and {found.no_systemd}",
            "give the helper what it lacks, or --mps-daemons=pod",
        )
    if not found.contained:
        root = found.roots.get(UNIFIED)
        return DaemonHome(HomeKind.SESSION) if root is None else DaemonHome(HomeKind.CGROUP, (root,), True)
    if not found.host_pids:
        return DaemonHome(HomeKind.CONTAINER, reason="it is in the container's pid namespace, not the host's")
    if missing := [name for name in found.hierarchies if name not in found.roots]:
        which = ", ".join(name or "v2" for name in missing)
        reason = f"the host's root cgroup cannot be written from here (hierarchy {which})"
        return DaemonHome(HomeKind.CONTAINER, reason=reason)
    names = sorted(found.hierarchies)  # the name of v2 is the first
    return DaemonHome(HomeKind.CGROUP, tuple(found.roots[name] for name in names), names[0] == UNIFIED)


def bound_to(home: DaemonHome, *, contained: bool, left_in: str = "") -> str:
    """A sentence if the daemon ends with what started it; empty if it does not, or that is not known.

    left_in: the cgroup or unit that it was to join and is not in; empty: it is where it was to be.
    """
    if home.kind is HomeKind.CONTAINER:
        return f"the daemon ends with this container: {home.reason}"
    if not left_in:
        return ""
    what = "container" if contained else "service"
    return f"the daemon ends with this {what}: it could not be moved to {left_in}"
