"""Jobs on a real Slurm with Partage's prolog, epilog and task prolog."""

import contextlib
import os
import signal
import stat
from pathlib import Path

import pytest

from tests.slurm.decide import configs
from tests.slurm.job_lab import SCRIPTS, JobLab, everyone_can_run
from tests.slurm.lab import ALL, BUILDS, NEW, OLD, on, only_in_make_slurm, why_not

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("slurm")]

GIB = 2**30


@pytest.mark.parametrize("build", on(OLD))
def test_mps(build):
    """Four jobs with mps:25 run at the same time, the fifth waits; they share one daemon, which then ends."""
    one = "version: partage/v1\ngpus: [{select: {index: [0]}, mps: {replicas: 4}}]\n"
    with JobLab(build, one) as lab:
        whole, shared = lab.devices
        env = lab.environment("--gres=gpu:h100:1")
        assert env["CUDA_VISIBLE_DEVICES"] == whole.uuid
        assert (env["PARTAGE_SHARES"], env["PARTAGE_STRATEGY"]) == ("gpu:h100:1", "exclusive")
        assert env["PARTAGE_GUARANTEE"] == "advisory"  # no cgroups here
        lab.wait_for(lambda: lab.records() == {})
        first = lab.batch("--gres=mps:25")
        env = lab.environment("--gres=mps:25")
        assert env["CUDA_VISIBLE_DEVICES"] == shared.uuid
        assert env["CUDA_MPS_PIPE_DIRECTORY"] == f"{lab.run_dir}/mps/{shared.uuid}/pipe"
        assert env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
        quarter = shared.memory_bytes // 4 // 2**20
        assert env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"0={quarter}M"
        assert env["PARTAGE_MEMORY_BYTES"] == str(quarter * 2**20)
        assert (env["PARTAGE_RESOURCE"], env["PARTAGE_SHARES"]) == ("mps", "mps:25")
        assert (env["PARTAGE_GUARANTEE"], env["PARTAGE_REPLICAS"]) == ("advisory", "4")
        jobs = [first, *(lab.batch("--gres=mps:25") for _ in range(4))]
        lab.wait_for(lambda: list(lab.job_states().values()).count("RUNNING") == 4)
        assert sorted(lab.job_states().values()) == ["PENDING"] + ["RUNNING"] * 4
        lab.wait_for(lambda: lab.records() == dict.fromkeys(jobs[:4], "mps:25"))
        assert lab.daemons() == [shared.uuid]
        lab.run("scancel", str(first))  # killed: its epilog runs all the same
        lab.wait_for(lambda: lab.records() == dict.fromkeys(jobs[1:], "mps:25"))
        assert lab.daemons() == [shared.uuid]
        lab.run("scancel", *map(str, jobs))
        lab.wait_for(lambda: lab.records() == {} and lab.daemons() == [])
        lab.wait_for(lambda: lab.states() == {"g1": "idle"})


@pytest.mark.parametrize("build", on(OLD))
def test_mig_devices_by_uuid(build):
    with JobLab(build, configs.MIG, "4xh100-sxm5-80gb") as lab:
        small = [one.uuid for one in lab.devices if one.type == "h100_1g.10gb"]
        env = lab.environment("--gres=gpu:h100_1g.10gb:2")
        assert env["CUDA_VISIBLE_DEVICES"] == ",".join(small)
        assert env["PARTAGE_GPUS"] == lab.devices[0].gpu
        assert env["PARTAGE_STRATEGY"] == "mig"
        assert env["PARTAGE_MEMORY_BYTES"] == str(2 * lab.devices[0].memory_bytes)
        none = lab.run("srun", "sh", "-c", "env | grep -E 'CUDA|PARTAGE_(GPUS|GUARANTEE)'; true")
        assert none.stdout == ""
        two = lab.environment("--gres=gpu:h100_1g.10gb:1,gpu:h100_3g.40gb:1")
        large = next(one.uuid for one in lab.devices if one.type == "h100_3g.40gb")
        assert two["CUDA_VISIBLE_DEVICES"] == f"{small[0]},{large}"
        assert two["PARTAGE_SHARES"] == "gpu:h100_1g.10gb:1,gpu:h100_3g.40gb:1"
        lab.wait_for(lambda: lab.records() == {})
        alone = lab.environment("--exclusive", "--gres=gpu:h100_1g.10gb:1")
        assert alone["CUDA_VISIBLE_DEVICES"] == small[0]
        if build is OLD:  # it gives tasks with --gpus-per-task=TYPE:N no GPU at all, with or without Partage
            return
        tasks = lab.run(
            "srun", "-n2", "--gpus-per-task=h100_1g.10gb:1", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES"
        )
        assert sorted(tasks.stdout.split()) == sorted(small), tasks.stderr


@pytest.mark.parametrize("build", on(OLD))
def test_a_job_that_is_submitted_in_a_job_has_nothing_of_it(build):
    """Its environment is that of the step in which it was submitted, as far as Slurm does not set it anew."""
    one = "version: partage/v1\ngpus: [{select: {index: [0]}, mps: {replicas: 4}}]\n"
    with JobLab(build, one, "4xh100-sxm5-80gb") as lab:
        out = {gres: lab.d / "log" / f"inner-{len(gres)}" for gres in ("", "--gres=gpu:h100:2")}
        inner = "; ".join(f"sbatch -o {path} {gres} --wrap 'env; echo END'" for gres, path in out.items())
        lab.srun("--gres=mps:25", "sh", "-c", inner)
        lab.wait_for(lambda: all(path.exists() and "END" in path.read_text() for path in out.values()))
        none, two = (
            dict(line.split("=", 1) for line in path.read_text().splitlines() if "=" in line)
            for path in out.values()
        )
        assert two["CUDA_VISIBLE_DEVICES"] == f"{lab.devices[0].uuid},{lab.devices[1].uuid}"
        assert (two["PARTAGE_SHARES"], two["PARTAGE_GUARANTEE"]) == ("gpu:h100:2", "advisory")
        ours = [name for name in none if name.startswith(("PARTAGE_", "CUDA"))]
        assert set(ours) <= {name for name in os.environ if name.startswith("PARTAGE_")}
        assert not [name for name in two if name.startswith("CUDA_MPS")]


@pytest.mark.parametrize("build", on(NEW))
def test_shards_with_the_guard(build):
    policy = "version: partage/v1\ngpus: [{select: {index: [0]}, time-slicing: {replicas: 4}, guard: true}]\n"
    with JobLab(build, policy) as lab:
        shared = lab.devices[1]
        lab.env["PYTHONPATH"] = "/home/alice/lib"
        env = lab.environment("--gres=shard:2", "-J", "evil\nexport PARTAGE_GUARANTEE=hard")
        assert env["CUDA_VISIBLE_DEVICES"] == shared.uuid
        half = shared.memory_bytes // 2 // 2**20 * 2**20
        assert env["PARTAGE_MEMORY_BYTES"] == str(half)
        assert env["PARTAGE_TOTAL_BYTES"] == str(shared.memory_bytes)
        assert (env["PARTAGE_SHARES"], env["PARTAGE_GUARANTEE"]) == ("shard:2", "advisory")
        guard, _, own = env["PYTHONPATH"].partition(":")
        assert guard.startswith(f"{lab.run_dir}/guard/")
        assert own == "/home/alice/lib"
        lab.env["PYTHONPATH"] = "/a\nexport PARTAGE_GUARANTEE=hard"
        env = lab.environment("--gres=shard:1")
        assert env["PYTHONPATH"] == lab.env["PYTHONPATH"]  # nothing can be put before it
        assert env["PARTAGE_GUARANTEE"] == "none"


@pytest.mark.parametrize("build", on(OLD))
@pytest.mark.parametrize("trouble", ["link", "devices", "full"] if ALL else ["full"])
def test_a_node_that_is_broken_is_drained_with_the_reason(build, trouble):
    lab = JobLab(build, configs.MPS)
    if trouble == "full":
        if os.getuid() != 0:
            pytest.skip("mounting takes root")
        lab.fill_run_dir()
    with lab:
        said = f"partage: {lab.run_dir}/jobs/{lab.first_job}.json: No space left on device"
        if trouble == "link":
            lab.run_dir.symlink_to("/etc")
            said = f"partage: {lab.run_dir}: is a link or no directory"
        elif trouble == "devices":
            lab.devices_file.unlink()
            said = f"partage: {lab.devices_file}: cannot be read"
        job = lab.batch("--gres=mps:25")
        lab.wait_for(lambda: lab.states()["g1"].startswith("drain"))
        assert lab.reason().startswith(said)
        lab.wait_for(lambda: lab.job_states() == {job: "PENDING"})  # requeued, held


@only_in_make_slurm
@pytest.mark.parametrize("build", BUILDS)
def test_a_dead_daemon_is_started_again(build):
    with JobLab(build, configs.MPS) as lab:
        out = lab.d / "log" / "first.txt"
        lab.batch("--gres=mps:25", wrap="echo it runs; sleep 60", out=str(out))
        lab.wait_for(lambda: out.exists() and out.read_text() == "it runs\n")
        pid_file = next(lab.run_dir.glob("mps/*/pipe/*.pid"))
        first = int(pid_file.read_text())
        os.kill(first, signal.SIGKILL)
        env = lab.environment("--gres=mps:25")
        assert int(pid_file.read_text()) != first
        assert env["CUDA_MPS_PIPE_DIRECTORY"] == str(pid_file.parent)
        lab.wait_for(lambda: lab.states() == {"g1": "mix"})


@only_in_make_slurm
@pytest.mark.skipif(
    why_not(OLD) != "" or os.getuid() != 0 or not Path("/sys/fs/cgroup/devices/tasks").exists(),
    reason="takes root, an installed Slurm, and cgroups of version 1",
)
def test_where_slurm_constrains_devices_a_gpu_is_hard():
    """Slurm calls every job's GPU 0 then; its UUID is that of the index on the node."""
    lab = JobLab(OLD, configs.WHOLE)
    for device in (lab.d / "dev").glob("nvidia[0-9]"):
        device.unlink()
        os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(195, int(device.name[6:])))
    conf = (lab.d / "slurm.conf").read_text()
    conf = conf.replace("proctrack/linuxproc", "proctrack/cgroup").replace("task/none", "task/cgroup")
    (lab.d / "slurm.conf").write_text(conf)
    with (lab.d / "cgroup.conf").open("a") as file:
        file.write("CgroupPlugin=cgroup/v1\nCgroupMountpoint=/sys/fs/cgroup\n")
    with lab:
        lab.batch("--gres=gpu:1")
        lab.wait_for(lambda: len(lab.records()) == 1)
        env = lab.environment("--gres=gpu:1")
        assert env["CUDA_VISIBLE_DEVICES"] == lab.devices[1].uuid
        assert env["PARTAGE_GUARANTEE"] == "hard"
        dev = lab.d / "dev"
        tried = lab.srun("--gres=gpu:1", "sh", "-c", f"cat {dev}/nvidia0; cat {dev}/nvidia1").stderr
        assert "nvidia0: Operation not permitted" in tried
        assert "nvidia1: No such device or address" in tried  # allowed, and there is no driver
    for left in Path("/sys/fs/cgroup").glob("*/slurm_g1"):  # slurmd leaves them
        for directory, _, _ in os.walk(left, topdown=False):
            with contextlib.suppress(OSError):
                Path(directory).rmdir()


USERS = pytest.mark.skipif(
    why_not(OLD) != "" or os.getuid() != 0 or not everyone_can_run(),
    reason="takes root, an installed Slurm, and a Python that every user can run",
)


@USERS
@pytest.mark.parametrize("multi_user", [True, False] if ALL else [False])
def test_two_users_on_one_gpu(multi_user):
    """With one server for all users both run; with one user at a time the second is told to come again."""
    one = "version: partage/v1\ngpus: [{select: {index: [0]}, mps: {replicas: 4}}]\n"
    with JobLab(OLD, one, multi_user=multi_user, everyone=True) as lab:
        first = lab.batch("--gres=mps:25", "--uid=65534")
        lab.wait_for(lambda: lab.daemons() != [])
        same = lab.environment("--gres=mps:25", user=65534)
        assert same["PARTAGE_SHARES"] == "mps:25"
        second = lab.srun("--gres=mps:25", "sh", "-c", "echo it ran", user=64030)
        if multi_user:
            assert second.stdout == "it ran\n", second.stderr
        else:
            assert second.returncode == 1
            assert "its driver serves one user at a time" in second.stdout
            assert "it ran" not in second.stdout
        lab.run("scancel", str(first))
        lab.wait_for(lambda: lab.records() == {} and lab.daemons() == [])
        last = lab.srun("--gres=mps:25", "echo", "it ran", user=64030)
        assert last.stdout == "it ran\n", last.stderr
        assert lab.states()["g1"] in {"idle", "comp"}


@pytest.mark.skipif(why_not(OLD) != "", reason=why_not(OLD) or "-")
def test_what_22_05_gives_away_twice_is_refused():
    """Once a job with shares has ended, 22.05 takes its GPU for free, although another still uses it.

    A job that may not be put back into the queue ends, with the reason.
    """
    policy = "version: partage/v1\ngpus: [{select: {index: [0]}, time-slicing: {replicas: 4}}]\n"
    with JobLab(OLD, policy) as lab:
        first = lab.batch("--gres=shard:1")
        lab.environment("--gres=shard:1")
        out = lab.d / "log" / "whole.txt"
        lab.wait_for(lambda: lab.records() == {first: "shard:1"})
        words = ["--gres=gpu:h100_shared:1", "--no-requeue"]
        lab.batch(*words, wrap="echo it ran", out=str(out))
        lab.wait_for(lambda: out.exists() and "TaskProlog failed" in out.read_text())
        said = out.read_text()
        assert f"GPU 0 is not free: job {first} has shard:1 of it. Slurm 22.05.8 gave it away twice" in said
        assert "it ran" not in said
        lab.wait_for(lambda: lab.job_states() == {first: "RUNNING"})
        assert lab.states() == {"g1": "mix"}
        again = lab.batch(words[0], wrap="sleep 1")
        lab.wait_for(lambda: lab.job_states() == {first: "RUNNING", again: "PENDING"})
        lab.run("scancel", str(first))
        lab.wait_for(lambda: lab.records() == {again: "gpu:h100_shared:1"})


REFUSED = {
    configs.MPS: {
        "mps:150": "mps:150 would wait for ever: a job's mps come from one GPU",
        "mps:h100:25": "mps has no type: write mps:25 and --constraint=h100\n",
        "mps:h100_shared:25": "mps has no type: write mps:25 and --constraint=h100\n",
        "mps:a100:25": "mps has no type: write mps:25\n",
        "gpu:1": "name the type of the GPU",
        "gpu:h100_shared:1": "gpu:h100_shared is shared by several jobs",
    },
    configs.SHARDS: {
        "shard:5": "shard:5 would wait for ever: a job's shards come from one GPU, which has 4",
        "shard:h100:2": "shard has no type: write shard:2 and --constraint=h100\n",
    },
}
LUA_POLICIES = [pytest.param(configs.MPS, id="mps")]
LUA_POLICIES += [pytest.param(configs.SHARDS, id="shard")] if ALL else []


@pytest.mark.parametrize("build", on(OLD))
@pytest.mark.parametrize("policy", LUA_POLICIES)
def test_job_submit_lua_tells_the_owner_why(build, policy):
    lua = (SCRIPTS / "job_submit.lua").read_text()
    for name, value in (
        ("MOST_SHARDS = nil", "MOST_SHARDS = 4"),
        ("NAME_TYPES = false", "NAME_TYPES = true"),
        ("FEATURES = {}", 'FEATURES = { "h100" }'),
    ):
        assert name in lua
        lua = lua.replace(name, value)
    lab = JobLab(build, policy, "4xh100-sxm5-80gb", conf="JobSubmitPlugins=lua")
    (lab.d / "job_submit.lua").write_text(lua)
    share = "mps" if policy == configs.MPS else "shard"
    with lab:
        for request, said in REFUSED[policy].items():
            done = lab.run("sbatch", f"--gres={request}", "--wrap", "true")
            assert f"partage: {said}" in done.stderr, (request, done)
            assert done.returncode == 1
        for words, said in {
            ("--exclusive", f"--gres={share}:2"): f"with --exclusive a job gets no {share}",
            ("--gpus=1",): "name the type of the GPU",
        }.items():
            assert said in lab.run("sbatch", *words, "--wrap", "true").stderr
        held = lab.run("sbatch", "--parsable", "-H", f"--gres={share}:2", "--wrap", "true").stdout.strip()
        for request in (f"{share}:150", f"{share}:%s:150"):
            assert lab.run("scontrol", "update", f"jobid={held}", f"Gres={request}").returncode == 1, request
        lab.run("scancel", held)
        assert lab.job_states() == {}
        for request in (f"{share}:2 --constraint=h100", "gpu:h100:2"):
            done = lab.srun(*f"--gres={request}".split(), "true")
            assert done.returncode == 0, done.stderr
        assert lab.srun("true").returncode == 0
