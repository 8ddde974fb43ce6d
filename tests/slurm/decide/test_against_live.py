"""Files that are compared with what a running Slurm has read."""

import pytest
from msgspec.structs import replace

from partage.slurm.decide.against_live import LiveCluster, check_live
from partage.slurm.decide.next_move import MARK
from partage.slurm.model import LiveNode, LiveSettings, SlurmVersion
from partage.slurm.text.conf import parse_conf

OLD, NEW = SlurmVersion(22, 5, 8), SlurmVersion(24, 11, 5)
CONF = parse_conf("GresTypes=gpu,mps\nNodeName=g[1-2] Gres=gpu:h100:2,mps:200\n", "slurm.conf")
assert CONF is not None
FILES = [CONF]
RIGHT = LiveNode("g1", frozenset({"IDLE"}), gres="gpu:h100:2,mps:h100:200", started_s=100)
SETTINGS = LiveSettings(NEW, ("gpu", "mps"))


def _said(version=NEW, own=None, settings=None, **changes):
    node = replace(RIGHT, **changes)
    live = LiveCluster(
        settings or replace(SETTINGS, version=version), {"g1": node, "g2": replace(node, name="g2")}, own
    )
    return [(one.severity, one.path, one.message, one.hint) for one in check_live(FILES, live, version)]


def test_what_slurmctld_has_read_is_right():
    assert _said() == []
    assert _said(own=("g1", 99.5)) == []


@pytest.mark.parametrize(
    ("changes", "severity", "message", "hint"),
    [
        (
            {"gres": "gpu:h100:1"},
            "error",
            "has Gres=gpu:h100:1 for nodes g[1-2]",
            "then scontrol reconfigure",
        ),
        ({"gres": "", "version": OLD}, "error", "has Gres=(none) for", "keep the GRES"),
        ({"flags": {"DRAIN", "INVAL"}, "reason": "too low"}, "error", "invalid: too low", "state=resume"),
        (
            {"flags": {"DRAIN"}, "reason": "{fan}"},
            "warning",
            "is drained: {fan}",
            "nodename=g[1-2] state=resume",
        ),
        (
            {"flags": {"DRAIN"}, "reason": MARK + "x"},
            "warning",
            "is drained",
            "Partage's agent there resumes it",
        ),
        ({"flags": {"DOWN"}}, "warning", "does not answer slurmctld", "running"),
        ({"own": ("g1", 102.0)}, "warning", "newer than slurmd of node g1", "reconfigure"),
        ({"own": ("g1", 102.0), "version": OLD}, "warning", "newer than slurmd", "restart slurmd"),
        ({"settings": replace(SETTINGS, gres_types=("gpu",))}, "error", "without mps", "reconfigure"),
        ({"settings": replace(SETTINGS, differs=True)}, "warning", "another slurm.conf", "reconfigure"),
        ({"settings": replace(SETTINGS, version=OLD)}, "warning", "slurmctld is 22.05.8", ""),
    ],
)
def test_each_difference_has_a_fix(changes, severity, message, hint):
    if "flags" in changes:
        changes = {**changes, "flags": frozenset(changes["flags"])}
    (found,) = _said(**changes)
    assert found[0] == severity
    assert message in found[2]
    assert hint in found[3]


def test_a_node_that_slurmctld_does_not_know():
    (problem,) = check_live(FILES, LiveCluster(SETTINGS, {"g1": RIGHT}), NEW)
    assert problem.message == "slurmctld has no node g2"
    assert check_live(FILES, LiveCluster(SETTINGS, {"g1": RIGHT}), NEW, "g1") == ()
