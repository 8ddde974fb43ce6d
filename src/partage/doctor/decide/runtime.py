"""Checks of the container runtime: NVIDIA's toolkit, CDI specifications, cgroups. Pure."""

from __future__ import annotations

from collections import defaultdict

from partage.doctor.decide.finding import Check, Finding, RemoveCdiFile, error, warning
from partage.doctor.decide.observation import (
    CdiFile,
    ContainerRuntime,
    DriverParts,
    Kubelet,
    Observation,
    ObservedPolicy,
    Unseen,
)
from partage.model.policy import DeviceListStrategy, Options, TimeSlicing
from partage.plan.offer.caveats import ACCEPTS_ENV, refused_ways
from partage.text import listed

_SHOWN = 5
_SYSTEMD, _CGROUPFS = "systemd", "cgroupfs"
_OLD_WAYS = frozenset({DeviceListStrategy.ENVVAR, DeviceListStrategy.VOLUME_MOUNTS})


def _unreadable(now: Observation) -> Finding | None:
    runtime = _runtime(now)
    if not runtime.problem:
        return None
    return error(
        "runtime-unreadable",
        f"The configuration of {runtime.name} cannot be read, so it is not known what containers get",
        f"{runtime.file}: {runtime.problem}",
        f"Correct {runtime.file}, then restart {runtime.name.lower()}",
    )


def _without_nvidia(now: Observation) -> Finding | Unseen | None:
    """Neither NVIDIA's runtime nor CDI hands over what containers are given."""
    runtime, options = _runtime(now), _options(now)
    if runtime.problem or options is None or not _OLD_WAYS.issuperset(options.device_list):
        return None
    if options.device_specs:
        return None  # the kubelet hands over the device files, as on nodes of GKE
    handler = runtime.of_nvidia
    if handler is None:
        return error(
            "runtime-without-nvidia",
            f"{runtime.name} does not know NVIDIA's runtime: containers start, and see no GPU",
            (
                f"{runtime.file} has the handlers {listed([each.name for each in runtime.handlers], _SHOWN)}"
                if runtime.handlers
                else f"{runtime.file} has no handler of NVIDIA",
                f"the policy hands over GPUs by {_ways(options)}, which only NVIDIA's runtime understands",
            ),
            f"Install the NVIDIA container toolkit, then nvidia-ctk runtime configure --runtime="
            f"{runtime.name.lower().replace('-', '')} --set-as-default and restart {runtime.name.lower()}. "
            "Or write deviceListStrategy: cdi-cri into the policy, which needs no such runtime",
        )
    if runtime.default != handler.name:
        return Unseen(
            f"{runtime.file} has {handler.name}, and it is not the default: only pods with runtimeClassName "
            f"{handler.name} see their GPUs, and pods were not looked at"
        )
    return None


def _cdi_off(now: Observation) -> Finding | Unseen | None:
    runtime, options = _runtime(now), _options(now)
    if runtime.problem or options is None or runtime.cdi or not (options.uses_cdi or _wants_limits(now)):
        return None
    by_cdi = f"the policy hands over GPUs by {_ways(options)}"
    if not options.uses_cdi:
        by_cdi = "the policy has memory: hard, whose hook comes by CDI: containers would start without limits"
    if runtime.cdi is None:
        return Unseen(
            f"{runtime.file} does not say enable_cdi, and the default depends on the release: containerd 1.7 "
            "has it off, 2.0 on"
        )
    return error(
        "cdi-off",
        f"{runtime.name} does not look at CDI, and {by_cdi}",
        f"{runtime.file}: enable_cdi = false",
        "Set enable_cdi = true in the section of the CRI plugin (nvidia-ctk runtime configure --cdi.enabled "
        f"does it), and restart {runtime.name.lower()}",
    )


def _cdi_broken(now: Observation) -> Finding | None:
    """Specifications that runtimes cannot read or that name files that are gone."""
    module = now.driver.module if isinstance(now.driver, DriverParts) else ""
    broken = {spec.path: why for spec in _cdi(now) if (why := cdi_problem(spec, module))}
    if not broken:
        return None
    ours = [spec.path for spec in _cdi(now) if spec.ours and spec.path in broken]
    theirs = [path for path in broken if path not in ours]
    fixes = []
    if theirs:
        fixes.append(
            f"Write {listed(theirs, 2)} anew: nvidia-ctk cdi generate --output=FILE, "
            "or systemctl restart nvidia-cdi-refresh"
        )
    if ours:
        fixes.append(
            f"partage doctor --fix removes {listed(ours, 2)}, which Partage wrote; its agent writes a new one"
        )
    return error(
        "cdi-broken",
        "A CDI specification does not fit the driver any more: containers with its devices do not start",
        (f"{path}: {why}" for path, why in list(broken.items())[:_SHOWN]),
        ". ".join(fixes),
        *(RemoveCdiFile(path) for path in ours),
    )


def cdi_problem(file: CdiFile, module: str) -> str:
    """Why containers with its devices do not start; empty if they do. module: version of the kernel module;
    empty: not known.
    """
    if file.problem:
        return file.problem
    if file.missing:
        return f"names files that do not exist: {listed(file.missing, 2)}"
    other = [version for version in file.versions if module and version != module]
    return f"is for driver {other[0]}, and {module} is loaded" if other else ""


def _cdi_conflict(now: Observation) -> Finding | None:
    """One device in two files of one directory: runtimes refuse it."""
    found: dict[tuple[int, str], list[str]] = defaultdict(list)
    for file in _cdi(now):
        for device in file.devices:
            found[file.order, device].append(file.path)
    twice = {device: paths for (_, device), paths in found.items() if len(paths) > 1}
    if not twice:
        return None
    device, paths = next(iter(twice.items()))
    more = f", and {len(twice) - 1} more devices" if len(twice) > 1 else ""
    return error(
        "cdi-conflict",
        "Two CDI specifications describe the same device: the runtime then refuses it",
        f"{device} is in {listed(paths, 3)}{more}",
        "Remove the older file: ls -l shows their age, and nvidia-ctk cdi list what is left",
    )


def _refuses(now: Observation) -> Finding | None:
    options = _options(now)
    if options is None:
        return None
    why = refused_ways(now.inventory.toolkit, options.device_list)
    if not why:
        return None
    return error(
        "toolkit-refuses",
        "The container toolkit is set so that unprivileged containers get no GPU by this policy",
        why.rstrip("."),
        "Write deviceListStrategy: cdi-cri into the policy, which does not ask the toolkit. Or correct the "
        "toolkit's file as it says, and restart the container runtime",
    )


def _open(now: Observation) -> Finding | None:
    if not now.inventory.open_to_env:
        return None
    toolkit = now.inventory.toolkit
    text = "is true" if toolkit is None or toolkit.stated else "is not set, which means true"
    where = "" if toolkit is None else f"{toolkit.path}: "
    return warning(
        "toolkit-open",
        "Every pod of this node can make itself see every GPU, with or without a request: no share "
        "guarantees more than 'advisory'",
        f"{where}{ACCEPTS_ENV} {text}",
        f"Set {ACCEPTS_ENV} = false there, and deviceListStrategy: cdi-cri (or volume-mounts) in the policy",
    )


def _cgroup_drivers(now: Observation) -> Finding | None:
    """Runc and the kubelet put containers into cgroups in two ways."""
    runtime = _runtime(now)
    handler = runtime.of_nvidia or runtime.default_handler
    if handler is None or handler.systemd_cgroup is None or not isinstance(now.kubelet, Kubelet):
        return None
    own = _SYSTEMD if handler.systemd_cgroup else _CGROUPFS
    if now.kubelet.cgroup_driver in ("", own):
        return None
    return warning(
        "cgroup-drivers-differ",
        "The kubelet and the container runtime put containers into cgroups in two different ways: containers "
        "lose devices and limits, unless the kubelet asks the runtime (Kubernetes 1.31, containerd 2)",
        (
            f"{runtime.file}: {handler.name} has SystemdCgroup = {str(own == _SYSTEMD).lower()}",
            f"the kubelet's configuration has cgroupDriver: {now.kubelet.cgroup_driver}",
        ),
        "Drain the node and make both the same, where systemd runs: SystemdCgroup = true for every handler "
        f"in {runtime.file}, and cgroupDriver: systemd in the kubelet's configuration. Then restart both",
    )


def _lost_on_reload(now: Observation) -> Finding | None:
    """Systemd sets the device rules of a container again, and knows devices only by /dev/char."""
    runtime, options = _runtime(now), _options(now)
    handler = runtime.of_nvidia
    if (
        handler is None
        or not handler.systemd_cgroup
        or runtime.char_links is not False
        or options is None
        or options.device_specs
        or not _OLD_WAYS.issuperset(options.device_list)
    ):
        return None
    return warning(
        "gpus-lost-on-reload",
        "systemctl daemon-reload takes the GPUs away from running containers: Failed to initialize NVML: "
        "Unknown Error",
        (
            f"{runtime.file}: handler {handler.name} has SystemdCgroup = true",
            "/dev/char has no links to the device files of NVIDIA",
            f"the policy hands over GPUs by {_ways(options)}, without device files",
        ),
        "Run nvidia-ctk system create-dev-char-symlinks --create-all at every boot, or let the kubelet know "
        "the devices: passDeviceSpecs: true in the policy, or deviceListStrategy: cdi-cri",
    )


def _runtime(now: Observation) -> ContainerRuntime:
    assert isinstance(now.runtime, ContainerRuntime)
    return now.runtime


def _cdi(now: Observation) -> tuple[CdiFile, ...]:
    assert isinstance(now.cdi, tuple)
    return now.cdi


def _options(now: Observation) -> Options | None:
    """What the policy says of devices; None: there is no policy that is known."""
    if not isinstance(now.policy, ObservedPolicy) or now.policy.policy is None:
        return None
    return now.policy.policy.options


def _wants_limits(now: Observation) -> bool:
    """Containers are to have memory limits of the driver's."""
    if not isinstance(now.policy, ObservedPolicy) or now.policy.policy is None:
        return False
    return any(
        isinstance(entry.sharing, TimeSlicing) and entry.sharing.limited
        for entry in now.policy.policy.entries
    )


def _ways(options: Options) -> str:
    return " and ".join(options.device_list)


_RUNTIME = "the container runtime"
_TOOLKIT = "the container toolkit"

CHECKS = (
    Check("runtime-unreadable", _RUNTIME, ("runtime",), _unreadable,
          frozenset({"runtime-without-nvidia", "cdi-off", "cgroup-drivers-differ", "gpus-lost-on-reload"})),
    Check("runtime-without-nvidia", _RUNTIME, ("runtime", "policy"), _without_nvidia,
          frozenset({"toolkit-refuses", "toolkit-open", "cgroup-drivers-differ", "gpus-lost-on-reload"})),
    Check("cdi-off", "CDI in the container runtime", ("runtime", "policy"), _cdi_off),
    Check("cdi-broken", "CDI specifications", ("cdi",), _cdi_broken, frozenset({"agent:cdi-incomplete"})),
    Check("cdi-conflict", "CDI specifications", ("cdi",), _cdi_conflict),
    Check("toolkit-refuses", _TOOLKIT, ("policy",), _refuses),
    Check("cgroup-drivers-differ", "cgroups", ("runtime", "kubelet"), _cgroup_drivers,
          frozenset({"gpus-lost-on-reload"})),
    Check("gpus-lost-on-reload", "cgroups", ("runtime", "policy"), _lost_on_reload),
    Check("toolkit-open", _TOOLKIT, (), _open),
)  # fmt: skip
