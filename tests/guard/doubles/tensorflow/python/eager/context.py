"""A recording double of TensorFlow's eager context: what a program can configure before it is initialised."""

import collections

LogicalDeviceConfiguration = collections.namedtuple("LogicalDeviceConfiguration", ["memory_limit"])
PhysicalDevice = collections.namedtuple("PhysicalDevice", ["name", "device_type"])
_GPUS = [PhysicalDevice(f"/physical_device:GPU:{index}", "GPU") for index in (0, 1)]


class Context:
    """Listing devices loads the driver, which ``listed`` counts."""

    def __init__(self):
        self._context_handle = None
        self.listed = 0
        self.logical = {}
        self.growth = {}

    def ensure_initialized(self):
        if self._context_handle is None:
            self._context_handle = object()

    def list_physical_devices(self, kind):
        self.listed += 1
        return [gpu for gpu in _GPUS if kind == "GPU"]

    def get_logical_device_configuration(self, device):
        return self.logical.get(device)

    def get_memory_growth(self, device):
        return self.growth.get(device, False)

    def set_logical_device_configuration(self, device, configurations):
        if self._context_handle is not None:
            raise RuntimeError("Virtual devices cannot be modified after being initialized")
        self.logical[device] = configurations


_context = Context()
