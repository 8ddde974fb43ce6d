"""``partage doctor``: what is wrong with this node, why, and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from partage.agent.options import KUBELET_DIR, STATE_DIR
from partage.answers import common_options, common_output, completion
from partage.answers.cluster_options import cluster_of, kubeconfig_option
from partage.answers.process_start import lean_imports
from partage.answers.verb import path_option, verb
from partage.errors import InputError
from partage.slurm.version import slurm_bin_option, slurm_version_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from partage.doctor.bundle import BundleInput
    from partage.doctor.decide.diagnose import Diagnosis
    from partage.doctor.document import DoctorDocument
    from partage.doctor.host.root import DoctorPlace
    from partage.doctor.repair import Repaired
    from partage.edges.kube.port import ClusterNode

FOUND = 1


@verb("doctor")
@click.option("--fix", is_flag=True, help="Repair what is safe: left-over files and directories of Partage.")
@click.option("--dry-run", is_flag=True, help="With --fix: say what it would do, and do nothing.")
@click.option(
    "--bundle",
    metavar="FILE.tar.gz",
    shell_complete=completion.files,
    help="Also write a file for support: findings, report, policy, logs; without secrets.",
)
@click.option(
    "--log",
    "logs",
    multiple=True,
    metavar="FILE",
    shell_complete=completion.files,
    help="With --bundle: a log file to put in, without its secrets. Repeatable.",
)
@path_option(
    "--root",
    metavar="DIR",
    help="Where the node's root is mounted, if not at /: /host in a pod of kubectl debug node.",
)
@common_options.policy_option("Default: that of the agent, also of one that has ended.", standard_input=False)
@common_options.config_option
@common_options.machine_option
@common_options.driver_root_option
@common_options.directory_option("--kubelet-dir", KUBELET_DIR, "The kubelet's device-plugins directory")
@common_options.run_dir_option
@common_options.directory_option("--state-dir", STATE_DIR, "State directory of the agent")
@click.option("--cluster", is_flag=True, help="Also look at the Node object.")
@kubeconfig_option("With --cluster: ")
@click.option(
    "--node-name",
    metavar="NAME",
    envvar="NODE_NAME",
    default="",
    help="The name of this node in Kubernetes or Slurm. Default for Slurm: the host name.",
)
@slurm_version_option("The release of Slurm, where scontrol cannot say it.")
@slurm_bin_option()
@common_options.output_option("table", "json", "yaml")
def command(
    *,
    fix: bool,
    dry_run: bool,
    bundle: str | None,
    logs: tuple[str, ...],
    root: Path | None,
    policy: str | None,
    config: str | None,
    machine: str | None,
    kubelet_dir: Path,
    run_dir: str | None,
    state_dir: Path,
    cluster: bool,
    kubeconfig: str | None,
    node_name: str,
    slurm_version: str | None,
    slurm_bin: Path | None,
    output: str,
) -> int:
    """Look at this node and say what is wrong, with what was seen and what to do next.

    Driver, library and device files; GPUs, MIG devices and MPS daemons; container runtime, CDI and cgroups;
    kubelet and other device plugins; the agent, its files and its policy; labels, Slurm's files, disks,
    clock. Causes come first, and what follows from them is left out. What could not be looked at is said,
    too. Run it as root.

    Nothing is changed without --fix. A setting of a GPU, or a file that is not Partage's, is never changed.

    Exit code 0: nothing found; 1: something is wrong; 2: an option or a file is wrong; 5: --cluster, and the
    API server does not answer.
    """
    _check_options(fix=fix, dry_run=dry_run, bundle=bundle, logs=logs, root=root)
    node = _node(kubeconfig, node_name) if cluster else None
    labels = common_options.node_labels() if node is None else node.labels
    with lean_imports():
        from partage.doctor.decide.diagnose import diagnose
        from partage.doctor.document import doctor_document
        from partage.doctor.gather import see
        from partage.doctor.gather_policy import GivenPolicy
        from partage.doctor.host.root import DoctorPlace, NodeRoot

    place = DoctorPlace(
        NodeRoot(root.resolve() if root else Path("/")),
        str(kubelet_dir),
        str(state_dir),
        run_dir or common_options.DEFAULT_RUN_DIR,
        machine,
        common_options.driver_root(),
        node_name,
        slurm_version,
        slurm_bin,
        own_run_dir=run_dir is not None,
    )
    given = GivenPolicy(policy, config)
    seen = see(place, given, labels)
    found = diagnose(seen)
    repaired = _repair(place, found, dry_run=dry_run) if fix else ()
    if repaired and not dry_run:
        seen = see(place, given, labels)
        found = diagnose(seen)
    document = doctor_document(found, repaired, done=not dry_run)
    if bundle is not None:
        from partage.doctor.bundle import BundleInput

        document = _with_bundle(bundle, place, BundleInput(document, seen, policy, node, logs))
    _print(document, output, fixes=fix, dry_run=dry_run)
    return FOUND if found.findings else 0


def _check_options(
    *, fix: bool, dry_run: bool, bundle: str | None, logs: tuple[str, ...], root: Path | None
) -> None:
    if dry_run and not fix:
        raise click.UsageError("--dry-run goes with --fix")
    if logs and bundle is None:
        raise click.UsageError("--log goes with --bundle")
    if bundle == "-":
        raise click.UsageError("--bundle writes a file that only you can read: name it, node.tar.gz")
    if root is not None and not root.is_dir():
        raise InputError(f"--root {root} is no directory", "it is where the node's root is mounted here")


def _with_bundle(path: str, place: DoctorPlace, wanted: BundleInput) -> DoctorDocument:
    """Write the bundle. The document says what is in it."""
    from partage.doctor.bundle import write_bundle
    from partage.doctor.document import BundleFileRow, BundleRow

    entries = write_bundle(path, place, wanted)
    files = tuple(BundleFileRow(entry.name, entry.what, len(entry.content)) for entry in entries)
    return replace(wanted.document, bundle=BundleRow(path, files))


def _print(document: DoctorDocument, output: str, *, fixes: bool, dry_run: bool) -> None:
    if output != "table":
        common_output.print_document(document, output)
        return
    from partage.doctor.document import print_bundle, print_diagnosis

    console = common_output.console()
    print_diagnosis(console, document, fixes=fixes, dry_run=dry_run)
    if document.bundle is not None:
        print_bundle(console, document.bundle)


def _repair(place: DoctorPlace, found: Diagnosis, *, dry_run: bool) -> Sequence[Repaired]:
    from partage.doctor.repair import Repaired, carry_out

    if dry_run:
        return [Repaired(repair) for repair in found.repairs]
    return [carry_out(place, repair) for repair in found.repairs]


def _node(kubeconfig: str | None, name: str) -> ClusterNode:
    """The Node object. Raises InputError, ClusterError."""
    if not name:
        raise InputError("--cluster needs the name of this node", "add --node-name NAME, or set NODE_NAME")
    with lean_imports(tls=True):
        import asyncio

        from partage.edges.kube.cluster import ApiCluster

    return asyncio.run(ApiCluster(cluster_of(kubeconfig)).node(name))
