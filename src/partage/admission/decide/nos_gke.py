"""nos, whose resources are sizes, and GKE, whose node selectors say how GPUs are shared. Both only where no
device plugin lists the name.

Source of the rules: the documents of nos (one MPS device for each container) and of GKE.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from decimal import Decimal

from partage.admission.decide.need import (
    AmountWord,
    BytesOfGpu,
    CannotMean,
    EvenShares,
    GpuNeed,
    PodGpuNeed,
)
from partage.admission.decide.pod import AskingPod
from partage.claims.model.names import MEMORY, SHARES
from partage.units import GIB, whole_quantity

NOS, GKE = "nos", "GKE"
NOS_SCHEDULER = "nos-scheduler"
NOS_SLICE = "nvidia[.]com/gpu-([1-9][0-9]{0,3})gb"
"""Its resources."""
_NOS_SLICE = re.compile(NOS_SLICE, re.ASCII)
_STRATEGY = "cloud.google.com/gke-gpu-sharing-strategy"
_CLIENTS = "cloud.google.com/gke-max-shared-clients-per-gpu"
SELECTORS = (_STRATEGY, _CLIENTS)
GKE_GPU = "nvidia.com/gpu"
_MOST_CLIENTS = 48


def asked_of_nos(pod: AskingPod, listed: Collection[str]) -> PodGpuNeed | None:
    """None: the pod is not written for it. Raises CannotMean."""
    names, needs = set(), []
    for container in pod.containers:
        sizes = {
            name: int(match[1])
            for name in container.amounts
            if name not in listed and (match := _NOS_SLICE.fullmatch(name)) is not None
        }
        if not sizes:
            continue
        names |= {*sizes}
        counts = {name: container.whole(name) for name in sizes}
        if sum(counts.values()) != 1:
            raise CannotMean(
                f"{container.words} asks for {sum(counts.values())} shares, and nos gives a container one",
                "ask for 1 of a larger one",
            )
        size = next(sizes[name] for name, number in counts.items() if number)
        word = AmountWord(MEMORY, "nvidia.com/gpu-{}gb: 1", f"nvidia.com/gpu-{size}gb", Decimal(GIB))
        needs.append(container.asking(GpuNeed(1, BytesOfGpu(size * GIB)), word))
    return PodGpuNeed(NOS, names=frozenset(names), containers=tuple(needs)) if needs else None


def asked_of_gke(pod: AskingPod, listed: Collection[str]) -> PodGpuNeed | None:
    """None: the pod is not written for it. Raises CannotMean."""
    strategy, clients = pod.selector.get(_STRATEGY), pod.selector.get(_CLIENTS)
    if GKE_GPU in listed or not pod.asks_for(GKE_GPU) or (strategy is None and clients is None):
        return None
    if strategy not in (None, "time-sharing", "mps"):
        raise CannotMean(f"{_STRATEGY} is {strategy[:40]!r}, and neither time-sharing nor mps")
    most = None
    if clients is not None:
        most = whole_quantity(clients)
        if most is None or not 2 <= most <= _MOST_CLIENTS:
            raise CannotMean(f"{_CLIENTS} is {clients[:20]!r}, and not 2 to {_MOST_CLIENTS}")
    needs = []
    for container in pod.containers:
        shares = container.whole(GKE_GPU) if GKE_GPU in container.amounts else 0
        if not shares:
            continue
        if shares > (1 if strategy != "mps" else most or 1):
            raise CannotMean(
                f"{container.words} asks for {shares} of {GKE_GPU}, and GKE gives a container "
                f"{'one share' if strategy != 'mps' else 'parts of one GPU only'}",
                f"{GKE_GPU}: 1",
            )
        word = AmountWord(SHARES, f"{GKE_GPU}: {{}}", str(shares), Decimal(1))
        needs.append(container.asking(GpuNeed(1, EvenShares(shares, most)), word))
    taken = tuple(key for key in SELECTORS if key in pod.selector)
    return PodGpuNeed(GKE, names=frozenset({GKE_GPU}), containers=tuple(needs), selectors=taken)
