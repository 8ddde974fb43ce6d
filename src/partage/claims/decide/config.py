"""What the configuration of a claim and of its class means for one device: Partage's own, or NVIDIA's kinds
``GpuConfig`` and ``MigDeviceConfig``, as Partage carries them out.

The same entry may come twice: schedulers of Kubernetes 1.36 write one that is for two requests so. Source of
NVIDIA's: api/nvidia.com/resource/v1beta1 of kubernetes-sigs/dra-driver-nvidia-gpu, 2026-08-07. What its
feature gates turn off is read here as if they were on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Literal

from msgspec import Meta, field, structs

from partage.claims.model.claim import ClaimConfig, ConfigSource
from partage.claims.model.grant import ShareConfig
from partage.claims.model.names import ClaimNames
from partage.codec.values import CodecError, decode
from partage.model.ids import DeviceUuid, GpuUuid
from partage.model.policy import WatchAction
from partage.model.share import Guarantee
from partage.model.strategy import Interval, Strategy
from partage.text import count_of, listed, printable, shortened
from partage.units import MIB, parse_quantity
from partage.values import Frozen

API_VERSION = "resource.nvidia.com/v1beta1"
GPU_CONFIG, MIG_CONFIG = "GpuConfig", "MigDeviceConfig"

_Quantity = str | int


class _TimeSlicingConfig(Frozen, forbid_unknown_fields=True):
    interval: Literal["Default", "Short", "Medium", "Long"] | None = None


class _MpsConfig(Frozen, forbid_unknown_fields=True):
    default_active_thread_percentage: Annotated[int, Meta(ge=0, le=100)] | None = None
    default_pinned_device_memory_limit: _Quantity | None = None
    default_per_device_pinned_memory_limit: Mapping[str, _Quantity] | None = None
    multi_user: bool | None = None


class _MigSharing(Frozen, forbid_unknown_fields=True):
    strategy: Literal["TimeSlicing", "MPS"]
    mps_config: _MpsConfig | None = None


class _GpuSharing(Frozen, forbid_unknown_fields=True):
    strategy: Literal["TimeSlicing", "MPS"]
    time_slicing_config: _TimeSlicingConfig | None = None
    mps_config: _MpsConfig | None = None


class _WrittenForGpus(Frozen, forbid_unknown_fields=True):
    api_version: Literal["resource.nvidia.com/v1beta1"]
    kind: Literal["GpuConfig"]
    sharing: _GpuSharing | None = None


class _WrittenForMig(Frozen, forbid_unknown_fields=True):
    api_version: Literal["resource.nvidia.com/v1beta1"]
    kind: Literal["MigDeviceConfig"]
    sharing: _MigSharing | None = None


class ClaimSharing(Frozen):
    """What one of these objects says. memory: bytes that each process may have of a device, by UUID or by the
    place among the sorted UUIDs of the devices for which it is written; ``""``: of all.
    """

    strategy: Strategy | None = None
    interval: Interval | None = None
    threads_percent: int | None = None
    memory: Mapping[str, int] = field(default_factory=dict)

    def of_device(self, uuid: DeviceUuid, together: Sequence[DeviceUuid]) -> ShareConfig:
        """What it means for one of these devices. Raises ValueError for a key that names none of them."""
        order = sorted(together)
        found = self.memory.get("")
        for key, limit in self.memory.items():
            if key and (key if key in order else _at(order, key)) == uuid:
                found = limit
        return ShareConfig(
            interval=self.interval,
            strategy=self.strategy,
            client_threads_percent=self.threads_percent,
            client_memory_bytes=found,
        )


def read_sharing(kind: str, content: bytes) -> ClaimSharing:
    """What a ``GpuConfig`` or ``MigDeviceConfig`` says. Raises CodecError and ValueError."""
    if kind == MIG_CONFIG:
        for_mig = decode(_WrittenForMig, content).sharing
        if for_mig is None:
            return ClaimSharing()
        _check_other(for_mig.strategy, "MPS", for_mig.mps_config, "mpsConfig")
        # Of a MIG device a time slice cannot be set; NVIDIA's driver accepts the word, too.
        return ClaimSharing() if for_mig.strategy == "TimeSlicing" else _mps(for_mig.mps_config)
    for_gpus = decode(_WrittenForGpus, content).sharing
    if for_gpus is None:
        return ClaimSharing()
    _check_other(for_gpus.strategy, "MPS", for_gpus.mps_config, "mpsConfig")
    _check_other(for_gpus.strategy, "TimeSlicing", for_gpus.time_slicing_config, "timeSlicingConfig")
    if for_gpus.strategy == "MPS":
        return _mps(for_gpus.mps_config)
    slices = for_gpus.time_slicing_config
    interval = None if slices is None or slices.interval is None else Interval(slices.interval.lower())
    return ClaimSharing(Strategy.TIME_SLICING, interval)


def _check_other(strategy: str, belongs_to: str, part: object, name: str) -> None:
    """Raises ValueError where a part belongs to the other strategy."""
    if part is not None and strategy != belongs_to:
        raise ValueError(f"it has {name} with the strategy {strategy}")


def _mps(config: _MpsConfig | None) -> ClaimSharing:
    """Raises ValueError."""
    config = config or _MpsConfig()
    limits = dict(config.default_per_device_pinned_memory_limit or {})
    if "" in limits:
        raise ValueError("a key of defaultPerDevicePinnedMemoryLimit is empty")
    if config.default_pinned_device_memory_limit is not None:
        limits[""] = config.default_pinned_device_memory_limit
    memory = {key: _whole_mib(limit) for key, limit in limits.items()}
    # A process without a share of the threads could do nothing: 0 is no limit.
    return ClaimSharing(
        Strategy.MPS, threads_percent=config.default_active_thread_percentage or None, memory=memory
    )


def _whole_mib(amount: _Quantity) -> int:
    """Bytes, rounded down to what MPS takes. Raises ValueError."""
    found = int(parse_quantity(str(amount))) // MIB * MIB
    if found <= 0:
        raise ValueError(f"a memory limit of {str(amount)[:32]} is less than 1 MiB")
    return found


def _at(order: Sequence[DeviceUuid], key: str) -> DeviceUuid:
    if key.isascii() and key.isdigit() and len(key) < 4 and int(key) < len(order):
        return order[int(key)]
    raise ValueError(
        f"defaultPerDevicePinnedMemoryLimit names {key[:48]!r}, and it is for "
        f"{count_of(len(order), 'device')}: a key is a UUID, or a number from 0 on"
    )


_LONGEST = 160
_OWN_VERSION, _OWN_KIND = "partage.dev/v1", "ShareConfig"
_HINT = "possible keys are interval, guard, watch and need"


class ConfigError(ValueError):
    """A configuration that is wrong, a clause: what, and what is possible."""


class AskedDevice(Frozen):
    """A device that a claim was given. request: ``req`` or ``req/sub``. mig: a MIG device; else a GPU."""

    request: str
    uuid: DeviceUuid
    mig: bool


class _KindOfConfig(Frozen):
    api_version: str = ""
    kind: str = ""


class _Written(Frozen, forbid_unknown_fields=True):
    api_version: Literal["partage.dev/v1"]
    kind: Literal["ShareConfig"]
    interval: Interval | None = None
    guard: bool | None = None
    watch: WatchAction | Literal[False] | None = None
    need: Guarantee | None = None


def share_config(
    configs: Iterable[ClaimConfig], device: AskedDevice, devices: Sequence[AskedDevice], names: ClaimNames
) -> ShareConfig:
    """What holds for a device: of each key the last entry that has it, those of the class before those of the
    claim. Of NVIDIA's kinds the last one holds as a whole. devices: all that the claim was given.

    Raises ConfigError; also for an entry that a later one replaces.
    """
    ours = [config for config in configs if config.driver == names.driver and _is_for(config, device)]
    found: dict[str, object] = {}
    for config in sorted(ours, key=lambda config: config.source is ConfigSource.CLAIM):
        try:
            kind = _kind(config, names)
            if kind == _OWN_KIND:
                found |= {key: value for key, value in _read(config).items() if value is not None}
            elif (kind == MIG_CONFIG) == device.mig:
                alike = [
                    other.uuid for other in devices if other.mig == device.mig and _is_for(config, other)
                ]
                read = read_sharing(kind, config.parameters).of_device(device.uuid, alike)
                found |= {key: getattr(read, key) for key in _OF_NVIDIA}
            elif config.requests:
                what = "a MIG device" if device.mig else "a GPU"
                raise ConfigError(f"{_whose(config)} has a {kind} for it, and it was given {what}")
        except (CodecError, ValueError) as error:
            if isinstance(error, ConfigError):
                raise
            said = shortened(printable(str(error)), _LONGEST)
            hint = f"; {_HINT}" if kind == _OWN_KIND else ""
            raise ConfigError(f"a {kind} of {_whose(config)} is wrong: {said}{hint}") from None
    return structs.replace(ShareConfig(), **found)


def read_config(config: ClaimConfig, names: ClaimNames) -> ShareConfig:
    """One entry for the driver with these names, by itself. Raises ConfigError."""
    mig = config.driver == names.driver and _kind(config, names) == MIG_CONFIG
    of_it = AskedDevice(next(iter(config.requests), ""), GpuUuid(""), mig=mig)
    return share_config((config,), of_it, (of_it,), names)


_OF_NVIDIA = ("interval", "strategy", "client_threads_percent", "client_memory_bytes")


def _is_for(config: ClaimConfig, device: AskedDevice) -> bool:
    names = {device.request, device.request.partition("/")[0]}
    return not config.requests or bool(names & {*config.requests})


def _whose(config: ClaimConfig) -> str:
    return "its class" if config.source is ConfigSource.CLASS else "the claim"


def _kind(config: ClaimConfig, names: ClaimNames) -> str:
    """Raises ConfigError for one that is not known here."""
    known = {(_OWN_VERSION, _OWN_KIND)}
    if names.nvidia_kinds:
        known |= {(API_VERSION, GPU_CONFIG), (API_VERSION, MIG_CONFIG)}
    try:
        found = decode(_KindOfConfig, config.parameters, strict=False)
    except CodecError as error:
        said = shortened(printable(str(error)), _LONGEST)
        raise ConfigError(f"a configuration of {_whose(config)} is wrong: {said}") from None
    if (found.api_version, found.kind) in known:
        return found.kind
    there = listed([f"{kind} of {version}" for version, kind in sorted(known)], len(known))
    what = f"its kind is {found.kind or 'missing'} and its apiVersion {found.api_version or 'missing'}"
    said = shortened(printable(what), _LONGEST)
    raise ConfigError(f"a configuration of {_whose(config)} is wrong: {said}; possible is {there}")


def _read(config: ClaimConfig) -> dict[str, object]:
    """Raises CodecError."""
    written = decode(_Written, config.parameters, strict=False)
    # ``watch: off`` in a manifest is false where YAML 1.1 is read, as by kubectl.
    watch = WatchAction.OFF if written.watch is False else written.watch
    return {"interval": written.interval, "guard": written.guard, "watch": watch, "need": written.need}
