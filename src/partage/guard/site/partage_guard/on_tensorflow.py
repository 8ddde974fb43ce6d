"""TensorFlow 2: one logical device with limited memory on each GPU, set just before the runtime is
initialised.

TensorFlow accepts this only before its runtime starts, and even listing GPUs loads the driver. So its
``Context.ensure_initialized`` is wrapped until it has run once. GPUs that the program has configured itself
are not changed. Sessions of TensorFlow 1 are not covered.
"""

import os

from .record import NotCapped, guarded, note

TYPE_CHECKING = False  # typing itself costs more than all of this
if TYPE_CHECKING:
    from typing import Any

    from .caps import Cap

_GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"


def after(context: "Any", cap: "Cap") -> None:
    """context: the module tensorflow.python.eager.context, just executed."""
    kind = context.Context
    original = kind.ensure_initialized
    original = getattr(original, "_partage_original", original)

    def ensure_initialized(self: "Any") -> "Any":
        if kind.ensure_initialized is ensure_initialized:
            kind.ensure_initialized = original
            guarded("tensorflow", _limit, context, self, cap)
        return original(self)

    ensure_initialized._partage_original = original  # type: ignore[attr-defined]
    kind.ensure_initialized = ensure_initialized
    note("tensorflow", "waits for its runtime")


def already(context: "Any", cap: "Cap") -> None:
    """context: imported before ``limit`` was called."""
    if getattr(getattr(context, "_context", None), "_context_handle", None) is not None:
        raise NotCapped("too late: TensorFlow has initialised its devices already")
    after(context, cap)


def _limit(context: "Any", runtime: "Any", cap: "Cap") -> None:
    """runtime: the one Context of the process, not initialised yet."""
    done = []
    for gpu in runtime.list_physical_devices("GPU"):
        name = gpu.name.replace("/physical_device:", "")
        if runtime.get_logical_device_configuration(gpu):
            done.append(f"{name} kept as configured")
            continue
        mebibytes = max(1, cap.anywhere() >> 20)
        if runtime.get_memory_growth(gpu):  # a logical device loses this setting; the variable keeps it
            os.environ.setdefault(_GROWTH, "true")
        runtime.set_logical_device_configuration(
            gpu, [context.LogicalDeviceConfiguration(memory_limit=mebibytes)]
        )
        done.append(f"{name} {mebibytes} MiB")
    note("tensorflow", ", ".join(done) or "no GPU")
