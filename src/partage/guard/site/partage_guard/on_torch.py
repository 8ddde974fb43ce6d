"""PyTorch: ``torch.cuda.set_per_process_memory_fraction``, called when PyTorch initialises CUDA.

Calling it earlier would initialise CUDA at import, which takes seconds and memory and breaks programs that
fork. ``torch.cuda._lazy_call`` is PyTorch's own queue for such calls, in versions 1.8 to 2.15. A program
that sets the fraction itself initialises CUDA by that and runs after the guard, so its value is used.
"""

import os

from .record import NotCapped, guarded, note

TYPE_CHECKING = False  # typing itself costs more than all of this
if TYPE_CHECKING:
    from typing import Any

    from .caps import Cap

_CONF = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def after(cuda: "Any", cap: "Cap") -> None:
    """cuda: the module torch.cuda, just executed."""
    for name in _CONF:
        if "per_process_memory_fraction" in os.environ.get(name, "") and not cap.explicit:
            raise NotCapped(f"kept {name}={os.environ[name]}")
    if not hasattr(cuda, "_lazy_call"):
        raise NotCapped("this version has no torch.cuda._lazy_call")
    note("torch", "waits for CUDA")
    cuda._lazy_call(lambda: guarded("torch", _limit, cuda, cap))


already = after
"""PyTorch runs the queued call at once if CUDA is initialised."""


def _limit(cuda: "Any", cap: "Cap") -> None:
    """CUDA has just been initialised. A device whose share is the whole device is left alone and gets no
    context.
    """
    current = cuda.current_device()
    done = []
    for index in range(cuda.device_count()):
        properties = cuda.get_device_properties(index)
        total = properties.total_memory
        gpu = f"GPU-{getattr(properties, 'uuid', '')}"
        try:
            fraction = cap.on(total, gpu, properties.multi_processor_count) / total
        except NotCapped as why:
            done.append(f"cuda:{index} {why}")
            continue
        cuda.set_per_process_memory_fraction(fraction, index)
        done.append(f"cuda:{index} {fraction:.4f}")
    if cuda.current_device() != current:
        cuda.set_device(current)  # older versions keep the last device as the current one
    note("torch", ", ".join(done) or "no device")
