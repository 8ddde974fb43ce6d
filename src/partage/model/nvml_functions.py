"""Functions of NVML that Partage can do without, and what it cannot see or do then.

The names are those of the library's symbol table (``nm -D libnvidia-ml.so.1``). Everything else that Partage
calls is in the library of every driver from branch 450 on.
"""

from __future__ import annotations

from collections.abc import Mapping

USES: Mapping[tuple[str, ...], str] = {
    ("nvmlDeviceGetGpuFabricInfoV",): "whether a GPU has joined its NVLink fabric (it counts as joined)",
    (
        "nvmlDeviceGetFieldValues",
    ): "recovery actions, remapped memory rows and ECC errors (only XIDs tell of faults)",
    ("nvmlGpmQueryDeviceSupport",): "how busy MIG devices are",
    ("nvmlDeviceGetProcessUtilization",): "how busy each container keeps a GPU",
    (
        "nvmlDeviceGetMPSComputeRunningProcesses_v3",
        "nvmlDeviceGetMPSComputeRunningProcesses_v2",
    ): "the clients of MPS",
    (
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetComputeRunningProcesses_v2",
    ): "the memory that each container uses",
    ("nvmlDeviceGetMemoryInfo_v2",): "how much of the memory in use is the driver's own",
    ("nvmlDeviceGetMemoryAffinity",): "NUMA nodes that the kernel does not say",
    ("nvmlDeviceGetNvLinkRemoteDeviceType",): "which NVLinks lead to a switch",
    ("nvmlDeviceGetMigMode",): "whether MIG mode is on",
    ("nvmlDeviceCreateGpuInstanceWithPlacement",): "how to make MIG devices at their place",
    (
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetCurrentClocksThrottleReasons",
    ): "why clocks are low",
    ("nvmlDeviceGetTotalEnergyConsumption",): "the energy used",
    ("nvmlDeviceGetEnforcedPowerLimit",): "the power limit",
    ("nvmlDeviceGetAddressingMode",): "how a GPU addresses the memory of the host",
    ("nvmlDeviceSetMemoryLimits_v1",): "how to limit the memory of a container (memory: hard)",
    ("nvmlDeviceGetMemoryLimits_v1",): "which memory limits containers have (memory: hard)",
}
"""Functions, of which one is enough, and what is not known without them."""
