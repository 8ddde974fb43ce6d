"""Checks of what Kubernetes has of the node: the kubelet, its directories and sockets, and other device
plugins beside it; the Node's labels: who else decides over the same GPUs, and what is no longer true. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from partage.doctor.decide.finding import Check, Finding, RemoveSocket, error, warning
from partage.doctor.decide.observation import Agent, Kubelet, Observation, ObservedPolicy, Unseen
from partage.model.ids import VENDOR
from partage.model.node_labels import DOMAIN, FEATURE_DISCOVERY, MIG_CONFIG, MIG_CONFIG_STATE, POLICY_LABELS
from partage.model.policy import GpuEntry

_USUAL = "/var/lib/kubelet/device-plugins"


def _other_directory(now: Observation) -> Finding | None:
    kubelet = _kubelet(now)
    own = kubelet.own_directory or _USUAL
    if not kubelet.running or own == kubelet.directory:
        return None
    return error(
        "kubelet-elsewhere",
        "The kubelet of this node has its device-plugins directory in another place than the agent is told",
        (f"the kubelet's command line says {own}", f"looked at: {kubelet.directory}"),
        f"Start agent and doctor with --kubelet-dir {own}; in the chart: kubeletRoot="
        f"{own.removesuffix('/device-plugins')}",
    )


def _directory_missing(now: Observation) -> Finding | None:
    kubelet = _kubelet(now)
    if kubelet.there:
        return None
    return error(
        "kubelet-dir-missing",
        "The kubelet's device-plugins directory does not exist",
        f"{kubelet.directory} does not exist",
        "The kubelet makes it when it starts: is this a Kubernetes node, and does its kubelet run (systemctl "
        "status kubelet)? If its root directory is another one, name the directory with --kubelet-dir",
    )


def _silent(now: Observation) -> Finding | None:
    kubelet = _kubelet(now)
    if kubelet.listens:
        return None
    seen = {True: "a kubelet process runs", False: "no kubelet process runs", None: ""}[kubelet.running]
    return error(
        "kubelet-silent",
        "The kubelet does not accept device plugins, so the node offers no GPU",
        (f"nobody listens at {kubelet.directory}/kubelet.sock", *([seen] if seen else [])),
        "Look at systemctl status kubelet and journalctl -u kubelet. Once it runs, the agent registers by "
        "itself",
    )


def _pod_resources(now: Observation) -> Finding | None:
    kubelet = _kubelet(now)
    if kubelet.pod_resources:
        return None
    directory = f"{kubelet.directory.removesuffix('/device-plugins')}/pod-resources"
    return warning(
        "pod-resources-missing",
        "The kubelet's PodResources socket is not there: it cannot be known which pod holds which share, and "
        "GPUs that have to change wait",
        f"{directory}/kubelet.sock does not exist",
        f"The kubelet makes it beside its device-plugins directory. In a pod: mount {directory}",
    )


def _checkpoint(now: Observation) -> Finding | None:
    kubelet = _kubelet(now)
    if not kubelet.checkpoint_problem:
        return None
    return warning(
        "checkpoint-unreadable",
        "The kubelet's record of held devices cannot be read: GPUs that have to change wait",
        kubelet.checkpoint_problem,
        "Read it as root. If it is damaged, the kubelet says so in its log; it writes a new one when it is "
        "restarted on a drained node",
    )


def _other_plugin(now: Observation) -> Finding | Unseen | None:
    kubelet = _kubelet(now)
    if isinstance(kubelet.other_plugin, Unseen):
        return kubelet.other_plugin
    if not kubelet.other_plugin:
        return None
    return error(
        "other-plugin",
        "A second device plugin offers GPUs of this node to the kubelet: one GPU could be given away twice, "
        "and Partage changes none meanwhile",
        kubelet.other_plugin,
        "Keep one of the two. partage takeover puts Partage in the place of NVIDIA's plugin under running "
        "pods; with the GPU Operator, label the node nvidia.com/gpu.deploy.device-plugin=false",
    )


def _kept_sockets(now: Observation) -> Finding | None:
    kubelet = _kubelet(now)
    if not kubelet.kept_sockets:
        return None
    return warning(
        "kubelet-keeps-socket",
        "The kubelet keeps sockets of Partage whose end it does not notice, because a plugin was registered "
        "twice at one path: it asks there when the agent ends, and pods fail",
        (f"it keeps {path}" for path in kubelet.kept_sockets),
        "Restart the kubelet (systemctl restart kubelet): it knows no plugin then, and running pods stay. "
        "Until then the agent serves these sockets, too",
    )


def _idle_sockets(now: Observation) -> Finding | None:
    kubelet = _kubelet(now)
    if not kubelet.idle_sockets or (isinstance(now.agent, Agent) and now.agent.runs):
        return None
    return warning(
        "sockets-left",
        "Sockets of device plugins that have ended are left in the kubelet's directory",
        (f"nobody listens at {path}" for path in kubelet.idle_sockets),
        "partage doctor --fix removes them. They do no harm to the kubelet, but they look like a plugin",
        *map(RemoveSocket, kubelet.idle_sockets),
    )


def _kubelet(now: Observation) -> Kubelet:
    assert isinstance(now.kubelet, Kubelet)
    return now.kubelet


_KUBELET = "the kubelet"
_REGISTRATION = frozenset({"agent:not-registered", "agent:kubelet-silent", "agent:not-watched"})
_HOLDERS = frozenset({"agent:holders-unknown", "agent:holds-unproven"})


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


KUBELET_CHECKS = (
    Check("kubelet-elsewhere", _KUBELET, ("kubelet",), _other_directory,
          _REGISTRATION | _HOLDERS
          | {"kubelet-dir-missing", "kubelet-silent", "pod-resources-missing", "checkpoint-unreadable",
             "sockets-left"}),
    Check("kubelet-dir-missing", _KUBELET, ("kubelet",), _directory_missing,
          _REGISTRATION | _HOLDERS | {"kubelet-silent", "pod-resources-missing", "sockets-left"}),
    Check("kubelet-silent", _KUBELET, ("kubelet",), _silent,
          _REGISTRATION | _HOLDERS | {"pod-resources-missing", "sockets-left"}),
    Check("other-plugin", "device plugins", ("kubelet",), _other_plugin,
          frozenset({"agent:other-plugin", "agent:not-registered", "gpus-differ", "operator-plugin"})),
    Check("checkpoint-unreadable", _KUBELET, ("kubelet",), _checkpoint, frozenset({"agent:holds-unproven"})),
    Check("pod-resources-missing", _KUBELET, ("kubelet",), _pod_resources,
          frozenset({"agent:holders-unknown"})),
    Check("kubelet-keeps-socket", _KUBELET, ("kubelet",), _kept_sockets,
          frozenset({"agent:kubelet-keeps-socket"})),
    Check("sockets-left", "sockets", ("kubelet",), _idle_sockets),
)  # fmt: skip

_LABELS = "labels of the Node"

LABEL_CHECKS = (
    Check("operator-plugin", _LABELS, ("labels",), _operator_plugin),
    Check("two-mig-managers", _LABELS, ("labels",), _two_mig_managers,
          frozenset({"agent:mig-config-failed", "mig-config-failed", "gpus-differ"})),
    Check("mig-config-failed", _LABELS, ("labels",), _mig_failed, frozenset({"agent:mig-config-failed"})),
    Check("policy-labels-differ", _LABELS, ("labels",), _two_policies),
    Check("labels-written-twice", _LABELS, ("labels",), _written_twice,
          frozenset({"agent:labels-written-twice"})),
    Check("labels-stale", _LABELS, ("labels", "policy"), _stale),
)  # fmt: skip
