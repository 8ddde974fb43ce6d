"""Nodes for the pictures of the documents, and for tests of how they look: what eight mixed GPUs do, and
thirty nodes of which five are broken. Reports are made by real turns; what the GPUs do is made up here.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sin
from pathlib import Path

from msgspec.structs import replace

from partage.agent.options import Intervals
from partage.agent.status.readiness import readiness_of
from partage.agent.status.status import AgentStatus, UsageObservation, UseSeen
from partage.answers.report import report_document
from partage.codec.values import encode_replacing
from partage.edges.kubelet.port import EndpointState
from partage.model.ids import GpuUuid, MigUuid, ResourceName
from partage.model.samples import Activity, DeviceMemory, GpuSample, MigSample, Samples
from partage.plan.report import Report
from partage.plan.serve.ledger_entry import Holder
from partage.plan.usage import MINUTES, ContainerUse, DeviceUse, LastHour, NodeUse, with_samples
from partage.units import GIB
from tests.answers.reports import AT_S, a_report

NOW_S = 60_000.0
"""The agent's clock: long enough after its start that an hour of it can have been sampled."""

GPU, SHARED = ResourceName("nvidia.com/gpu"), ResourceName("nvidia.com/gpu.shared")
NOTEBOOKS, MEMORY = ResourceName("nvidia.com/gpu.notebooks"), ResourceName("aliyun.com/gpu-mem")
MIG_3G, MIG_1G = ResourceName("nvidia.com/mig-3g.40gb"), ResourceName("nvidia.com/mig-1g.10gb")

OFF_THE_BUS = 79
"""The XID of a GPU that has fallen off the bus: nothing can be read of it any more."""

MACHINE = """\
gpus:
  - {name: h100-sxm5-80gb}
  - {name: h100-sxm5-80gb}
  - {name: h100-sxm5-80gb}
  - {name: h100-sxm5-80gb}
  - {name: h100-sxm5-80gb, compute-mode: 3}
  - name: h100-sxm5-80gb
    mig-mode: [1, 1]
    mig-devices:
      - {gi: 1, ci: 0, profile: 3g.40gb, start: 4}
      - {gi: 9, ci: 0, profile: 1g.10gb, start: 0}
      - {gi: 10, ci: 0, profile: 1g.10gb, start: 1}
  - {name: h100-sxm5-80gb}
  - {name: h100-sxm5-80gb}
"""
POLICY = """\
version: partage/v1
gpus:
  - {select: {index: [2]}, name: nvidia.com/gpu.notebooks, time-slicing: {replicas: 8}}
  - {select: {index: [3]}, name: nvidia.com/gpu.notebooks, time-slicing: {replicas: 48}}
  - {select: {index: [4]}, mps: {replicas: 4}}
  - {select: {index: [5]}, mig: {layout: [3g.40gb, 1g.10gb, 1g.10gb]}}
  - {select: {index: [6]}, time-slicing: {unit: 1Gi}}
  - {select: rest, exclusive: {}}
"""
HELD = {
    GPU: (0, 1),
    NOTEBOOKS: (0, 1, 2, 8, 20),
    SHARED: (0, 1, 2),
    MIG_3G: (0,),
    MIG_1G: (0,),
    MEMORY: range(40),
}
PODS = (
    ("team-a", "pretraining-0", "main"),
    ("team-a", "forgotten", "shell"),
    *((("default", f"notebook-{number}", "jupyter")) for number in range(5)),
    *((("team-b", f"service-{number}", "server")) for number in range(3)),
    ("team-c", "inference", "server"),
    ("team-c", "embedder", "server"),
    *((("team-b", "translator", "server")) for _ in range(40)),
)
BUSY = (0.97, 0.4, 0.35, 0.08, 0.62, 0.55, 0.21, 0.0)
"""How busy each GPU is, about."""
BY_POD = {
    "pretraining-0": (71, 74, 0.97),
    "forgotten": (2, 41, 0.0),
    "notebook-0": (6, 9, 0.21),
    "notebook-1": (12, 15, 0.12),
    "service-0": (13, 18, 0.31),
    "service-1": (9, 9, 0.30),
    "inference": (31, 33, None),
    "embedder": (4, 4, None),
    "translator": (27, 30, 0.21),
}
"""Pod to the GiB that it uses, to the most that it used, and to its part of the GPU's time."""


def mixed(
    machine: Path, *, faults: dict[int, int] | None = None, idle: Sequence[int] = (1,), at_s: float = AT_S
) -> AgentStatus:
    """The agent of a node with eight GPUs that are shared in all ways. machine: where its file is written.
    idle: GPUs that did nothing for an hour."""
    machine.write_text(MACHINE)
    faults = {7: OFF_THE_BUS} if faults is None else faults
    report = a_report(
        str(machine),
        POLICY,
        NOW_S,
        held=HELD,
        pods=PODS,
        faults=faults,
        held_for_s=9000.0,
        daemons_serve=True,
    )
    report = replace(report, made=replace(report.made, at_s=at_s))
    status = AgentStatus(lambda: NOW_S, report, pulse_s=NOW_S)
    used = used_by(report, idle, [index for index, xid in faults.items() if xid == OFF_THE_BUS])
    status.use_seen = lambda: used
    status.endpoints = lambda: [
        EndpointState(one.name, serving=True, registered=True) for one in report.resources
    ]
    return status


def used_by(report: Report, idle: Sequence[int] = (), silent: Sequence[int] = ()) -> UseSeen:
    """An hour of samples, and what is used now. silent: GPUs of which nothing can be read."""
    hour: LastHour = {}
    samples = Samples()
    for minute in range(MINUTES, -1, -1):
        if not 20 <= minute < 26:  # nobody looked for a while
            samples = _samples(report, minute, idle, silent)
            hour = with_samples(hour, samples, NOW_S - 60 * minute)
    offering_of = {share: one for offer in report.offer.values() for one in offer for share in one.share_ids}
    places = {entry.holders[0]: offering_of[entry.id] for entry in report.entries if entry.holders}
    containers = tuple(
        ContainerUse(one.gpu, one.device, holder, _amount(holder))
        for holder, one in places.items()
        if holder.pod in BY_POD
    )
    return UseSeen(NOW_S - 9000, NOW_S, UsageObservation(NOW_S, samples, NodeUse(containers)), hour)


def _amount(holder: Holder) -> DeviceUse:
    used, peak, busy = BY_POD[holder.pod]
    return DeviceUse(used * GIB, peak * GIB, sm=busy, processes=1)


def _samples(report: Report, minute: int, idle: Sequence[int], silent: Sequence[int]) -> Samples:
    gpus, migs = [], []
    for gpu in report.node.inventory:
        if gpu.index in silent:
            continue
        busy = 0.0 if gpu.index in idle else BUSY[gpu.index % 8]
        busy = max(0.0, min(1.0, busy * (1 + 0.5 * sin(minute / 5 + gpu.index)) if busy < 0.9 else busy))
        here = {
            entry.holders[0].pod
            for entry in report.entries
            if entry.holders and _on(report, entry.id, gpu.uuid)
        }
        used = sum(BY_POD[pod][0] for pod in here if pod in BY_POD)
        used_bytes = round(used * GIB * (1 - minute / 200))
        memory = DeviceMemory(gpu.memory_bytes, used_bytes, gpu.memory_bytes - used_bytes)
        gpus.append(
            GpuSample(
                gpu=gpu.uuid,
                memory=memory,
                utilisation=None if gpu.mig_enabled else busy,
                temperature_c=32 + round(40 * busy),
                power_w=72 + 600 * busy,
                power_limit_w=700.0,
            )
        )
        migs += [
            MigSample(
                gpu=gpu.uuid,
                device=MigUuid(one.uuid),
                gi_id=one.gi_id,
                ci_id=one.ci_id,
                activity=Activity(graphics=busy),
            )
            for one in gpu.mig_devices
        ]
    return Samples(gpus=tuple(gpus), migs=tuple(migs))


def _on(report: Report, share: str, gpu: GpuUuid) -> bool:
    return any(share in offering.share_ids for offering in report.offer.get(gpu, ()))


BROKEN: dict[int, dict[int, int]] = {
    3: {0: OFF_THE_BUS, 5: OFF_THE_BUS},
    11: {2: 48},
    17: dict.fromkeys(range(8), OFF_THE_BUS),
    22: {4: 95, 6: OFF_THE_BUS},
}
"""Of thirty nodes, those with sick GPUs: GPU index to an XID."""


DAMAGED = 28
"""One more, whose report cannot be read."""


def thirty(folder: Path, machine: Path, at_s: float = AT_S) -> None:
    """Reports of thirty nodes, five of them broken, as files of a folder. machine: as in ``mixed``."""
    well, idle = _text(machine, {}, at_s=at_s), _text(machine, {}, idle=(1,), at_s=at_s)
    for number in range(30):
        broken = BROKEN.get(number)
        text = _text(machine, broken, at_s=at_s) if broken else idle if number % 7 == 2 else well
        (folder / f"gpu-node-{number:02}.json").write_bytes(b"{" if number == DAMAGED else text)


def _text(machine: Path, faults: dict[int, int], idle: Sequence[int] = (), *, at_s: float) -> bytes:
    status = mixed(machine, faults=faults, idle=idle, at_s=at_s)
    assert status.report is not None
    return encode_replacing(report_document(status.report, status, readiness_of(status, Intervals())))
