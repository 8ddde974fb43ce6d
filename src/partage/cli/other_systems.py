"""Files of other systems that share GPUs: what is nearest to them in Partage, and what has no equivalent.

Names only; sources: the public documents and manifests of HAMi, Alibaba's gpushare and ACK, nos, KAI, Volcano
and the GPU Operator. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from partage.edges.files.nvidia_flags import ENVIRONMENT, FLAGS, PLUGIN
from partage.kubernetes.manifests.node import CheckedProblem, Keys, LineOf, ManifestNode
from partage.kubernetes.manifests.pods import pod_specs_at
from partage.values import Frozen

_DEPLOY = "nvidia.com/gpu.deploy."
_LONGEST_LABEL = 63
_NONE = "no equivalent: remove it"
_IF_NAMED = "which counts only where a policy names it"


class _Word(Frozen):
    """A name of another system. hint: the nearest equivalent, in which VALUE stands for the value of a label.
    but: what it is to Partage.
    """

    system: str
    means: str
    hint: str
    but: str = "which Partage does not know"


_NODE_LABELS: Mapping[str, _Word] = {
    "nos.nebuly.com/gpu-partitioning": _Word(
        "nos",
        "MIG or MPS made on demand",
        "a policy with mig or mps; partage plan --demand finds layouts, and nothing changes automatically",
    ),
    "ack.node.gpu.schedule": _Word(
        "ACK",
        "one way of sharing for the whole node",
        "when: {label: {ack.node.gpu.schedule: VALUE}}",
        _IF_NAMED,
    ),
    "ack.node.gpu.placement": _Word(
        "ACK",
        "packed or spread GPUs",
        "when: {label: {ack.node.gpu.placement: VALUE}}, with placement: VALUE beside the unit",
        _IF_NAMED,
    ),
    "gpushare": _Word("Alibaba's gpushare", "this node shares its GPUs", "partage.dev/policy names a policy"),
}

_HAMI_KEYS: Mapping[str, str] = {
    "deviceSplitCount": "time-slicing or mps with as many replicas",
    "deviceMemoryScaling": "no equivalent above 1: memory is not given out twice",
    "deviceCoreScaling": "no equivalent above 1; time-slicing shares compute without a limit",
    "migStrategy": "flags.migStrategy, or mig-strategy in Partage's format",
    "knownMigGeometries": "not needed: the catalogue and the driver know what fits",
    "resourceMemoryName": "mps: {unit: 1Gi} offers aliyun.com/gpu-mem; 'name' gives it another name",
    "resourceCoreName": "no resource counts compute: shares have fixed sizes",
    "disablecorelimit": "time-slicing has no limit of compute; mps has one",
}


def other_system_findings(
    document: Mapping[str, Any], file: str, path: str, line_of: LineOf | None
) -> list[CheckedProblem]:
    """What an object says in the words of another system, each with its nearest equivalent."""
    kind = str(document.get("kind"))
    top = ManifestNode(file, path, document, line_of, owner=_owner(document))
    if pods := pod_specs_at(document):
        return [problem for keys in pods for problem in _pod(top, keys)]
    if kind == "Node":
        return [*_marked(top.at("metadata", "labels"), _NODE_LABELS)]
    if kind == "ClusterPolicy" and str(document.get("apiVersion")).startswith("nvidia.com/"):
        return [*_cluster_policy(top.at("spec"))]
    if kind == "ConfigMap":
        return [*_hami(top.at("data"))]
    return []


def _owner(document: Mapping[str, Any]) -> str:
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    return f"{document.get('kind')}/{name}" if isinstance(name, str) else str(document.get("kind"))


def _pod(top: ManifestNode, keys: Keys) -> Iterator[CheckedProblem]:
    """What its containers and annotations ask for is a matter of ``admission``."""
    yield from _marked(top.at(*keys).at("nodeSelector"), _NODE_LABELS)


def _marked(place: ManifestNode, words: Mapping[str, _Word]) -> Iterator[CheckedProblem]:
    for key in place.keys:
        word = words.get(key)
        if word is not None:
            value = place.at(key).value
            text = value if isinstance(value, str) and len(value) <= _LONGEST_LABEL else "VALUE"
            yield _said(
                place.at(key), f"{key} is a label", replace(word, hint=word.hint.replace("VALUE", text))
            )


def _said(place: ManifestNode, what: str, word: _Word) -> CheckedProblem:
    return place.warning(f"{what} of {word.system} ({word.means}), {word.but}", word.hint)


def _cluster_policy(spec: ManifestNode) -> Iterator[CheckedProblem]:
    """The GPU Operator: what Partage replaces has to be off, and what it brings can stay."""
    for part, what, one_node in (
        ("devicePlugin", "the device plugin", "partage takeover changes one node at a time"),
        ("gfd", "GPU Feature Discovery", f"on one node {_DEPLOY}gpu-feature-discovery=false"),
        ("migManager", "the MIG manager", f"on one node {_DEPLOY}mig-manager=false"),
    ):
        if spec.at(part, "enabled").value is not False:
            yield spec.at(part).warning(
                f"{what} of the GPU Operator is on: Partage takes its place",
                f"{part}.enabled=false once Partage runs; {one_node}",
            )
    yield from _operators_plugin(spec)
    if spec.at("migManager", "config", "name").value:
        yield spec.at("migManager", "config").warning(
            "names the ConfigMap of NVIDIA's MIG manager", "Partage reads mig-parted's file as a policy"
        )
    if spec.at("driver", "enabled").value is not False:
        yield spec.at("driver").warning(
            "the driver is in a container of the GPU Operator",
            "driverRoot=/run/nvidia/driver in Partage's chart",
        )
    if spec.at("sandboxWorkloads", "enabled").value is True:
        yield spec.at("sandboxWorkloads").warning(
            "GPUs for virtual machines: no equivalent", "keep Partage off these nodes"
        )


def _operators_plugin(spec: ManifestNode) -> Iterator[CheckedProblem]:
    """The Operator's device plugin: its files, and what it is told beside them."""
    config = spec.at("devicePlugin", "config")
    if config.at("name").value:
        default = config.at("default").value
        more = f", with config.default={default} and config.fallbackStrategies=[empty]" if default else ""
        yield config.warning(
            "names the ConfigMap of NVIDIA's plugin",
            f"give it to Partage's chart as config.name{more}: it reads the files as they are",
        )
    strategy = spec.at("mig", "strategy").value
    if isinstance(strategy, str) and strategy != "none":
        yield spec.at("mig", "strategy").warning(
            f"NVIDIA's plugin is told the MIG strategy {strategy} by the Operator, not by its file",
            f"flags: {{migStrategy: {strategy}}} in each file that Partage is given, else names of MIG "
            "devices and labels differ",
        )
    for variable in spec.at("devicePlugin", "env").items:
        name, value = variable.at("name").value, variable.at("value").value
        flag = next((flag for flag, names in ENVIRONMENT.items() if name in names), None)
        if flag in (*FLAGS, *PLUGIN):
            inside = f"plugin: {{{flag}: {value}}}" if flag in PLUGIN else f"{flag}: {value}"
            yield variable.warning(
                f"NVIDIA's plugin is told {name} by the Operator, not by its file",
                f"flags: {{{inside}}} in each file that Partage is given",
            )


def _hami(data: ManifestNode) -> Iterator[CheckedProblem]:
    """HAMi's device configuration: YAML in one value of a ConfigMap, told by its keys."""
    for key in data.keys:
        text = data.at(key).value
        if not isinstance(text, str) or "resourceCountName" not in text:
            continue
        for name, hint in _HAMI_KEYS.items():
            match = re.search(rf"^\s*{name}\s*:\s*(\S.*)$", text, re.MULTILINE | re.IGNORECASE)
            if match is not None:
                yield data.at(key).warning(f"{name}: {match[1].strip()} of HAMi", hint)
