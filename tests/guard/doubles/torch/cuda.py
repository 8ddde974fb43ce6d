"""A recording double of ``torch.cuda``: as many devices as TORCH_DOUBLE lists, their MiB joined by commas.

``calls`` holds what would touch CUDA, in order. ``_lazy_call`` and ``_lazy_init`` behave as PyTorch's: a wish
waits until CUDA is initialised; an exception in it is wrapped and raised in that call.
"""

import os

calls = []
_queued_calls = []
_state = {"initialized": False, "current": 0}
_MIB = 1 << 20


class DeferredCudaCallError(Exception):
    """As PyTorch's."""


def _lazy_call(wish, **kwargs):
    if _state["initialized"]:
        wish()
    else:
        _queued_calls.append(wish)


def _lazy_init():
    if _state["initialized"]:
        return
    _state["initialized"] = True
    calls.append(("init",))
    for queued in _queued_calls:
        try:
            queued()
        except Exception as error:
            raise DeferredCudaCallError(str(error)) from error


class _Properties:
    def __init__(self, index):
        self.total_memory = int(os.environ["TORCH_DOUBLE"].split(",")[index]) * _MIB
        self.multi_processor_count = int(os.environ.get("TORCH_DOUBLE_SMS", "132"))
        self.uuid = str(index)


def device_count():
    return len(os.environ["TORCH_DOUBLE"].split(","))


def get_device_properties(index):
    _lazy_init()
    if "TORCH_DOUBLE_FAULT" in os.environ:
        raise SystemExit("the double was told to fail")
    return _Properties(index)


def current_device():
    _lazy_init()
    return _state["current"]


def set_device(index):
    _lazy_init()
    _state["current"] = index
    calls.append(("device", index))


def set_per_process_memory_fraction(fraction, device=None):
    """Leaves the device behind, as older versions do."""
    _lazy_init()
    index = _state["current"] if device is None else device
    _state["current"] = index
    calls.append(("fraction", round(fraction, 6), index))
