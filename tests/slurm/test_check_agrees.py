"""``partage slurm check`` and a real Slurm say the same of hand-written files and of requests."""

from contextlib import closing

import pytest

from partage.slurm.decide.check import check_files
from partage.slurm.decide.request import Outcome, judge_request
from partage.slurm.host.conf_files import read_conf_files
from partage.slurm.model import SlurmVersion
from partage.slurm.text.conf import parse_conf
from tests.slurm.decide import configs
from tests.slurm.lab import BUILDS, NEWER, OLD, Lab
from tests.slurm.mistakes import RIGHT, WRONG, D, Hand

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("slurm")]


def _files(hand):
    lines = (
        f"GresTypes={hand.types}\nSelectType=select/cons_tres\n{hand.slurm}\nNodeName=n Gres={hand.gres}\n"
    )
    return {"gres.conf": hand.gres_conf + "\n", "cgroup.conf": hand.cgroup + "\n", "slurm.conf": lines}


def _checked(files, version, **more):
    parsed = [found for name, text in files.items() if (found := parse_conf(text, name)) is not None]
    return check_files(parsed, SlurmVersion.parse(version), **more)


def _errors(checked):
    return [str(problem) for problem in checked.problems if problem.severity == "error"]


@pytest.mark.parametrize("build", BUILDS)
def test_what_is_right_is_right_in_both(build):
    for hand in RIGHT:
        assert _errors(_checked(_files(hand), build.version)) == [], hand.name
        with closing(Lab(build, _files(hand), ["n"])) as lab:
            assert lab.complaints() == [], hand.name


@pytest.mark.parametrize("build", BUILDS)
def test_what_slurmd_complains_about_is_named(build):
    """Where slurmd does not start there is an error, where it only complains at least a warning."""
    for hand in WRONG:
        with closing(Lab(build, _files(hand), ["n"])) as lab:
            complaints = lab.complaints()
        checked = _checked(_files(hand), build.version)
        assert not complaints or checked.problems, (hand.name, complaints)
        if any("exit code" in one for one in complaints):
            assert _errors(checked), (hand.name, complaints)
            assert any("does not start" in one for one in _errors(checked)), (hand.name, _errors(checked))


NODES = {
    "right": ("gpu:a100:2", f"Name=gpu Type=a100 File={D}[0-1]", "idle"),
    "untyped": ("gpu:2", f"Name=gpu Type=a100 File={D}[0-1]", "idle"),
    "more": ("gpu:a100:1", f"Name=gpu Type=a100 File={D}[0-1]", "idle"),
    "nocount": ("gpu:a100", f"Name=gpu Type=a100 File={D}0", "idle"),
    "othertype": ("gpu:a100:2", f"Name=gpu Type=h100 File={D}[0-1]", "inval"),
    "fewer": ("gpu:a100:2", f"Name=gpu Type=a100 File={D}0", "inval"),
    "nofile": ("gpu:a100:2", "Name=gpu Type=a100 Count=2", "inval"),
    "untypedgres": ("gpu:a100:2", f"Name=gpu File={D}[0-1]", "inval"),
    "nothing": ("gpu:a100:1", "", "inval"),
}
"""``Gres=``, gres.conf, and what becomes of the node."""


@pytest.mark.parametrize("build", BUILDS)
def test_the_nodes_that_slurm_drains_are_those_with_errors(build):
    gres = "\n".join(f"NodeName={name} {text}" for name, (_, text, _) in NODES.items() if text)
    lines = [f"NodeName={name} Gres={gres}" for name, (gres, _, _) in NODES.items()]
    files = {
        "gres.conf": gres + "\n",
        "cgroup.conf": "ConstrainDevices=yes\n",
        "slurm.conf": "\n".join(("GresTypes=gpu", "SelectType=select/cons_tres", *lines)) + "\n",
    }
    with Lab(build, files, list(NODES), idle=False) as lab:
        assert lab.states() == {name: state for name, (_, _, state) in NODES.items()}
    said = _errors(_checked(files, build.version))
    named = {name for name in NODES if any(f"node {name} " in one for one in said)}
    assert named == {name for name, (_, _, state) in NODES.items() if state == "inval"}


MPS_REQUESTS = {
    "gpu:h100:1": Outcome.ACCEPTED,
    "gpu:2": Outcome.ACCEPTED,
    "mps:60": Outcome.ACCEPTED,
    "mps": Outcome.ACCEPTED,
    "mps:150": Outcome.WAITS,
    "mps:201": Outcome.REFUSED,
    "gpu:H100:1": Outcome.REFUSED,
    "gpu:h100:3": Outcome.REFUSED,
    "gpu:a100:1": Outcome.REFUSED,
    "shard:1": Outcome.REFUSED,
    "nothing:1": Outcome.REFUSED,
    "gpu:h100:x": Outcome.REFUSED,
    "gpu:1,mps:25": Outcome.REFUSED,
    "mps:h100_shared:25": Outcome.FAILS,
    "mps:0": Outcome.ACCEPTED,
    "none": Outcome.ACCEPTED,
    "mps:25,gpu:0": Outcome.ACCEPTED,
    "gpu:1,gpu:h100:1": Outcome.REFUSED,
    "gpu:h100:9,gpu:h100:1": Outcome.ACCEPTED,
}
SHARD_REQUESTS = {
    "shard:4": Outcome.ACCEPTED,
    "shard:5": Outcome.WAITS,
    "shard:9": Outcome.REFUSED,
    "shard:h100_shared:1": Outcome.FAILS,
}
MIG_REQUESTS = {
    "gpu:1g.10gb:2": Outcome.ACCEPTED,
    "gpu:1g.10gb:3": Outcome.REFUSED,
    "gpu:2g.20gb:1": Outcome.REFUSED,
}


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize(
    ("policy", "types", "requests"),
    [
        (configs.MPS, "short", MPS_REQUESTS),
        (configs.SHARDS, "short", SHARD_REQUESTS),
        (configs.MIG, "profile", MIG_REQUESTS),
    ],
    ids=["mps", "shard", "mig"],
)
def test_requests_are_judged_as_slurm_judges_them(build, policy, types, requests):
    files = configs.files(policy, build.version, types=types)
    checked = _checked(files, build.version)
    assert _errors(checked) == []
    with Lab(build, files, ["g1"]) as lab:
        for request, outcome in requests.items():
            verdict = judge_request(request, checked.nodes, checked.types, SlurmVersion.parse(build.version))
            assert verdict.outcome is outcome, verdict
            assert _judged_by_slurm(lab, request, waits=outcome is Outcome.WAITS) is outcome, request
            if verdict.slurm_says and outcome is Outcome.REFUSED:
                assert (
                    verdict.slurm_says in lab.run("srun", "--immediate=1", f"--gres={request}", "true").stderr
                )


def _judged_by_slurm(lab, request, *, waits=False):
    """waits: it is expected to wait for ever; a busy machine lets others wait, too, but not for so long."""
    lab.wait_for(lambda: not lab.run("squeue", "-h").stdout.strip())  # the job before it has given all back
    limit = 3 if waits else 60
    done = lab.run("srun", f"--immediate={limit}", f"--gres={request}", "true", timeout=90)
    if done.returncode == 0:
        return Outcome.ACCEPTED
    if "Unable to create step" in done.stderr:
        return Outcome.FAILS
    return Outcome.WAITS if "Requested nodes are busy" in done.stderr else Outcome.REFUSED


@pytest.mark.parametrize("build", BUILDS)
def test_a_mig_type_without_a_count(build):
    """22.05 reads 1g.10gb as a number; letters first, and it does not."""
    files = configs.files(configs.MIG, build.version, types="profile")
    checked = _checked(files, build.version)
    verdict = judge_request("gpu:1g.10gb", checked.nodes, checked.types, SlurmVersion.parse(build.version))
    with Lab(build, files, ["g1"]) as lab:
        assert _judged_by_slurm(lab, "gpu:1g.10gb") is verdict.outcome
    assert (verdict.outcome is Outcome.REFUSED) is (build.version == "22.05.8")


@pytest.mark.parametrize("build", NEWER)
def test_the_flag_without_which_jobs_see_no_gpu(build):
    """24.11 and an unknown flag: nothing is said, and CUDA_VISIBLE_DEVICES is not set. 26.05 sets it."""
    lost = build.version < "26.05"
    hand = Hand("unknown flag", "gpu", "gpu:a100:1", f"Name=gpu Type=a100 File={D}0 Flags=nvidia_env")
    with Lab(build, _files(hand), ["n"]) as lab:
        done = lab.run(
            "srun", "--immediate=60", "--gres=gpu:1", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES", timeout=90
        )
        assert (done.returncode, done.stdout.strip()) == (0, "" if lost else "0")
    problems = _checked(_files(hand), build.version).problems
    assert any("get no CUDA_VISIBLE_DEVICES" in one.message for one in problems) is lost
    assert problems  # there is no such flag


@pytest.mark.parametrize("build", NEWER)
def test_a_whole_gpu_without_a_line_of_mps(build):
    """24.11 uses one of the two GPUs with mps at a time then."""
    files = configs.files(configs.MPS, build.version, "3xh100-sxm5-80gb")
    kept = [line for line in files["gres.conf"].splitlines() if "Count=0" not in line]
    files["gres.conf"] = "\n".join(kept) + "\n"
    (problem,) = _checked(files, build.version).problems
    assert "only one of them is used at a time" in problem.message
    with Lab(build, files, ["g1"]) as lab:
        for request in ("mps:60", "mps:60", "gpu:h100:1"):
            lab.run("sbatch", "-o", "/dev/null", f"--gres={request}", "--wrap", "sleep 60")

        def states():
            return sorted(lab.run("squeue", "-h", "-o", "%b %T %r").stdout.splitlines())

        wanted = ["gres/gpu:h100:1 RUNNING None", "gres/mps:60 PENDING Resources", "gres/mps:60 RUNNING None"]
        lab.wait_for(lambda: states() == wanted)


@pytest.mark.parametrize("build", BUILDS)
def test_includes_are_followed_as_slurmd_follows_them(build, tmp_path):
    """A file that includes another one by its name: beside itself, or beside the first file."""
    hand = Hand("include", "gpu", "gpu:a100:1", f"Name=gpu Type=a100 File={D}0")
    with closing(Lab(build, _files(hand), ["n"])) as lab:
        wanted = lab.d / "sub" / "b.conf" if build.version == OLD.version else lab.d / "b.conf"
        (lab.d / "sub").mkdir()
        (lab.d / "gres.conf").rename(wanted)
        (lab.d / "sub" / "a.conf").write_text("Include b.conf\n")
        (lab.d / "gres.conf").write_text("include\tsub/a.conf # a comment\n")
        assert lab.complaints() == []
        files = read_conf_files([str(lab.d / "gres.conf")], SlurmVersion.parse(build.version))
    assert [gpu.type for gpu in check_files(files, SlurmVersion.parse(build.version)).nodes[0].gpus] == [
        "a100"
    ]
