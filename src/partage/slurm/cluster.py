"""Which nodes Slurm's configuration is written for: this one, a simulated one, or those of a cluster file.

    version: partage/v1
    kind: SlurmCluster
    slurm: 24.11.5
    nodes:
      - {name: "g[001-500]", machine: 8xh100-sxm5-80gb, policy: train.yaml, settings: "CPUs=64"}
      - {name: g501, machine: recorded/g501.json}

Files are named as seen from the cluster file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from partage.answers.common_node import read_policy
from partage.codec.fields import Dialect, Field, Notes, Table
from partage.codec.reader import parsed
from partage.codec.yaml_document import read_document
from partage.edges.files.catalogue import geometry_of, model_of
from partage.edges.files.input_file import read_input
from partage.errors import InputError, Problem, Unsatisfiable
from partage.model.gpu import Inventory
from partage.model.node_labels import parse_label_key, parse_label_value
from partage.model.policy import Policy
from partage.plan.offer.desired import DesiredState, resolve
from partage.plan.offer.findings import Findings
from partage.sim.node.files.load import load_machine
from partage.sim.node.machine_names import is_name
from partage.sim.node.planned_layouts import with_planned_layouts
from partage.slurm.decide.gres import NodeToName, cluster_config, node_gres
from partage.slurm.decide.node_files import node_devices
from partage.slurm.decide.type_names import TypeNames
from partage.slurm.model import NodeDevices, SlurmConfig, SlurmNode, SlurmVersion
from partage.slurm.text.hostlist import MOST_NAMES, node_names
from partage.values import Frozen

_TOP = ("version", "kind", "slurm", "nodes")
_NODE = ("name", "machine", "policy", "config", "labels", "settings")
SIMULATED_FILES = (
    "its MIG devices are planned: their device files are those that the simulation gives",
    "write the files again on the node, once its layout was made",
)


class NodeSource(Frozen):
    """Nodes that are alike: their names, their GPUs, the policy."""

    names: tuple[str, ...]
    inventory: Inventory
    policy: Policy
    settings: str = ""


class ClusterFile(Frozen):
    """slurm: the version that the file names, or None."""

    sources: tuple[NodeSource, ...]
    slurm: SlurmVersion | None
    warnings: tuple[Problem, ...] = ()


class WrittenConfig(Frozen):
    """The configuration, and the warnings about it. devices: of each source's first node."""

    config: SlurmConfig
    warnings: tuple[Problem, ...]
    devices: tuple[NodeDevices, ...] = ()


def make_config(
    sources: tuple[NodeSource, ...],
    version: SlurmVersion,
    names: TypeNames,
) -> WrittenConfig:
    """What Slurm has to be told. Simulated nodes have the MIG layouts of their policy made already.

    Raises InputError or Unsatisfiable with all problems.
    """
    findings = Findings("")
    nodes: list[SlurmNode] = []
    control: dict[str, None] = {}
    warnings: list[Problem] = []
    made: dict[tuple[int, int], DesiredState] = {}  # many nodes are of one machine and one policy
    devices: list[NodeDevices] = []
    for source in sources:
        alike = (id(source.inventory), id(source.policy))
        if alike not in made:
            made[alike], problems = _as_planned(source)
            warnings += problems
        desired = made[alike]
        inventory = desired.inventory
        root = source.policy.options.dev_root
        wanted = NodeToName(source.names[0], inventory, desired.offer, root, source.settings)
        gres = node_gres(wanted, version, names, model_of, findings)
        nodes += [SlurmNode(name, gres, source.settings) for name in source.names]
        devices.append(node_devices(source.names[0], gres, desired, version))
        control |= dict.fromkeys(root.rstrip("/") + node for node in inventory.control_nodes)
    config = cluster_config(nodes, version, control, findings)
    findings.raise_any()
    return WrittenConfig(config, (*warnings, *findings.warnings()), tuple(devices))


def _as_planned(source: NodeSource) -> tuple[DesiredState, list[Problem]]:
    desired = resolve(source.policy, source.inventory, geometry_of)
    warnings = list(desired.warnings)
    if not (source.inventory.simulated and desired.pending):
        return desired, warnings
    if any(layout.enabled for layout in desired.layouts.values()):
        message, hint = SIMULATED_FILES
        warnings.append(Problem("", source.names[0], "warning", message, hint))
    return resolve(source.policy, with_planned_layouts(desired, geometry_of), geometry_of), warnings


# --- the cluster file -------------------------------------------------------------------------


def read_cluster(file: str) -> ClusterFile:
    """The nodes of a cluster file. Raises InputError with all problems."""
    document = read_document(read_input(file), file)
    notes = Notes(document, file, Dialect())
    top = notes.top_table(_TOP)
    for key, word in (("version", "partage/v1"), ("kind", "SlurmCluster")):
        field = top.get(key)
        if field and field.value != word:
            field.error(f"is not the {key} of a cluster file", f"write {key}: {word}")
    reader = _ClusterReader(Path(file).parent)
    slurm = top.value("slurm", parsed(SlurmVersion.parse, "24.11.5"), None)
    rows = top.needed("nodes", Field.items, "the nodes") or []
    sources = tuple(reader.sources(rows))
    warnings = notes.finish()
    return ClusterFile(sources, slurm, warnings)


class _ClusterReader:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._machines: dict[str, Inventory] = {}
        self._policies: dict[tuple[object, ...], Policy] = {}
        self._seen: set[str] = set()

    def sources(self, rows: list[Field]) -> Iterator[NodeSource]:
        for place in rows:
            row = place.table(_NODE)
            source = self._source(row) if row else None
            if source is not None:
                yield source

    def _source(self, row: Table) -> NodeSource | None:
        names = row.needed("name", self._names, "the node's name in Slurm")
        inventory = row.needed("machine", self._machine, "a machine's name or file")
        policy = self._policy(row)
        settings = row.value("settings", parsed(checked_settings, "CPUs=64"), "")
        if names is None or inventory is None or policy is None:
            return None
        return NodeSource(names, inventory, policy, settings)

    def _names(self, place: Field) -> tuple[str, ...] | None:
        found = place.parsed(node_names, "g[001-500]")
        if found is None:
            return None
        if twice := sorted(self._seen & set(found)):
            place.error(f"node {twice[0]} occurs twice")
            return None
        self._seen |= set(found)
        if len(self._seen) > MOST_NAMES:
            place.error(f"more than {MOST_NAMES:,} nodes")
            return None
        return found

    def _machine(self, place: Field) -> Inventory | None:
        text = place.some_text()
        if text is None:
            return None
        if text not in self._machines:
            try:
                where = text if is_name(text) else str(self._folder / text)
                self._machines[text] = load_machine(where).inventory
            except (InputError, Unsatisfiable) as error:
                place.error(str(error))
                return None
        return self._machines[text]

    def _policy(self, row: Table) -> Policy | None:
        file, config = row.value("policy", Field.some_text, None), row.value("config", Field.some_text, None)
        labels = row.value("labels", _labels, None)
        key = (file, config, None if labels is None else tuple(sorted(labels.items())))
        if key not in self._policies:
            place = row.here("policy")
            try:
                named_file = None if file is None else str(self._folder / file)
                self._policies[key] = read_policy(named_file, config, labels=labels).policy
            except InputError as error:
                place.error("; ".join(str(problem.in_file(file or "")) for problem in error.problems))
                return None
        return self._policies[key]


def _labels(place: Field) -> dict[str, str] | None:
    """The labels of a node, for policies with ``when``."""
    found = {}
    for key, member in (place.mapping() or {}).items():
        value = member.parsed(parse_label_value, "inference")
        try:
            found[parse_label_key(key)] = value or ""
        except ValueError as error:
            member.error(str(error))
    return found


def checked_settings(text: str) -> str:
    """``CPUs=64 RealMemory=1000000``, one space between. Raises ValueError, also for what would end the line,
    or join the next one to it."""
    words = text.split()
    for word in words:
        key = word.partition("=")[0].lower()
        if "=" not in word or not word.isprintable() or "#" in word or "\\" in word:
            raise ValueError(f"{word[:40]!r} is not a setting such as CPUs=64")
        if key in ("nodename", "gres"):
            raise ValueError(f"{word[:40]!r} is written by Partage: give only the rest of the line")
    return " ".join(words)
