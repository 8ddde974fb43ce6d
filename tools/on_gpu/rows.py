"""The table: what has only been simulated so far, how it is seen, and what that takes. In order of what matters."""

from __future__ import annotations

from partage.values import Frozen


class Row(Frozen):
    """One thing to be seen. step: the step of ``make on-gpu`` that looks; empty: a person has to.

    how: the command or the step, for people. takes: what a machine needs for it; empty: any GPU will do.
    """

    key: str
    what: str
    how: str
    step: str = ""
    takes: str = ""


def _by(step: str, key: str, what: str, takes: str = "") -> Row:
    return Row(key, what, f"`make on-gpu`, step `{step}`", step, takes)


_RESET = "a machine on which a GPU may be reset"

ROWS = (
    _by("driver", "discovery", "discovery, conditions and events through the real library"),
    _by("compare", "beside-smi", "what Partage and nvidia-smi say of a GPU, field by field"),
    _by("record", "record", "the node as `partage show` and `partage record` see it"),
    _by("exporter", "exporter", "the agent's metrics beside nvidia-smi"),
    _by("exporter", "footprint", "memory and start-up of agent and helper with the real library loaded"),
    _by(
        "mps",
        "control-program",
        "whether the real control program runs there at all: started as the agent does, limits read back",
    ),
    _by(
        "mps",
        "mps-promises",
        "what each share of MPS guarantees, and the reading of an entry for an unseen GPU",
    ),
    _by(
        "mps-environment",
        "mps-environment",
        "that a daemon takes its limits from its environment, and what it prints as the limit of a server that has "
        "the default: anything but that limit would keep all shares of MPS unhealthy",
    ),
    _by(
        "read-only-pipe",
        "read-only-pipe",
        "that a CUDA program is a client of a daemon whose pipe directory is mounted read-only, with 535 and with 550 "
        "or newer: until then `--mps-pipe-read-only` is off by default",
        "root",
    ),
    _by(
        "time-slicing",
        "time-slicing",
        "1 to 8 tenants of a time-sliced GPU, each with all of its memory",
        "default compute mode",
    ),
    _by(
        "memory", "memory", "the memory of a process, and a peak between two looks, beside what was allocated"
    ),
    _by(
        "limits",
        "limits",
        "whether the driver can limit the memory of a cgroup: that a get for one without a limit is answered, or the "
        "kernel's `dmem.capacity` names the GPU",
        "driver branch 615 or newer, cgroup v2",
    ),
    _by(
        "limits-hold",
        "limits-hold",
        "that no tenant gets more than the driver's limit of its cgroup, whatever it tries, and that what is counted for "
        "the cgroup is what its processes have",
        "root, driver branch 615 or newer, cgroup v2, and `make limit-hook`",
    ),
    _by("guard", "guard", "the guard's cap in PyTorch", "PyTorch with CUDA"),
    _by("bench", "bench", "what sharing costs and gives: the pi program of `partage bench`"),
    _by("bench-mps", "bench-mps", "what MPS gives beside time-slicing: the same program"),
    _by("xid", "xid-instance", "what GPU instance an XID without MIG mode names"),
    _by(
        "mps-ends",
        "terminate",
        "that `terminate_client` ends a client in the middle of a long kernel within 10 s, and its neighbours work on",
    ),
    _by(
        "mps-ends",
        "wedged",
        "what a daemon says of itself after a client was killed with a kernel in flight, and what a new client gets: "
        "if the status is not `FAULT` and nobody is served, Partage does not see it",
    ),
    _by(
        "mps-ends",
        "server-logs",
        "that a server keeps its daemon's logs open, by which it is found when it has lost its daemon, and how long it "
        "lives then",
    ),
    _by(
        "driver",
        "slices-list",
        "how the list of `nvidia-smi compute-policy` is laid out, which is read for one of four words",
    ),
    _by(
        "driver",
        "cold-observe",
        "how long the first `observe` takes on cold GPUs, and whether NVML initialises a GPU when its handle is taken",
        "GPUs without persistence mode that nothing else uses; eight of them say most",
    ),
    _by("driver", "numa", "the NUMA node that NVML names, beside `nvidia-smi topo -m`"),
    _by(
        "geometry",
        "geometry",
        "what the driver says of MIG with MIG mode off: that geometries asked for equal those of the catalogue",
        "root, and a GPU with MIG; before 550 MIG mode has to be on",
    ),
    _by(
        "change-mode",
        "exclusive-process",
        "that exclusive-process mode refuses a second process, and that the mode is put back",
        "root, `--change`",
    ),
    _by(
        "change-mode",
        "mode-lost",
        "that the compute mode is lost with the last client of a GPU without persistence mode",
        "root, `--change`, a GPU without persistence mode",
    ),
    _by(
        "change-slices",
        "slices-set",
        "that each length of a time slice can be set, read back, and put back",
        "root, `--change`",
    ),
    _by(
        "change-mig",
        "mig-change",
        "a MIG layout made and taken back, without a reset",
        "root, `--change`, Hopper or newer",
    ),
    _by(
        "change-mig",
        "mig-files",
        "that the capability device files that Partage makes are there, and that a process with a new MIG device starts",
        "root, `--change`, Hopper or newer",
    ),
    _by(
        "change-mig",
        "mig-processes",
        "that the process lists of a GPU in MIG mode have the processes of its MIG devices, with their instances, for root",
        "root, `--change`, Hopper or newer",
    ),
    _by(
        "change-mig",
        "mig-unprivileged",
        "what a user without root reads of a GPU in MIG mode, and that the name of a MIG device ends with its profile",
        "root, `--change`, Hopper or newer",
    ),
    Row(
        "geometry-unknown",
        "the MIG geometry of a GPU that the catalogue lacks (RTX PRO 5000, 4500, Thor), with MIG mode off and on",
        "`partage record`, and `mig-geometry` in the file",
        takes="such a GPU",
    ),
    Row(
        "limits-again",
        "that limits can be set under clients that work, and what that does to them: it is done whenever a new container was seen; "
        "and that a daemon takes one connection for commands at a time with version 3, too",
        "start a pod beside one that works; `control.log`; with branch 615 two loops of `server list`",
        takes="a Kubernetes node with a GPU",
    ),
    Row(
        "kept-waiting",
        "what a client says to a daemon that another connection keeps waiting, and whether it waits or fails",
        "hold a connection to `control` as another user, start a CUDA program",
        takes="a person",
    ),
    Row(
        "mps-bound",
        "whether a daemon lives on when its container is ended: under containerd with `hostPID`, cgroup v2 with `nsdelegate`, "
        "and the host's `/sys/fs/cgroup` mounted or reached through `/proc/1/root`",
        "start the agent from such a pod, delete the pod; the daemon's pid is still there; or `mps-daemon-bound` was said",
        takes="a Kubernetes node with a GPU",
    ),
    Row(
        "mps-units",
        "units of systemd under NVIDIA's control program: that its daemon starts with type forking, that systemd finds its process "
        "without a pid file, in the root of the GPU Operator's driver container by `chroot`, and finds its libraries there",
        "`partage hardware --mps-daemons=systemd` in a pod; `systemctl status 'partage-mps-*'` on the node, `readlink /proc/PID/root`; "
        "delete the pod and its image, connect a client",
        takes="a Kubernetes node with a GPU",
    ),
    Row(
        "mps-image",
        "what `/proc/<pid>/exe` and the daemon's file system show once the image of its container has been removed, and whether its "
        "server still starts",
        "remove pod and image, `kill` the idle server, connect a client",
        takes="a Kubernetes node with a GPU",
    ),
    Row(
        "reset-scope",
        "what decides a reset: `fabric_manager` and `virtual` of the recorded node, on an A100 board with and without the fabric "
        "manager, on bare metal and in a virtual machine",
        "`partage record`",
        takes="boards of A100 GPUs",
    ),
    Row(
        "ampere-mode",
        "whether an Ampere board's driver activates a MIG mode by itself, and how long `nvidia-smi --gpu-reset` takes on eight SXM boards",
        "`partage apply` of one MIG layout, and its messages",
        takes=_RESET,
    ),
    Row(
        "taken-place",
        "the answer of a creation at a place that an administrator has just taken: insufficient resources or in use, as is assumed, "
        "and not another error",
        "`nvidia-smi mig -cgi` in a loop beside `partage apply`",
        takes="a GPU with MIG",
    ),
    Row(
        "persistenced",
        "that nvidia-persistenced lets go of an Ampere GPU when NVML turns its persistence mode off, and whether it is in the way of "
        "a mode change on Hopper",
        "`partage apply` of a MIG layout while nvidia-persistenced runs",
        takes="a machine with nvidia-persistenced",
    ),
    Row(
        "persistence-reset",
        "persistence mode after a reset, and after a helper that was killed in it",
        "`nvidia-smi -q -d PERSISTENCE_MODE`",
        takes=_RESET,
    ),
    Row(
        "compute-room",
        "a compute instance for which a GPU instance has no room side by side",
        "`partage apply` from one `1c` in the middle of a `3g` to `1c` and `2c`",
        takes="a GPU with MIG",
    ),
    Row(
        "fabric-state",
        "the fabric state of a Hopper board on NVSwitches in MIG mode, right after MIG mode ends, and in a guest with one GPU; "
        "whether CUDA starts in each",
        "`nvidia-smi -q` (the lines below `Fabric`), and a CUDA program",
        takes="a Hopper board with NVSwitches",
    ),
    Row(
        "many-mig",
        "how long a look, the uses and the processes take on eight GPUs with seven MIG devices each, under load",
        "the metric of the agent's observations, or `time partage show`",
        takes="eight GPUs with MIG",
    ),
    Row(
        "reset-blocked",
        "that a session of NVML blocks a GPU reset of another process, and that nvidia-smi ends by itself after its helper was killed",
        "`kill -9` of the helper during `partage apply` of a MIG layout on Ampere: `partage show` says `resetting` until it has ended",
        takes=_RESET,
    ),
    Row("lost", "a GPU that is lost while the agent runs", "take it away", takes=_RESET),
)
"""Rows without a step take more than one machine of one kind for an hour."""


def rows_of(step: str) -> tuple[Row, ...]:
    """What a step looks at."""
    return tuple(row for row in ROWS if row.step == step)
