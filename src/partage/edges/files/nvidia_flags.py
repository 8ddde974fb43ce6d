"""``flags`` and ``imex`` of NVIDIA's format: a variable overrides the file, the file overrides the
default.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TypeVar

from partage.codec.fields import Field, Notes, Place, Table
from partage.codec.yaml_document import Value, describe
from partage.model.policy import (
    AllocationPolicy,
    DeviceIdStrategy,
    DeviceListStrategy,
    MigStrategy,
    Options,
)

T = TypeVar("T")

FLAGS = (
    "migStrategy",
    "failOnInitError",
    "mpsRoot",
    "nvidiaDriverRoot",
    "nvidiaDevRoot",
    "gdrcopyEnabled",
    "gdsEnabled",
    "mofedEnabled",
    "useNodeFeatureAPI",
    "deviceDiscoveryStrategy",
    "plugin",
    "gfd",
)
PLUGIN = (
    "passDeviceSpecs",
    "deviceListStrategy",
    "deviceIDStrategy",
    "cdiAnnotationPrefix",
    "nvidiaCTKPath",
    "containerDriverRoot",
    "sharedDevicesAllocationPolicy",
)
GFD = ("oneshot", "noTimestamp", "sleepInterval", "outputFile", "machineTypeFile")
_IMEX = ("channelIDs", "required")

ENVIRONMENT: Mapping[str, tuple[str, ...]] = {
    "migStrategy": ("MIG_STRATEGY",),
    "failOnInitError": ("FAIL_ON_INIT_ERROR",),
    "mpsRoot": ("MPS_ROOT",),
    "nvidiaDriverRoot": ("NVIDIA_DRIVER_ROOT",),
    "nvidiaDevRoot": ("NVIDIA_DEV_ROOT",),
    "gdrcopyEnabled": ("GDRCOPY_ENABLED",),
    "gdsEnabled": ("GDS_ENABLED",),
    "mofedEnabled": ("MOFED_ENABLED",),
    "deviceDiscoveryStrategy": ("DEVICE_DISCOVERY_STRATEGY",),
    "passDeviceSpecs": ("PASS_DEVICE_SPECS",),
    "deviceListStrategy": ("DEVICE_LIST_STRATEGY",),
    "deviceIDStrategy": ("DEVICE_ID_STRATEGY",),
    "cdiAnnotationPrefix": ("CDI_ANNOTATION_PREFIX",),
    "nvidiaCTKPath": ("NVIDIA_CDI_HOOK_PATH", "NVIDIA_CTK_PATH"),
    "containerDriverRoot": ("DRIVER_ROOT_CTR_PATH", "CONTAINER_DRIVER_ROOT"),
    "sharedDevicesAllocationPolicy": ("SHARED_DEVICES_ALLOCATION_POLICY",),
    "channelIDs": ("IMEX_CHANNEL_IDS",),
    "required": ("IMEX_REQUIRED",),
}
"""Key to the variables that override it; the first one that is set and not empty counts."""

_GO_BOOLS = {
    **dict.fromkeys(("1", "t", "T", "true", "True", "TRUE"), True),
    **dict.fromkeys(("0", "f", "F", "false", "False", "FALSE"), False),
}
_DURATION = re.compile(r"[-+]?(?:0|(?:(?:\d+\.?\d*|\.\d+)(?:ns|us|µs|μs|ms|s|m|h))+)", re.ASCII)
_ROOT = "/"


class DiscoveryStrategy(StrEnum):
    """How GPUs are found."""

    AUTO = "auto"
    NVML = "nvml"
    TEGRA = "tegra"


def read_flags(
    flags: Field | None, imex: Field | None, notes: Notes, env: Mapping[str, str]
) -> tuple[Options, str]:
    """The options that a variable can override, and mpsRoot. Errors are noted.

    Renaming and the limit of one share belong to each entry of this format.
    """
    common = _Settings(flags.table(FLAGS) if flags else None, notes, env)
    plugin = _Settings(common.inner("plugin", PLUGIN), notes, env)
    channels = _Settings(imex.table(_IMEX) if imex else None, notes, env)
    _feature_discovery(common.inner("gfd", GFD))
    common.boolean("useNodeFeatureAPI", default=True)
    plugin.text("containerDriverRoot", "/driver-root")
    _discovery(common)
    driver_root = common.text("nvidiaDriverRoot", _ROOT) or _ROOT
    default = Options()
    options = Options(
        rename_shared=False,
        fail_requests_greater_than_one=False,
        mig_strategy=common.choice("migStrategy", MigStrategy.NONE),
        fail_on_init_error=common.boolean("failOnInitError", default=True),
        driver_root=driver_root,
        dev_root=common.text("nvidiaDevRoot", driver_root) or driver_root,
        gdrcopy=common.boolean("gdrcopyEnabled", default=False),
        gds=common.boolean("gdsEnabled", default=False),
        mofed=common.boolean("mofedEnabled", default=False),
        device_specs=plugin.boolean("passDeviceSpecs", default=False),
        device_list=_device_list(plugin),
        device_ids=plugin.choice("deviceIDStrategy", DeviceIdStrategy.UUID),
        cdi_annotation_prefix=plugin.text("cdiAnnotationPrefix", default.cdi_annotation_prefix),
        nvidia_ctk=plugin.text("nvidiaCTKPath", default.nvidia_ctk),
        allocation=plugin.choice("sharedDevicesAllocationPolicy", AllocationPolicy.DISTRIBUTED),
        imex_channels=_channels(channels),
        imex_required=channels.boolean("required", default=False),
    )
    return options, common.text("mpsRoot", "")


class _Settings:
    """One table of the file, with the variables that override its keys."""

    def __init__(self, table: Table | None, notes: Notes, env: Mapping[str, str]) -> None:
        self._table = table
        self._notes = notes
        self._env = env

    def inner(self, key: str, keys: tuple[str, ...]) -> Table | None:
        """A table in this one."""
        field = self._table.get(key) if self._table else None
        return field.table(keys) if field else None

    def field(
        self, key: str, in_file: Callable[[Field], object], in_env: Callable[[str], Value]
    ) -> Field | None:
        """The resulting value. The value in the file must have the right type even if a variable
        overrides it.
        """
        written = self._table.get(key) if self._table else None
        names = ENVIRONMENT.get(key, ())
        for empty in (name for name in names if self._env.get(name) == ""):
            text, hint = "is empty, and counts as not set", "unset it: NVIDIA's plugin takes the empty value"
            self._notes.note(Place("environment", empty), "warning", text, hint)
        name = next((name for name in names if self._env.get(name)), None)
        if name is None:
            return written
        if written is not None:
            in_file(written)
        return Field(in_env(self._env[name]), Place("environment", name), self._notes)

    def boolean(self, key: str, *, default: bool) -> bool:
        """True or false; variables as Go parses them, ``1`` and ``t`` included."""
        field = self.field(key, Field.boolean, lambda text: _GO_BOOLS.get(text, text))
        value = field.boolean() if field else None
        return default if value is None else value

    def text(self, key: str, default: str) -> str:
        """A text."""
        field = self.field(key, Field.text, str)
        value = field.text() if field else None
        return default if value is None else value

    def choice(self, key: str, default: T) -> T:
        """One of the values of the default's type."""
        assert isinstance(default, StrEnum)
        field = self.field(key, Field.text, str)
        value = field.choice(type(default)) if field else None
        return default if value is None else value


def _discovery(common: _Settings) -> None:
    if common.choice("deviceDiscoveryStrategy", DiscoveryStrategy.AUTO) is DiscoveryStrategy.TEGRA:
        field = common.field("deviceDiscoveryStrategy", Field.text, str)
        assert field is not None
        field.warn("Tegra's GPUs are not supported", "GPUs are found through NVML only")


def _device_list(plugin: _Settings) -> tuple[DeviceListStrategy, ...]:
    """In the file one string is one value, so ``envvar,cdi-cri`` is invalid; in the variable it is two
    values.
    """
    field = plugin.field(
        "deviceListStrategy", _texts, lambda text: [part.strip() for part in text.split(",")]
    )
    if field is None:
        return (DeviceListStrategy.ENVVAR,)
    items = field.one_or_many() or []
    if not items:
        field.warn("is empty, so containers do not learn their devices", "envvar is the usual one")
    ways = [item.choice(DeviceListStrategy) for item in items]
    if any(isinstance(item.value, str) and "," in item.value for item in items):
        field.warn("a comma is not a separator here", "write a list: [envvar, cdi-cri]")
    return tuple(dict.fromkeys(way for way in ways if way is not None))


def _texts(field: Field) -> None:
    for item in field.one_or_many() or ():
        item.text()


def _channels(imex: _Settings) -> tuple[int, ...]:
    field = imex.field("channelIDs", _integers, _integer_list)
    if field is None:
        return ()
    channels = _integers(field)
    if channels is not None and channels not in ([], [0]):
        field.error(f"channelIDs must be [] or [0]; found {channels[:8]}")
        return ()
    return tuple(channels or ())


def _integers(field: Field) -> list[int] | None:
    items = field.items()
    if items is None:
        return None
    numbers = [item.integer() for item in items]
    return None if None in numbers else [number for number in numbers if number is not None]


def _integer_list(text: str) -> Value:
    parts = [part.strip() for part in text.split(",")]
    return [int(part) if part.isascii() and part.isdigit() and len(part) < 10 else part for part in parts]


def _feature_discovery(table: Table | None) -> None:
    """Only checked here; used by the component that writes labels."""
    if table is None:
        return
    table.boolean("oneshot", default=False)
    table.boolean("noTimestamp", default=False)
    table.text("outputFile", "")
    table.text("machineTypeFile", "")
    interval = table.get("sleepInterval")
    if interval is not None and type(interval.value) is not int and not _is_duration(interval.value):
        interval.error(
            f"invalid duration: {describe(interval.value)}",
            "60s, 1h30m, infinite, or a number of nanoseconds",
        )


def _is_duration(value: Value) -> bool:
    if isinstance(value, float):
        return True
    return isinstance(value, str) and (value == "infinite" or bool(_DURATION.fullmatch(value[:100])))
