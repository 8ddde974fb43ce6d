"""Hand-written files of Slurm: right, or with the mistake named, its line and what to do."""

import pytest

from partage.sim.node.files.load import load_machine
from partage.slurm.decide.check import check_files
from partage.slurm.decide.request import Outcome, judge_request
from partage.slurm.model import SlurmVersion
from partage.slurm.text.conf import ConfKind, parse_conf
from tests.slurm.decide import configs
from tests.slurm.mistakes import CAP, RIGHT, WRONG, D, Hand

LAB = {
    "slurm.conf": """\
ClusterName=lab
SlurmctldHost=vm(127.0.0.1)        # must be the host's short name
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=100
TaskPlugin=task/cgroup
GresTypes=gpu,mps
NodeName=whole NodeHostname=vm Port=17001 CPUs=16 RealMemory=8000 Gres=gpu:h200:4
NodeName=mps   NodeHostname=vm Port=17003 CPUs=16 RealMemory=8000 Gres=gpu:a100:1,mps:100
NodeName=mps2  NodeHostname=vm Port=17005 CPUs=16 RealMemory=8000 Gres=gpu:a100:2,mps:200
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
""",
    "gres.conf": """\
AutoDetect=off
NodeName=whole Name=gpu Type=h200 File=/dev/nvidia[0-3] Flags=nvidia_gpu_env
NodeName=mps   Name=gpu Type=a100 File=/dev/nvidia0 Flags=nvidia_gpu_env
NodeName=mps   Name=mps Count=100 File=/dev/nvidia0
NodeName=mps2  Name=gpu Type=a100 File=/dev/nvidia[0-1] Flags=nvidia_gpu_env
NodeName=mps2  Name=mps Count=200 Flags=all_sharing
""",
    "cgroup.conf": "CgroupMountpoint=/sys/fs/cgroup\nConstrainDevices=yes\n",
}
MIG_AND_SHARDS = {
    "slurm.conf": """\
GresTypes=gpu,shard
SelectType=select/cons_tres
NodeName=g1 CPUs=16 Gres=gpu:h200_1g.18gb:1,gpu:h200:3,shard:10 Features=h200,shared
""",
    "gres.conf": """\
NodeName=g1 AutoDetect=off Name=gpu Type=h200_1g.18gb \
MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap66,/dev/nvidia-caps/nvidia-cap67 Flags=nvidia_gpu_env
NodeName=g1 Name=gpu Type=h200 File=/dev/nvidia[1-3] Flags=nvidia_gpu_env
NodeName=g1 Name=shard Count=0 File=/dev/nvidia1
NodeName=g1 Name=shard Count=10 File=/dev/nvidia2
""",
}


def _check(files, version="24.11.5", **more):
    parsed = [found for name, text in files.items() if (found := parse_conf(text, name)) is not None]
    return check_files(parsed, SlurmVersion.parse(version), **more)


def _hand(hand):
    lines = (
        f"GresTypes={hand.types}\nSelectType=select/cons_tres\n{hand.slurm}\nNodeName=n Gres={hand.gres}\n"
    )
    return {"gres.conf": hand.gres_conf + "\n", "cgroup.conf": hand.cgroup + "\n", "slurm.conf": lines}


def _errors(checked):
    return [problem for problem in checked.problems if problem.severity == "error"]


def test_the_configuration_of_a_laboratory_is_right():
    checked = _check(LAB)
    assert checked.problems == ()
    assert [(node.name, len(node.gpus), dict(node.shares)) for node in checked.nodes] == [
        ("whole", 4, {}), ("mps", 1, {"mps": (100,)}), ("mps2", 2, {"mps": (100, 100)}),
    ]  # fmt: skip


def test_on_22_05_it_is_right_too_with_the_double_booking_named():
    (problem,) = _check(LAB, "22.05.8").problems
    assert (problem.severity, problem.file, problem.path) == ("warning", "slurm.conf", "line 7")
    assert "fixed in 23.11.5" in problem.hint


def test_mig_beside_shards_is_right_since_23_02_7():
    checked = _check(MIG_AND_SHARDS)
    assert checked.problems == ()
    assert checked.nodes[0].shares == {"shard": (0, 0, 10, 0)}
    assert [gpu.type for gpu in checked.nodes[0].gpus] == ["h200_1g.18gb", "h200", "h200", "h200"]
    old = _errors(_check(MIG_AND_SHARDS, "22.05.8"))
    assert any("reads each file of this MIG device as one GPU" in one.message for one in old)
    assert {(one.file, one.path) for one in old} == {("gres.conf", "line 1")}


@pytest.mark.parametrize("hand", RIGHT, ids=lambda hand: hand.name)
def test_what_is_right_has_no_errors(hand):
    assert _errors(_check(_hand(hand))) == []


HARMLESS_SINCE = {
    "cgroup ConstrainCores", "cgroup ConstrainRAMSpace", "cgroup AllowedRAMSpace", "cgroup MaxRAMPercent",
    "cgroup CgroupMountpoint", "cgroup CgroupPlugin", "cgroup ConstrainSwapSpace", "cgroup IgnoreSystemd",
    "cgroup EnableControllers", "cgroup MinRAMSpace", "cgroup MemorySwappiness", "cgroup AllowedSwapSpace",
    "cgroup MaxSwapPercent", "cgroup SignalChildrenProcesses", "cgroup SystemdTimeout",
    "cgroup IgnoreSystemdOnFailure", "mig and mps", "missing count suffix", "accounting without slurmdbd",
}  # fmt: skip
"""Not wrong on 24.11; accounting is judged where there is a whole slurm.conf."""


@pytest.mark.parametrize(
    "hand", [one for one in WRONG if one.name not in HARMLESS_SINCE], ids=lambda hand: hand.name
)
def test_every_mistake_is_named_with_its_file(hand):
    problems = _check(_hand(hand)).problems
    assert problems
    assert all(one.file in ("gres.conf", "slurm.conf", "cgroup.conf") for one in problems)


@pytest.mark.parametrize(
    ("gres", "place", "said", "hint"),
    [
        (f"\n# two\nName=gpu File={D}0 UniqueId=GPU-1", "line 3", "no key UniqueId", "from AutoDetect only"),
        (f"Name=gpu File={D}[0-1", "line 1", "a bracket that is not closed", ""),
        (f"Name=gpu File={D}0 NodeName=n", "line 1", "has to be the first key", ""),
        (f"Name=gpu Count=3 File={D}[0-1]", "line 1", "File names 2", "leave Count out"),
        (f"Name=gpu \\\nFile={D}0 \\\nMultipleFiles={D}0,{D}1", "line 1", "exclude each other", "MIG device"),
        (f"File={D}0", "line 1", "has no Name", "Name=gpu"),
        (
            "Name=gpu File=/dev/nvidia-caps/nvidia-cap66",
            "line 1",
            "one capability file alone",
            "MultipleFiles",
        ),
        (f"AutoDetect=nvidia\nName=gpu File={D}0", "line 1", "takes 24.11.0 or newer", ""),
        (f"AutoDetect=nvml\nName=gpu File={D}0", "line 1", "built with NVML", "slurmd -G"),
    ],
)
def test_mistakes_of_a_line_have_its_number_and_advice(gres, place, said, hint):
    problems = _check({"gres.conf": gres}, "23.11.5").problems
    assert any(one.path == place and said in one.message and hint in one.hint for one in problems), problems


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (("GresTypes=gpu,mps", "GresTypes=gpu,mps,shard"), "mps and shard are both in GresTypes"),
        (("GresTypes=gpu,mps", "GresTypes=gpu"), "mps is not in GresTypes"),
        (("select/cons_tres", "select/cons_res"), "need SelectType=select/cons_tres"),
        (("DefMemPerCPU=100\n", ""), "takes all memory of its node"),
        (("DefMemPerCPU=100", "AccountingStorageTRES=gres/gpu"), "without slurmdbd"),
        (("TaskPlugin=task/cgroup", "TaskPlugin=task/affinity"), "has no task/cgroup"),
        (("gpu:h200:4", "gpu:H200:4"), "types are compared letter by letter"),
        (("gpu:h200:4", "gpu:h200:8"), "gres.conf has 4: Slurm drains the node"),
        (("gpu:a100:1,mps:100", "gpu:a100:1,mps:200"), "slurmd does not start"),
        (("gpu:h200:4", "gpu:h200:four"), "is not a number"),
    ],
)
def test_mistakes_of_slurm_conf(changed, said):
    files = {**LAB, "slurm.conf": LAB["slurm.conf"].replace(*changed)}
    assert any(said in str(one) for one in _check(files).problems)


def test_mps_of_several_gpus_needs_a_flag():
    files = {**LAB, "gres.conf": LAB["gres.conf"].replace(" Flags=all_sharing", "")}
    (problem,) = _check(files).problems
    assert "only one of them is used at a time" in problem.message


BESIDE_A_WHOLE_GPU = {
    "slurm.conf": """\
GresTypes=gpu,mps
SelectType=select/cons_tres
NodeName=g1 CPUs=16 Gres=gpu:a100:2,gpu:a100_mps:2,mps:200
""",
    "gres.conf": """\
Name=gpu Type=a100 File=/dev/nvidia[0,3]
Name=gpu Type=a100_mps File=/dev/nvidia[1-2]
Name=mps Count=0 File=/dev/nvidia[0,3] Flags=all_sharing
Name=mps Count=100 File=/dev/nvidia1 Flags=all_sharing
Name=mps Count=100 File=/dev/nvidia2 Flags=all_sharing
""",
    "cgroup.conf": "ConstrainDevices=yes\n",
}


@pytest.mark.parametrize(
    ("taken", "hint"),
    [
        ("", None),
        (
            "Name=mps Count=0 File=/dev/nvidia[0,3] Flags=all_sharing\n",
            "add a line Name=mps Count=0 File=/dev/nvidia[0,3] Flags=all_sharing",
        ),
        ("[0,3] Flags=all_sharing", "add Flags=all_sharing to the lines of mps (since 22.05.0)"),
        ("1 Flags=all_sharing", "add Flags=all_sharing to the lines of mps (since 22.05.0)"),
    ],
)
def test_whole_gpus_beside_gpus_with_mps(taken, hint):
    """What 24.11.5 used one GPU at a time with; 22.05.8 used both."""
    rest = taken.removesuffix(" Flags=all_sharing")
    text = BESIDE_A_WHOLE_GPU["gres.conf"].replace(taken, "" if taken.endswith("\n") else rest)
    problems = _check({**BESIDE_A_WHOLE_GPU, "gres.conf": text}).problems
    assert [one.hint for one in problems] == ([] if hint is None else [hint])
    assert all("only one of them is used at a time" in one.message for one in problems)
    old = _check({**BESIDE_A_WHOLE_GPU, "gres.conf": text}, version="22.05.8").problems
    assert not any("used at a time" in one.message for one in old)


def test_mig_devices_beside_gpus_with_mps():
    files = configs.files(configs.MIG_MPS, "24.11.5")
    (problem,) = _check(files).problems
    assert "MIG devices beside several GPUs with mps" in problem.message
    assert _check(configs.files(configs.MPS, "24.11.5")).problems == ()


# --- against a node ----------------------------------------------------------------------------


def _node(gres, machine="2xh100-sxm5-80gb"):
    return _check({"gres.conf": gres}, inventory=load_machine(machine).inventory).differences


def test_what_is_written_for_a_node_agrees_with_it():
    """And not with a node that has other GPUs."""
    source = configs.source(configs.WHOLE, "2xh100-sxm5-80gb")
    files = configs.files(configs.WHOLE, "24.11", "2xh100-sxm5-80gb")
    checked = _check(files, inventory=source.inventory, node="g1")
    assert checked.problems == checked.differences == ()


@pytest.mark.parametrize(
    ("gres", "severity", "said"),
    [
        (f"Name=gpu Type=h100 File={D}[0-2]", "error", "has no GPU /dev/nvidia2"),
        (f"Name=gpu Type=h100 File={D}0", "warning", "GPU 1 (/dev/nvidia1) is not listed"),
        (
            f"Name=gpu Type=h100_1g.10gb MultipleFiles={D}0,{CAP}66,{CAP}67",
            "error",
            "no MIG device of GPU 0 has the files",
        ),
    ],
)
def test_what_differs_from_the_node(gres, severity, said):
    assert any(one.severity == severity and said in one.message for one in _node(gres))


# --- requests -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "outcome", "said"),
    [
        ("gpu:a100:2", Outcome.ACCEPTED, "mps2"),
        ("mps:60", Outcome.ACCEPTED, "mps,mps2"),
        ("mps:120", Outcome.WAITS, "none has more than 100"),
        ("mps:201", Outcome.REFUSED, "no node has more than 200"),
        ("gpu:A100:1", Outcome.REFUSED, "no node has a gpu of type A100"),
        ("shard:1", Outcome.REFUSED, "no GRES shard"),
        ("gpu:1,mps:10", Outcome.REFUSED, "exclude each other"),
        ("mps:a100:25", Outcome.FAILS, "no type of its own"),
        ("gres/mps:20", Outcome.ACCEPTED, "mps"),
        ("", Outcome.REFUSED, "asks for nothing"),
        ("mps:0", Outcome.ACCEPTED, "asks for no GRES"),
        ("none", Outcome.ACCEPTED, "asks for no GRES"),
        ("mps:60,gpu:0", Outcome.ACCEPTED, "mps,mps2"),
        ("gpu:1,gpu:a100:1", Outcome.REFUSED, "some of its GPUs have a type"),
        ("gpu:a100:9,gpu:a100:2", Outcome.ACCEPTED, "mps2"),
        ("gpu:a100:x", Outcome.REFUSED, "is not a number"),
    ],
)
def test_requests(request_, outcome, said):
    checked = _check(LAB)
    verdict = judge_request(request_, checked.nodes, checked.types, SlurmVersion(24, 11, 5))
    assert verdict.outcome is outcome
    assert said in verdict.why


@pytest.mark.parametrize(
    ("kind", "hint"),
    [
        ("h200", "--gres=shard:2 --constraint=h200"),
        ("h200_shared", "--gres=shard:2 --constraint=h200"),
        ("a100", "leave the type out: --gres=shard:2"),  # no node has such a feature
    ],
)
def test_a_constraint_is_advised_only_where_a_node_has_it(kind, hint):
    checked = _check(MIG_AND_SHARDS)
    verdict = judge_request(f"shard:{kind}:2", checked.nodes, checked.types, SlurmVersion(24, 11, 5))
    assert verdict.hint.endswith(hint)


def test_shares_of_several_gpus_where_the_cluster_allows_it():
    checked = _check(LAB)
    verdict = judge_request("mps:120", checked.nodes, checked.types, SlurmVersion(24, 11, 5), spread=True)
    assert verdict.outcome is Outcome.ACCEPTED
    assert verdict.nodes == ("mps2",)
    assert verdict.doubts == ("a task can use mps of one GPU only: start one task for each GPU (srun -n)",)


def test_doubts_of_accepted_requests():
    checked = _check(MIG_AND_SHARDS)
    (doubt,) = judge_request("gpu:1", checked.nodes, checked.types, SlurmVersion(24, 11, 5)).doubts
    assert "MIG devices too" in doubt
    old = judge_request("gpu:a100:1", _check(LAB).nodes, ("gpu", "mps"), SlurmVersion(22, 5, 8)).doubts
    assert any("may start a job with a whole GPU" in one for one in old)


# --- the reader ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("/etc/slurm/gres.conf", "", ConfKind.GRES),
        ("my-cgroup.conf", "", ConfKind.CGROUP),
        ("-", "NodeName=n Name=gpu File=/dev/nvidia0", ConfKind.GRES),
        ("-", "ConstrainDevices=yes", ConfKind.CGROUP),
        ("-", "GresTypes=gpu\nNodeName=n Gres=gpu:1", ConfKind.SLURM),
        ("cgroup_allowed_devices_file.conf", "/dev/null", None),
        ("-", "apiVersion: v1", None),
    ],
)
def test_which_file_it_is(name, text, kind):
    found = parse_conf(text, name)
    assert (found and found.kind) == kind


def test_hands_are_all_different():
    names = [one.name for one in (*RIGHT, *WRONG)]
    assert len(set(names)) == len(names)
    assert all(isinstance(one, Hand) for one in (*RIGHT, *WRONG))


def test_a_node_that_is_there_twice():
    """Slurm: fatal: Duplicated NodeName g1 in the config file (or NodeHostName)."""
    lines = "GresTypes=gpu\nNodeName=g[1-3] CPUs=4\nNodeName=g[3-4] Gres=gpu:l4:2\n"
    gres = "Name=gpu Type=l4 File=/dev/nvidia[0-1]\n"
    (problem,) = _check({"slurm.conf": lines, "gres.conf": gres}).problems
    assert (problem.severity, problem.path) == ("error", "line 3")
    assert "node g3 is in line 2 of slurm.conf already" in problem.message


def test_nodes_that_are_alike_are_named_together():
    files = {
        "slurm.conf": "GresTypes=gpu\nNodeName=g[1-500] Gres=gpu:l4:2\nNodeName=h1 Gres=gpu:l4:2\n",
        "gres.conf": "NodeName=g[1-500],h1 Name=gpu Type=l4 File=/dev/nvidia0\n",
    }
    checked = _check(files)
    first, second = (one.message for one in checked.problems)
    assert first.startswith("node g[1-500] has 2 x gpu:l4 here, and gres.conf has 1")
    assert second.startswith("node h1 has 2 x gpu:l4 here")
    assert [node.name for node in checked.nodes][:2] == ["g1", "g2"]
    assert len(checked.nodes) == 501
