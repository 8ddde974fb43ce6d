"""What the configuration of a claim and of its class means for one device.

The same entry may come twice: schedulers of Kubernetes 1.36 write one that is for two requests so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from msgspec import structs

from partage.claims.decide.nvidia_config import API_VERSION, GPU_CONFIG, MIG_CONFIG, read_sharing
from partage.claims.model.claim import ClaimConfig, ConfigSource
from partage.claims.model.grant import ShareConfig
from partage.claims.model.names import ClaimNames
from partage.codec.values import CodecError, decode
from partage.model.ids import DeviceUuid, GpuUuid
from partage.model.policy import WatchAction
from partage.model.share import Guarantee
from partage.model.strategy import Interval
from partage.text import listed, printable, shortened
from partage.values import Frozen

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
