"""What happens in a story, in words."""

from __future__ import annotations

from collections.abc import Mapping

from partage.answers.wording import NamedShare
from partage.lab.stories.model import Expect, short_key
from partage.model.ids import ShareId
from partage.plan.report import Report
from partage.sim.kubelet.pods import ContainerStatus, PodStatus
from partage.text import count_of, gpus, listed
from partage.units import format_bytes


def pod_lines(status: PodStatus, shares: Mapping[ShareId, NamedShare]) -> list[str]:
    """What each container of a pod got, a line for each resource."""
    several = len(status.containers) > 1
    lines = [
        f"{container.name}: {line}" if several else line
        for container in status.containers
        for line in share_lines(container, shares)
    ]
    return lines or [str(status.phase)]


def share_lines(container: ContainerStatus, shares: Mapping[ShareId, NamedShare]) -> list[str]:
    """What one container got, a line for each resource."""
    return [f"{resource} on {_where(ids, shares)}" for resource, ids in container.ids.items()]


def _where(ids: tuple[ShareId, ...], shares: Mapping[ShareId, NamedShare]) -> str:
    """``GPUs 0-3`` for whole GPUs, ``GPU 2 #3`` for shares, ``GPU 2, 12 GiB`` for units of memory."""
    known = [shares[share] for share in ids if share in shares]
    if known and len(known) == len(ids) and all(share.offering.by_memory for share in known):
        first = known[0].offering
        return f"GPU {first.gpu_index}, {format_bytes(len(ids) * first.memory_bytes)}"
    if known and len(known) == len(ids) and all(share.words == f"GPU {share.gpu_index}" for share in known):
        return gpus(share.gpu_index for share in known)
    return ", ".join(sorted(shares[share].words if share in shares else share for share in ids))


def refusal_sentence(status: PodStatus) -> str:
    """Why a pod does not run, as its events say it."""
    return f"{status.phase} ({status.reason}): {status.message}"


def waiting_sentences(report: Report) -> list[str]:
    """Which GPUs wait for which pods and processes before they change."""
    lines = []
    for gpu in report.gpus:
        entries = gpu.plan.waiting_for if gpu.plan else ()
        pods = {
            short_key(f"{holder.namespace}/{holder.pod}") for entry in entries for holder in entry.holders
        }
        awaited = [*sorted(pods), *(gpu.plan.processes if gpu.plan else ())]
        if gpu.waits and awaited:
            lines.append(f"GPU {gpu.index} waits for {listed(awaited, 4)}")
    return lines


def label_sentence(labels: Mapping[str, str | None]) -> str:
    """What has become of labels of the Node."""
    parts = [f"{key} is removed" if value is None else f"{key}={value}" for key, value in labels.items()]
    return ", ".join(parts)


def expectation_sentence(expect: Expect) -> str:
    """What is expected, in one line."""
    parts = [f"{count} {name}" for name, count in expect.allocatable.items()]
    parts += [f"{count} {name} with unhealthy ones" for name, count in expect.capacity.items()]
    parts += [f"{short_key(pattern)} {phase}" for pattern, phase in expect.pods.items()]
    if expect.env:
        variables = sum(len(variables_of_container) for variables_of_container in expect.env.values())
        parts.append(count_of(variables, "environment variable"))
    parts += [f"{gpus(indexes)} {state}" for state, indexes in expect.health.items() if indexes]
    if expect.waiting is not None:
        parts.append(f"{gpus(expect.waiting)} waiting" if expect.waiting else "no GPU waiting")
    if expect.mig_config is not None:
        parts.append(f"MIG layout of the label: {expect.mig_config or 'none'}")
    if expect.problem is not None:
        parts.append(f"a problem: {expect.problem}" if expect.problem else "no problem")
    return ", ".join(parts)
