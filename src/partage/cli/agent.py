"""``partage agent``: run the node.

For a quick registration the helper is started before the agent is imported, and HTTP after it.
"""

from __future__ import annotations

import gc
import os
import re
import subprocess
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from partage.agent.options import KUBELET_DIR, RUN_DIR, STATE_DIR, AgentOptions, pod_resources_of
from partage.answers.common_options import (
    choice_rules,
    config_option,
    directory_option,
    dra_driver_option,
    log_level_option,
    machine_option,
    node_labels,
    policy_option,
)
from partage.answers.process_start import lean_imports, umask_of_a_service
from partage.answers.verb import path_option, verb
from partage.cli.hardware import helper_argv
from partage.edges.files.directory_lock import RUN_LOCK, check_unlocked
from partage.edges.hardware.spawn import spawn
from partage.errors import InputError
from partage.model.dcgm_names import DcgmNames
from partage.model.node_labels import NodeTaint, WrittenLabels
from partage.model.paths import CONTAINER_LOGS, check_socket_path
from partage.serve_http.options import http_option, http_options, http_protection
from partage.slurm.verb_agent import slurm_agent_options, slurm_options

if TYPE_CHECKING:
    from partage.edges.hardware.helper_client import RemoteHardware
    from partage.edges.kube.config import ClusterConfig
    from partage.slurm.agent.options import SlurmOptions

_CONFIG_MAP = re.compile(r"(?:[a-z0-9][-a-z0-9]*/)?[a-z0-9][-a-z0-9.]*", re.ASCII)
_FORMATS = ("text", "json")


_path = partial(directory_option, metavar="PATH")


@verb("agent", short_help="Run the node.")
@policy_option("Default: every GPU is exclusive.", standard_input=False)
@config_option
@machine_option
@_path("--kubelet-dir", KUBELET_DIR, "The kubelet's device-plugins directory")
@_path(
    "--pod-resources", None, "The kubelet's PodResources socket (<kubelet-dir>/../pod-resources/kubelet.sock)"
)
@_path("--state-dir", STATE_DIR, "State that survives a reboot: last good policy, offers, health")
@_path("--run-dir", RUN_DIR, "Files that do not survive a reboot: the helper's socket, the report")
@_path("--cdi-dir", Path("/var/run/cdi"), "Where the container runtime looks for CDI specs")
@_path(
    "--container-logs",
    Path(CONTAINER_LOGS),
    "Where the kubelet links containers' logs by container id, for the watchdog",
)
@_path("--driver-root", None, "Root directory of the NVIDIA driver; overrides the policy")
@_path("--hardware-socket", None, "Socket of a running helper; without it the agent starts one")
@http_option(
    "Serve a page for browsers, /metrics, /healthz, /livez, /report.json and /history.json; port 0: any "
    "free port."
)
@http_protection
@click.option(
    "--history",
    type=click.IntRange(0, 90),
    default=14,
    show_default=True,
    metavar="DAYS",
    help="Keep for so many days what each workload used, in <state-dir>/history, for partage rightsize "
    "--history; at most 64 KiB a day. 0: keep nothing. Names of workloads are in it.",
)
@click.option(
    "--dcgm-names",
    type=click.Choice([dcgm_names.value for dcgm_names in DcgmNames]),
    default=DcgmNames.OFF.value,
    show_default=True,
    help="Serve metrics also under the names of dcgm-exporter, so that dashboards and alerts made for it "
    "work: old (up to 4.8), new (4.9) or both. off: dcgm-exporter runs here, and nothing is counted twice.",
)
@click.option(
    "--cluster",
    "where",
    metavar="auto|off|KUBECONFIG",
    default="auto",
    show_default=True,
    help="The cluster whose Node is kept up to date; auto: that of the pod in which the agent runs.",
)
@click.option(
    "--node-name",
    metavar="NAME",
    envvar="NODE_NAME",
    default="",
    help="The name of this node in the cluster; without it, nothing is written there ($NODE_NAME).",
)
@click.option(
    "--labels",
    type=click.Choice([labels.value for labels in WrittenLabels]),
    default=WrittenLabels.ALL.value,
    show_default=True,
    help="Which labels are written to the Node: all; own: only those that NVIDIA's feature discovery does "
    "not write, where it runs, too; none.",
)
@path_option(
    "--features-file",
    help="Write the labels to a file that node-feature-discovery reads, and not to the Node, such as "
    "/etc/kubernetes/node-feature-discovery/features.d/partage.",
)
@click.option(
    "--taint",
    "taints",
    multiple=True,
    type=click.Choice([taint.value for taint in NodeTaint]),
    help="Taint the Node with partage.dev/not-ready:NoSchedule while the agent does not offer its GPUs, or "
    "with partage.dev/gpu-unhealthy:NoSchedule while a GPU has a fault. May be repeated.",
)
@click.option(
    "--rollout",
    metavar="CONFIGMAP",
    default="",
    help="A rollout over a fleet: a new policy waits until it is this node's turn to change. The ConfigMap "
    "(NAME or NAMESPACE/NAME) says how many nodes change at once; the chart makes it.",
)
@click.option(
    "--validations",
    metavar="auto|off|DIR",
    default="auto",
    show_default=True,
    help="Where the GPU Operator says that driver and container toolkit work: at its start the agent waits "
    "for that before it opens the driver; auto: /run/nvidia/validations, if there is such a directory.",
)
@click.option(
    "--mps-pipe-read-only",
    is_flag=True,
    help="Mount the directory with the MPS daemon's sockets read-only into containers, so that no tenant "
    "removes or fills it. Whether CUDA programs work then was not seen on a real GPU yet.",
)
@click.option(
    "--restricted-mps",
    is_flag=True,
    help="The cluster refuses pods that ask for MPS shares and whose processes are or can become root, as "
    "the chart's admission policy does. Only then these shares are promised as guarded: root in a container "
    "can change the limits of an MPS daemon.",
)
@click.option(
    "--takeover",
    is_flag=True,
    help="Register also what another device plugin offers: the kubelet then asks Partage in its place. "
    "Without it, such a resource is not registered (partage takeover does it step by step).",
)
@click.option(
    "--dra",
    is_flag=True,
    help="Serve ResourceClaims, too: be the DRA driver of this node, for the GPUs with via: claims in the "
    "policy. It takes Kubernetes 1.36.4 or newer, --cluster and --node-name.",
)
@dra_driver_option(
    "Name of the DRA driver. With gpu.nvidia.com, classes, devices, attributes and configurations are called "
    "as by NVIDIA's driver, so that manifests for it run unchanged."
)
@click.option(
    "--dra-counters",
    is_flag=True,
    help="With --dra: offer MIG devices on demand also on Kubernetes 1.36.4 and newer. Without it they are "
    "offered from 1.37 on: before it, each scheduling cycle of the cluster takes hundreds of times as long.",
)
@click.option(
    "--pod-uid",
    metavar="UID",
    envvar="POD_UID",
    default="",
    help="UID of the agent's own pod: with --dra two agents of a rolling update have sockets of their own "
    "($POD_UID).",
)
@slurm_agent_options
@log_level_option
@click.option(
    "--log-format",
    type=click.Choice(_FORMATS),
    help="How it is logged. Default: text where standard error is a terminal, else json.",
)
def command(
    *,
    machine: str | None,
    hardware_socket: Path | None,
    http: str | None,
    log_level: str,
    log_format: str | None,
    slurm: bool,
    **given: Any,  # noqa: ANN401 - as click has them
) -> None:
    """Run the node: offer its GPUs to the kubelet, as the policy says.

    The policy is read again when its content changes. Of a directory of policies, the labels of the node
    choose one. Runs until SIGTERM or SIGINT.

    With --slurm the node is a compute node of Slurm: its layouts follow the policy, and gres.conf follows the
    layouts. The node is drained before anything changes, and resumed after it; docs/reference/slurm.md.
    """
    if machine is not None and hardware_socket is not None:
        raise InputError("--machine and --hardware-socket exclude each other")
    of_slurm = {name: given.pop(name) for name in [*given] if name.startswith("slurm")}
    options = _agent_options(machine=machine, **given)
    chosen = slurm_options(of_slurm, slurm=slurm)
    _run(
        options,
        chosen,
        machine=machine,
        hardware_socket=hardware_socket,
        http=http,
        log_level=log_level,
        log_format=log_format,
    )


def _agent_options(
    *,
    machine: str | None,
    policy: str | None,
    config: str | None,
    kubelet_dir: Path,
    pod_resources: Path | None,
    driver_root: Path | None,
    where: str,
    node_name: str,
    labels: str,
    features_file: Path | None,
    taints: tuple[str, ...],
    rollout: str,
    validations: str,
    dcgm_names: str,
    history: int,
    **as_given: Any,  # noqa: ANN401 - as click has them
) -> AgentOptions:
    """as_given: those that ``AgentOptions`` calls so, too. Raises InputError."""
    if policy == "-":
        raise InputError("the agent watches its policy, and standard input cannot be watched", "name a file")
    cluster = _cluster(where, node_name)
    _check_rollout(rollout, cluster)
    if as_given["dra"] and cluster is None:
        raise InputError(
            "--dra needs the API server, which has the claims",
            "add --cluster KUBECONFIG and --node-name NAME",
        )
    rest: dict[str, Any] = {
        name: value.absolute() if isinstance(value, Path) else value for name, value in as_given.items()
    }
    return AgentOptions(
        kubelet_dir=kubelet_dir.absolute(),
        pod_resources=(pod_resources or pod_resources_of(kubelet_dir)).absolute(),
        policy=Path(policy) if policy is not None else None,
        config=config,
        fallback=choice_rules(config).fallback,
        node_labels=node_labels(),
        environ=os.environ,
        driver_root=str(driver_root) if driver_root is not None else None,
        cluster=cluster,
        node_name=node_name,
        labels=WrittenLabels(labels),
        features_file=_features_file(features_file, labels),
        taints=frozenset(map(NodeTaint, taints)),
        rollout=rollout,
        dcgm_names=DcgmNames(dcgm_names),
        history_days=history,
        validations=None if machine is not None else _validations(validations),
        **rest,
    )


def _run(
    options: AgentOptions,
    slurm: SlurmOptions | None,
    *,
    machine: str | None,
    hardware_socket: Path | None,
    http: str | None,
    log_level: str,
    log_format: str | None,
) -> None:
    """Start the helper, or find it, and run the agent until it is stopped."""
    umask_of_a_service()
    # Before our helper takes the socket of another agent's.
    check_unlocked(options.state_dir, wait_s=options.intervals.other_ends_s)
    check_unlocked(options.run_dir, RUN_LOCK, wait_s=options.intervals.other_ends_s)
    protection = http_options()
    helper = AgentHelper(options, machine, hardware_socket)
    gc.disable()  # imports make no garbage; run_agent enables it again
    try:
        with lean_imports(tls=options.cluster is not None):
            # while the helper imports what it needs
            from partage.agent.log import LogFormat, LogOptions
            from partage.cli.run_agent import HttpAddress, serve

        logged = LogOptions(log_level, None if log_format is None else LogFormat(log_format))
        address = None if http is None else HttpAddress(http, protection)
        serve(options, slurm, helper.hardware, address, logged)
    finally:
        gc.enable()


def _features_file(path: Path | None, labels: str) -> Path | None:
    """The file of ``--features-file``. Raises InputError."""
    if path is None:
        return None
    if labels == WrittenLabels.NONE:
        raise InputError(
            "--features-file takes labels, and --labels none writes none", "leave out one of both"
        )
    if not path.absolute().parent.is_dir():
        raise InputError(f"--features-file: there is no directory {path.absolute().parent}")
    return path.absolute()


def _check_rollout(config_map: str, cluster: ClusterConfig | None) -> None:
    """Raises InputError where ``--rollout`` names no ConfigMap, or there is no cluster."""
    if not config_map or (cluster is not None and _CONFIG_MAP.fullmatch(config_map)):
        return
    message = f"--rollout {config_map[:80]!r} is no name of a ConfigMap"
    if cluster is None:
        message = "--rollout needs a cluster, and this agent has none"
    raise InputError(message, "--cluster and --node-name say which; NAME or NAMESPACE/NAME")


def _validations(where: str) -> Path | None:
    """The directory of ``--validations``."""
    return {"off": None, "auto": Path("/run/nvidia/validations")}.get(where, Path(where).absolute())


def _cluster(where: str, node_name: str) -> ClusterConfig | None:
    """The cluster whose Node this is; None without one. Raises InputError."""
    if where == "off" or (where == "auto" and not node_name):
        return None
    if not node_name:
        raise InputError("--cluster needs the name of this node", "add --node-name NAME, or set NODE_NAME")
    if where == "auto" and not os.environ.get("KUBERNETES_SERVICE_HOST"):
        return None
    from partage.edges.kube.config import cluster_config

    return cluster_config(where, os.environ)


class AgentHelper:
    """The helper process: started here, or already running."""

    def __init__(self, options: AgentOptions, machine: str | None, socket_path: Path | None) -> None:
        self.argv: list[str] | None = None
        self.first: subprocess.Popen[bytes] | None = None
        self.path = socket_path.absolute() if socket_path else options.run_dir / "hardware.sock"
        check_socket_path(self.path, "choose a shorter --run-dir")
        if socket_path is None:
            driver_root, run_dir = options.driver_root or "/", options.run_dir
            self.argv = helper_argv(self.path, machine=machine, driver_root=driver_root, run_dir=run_dir)
            self.first = self._begin(options.run_dir, self.argv)

    def _begin(self, run_dir: Path, argv: list[str]) -> subprocess.Popen[bytes]:
        try:
            run_dir.mkdir(parents=True, exist_ok=True)
            return spawn(argv, self.path)
        except OSError as error:
            raise InputError(f"cannot start the helper in --run-dir {run_dir}: {error.strerror}") from error

    def hardware(self) -> RemoteHardware:
        """The helper as hardware port. Call it in a running event loop."""
        from partage.edges.hardware.helper_client import RemoteHardware

        return RemoteHardware(self.path, self.argv, first=self.first)
