"""Checks of the kubelet: its directories and sockets, and other device plugins beside it. Pure."""

from __future__ import annotations

from partage.doctor.decide.finding import Check, Finding, RemoveSocket, error, warning
from partage.doctor.decide.observation import Agent, Kubelet, Observation, Unseen

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

CHECKS = (
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
