"""``partage apply``, ``assert`` and ``export``, on simulated nodes; and a real process that is killed."""

from __future__ import annotations

import json
import os
import random
import signal
import socket as socketlib
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from partage.cli.main import run
from partage.edges.files.catalogue import load_catalogue
from partage.edges.files.state import StateDir
from partage.model.layout import DoesNotFit, LayoutItem, place
from tests.examples import variants
from tests.kubelet_script import held, scripted_kubelet, wait_for

MODELS = sorted(
    model.id
    for model in load_catalogue().simulated_models()
    if model.geometry and any(spec.starts for spec in model.geometry.profiles)
)
PARTAGE = [sys.executable, "-m", "partage"]


@pytest.fixture
def node(tmp_path, capsys):
    return Node(tmp_path, capsys)


class Node:
    """A simulated node in a file, and the verbs on it."""

    def __init__(self, path, capsys):
        self.path, self.capsys = path, capsys
        self.file = path / "node.json"
        self.stderr = ""

    def start(self, name):
        assert run(["record", "--machine", name, "--to", str(self.file)]) == 0
        self.capsys.readouterr()

    def suffer(self, *faults):
        self.file.write_text(json.dumps({**self.machine, "faults": list(faults)}))

    @property
    def machine(self):
        return json.loads(self.file.read_text())

    def policy(self, layouts):
        """A policy file: GPU index to a layout."""
        entries = [{"select": {"index": index}, "mig": {"layout": one}} for index, one in layouts.items()]
        path = self.path / "policy.yaml"
        path.write_text(yaml.safe_dump({"version": "partage/v1", "gpus": entries}))
        return str(path)

    def verb(self, verb, *options):
        code = run([verb, "--machine", str(self.file), "-o", "json", *map(str, options)])
        out, self.stderr = self.capsys.readouterr()
        return code, json.loads(out)

    def apply(self, layouts, *options):
        written = self.path / "after.json"
        code, answer = self.verb("apply", "--policy", self.policy(layouts), "--write", written, *options)
        written.replace(self.file)
        return code, answer

    def devices(self, gpu=0):
        return {
            row["uuid"]: f"{row['profile']}@{row['start']}" for row in self.machine["gpus"][gpu]["migDevices"]
        }


def layout(rng, geometry):
    items: list[LayoutItem] = []
    for _ in range(rng.randrange(1, 9)):
        more = [*items, LayoutItem(rng.choice(geometry.profiles).profile)]
        try:
            place(geometry, more)
        except DoesNotFit:
            continue
        items = more
    return [str(item) for item in items] or "all-enabled"


@pytest.mark.parametrize("model", variants(MODELS, 3))
def test_layouts_come_true_one_after_the_other_and_an_export_changes_nothing(node, model):
    rng = random.Random(model)
    found = load_catalogue().by_id(model)
    assert found is not None
    node.start(model)
    exported = node.path / "export.yaml"
    for _ in range(3):
        before = node.devices()
        wanted = {0: layout(rng, found.geometry)}
        policy = node.policy(wanted)
        was_so, _ = node.verb("assert", "--policy", policy)
        code, answer = node.apply(wanted)
        assert code == 0, node.stderr
        (row,) = answer["gpus"]
        assert row["outcome"] == ("unchanged" if was_so == 0 else "done")
        assert sorted(node.devices().values()) == sorted(row["layout"])
        assert {uuid: before[uuid] for uuid in row["kept"]}.items() <= node.devices().items()
        assert node.verb("assert", "--policy", policy)[0] == 0

        code, live = node.verb("export")
        assert code == 0
        exported.write_text(json.dumps(live))
        code, answer = node.verb("apply", "--policy", exported)
        assert (code, [row["outcome"] for row in answer["gpus"]]) == (0, ["unchanged"])


def test_an_export_brings_back_what_was_there(node):
    node.start("2xh100-sxm5-80gb")
    node.apply({0: ["3g.40gb@4", "1g.10gb@2", "1c.2g.20gb@0", "1c.2g.20gb@0"]})
    old = [sorted(node.devices(gpu).values()) for gpu in (0, 1)]
    _, live = node.verb("export")
    assert live["gpus"][1] == {"select": {"index": [1]}, "mig": {"layout": "all-disabled"}}
    node.apply({0: ["7g.80gb"], 1: ["7g.80gb"]})
    back = node.path / "export.json"
    back.write_text(json.dumps(live))
    assert node.verb("assert", "--policy", back)[0] == 1
    assert node.verb("apply", "--policy", back, "--write", node.file)[0] == 0
    assert [sorted(node.devices(gpu).values()) for gpu in (0, 1)] == old
    assert node.machine["gpus"][1]["migMode"] == [0, 0]


def test_assert_says_what_differs(node):
    node.start("2xh100-sxm5-80gb")
    node.apply({0: ["3g.40gb", "1g.10gb"]})
    policy = node.policy({0: ["3g.40gb", "2g.20gb"], 1: ["7g.80gb"]})
    code, answer = node.verb("assert", "--policy", policy)
    assert (code, answer["kind"], answer["asWanted"]) == (1, "Assertion", False)
    first, second = answer["differences"]
    assert first["found"] == {"mig": True, "layout": ["1g.10gb@0", "3g.40gb@4"]}
    assert sorted(first["wanted"]["layout"]) == ["2g.20gb@0", "3g.40gb@4"]
    assert second["detail"] == "MIG mode is wanted on, and is off"
    assert run(["assert", "--machine", str(node.file), "--policy", policy]) == 1
    assert "GPU 1: MIG mode is wanted on, and is off" in node.capsys.readouterr().out


def test_a_dry_run_says_the_steps_and_does_nothing(node):
    node.start("h100-sxm5-80gb")
    old = node.machine
    code, answer = node.apply({0: ["3g.40gb"]}, "--dry-run")
    assert (code, answer["dryRun"]) == (0, True)
    (row,) = answer["gpus"]
    assert row["outcome"] == "planned"
    assert [step["act"] for step in row["steps"]] == [
        "set-mig-mode",
        "create-instance",
        "create-compute",
        "verify",
    ]
    assert node.machine == old


def test_plan_says_the_steps_and_how_far_they_reach(node):
    node.start("2xa100-40gb")
    code, plan = node.verb("plan", "--policy", node.policy({0: ["3g.20gb"]}))
    assert code == 0
    first, second = plan["gpus"]
    assert (first["index"], first["phase"], first["layout"]) == (0, "ready", ["3g.20gb@4"])
    assert (second["phase"], second["reason"], second["steps"]) == ("settled", None, [])
    assert first["steps"] == plan["steps"]
    reset = plan["steps"][1]
    assert (reset["act"], reset["gpus"], reset["idle"], reset["reboot"]) == ("reset", [0], [0], False)
    node.file.write_text(json.dumps({**node.machine, "fabricManager": False, "virtual": None}))
    _, plan = node.verb("plan", "--policy", node.policy({0: ["3g.20gb"]}))
    reset = plan["steps"][1]
    assert (reset["act"], reset["gpus"], reset["idle"], reset["reboot"]) == ("reset", [0, 1], [0, 1], None)


# --- somebody is in the way ----------------------------------------------------------------------------


def _occupied(node, gpu=0, profile="3g.40gb"):
    """Put a process into the first MIG device of that profile."""
    row = next(row for row in node.machine["gpus"][gpu]["migDevices"] if row["profile"] == profile)
    node.suffer(
        {"after-s": 0, "gpu": gpu, "used-by": "python", "gi": row["gi"], "ci": row["ci"], "pid": 4711}
    )
    return row["uuid"]


def test_who_uses_what_has_to_go_is_named_and_nothing_is_touched(node):
    node.start("2xh100-sxm5-80gb")
    node.apply({0: ["3g.40gb", "1g.10gb"]})
    old = [node.devices(gpu) for gpu in (0, 1)]
    uuid = _occupied(node)
    code, answer = node.apply({0: ["7g.80gb"], 1: ["7g.80gb"]})
    assert code == 3
    refused, other = answer["gpus"]
    assert (refused["outcome"], refused["refusal"]) == ("refused", "held")
    (holder,) = refused["holders"]
    assert (holder["name"], holder["pid"], holder["devices"]) == ("python", 4711, [uuid])
    assert other["outcome"] == "untouched"
    assert "process python (pid 4711)" in node.stderr
    assert [node.devices(gpu) for gpu in (0, 1)] == old
    _occupied(node)
    assert run(["apply", "--machine", str(node.file), "--policy", str(node.path / "policy.yaml")]) == 3
    assert node.capsys.readouterr().out.count("as before") == 2


def test_who_is_not_in_the_way_is_left_alone(node):
    node.start("h100-sxm5-80gb")
    node.apply({0: ["3g.40gb", "1g.10gb", "1g.10gb"]})
    uuid = _occupied(node)
    code, answer = node.apply({0: ["3g.40gb", "3g.40gb"]})
    assert code == 0
    assert answer["gpus"][0]["kept"] == [uuid]
    assert uuid in node.devices()


def test_drain_tells_a_command_who_holds_what_until_it_is_gone(node):
    node.start("h100-sxm5-80gb")
    node.apply({0: ["3g.40gb", "1g.10gb"]})
    _occupied(node)
    leaves = {"after-s": 0.5, "gpu": 0, "left-by": "python"}
    node.suffer(*node.machine["faults"], leaves)
    told = node.path / "told.json"
    code, answer = node.apply({0: ["7g.80gb"]}, "--drain", f"dd status=none of={told}", "--timeout", "30")
    assert (code, answer["gpus"][0]["outcome"]) == (0, "done")
    holders = json.loads(told.read_text())
    assert holders["kind"] == "Holders"
    assert [holder["name"] for holder in holders["holders"]] == ["python"]


def test_drain_gives_up_in_time(node):
    node.start("h100-sxm5-80gb")
    node.apply({0: ["3g.40gb", "1g.10gb"]})
    _occupied(node)
    code, answer = node.apply({0: ["7g.80gb"]}, "--drain", "sleep 100", "--timeout", "0.2")
    assert (code, answer["gpus"][0]["outcome"]) == (3, "refused")
    assert "did not end within" in node.stderr


def test_a_pod_that_holds_a_mig_device_is_named_even_without_a_process(node, short_dir):
    node.start("h100-sxm5-80gb")
    node.apply({0: ["3g.40gb", "1g.10gb"]})
    old = node.devices()
    uuid = next(uuid for uuid, name in old.items() if name.startswith("3g"))
    socket = short_dir / "pods.sock"
    with scripted_kubelet(short_dir / "plugins", socket) as kubelet:
        kubelet.pod_resources = held({"ml/train": {"main": {"nvidia.com/mig-3g.40gb": [f"{uuid}::1"]}}})
        code, answer = node.apply({0: ["7g.80gb"]}, "--pod-resources", socket)
        assert code == 3
        (holder,) = answer["gpus"][0]["holders"]
        assert (holder["kind"], holder["name"], holder["devices"]) == ("pod", "ml/train", [uuid])
        assert node.devices() == old
        assert node.apply({0: ["3g.40gb", "2g.20gb"]}, "--pod-resources", socket)[0] == 0
        assert uuid in node.devices()
        kubelet.pod_resources = held({})
        assert node.apply({0: ["7g.80gb"]}, "--pod-resources", socket)[0] == 0


def test_a_kubelet_that_does_not_say_who_holds_what_is_not_passed_over(node, short_dir):
    node.start("h100-sxm5-80gb")
    policy = node.policy({0: ["7g.80gb"]})
    assert node.verb("apply", "--policy", policy, "--pod-resources", short_dir / "silent.sock")[0] == 5
    assert node.verb("apply", "--policy", policy, "--pod-resources", "none")[0] == 0


@pytest.mark.parametrize("done", [False, True])
def test_a_step_that_fails_is_taken_back(node, done):
    node.start("h100-sxm5-80gb")
    node.apply({0: ["3g.40gb", "1g.10gb"]})
    old = sorted(node.devices().values())
    for number in range(1, 8):
        fault = {"call": "perform", "fail": "no-room", "done": done}
        node.suffer({"after-calls": 1 + number, **fault})
        code, answer = node.apply({0: ["7g.80gb"]})
        if done and answer["gpus"][0]["outcome"] == "partial":
            # A creation that was done and said to have failed: it may be somebody else's, and is named.
            assert code == 4
            assert "left alone, as this change is not known to have made it: " in node.stderr
            assert node.apply({0: ["3g.40gb", "1g.10gb"]})[0] == 0
            continue
        assert (code, answer["gpus"][0]["outcome"]) == (4, "rolled-back"), number
        assert "all of it was rolled back" in node.stderr
        assert sorted(node.devices().values()) == old


# --- a real process ------------------------------------------------------------------------------------


def _listens(path):
    """A socket has a name before anybody listens at it."""
    with socketlib.socket(socketlib.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


@pytest.fixture
def helper(short_dir):
    """The helper of a simulated node, which survives whoever asks it. Each act takes a moment."""
    machine = short_dir / "node.json"
    assert run(["record", "--machine", "2xh100-sxm5-80gb", "--to", str(machine)]) == 0
    plain = json.loads(machine.read_text())
    slow = {"after-calls": 0, "call": "perform", "hang": 0.02, "times": 10_000}
    machine.write_text(json.dumps({**plain, "faults": [slow]}))
    socket = short_dir / "hardware.sock"
    process = subprocess.Popen([*PARTAGE, "hardware", "--socket", str(socket), "--machine", str(machine)])
    try:
        wait_for(lambda: _listens(socket))
        yield socket
    finally:
        process.terminate()
        process.wait(10)


def _export(helper, capsys):
    capsys.readouterr()
    assert run(["export", "--hardware-socket", str(helper), "-o", "json"]) == 0
    return json.loads(capsys.readouterr().out)["gpus"]


def _killed(command, lines):
    """Run, and kill after so many lines of progress; whether it was still there."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment
    ) as process:
        assert process.stderr is not None
        for _ in range(lines):
            process.stderr.readline()
        process.kill()
    return process.returncode == -signal.SIGKILL


def test_killed_at_any_moment_apply_goes_on_or_back(helper, short_dir, capsys):
    def policy(name, first, second):
        path = short_dir / name
        entries = [{"select": {"index": n}, "mig": {"layout": one}} for n, one in enumerate((first, second))]
        path.write_text(yaml.safe_dump({"version": "partage/v1", "gpus": entries}))
        return str(path)

    a = policy("a.yaml", ["3g.40gb@4", "1g.10gb@0", "1g.10gb@1"], ["7g.80gb"])
    b = policy("b.yaml", ["3g.40gb@4", "2g.20gb@0"], ["1g.10gb+me", "3g.40gb@4"])
    options = ["--hardware-socket", str(helper), "--state-dir", str(short_dir / "state")]
    assert run(["apply", "--policy", a, *options]) == 0
    for lines in (1, 5, 9, 14):
        old = _export(helper, capsys)
        if not _killed([*PARTAGE, "apply", "--policy", b, *options], lines):
            break
        assert run(["apply", "--undo", *options]) == 0
        assert _export(helper, capsys) == old
        assert _killed([*PARTAGE, "apply", "--policy", b, *options], lines)
        assert run(["apply", "--policy", b, *options]) == 0
        assert "the last run stopped after" in capsys.readouterr().err
        assert run(["assert", "--policy", b, "--hardware-socket", str(helper)]) == 0
        a, b = b, a
    assert lines > 5


EVERYTHING = """\
version: partage/v1
gpus:
  - {select: {index: [0]}, mig: {layout: [3g.40gb, 3g.40gb], mps: {replicas: 2}}}
  - {select: {index: [1]}, name: nvidia.com/gpu.sliced, time-slicing: {replicas: 2, interval: long}}
"""
MPS = "version: partage/v1\ngpus: [{select: all, mps: {replicas: 4}}]\n"
EXCLUSIVE = "version: partage/v1\ngpus: [{select: all, exclusive: {}}]\n"
SLICES = "version: partage/v1\ngpus: [{select: all, time-slicing: {replicas: 2, interval: long}}]\n"
PLAIN = "version: partage/v1\ngpus: [{select: {index: 0}, mig: {layout: all-disabled}}]\n"


def test_apply_carries_out_daemons_modes_and_slices_and_gives_them_back(helper, short_dir, capsys):
    """Each run is a process of its own: what has to be given back is in the state directory."""
    socket, policy = f"--hardware-socket={helper}", short_dir / "policy.yaml"
    state = f"--state-dir={short_dir / 'state'}"

    def told(text):
        policy.write_text(text)
        capsys.readouterr()
        code = run(["apply", "--policy", str(policy), socket, state, "-o", "json"])
        answer = json.loads(capsys.readouterr().out)
        assert run(["assert", "--policy", str(policy), socket, state]) == code == 0
        return {step["act"] for gpu in answer["gpus"] for step in gpu["steps"]}, answer

    def found(verb, text, key):
        policy.write_text(text)
        capsys.readouterr()
        run([*verb, "--policy", str(policy), socket, state, "-o", "json"])
        return {step["act"] for gpu in json.loads(capsys.readouterr().out)[key] for step in gpu["steps"]}

    acts, answer = told(MPS)
    assert acts == {"set-compute-mode", "start-daemon"}
    (row,) = answer["resources"]
    assert (row["promised"], row["verified"], row["guarantee"]) == ("advisory", "advisory", "advisory")
    assert told(MPS)[0] == set(), "a second time there is nothing to do"
    back = {"stop-daemon", "set-compute-mode"}
    assert found(["assert"], EXCLUSIVE, "differences") == back
    assert found(["apply", "--dry-run"], EXCLUSIVE, "gpus") == back
    assert told(EXCLUSIVE)[0] == back
    told(MPS)
    acts, _ = told(EVERYTHING)
    assert {"stop-daemon", "set-compute-mode", "set-mig-mode", "create-compute", "set-time-slice"} <= acts
    acts, _ = told(PLAIN)
    assert {"stop-daemon", "destroy-compute", "set-mig-mode"} <= acts
    assert "start-daemon" in found(["assert"], MPS, "differences")


def test_a_time_slice_that_cannot_be_set_keeps_no_other_gpu_waiting(tmp_path, capsys):
    machine, policy = tmp_path / "machine.yaml", tmp_path / "policy.yaml"
    machine.write_text(
        "version: partage/v1\nkind: Machine\n"
        "gpus: [{name: NVIDIA L4, time_slice: not-supported}, {name: NVIDIA L4}]\n"
    )
    policy.write_text(SLICES)
    assert run(["apply", "--machine", str(machine), "--policy", str(policy), "-o", "json"]) == 3
    gpus = json.loads(capsys.readouterr().out)["gpus"]
    assert [gpu["outcome"] for gpu in gpus] == ["refused", "done"]
    assert "time slice cannot be set" in gpus[0]["reason"]


def test_two_never_change_a_node_at_a_time(helper, short_dir, capsys):
    state = StateDir(short_dir / "state")
    options = ["--hardware-socket", str(helper), "--state-dir", str(short_dir / "state")]
    assert run(["apply", "--undo", *options]) == 2
    assert "the agent owns the node" in capsys.readouterr().err
    state.close()


def test_a_journal_that_cannot_be_read_takes_nothing_back_and_is_no_obstacle(helper, short_dir, capsys):
    options = ["--hardware-socket", str(helper), "--state-dir", str(short_dir / "state")]
    policy = short_dir / "policy.yaml"
    policy.write_text("version: partage/v1\ngpus: [{select: {index: 0}, mig: {layout: [7g.80gb]}}]\n")
    (short_dir / "state").mkdir()
    (short_dir / "state" / "journal.jsonl").write_text("nonsense\n")
    assert run(["apply", "--undo", *options]) == 2
    assert run(["apply", "--policy", str(policy), *options]) == 0
    assert "planned again" in capsys.readouterr().err
    assert run(["apply", "--undo", *options]) == 0


def test_who_stops_listening_stops_nothing(helper, short_dir):
    policy = short_dir / "policy.yaml"
    policy.write_text(
        "version: partage/v1\ngpus: [{select: {index: 0}, mig: {layout: [3g.40gb, 1g.10gb]}}]\n"
    )
    options = ["--hardware-socket", str(helper), "--state-dir", str(short_dir / "state")]
    command = [*PARTAGE, "apply", "--policy", str(policy), *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        assert process.stderr is not None
        process.stderr.readline()
        process.stderr.close()
    assert run(["assert", "--policy", str(policy), "--hardware-socket", str(helper)]) == 0


def test_nothing_to_take_back_is_no_error(helper, short_dir, capsys):
    options = ["--hardware-socket", str(helper), "--state-dir", str(short_dir / "state")]
    assert run(["apply", "--undo", *options]) == 0
    assert "nothing to undo" in capsys.readouterr().err


# --- the boot ------------------------------------------------------------------------------------------


def test_the_unit_makes_the_layout_again_after_a_reboot(node):
    unit = (Path(__file__).parents[2] / "deploy/systemd/partage-boot.service").read_text()
    settings = dict(line.split("=", 1) for line in unit.splitlines() if "=" in line and line[0] not in "#;")
    assert settings["Before"].split() == ["kubelet.service", "slurmd.service"]
    assert settings["Type"] == "oneshot"
    command, *arguments = settings["ExecStart"].split()
    assert Path(command).name == "partage"

    node.start("2xa100-40gb")
    wanted = {0: ["3g.20gb@4", "1g.5gb"], 1: ["7g.40gb"]}
    node.apply(wanted)
    old = [sorted(node.devices(gpu).values()) for gpu in (0, 1)]
    node.suffer({"after-calls": 0, "reboot": True})
    assert node.verb("assert", "--policy", node.policy(wanted))[0] == 1
    policy = node.policy(wanted)
    here = [policy if argument == "/etc/partage/policy.yaml" else argument for argument in arguments]
    assert run([*here, "--machine", str(node.file), "--write", str(node.file)]) == 0
    assert [sorted(node.devices(gpu).values()) for gpu in (0, 1)] == old


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--undo", "--policy", "x"],
        ["--policy", "x", "--write", "y"],
        ["--policy", "x", "--machine", "l4", "--hardware-socket", "z"],
        ["--undo", "--machine", "l4", "--drain", "'"],
        ["--undo", "--machine", "l4", "--drain", ""],
        ["--undo", "--machine", "l4", "--config", "x"],
    ],
)
def test_options_that_make_no_sense_are_refused(arguments, capsys):
    assert run(["apply", *arguments]) == 2
    assert capsys.readouterr().err


def test_assert_says_what_it_compared_when_all_is_well(tmp_path, capsys):
    policy, machine = tmp_path / "policy.yaml", tmp_path / "machine.json"
    policy.write_text(
        "version: partage/v1\ngpus:\n  - {select: {index: 0}, mig: {layout: [3g.40gb]}}\n"
        "  - {select: rest, exclusive: {}}\n"
    )
    node = ["--machine", str(machine), "-f", str(policy)]
    assert run(["record", "--machine", "2xh100-sxm5-80gb", "--to", str(machine)]) == 0
    assert run(["apply", *node, "--write", str(machine)]) == 0
    said = capsys.readouterr()
    for step in ("turn MIG mode on", "create the MIG device 3g.40gb at 4:4"):
        assert (said.out + said.err).count(step) == 1
    assert run(["assert", *node]) == 0
    assert capsys.readouterr().out == "as wanted: GPUs 0-1; compared: MIG layout of GPU 0\n"
    assert run(["assert", *node, "-o", "json"]) == 0
    compared = json.loads(capsys.readouterr().out)["compared"]
    assert compared == {"migLayouts": [0], "mpsDaemons": [], "computeModes": [], "timeSlices": []}


@pytest.mark.parametrize(
    ("machine", "entry"),
    [
        ("1xl4", "mps: {replicas: 4}"),
        ("1xl4", "time-slicing: {replicas: 4, interval: short}"),
        ("1xh100-sxm5-80gb", "mig: {layout: [3g.40gb, 3g.40gb], mps: {replicas: 2}}"),
        ("1xl4", "mps: {protocol: 3, clients: [{name: big, memory: 8Gi}, {name: small, memory: 4Gi}]}"),
    ],
)
def test_a_written_machine_is_as_it_was_left(tmp_path, capsys, machine, entry):
    policy, file = tmp_path / "policy.yaml", tmp_path / "machine.yaml"
    policy.write_text(f"version: partage/v1\ngpus:\n  - {{select: all, {entry}}}\n")
    if "protocol" in entry:
        model = {"gpus": [{"name": "NVIDIA L4"}], "driver": "615.10.01", "cuda-driver": "13.3"}
        machine = tmp_path / "before.json"
        machine.write_text(json.dumps(model))
    assert run(["apply", "-f", str(policy), "--machine", str(machine), "--write", str(file)]) == 0
    node = ["--machine", str(file), "-f", str(policy)]
    capsys.readouterr()
    assert run(["plan", *node, "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == []
    assert run(["assert", *node]) == 0
    assert run(["record", *node[:2], "--to", str(tmp_path / "again.yaml")]) == 0
    assert run(["assert", "--machine", str(tmp_path / "again.yaml"), *node[2:]]) == 0


def test_assert_without_a_policy_is_refused_as_apply_is(capsys):
    """It said "as wanted" of a node that nobody had wanted to be anything."""
    assert run(["assert", "--machine", "1xl4"]) == 2
    assert "assert needs --policy" in capsys.readouterr().err


def test_a_lost_gpu_is_not_as_wanted(tmp_path, capsys):
    """plan, apply and assert said that all is as wanted, of two GPUs of three or of none."""
    policy, machine = tmp_path / "policy.yaml", tmp_path / "machine.json"
    policy.write_text("version: partage/v1\ngpus: [{select: {index: 2}, time-slicing: {replicas: 2}}]\n")
    lost = {"index": 2, "uuid": None, "pci-bus-id": None, "reason": "fallen off the bus"}
    machine.write_text(json.dumps({"gpus": [{"name": "NVIDIA L4"}] * 2, "lost": [lost]}))
    node = ["--machine", str(machine), "-f", str(policy)]
    assert run(["assert", *node]) == 1
    assert capsys.readouterr().out == "GPU 2: it is lost: fallen off the bus\n"
    assert run(["assert", *node, "-o", "json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert (answer["asWanted"], [row["index"] for row in answer["differences"]]) == (False, [2])
    assert run(["plan", *node]) == 0
    said = capsys.readouterr().out
    assert "GPU 2 is lost: fallen off the bus" in said
    assert "the node is as the policy wants it" not in said
    assert run(["apply", *node]) == 0
    done = capsys.readouterr()
    assert "GPU 2 is lost: fallen off the bus" in done.err
    assert "the node is as it should be" not in done.out
    pod = tmp_path / "pod.yaml"
    pod.write_text(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers:\n"
        "    - {name: main, resources: {limits: {nvidia.com/gpu.shared: 1}}}\n"
    )
    assert run(["explain", str(pod), *node]) == 1
    assert "it does not answer: fallen off the bus" in " ".join(capsys.readouterr().out.split())
