"""Checks of the Node's labels: who else decides over the same GPUs, and what is no longer true. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from partage.doctor.decide.finding import Check, Finding, error, warning
from partage.doctor.decide.observation import Observation, ObservedPolicy
from partage.model.ids import VENDOR
from partage.model.node_labels import DOMAIN, FEATURE_DISCOVERY, MIG_CONFIG, MIG_CONFIG_STATE, POLICY_LABELS
from partage.model.policy import GpuEntry

_PLUGIN = f"{VENDOR}/gpu.deploy.device-plugin"
_MIG_MANAGER = f"{VENDOR}/gpu.deploy.mig-manager"
_COMPARED = tuple(f"{VENDOR}/{key}" for key in ("gpu.count", "gpu.product", "cuda.driver-version.full"))


def _two_policies(now: Observation) -> Finding | None:
    labels = _labels(now)
    named = {key: labels[key] for key in POLICY_LABELS if labels.get(key)}
    if len(set(named.values())) < 2:
        return None
    counts = POLICY_LABELS[0]
    return warning(
        "policy-labels-differ",
        f"Two labels of the Node name different policies; {counts} counts",
        _said(named),
        f"Remove the one that is not meant: kubectl label node NAME {POLICY_LABELS[1]}-",
    )


def _operator_plugin(now: Observation) -> Finding | None:
    labels = _labels(now)
    if labels.get(_PLUGIN) != "true":
        return None
    return error(
        "operator-plugin",
        "The GPU Operator is told to run NVIDIA's device plugin on this node, beside Partage",
        _said({_PLUGIN: labels[_PLUGIN]}),
        f"Keep one of the two. For Partage: partage takeover, or kubectl label node NAME --overwrite "
        f"{_PLUGIN}=false",
    )


def _two_mig_managers(now: Observation) -> Finding | None:
    labels = _labels(now)
    policy = now.policy.policy if isinstance(now.policy, ObservedPolicy) else None
    entries = () if policy is None else policy.entries
    layouts = any(isinstance(entry, GpuEntry) and entry.mig is not None for entry in entries)
    if labels.get(_MIG_MANAGER) != "true" or not (layouts or labels.get(MIG_CONFIG)):
        return None
    asked = {MIG_CONFIG: labels[MIG_CONFIG]} if MIG_CONFIG in labels else {}
    return error(
        "two-mig-managers",
        "NVIDIA's MIG manager and Partage both change the MIG layouts of this node",
        _said({_MIG_MANAGER: "true", **asked}),
        f"Keep one of the two. For Partage: kubectl label node NAME --overwrite {_MIG_MANAGER}=false",
    )


def _mig_failed(now: Observation) -> Finding | None:
    labels = _labels(now)
    if labels.get(MIG_CONFIG_STATE) != "failed":
        return None
    return error(
        "mig-config-failed",
        "The MIG layout that the Node's label asks for could not be made",
        _said({key: labels[key] for key in (MIG_CONFIG, MIG_CONFIG_STATE) if key in labels}),
        f"Is {MIG_CONFIG} the name of a layout that these GPUs have? partage fits MODEL lists them. What "
        "uses the GPUs has to end first: partage show",
    )


def _written_twice(now: Observation) -> Finding | None:
    labels = _labels(now)
    ours = sorted(key for key in labels if key.startswith(f"{DOMAIN}/") and key not in POLICY_LABELS)
    if FEATURE_DISCOVERY not in labels or not ours:
        return None
    return warning(
        "labels-written-twice",
        "NVIDIA's feature discovery and Partage both write labels of this Node",
        _said({FEATURE_DISCOVERY: labels[FEATURE_DISCOVERY], ours[0]: labels[ours[0]]}),
        "Switch feature discovery off (gfd.enabled=false), or give the agent --labels own. If it has ended "
        f"long ago: kubectl label node NAME {FEATURE_DISCOVERY}-",
    )


def _stale(now: Observation) -> Finding | None:
    """Labels say other GPUs than there are, and schedulers go by them."""
    labels = _labels(now)
    true = now.policy.labels if isinstance(now.policy, ObservedPolicy) else {}
    other = [key for key in _COMPARED if key in labels and key in true and labels[key] != true[key]]
    if not other:
        return None
    return warning(
        "labels-stale",
        "Labels of the Node do not fit its GPUs, and pods are placed by them",
        (f"{key}={labels[key]}, and it is {true[key]}" for key in other),
        "Who writes them? With Partage, the agent does (--cluster); NVIDIA's feature discovery has to run "
        "again after a change. partage labels prints what is true",
    )


def _said(labels: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(f"the Node has the label {key}={value}" for key, value in labels.items())


def _labels(now: Observation) -> Mapping[str, str]:
    assert isinstance(now.labels, Mapping)
    return now.labels


_LABELS = "labels of the Node"

CHECKS = (
    Check("operator-plugin", _LABELS, ("labels",), _operator_plugin),
    Check("two-mig-managers", _LABELS, ("labels",), _two_mig_managers,
          frozenset({"agent:mig-config-failed", "mig-config-failed", "gpus-differ"})),
    Check("mig-config-failed", _LABELS, ("labels",), _mig_failed, frozenset({"agent:mig-config-failed"})),
    Check("policy-labels-differ", _LABELS, ("labels",), _two_policies),
    Check("labels-written-twice", _LABELS, ("labels",), _written_twice,
          frozenset({"agent:labels-written-twice"})),
    Check("labels-stale", _LABELS, ("labels", "policy"), _stale),
)  # fmt: skip
