"""``partage simulate --trace``: a trace and a fleet from files, policies side by side, messages that help."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from partage.cli.main import run

PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,creation_time,deletion_time,scheduled_time"
LINES = (
    "train,8000,32768,1,1000,,LS,0,1000,0",
    "serve-a,2000,8192,1,250,T4|V100M16,LS,10,500,12",
    "serve-b,2000,8192,1,250,,LS,20,500,20",
    "serve-c,2000,8192,1,480,,BE,30,530,30",
    "big,8000,32768,4,1000,,LS,40,500,",
    "batch,1000,2048,0,0,,BE,50,90,50",
    "rare,1000,2048,1,1000,G3,BE,60,90,60",
)
NODES = ("sn,cpu_milli,memory_mib,gpu,model", "a,32000,262144,1,T4", "b,32000,262144,2,V100M16")
MODELS = ("--gpu-model", "V100M16=v100-sxm2-16gb")
EXCLUSIVE = "version: partage/v1\n"
HALVES = (
    "version: partage/v1\ngpus:\n  - select: {model: t4}\n    mps: {replicas: 2}\n"
    "  - select: rest\n    exclusive: {}\n"
)
UNITS = "version: partage/v1\ngpus: [{select: all, time-slicing: {unit: 1Gi}}]\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "pods.csv").write_text("\n".join([PODS, *LINES]) + "\n")
    (tmp_path / "nodes.csv").write_text("\n".join(NODES) + "\n")
    (tmp_path / "exclusive.yaml").write_text(EXCLUSIVE)
    (tmp_path / "halves.yaml").write_text(HALVES.replace("select: {model: t4}", "select: {index: [0]}"))
    (tmp_path / "units.yaml").write_text(UNITS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ask(*more: str) -> int:
    return run(["simulate", "--trace", "pods.csv", "--fleet", "nodes.csv", *MODELS, *more])


def answer(capsys: pytest.CaptureFixture[str], *more: str) -> Any:
    assert ask(*more, "-o", "json") == 0
    return json.loads(capsys.readouterr().out)


def test_policies_side_by_side(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "--policy", "exclusive.yaml", "--policy", "halves.yaml", "--policy", "units.yaml")
    assert (found["kind"], found["pods"], found["fleet"]) == ("WhatIf", 7, {"nodes": 2, "gpus": 3})
    exclusive, halves, units = found["policies"]
    assert exclusive["policy"] == "exclusive.yaml"
    assert (exclusive["atOnce"], exclusive["waited"], exclusive["neverFit"]) == (4, 1, 2)
    assert exclusive["waits"] == {"medianSeconds": 468.0, "p95Seconds": 468.0, "longestSeconds": 468.0}
    assert {one["cause"] for one in exclusive["never"]} == {"gpus", "model"}
    assert (halves["atOnce"], halves["waited"]) == (5, 0)
    assert (units["atOnce"], units["gpus"]["offered"]) == (5, 3.0)
    assert all(one["hint"] for policy in found["policies"] for one in policy["never"])
    assert found["spanSeconds"] == 1000.0
    held = [moment["held"] for moment in exclusive["overTime"]]
    assert (max(held), held[-1]) == (exclusive["gpus"]["peakHeld"], 0.0)


def test_the_table_says_what_to_do_next(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask("--policy", "exclusive.yaml", "--policy", "halves.yaml") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "7 pods of pods.csv on 2 nodes with 3 GPUs, over 16.7 min" in text
    assert "pods that started at once 4 5" in text
    assert "exclusive.yaml: 1 pod fits on no node: no node has a GPU that they may use (g3)" in text
    assert "they ask for 4 whole GPUs, and one container can have at most 2 on a node" in text
    assert text.count("Next: ") == 4
    assert "All run equally many pods; halves.yaml starts 1 pod more at once." in text


def test_the_plot_can_be_looked_at(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from matplotlib import image  # half a second, which each worker would pay for

    for name in ("plot.png", "plot.svg"):
        assert ask("--policy", "exclusive.yaml", "--policy", "units.yaml", "--plot", name) == 0
    height, width, _ = image.imread("plot.png").shape
    assert (width, height) == (1344, 992)
    assert "<svg" in Path("plot.svg").read_text()


def test_what_spreadsheets_and_windows_make_of_a_table(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A byte order mark, other ends of lines, spaces, an empty last column, any letters in a name."""
    before = answer(capsys)
    rows = [row.replace("serve-a", '"serve\u2028, a"') + "," for row in (PODS.replace(",", ", "), *LINES)]
    Path("pods.csv").write_bytes("\r\n".join(["\ufeff" + rows[0], "", *rows[1:], ""]).encode())
    assert answer(capsys) == before


def test_gpu_memory_that_is_asked_for_is_not_all_of_the_share(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """6 GiB of a T4 with 15 GiB, and what else a manifest asks of a node does not matter."""
    pods = [
        {"name": "a", "gpus": 1, "gpuMemory": "6Gi", "lastsSeconds": 10},
        {"name": "b", "requests": {"cpu": 1, "ephemeral-storage": "1Gi", "hugepages-2Mi": "4Mi"}},
    ]
    Path("pods.json").write_text(json.dumps({"pods": pods}))
    assert run(["simulate", "--trace", "pods.json", "--machines", "1xt4", "-o", "json"]) == 0
    (result,) = json.loads(capsys.readouterr().out)["policies"]
    assert (result["atOnce"], result["gpus"]["peakHeld"]) == (2, 1.0)
    assert result["gpus"]["peakAsked"] == pytest.approx(6 / 15, abs=0.01)


def test_machines_by_name_and_requests_as_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pods = [
        {"name": "a", "requests": {"nvidia.com/gpu": 8, "cpu": "500m", "memory": "2Gi"}},
        {"name": "b", "createdSeconds": 5, "lastsSeconds": 10, "gpus": 1, "gpuMemory": "30Gi"},
        {"name": "c", "createdSeconds": 5, "lastsSeconds": 10, "gpus": 1, "gpuMilli": 500, "models": ["L4"]},
        {"name": "d", "createdSeconds": 6, "requests": {"example.com/gpu": 1}},
    ]
    Path("pods.json").write_text(json.dumps({"pods": pods}))
    assert run(["simulate", "--trace", "pods.json", "--machines", "2*8xl40s,1xl4", "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (result,) = found["policies"]
    assert found["fleet"] == {"nodes": 3, "gpus": 17}
    assert (result["policy"], result["atOnce"], result["neverFit"]) == ("every GPU exclusive", 3, 1)
    assert result["never"][0]["message"] == "no node offers example.com/gpu; for example d"
    assert result["gpus"]["peakHeld"] == 10.0


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("num_gpu,gpu_milli", "gpus,gpu_milli", "pods.csv: line 1: lacks the columns num_gpu"),
        ("10,500,12", "-10,500,12", "pods.csv: line 3: creation_time is '-10', a number from 0 on"),
        ("20,500,20", "20,10,20", "pods.csv: line 4: deletion_time 10 is before scheduled_time 20"),
        ("40,500,", "40,30,", "pods.csv: line 6: deletion_time 30 is before creation_time 40"),
        ("30,530,30", "30,530,3", "pods.csv: line 5: scheduled_time 3 is before creation_time 30"),
        ("1,480,", "1,0,", "pods.csv: line 5: num_gpu is 1 and gpu_milli is 0"),
        ("1,480,", "1.5,480,", "pods.csv: line 5: num_gpu is 1.5, a whole number is needed"),
        ("big,8000", "big,many", "pods.csv: line 6: cpu_milli is 'many', a number from 0 on is needed"),
        ("big,8000", "big,8_000", "pods.csv: line 6: cpu_milli is '8_000', a number from 0 on is needed"),
        (
            "10,500,12",
            "today,500,12",
            "creation_time is 'today', a number from 0 on is needed (times are in sec",
        ),
        ("1,480,", "1,1480,", "pods.csv: line 5: gpu_milli is 1480, a number from 1 to 1000 is needed"),
        ("0,0,,BE", "0,500,,BE", "pods.csv: line 7: num_gpu is 0, and gpu_milli is 500"),
        ("big,", "a, big,", "pods.csv: line 6: has 11 columns, and the first line has 10"),
        (",30,530,30", "", "pods.csv: line 5: has 7 columns, and the first line has 10"),
        ("serve-c", '"serve-c', "pods.csv: line 8: has 1 columns, and the first line has 10"),
        ("serve-c", "\x1b[31mserve", "pods.csv: line 5: has characters that cannot be printed"),
        ("gpu_spec,", "gpu_milli,", "pods.csv: line 1: names the columns gpu_milli twice"),
        (
            "gpu_spec,",
            "gpu_memory_mib,",
            "line 3: gpu_memory_mib is 'T4|V100M16', a number from 0 on is needed",
        ),
        (",", ";", "lacks the columns name, cpu_milli, memory_mib, num_gpu, gpu_milli (commas are needed"),
    ],
)
def test_a_wrong_trace_is_refused_with_line_and_column(
    folder: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, said: str
) -> None:
    path = folder / "pods.csv"
    path.write_text(path.read_text().replace(old, new, -1 if old == "," else 1))
    assert ask() == 2
    assert said in capsys.readouterr().err


def test_all_problems_of_a_trace_are_named_at_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "pods.csv"
    path.write_text(path.read_text().replace(",LS,", ",LS,-"))
    assert ask() == 2
    assert capsys.readouterr().err.count("creation_time is '-") == 3


@pytest.mark.parametrize(
    ("pods", "said"),
    [
        ('{"pods": [{"name": "a", "gpu": 1}]}', "unknown field `gpu` - at `$.pods[0]`"),
        ('{"pods": [{"name": "a", "gpus": 1}]}', "pods[0]: gpus is 1, and how much of each is not clear"),
        ('{"pods": [{"name": "a", "lastsSeconds": -1}]}', "pods[0]: lastsSeconds is -1"),
        ('{"pods": [{"name": "a", "requests": {"cpu": "many"}}]}', "pods[0]: requests of cpu: 'many'"),
        ('{"pods": [{"name": "a", "requests": {"nvidia.com/gpu": "1.5"}}]}', "is no whole number"),
        (
            '{"pods": [{"name": "a", "requests": {"memory": "8Qi"}}]}',
            "requests of memory: '8Qi' is not an amount",
        ),
        ('{"pods": [{"name": "a", "gpus": 1, "gpuMemory": "much"}]}', "pods[0]: gpuMemory: 'much' is not"),
        ('{"pods": [{"name": "a", "gpuMilli": 500}]}', "pods[0]: has gpuMilli without gpus"),
        ('{"pods": [{"name": "a\\u001b[31m"}]}', "pods[0]: its name or a model has characters"),
        ('{"pods": []}', "names no pods"),
        ("[", "pods.json"),
    ],
)
def test_a_wrong_json_trace_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], pods: str, said: str
) -> None:
    Path("pods.json").write_text(pods)
    assert run(["simulate", "--trace", "pods.json", "--machines", "1xl4"]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("2,V100M16", "2,V100", "choose one: v100-sxm2-16gb, "),
        ("2,V100M16", "2,G2", "no GPU model is called 'G2' (--gpu-model G2=MODEL says which GPU it is"),
        ("2,V100M16", "0,V100M16", "nodes.csv: line 3: gpu is 0, a number from 1 to 64 is needed"),
        (",model", ",kind", "nodes.csv: line 1: lacks the columns model"),
        ("b,32000", "a,32000", "nodes.csv: names a more than once"),
    ],
)
def test_a_wrong_fleet_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, said: str
) -> None:
    path = folder / "nodes.csv"
    path.write_text(path.read_text().replace(old, new, 1))
    assert ask() == 2
    assert said in capsys.readouterr().err


def test_a_policy_that_does_not_hold_on_some_nodes_names_them(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("mig.yaml").write_text("version: partage/v1\ngpus: [{select: all, mig: {layout: [1g.10gb]}}]\n")
    assert ask("--policy", "mig.yaml") == 3
    assert "mig.yaml: does not hold on the nodes of 1 x T4 (32 CPUs, 256 GiB)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--trace", "pods.csv"], "--trace needs a fleet"),
        (["--trace", "pods.csv", "--fleet", "nodes.csv", "--machines", "1xl4"], "--trace needs a fleet"),
        (
            ["--trace", "pods.csv", "--machines", "1xl4", "--gpu-model", "G2=l4"],
            "--gpu-model goes with --fleet",
        ),
        (["--trace", "pods.csv", "--machines", "1xl4", "--serve"], "--trace goes without STORY"),
        (["--trace", "pods.csv", "--fleet", "nodes.csv", "--gpu-model", "G2"], "is no pair NAME=MODEL"),
        (["--fleet", "nodes.csv", "story.yaml"], "go with --trace"),
        (["--policy", "a", "--policy", "b", "story.yaml"], "a story is played with one --policy"),
        ([], "a STORY is needed, or --trace FILE"),
        (["--trace", "none.csv", "--machines", "1xl4"], "none.csv: cannot be read: No such file"),
        (["--trace", "pods.csv", "--machines", "0*1xl4"], "--machines names no node"),
        (
            ["--trace", "none.csv", "--machines", "1xl4", "--plot", "none/plot.png"],
            "none/plot.png: cannot be written: there is no such folder",
        ),
    ],
)
def test_options_that_do_not_go_together(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert run(["simulate", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_progress_is_shown_on_a_terminal(folder: Path) -> None:
    """As a process of its own, whose stderr is a terminal."""
    ours, theirs = pty.openpty()
    command = [str(Path(sys.executable).with_name("partage"))]
    arguments = ["simulate", "--trace", "pods.csv", "--fleet", "nodes.csv", *MODELS]
    with subprocess.Popen(
        [*command, *arguments], stdout=subprocess.PIPE, stderr=theirs, env={**os.environ, "TERM": "xterm"}
    ) as process:
        out, _ = process.communicate(timeout=30)
    shown = os.read(ours, 65536).decode()  # while the other end is open; the terminal keeps 4 KiB
    os.close(theirs)
    os.close(ours)
    assert process.returncode == 0
    assert b"pods that started at once" in out
    assert "playing every GPU exclusive" in shown
    assert "7/7" in shown


def test_an_entry_for_other_nodes_of_the_fleet_is_no_warning(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = "version: partage/v1\ngpus: [{select: {model: MODEL}, time-slicing: {replicas: 2}}]\n"
    Path("t4.yaml").write_text(entry.replace("MODEL", "t4"))
    Path("l4.yaml").write_text(entry.replace("MODEL", "l4"))
    assert ask("--policy", "t4.yaml", "--policy", "l4.yaml") == 0
    said = capsys.readouterr().err
    assert "l4.yaml: gpus[0].select: matches no GPU" in said
    assert "t4.yaml" not in said


CLAIMS = """\
version: partage/v1
gpus:
  - {select: {index: [0]}, via: claims, time-slicing: {unit: 1Gi}}
  - {select: {index: [1]}, via: claims, mig: {layout: [3g.40gb, 3g.40gb]}}
  - {select: rest, exclusive: {}}
"""


def asking(device_class: str, *selectors: str, **capacity: str) -> dict[str, Any]:
    asks: dict[str, Any] = {"deviceClassName": device_class, "capacity": {"requests": capacity}}
    asks["selectors"] = [{"cel": {"expression": one}} for one in selectors]
    return {"devices": {"requests": [{"name": "gpu", "exactly": asks}]}}


@pytest.mark.parametrize("domain", ["partage.dev", "nvidia.com"])
def test_pods_with_claims_get_shares_as_a_node_gives_them(
    folder: Path, capsys: pytest.CaptureFixture[str], domain: str
) -> None:
    """60 of 79 GiB, then 30 that wait for their end; two MIG devices and no third; a GPU by name; and what no
    GPU has.
    """
    mig = asking(f"mig.{domain}")
    pods = [
        {"name": "large", "lastsSeconds": 100, "claims": [asking(f"gpu.{domain}", memory="60Gi")]},
        {"name": "waits", "createdSeconds": 1, "claims": [asking(f"gpu.{domain}", memory="30Gi")]},
        {"name": "both", "createdSeconds": 2, "claims": [mig, mig]},
        {"name": "third", "createdSeconds": 3, "claims": [mig]},
        {"name": "by-name", "createdSeconds": 4, "requests": {"nvidia.com/gpu": 1}},
        {"name": "never", "createdSeconds": 5, "claims": [asking(f"gpu.{domain}", memory="90Gi")]},
    ]
    Path("pods.json").write_text(json.dumps({"pods": pods}))
    Path("claims.yaml").write_text(CLAIMS)
    words = ["simulate", "--trace", "pods.json", "--machines", "3xh100-sxm5-80gb", "--policy", "claims.yaml"]
    assert run([*words, "-o", "json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["policies"]
    assert (found["atOnce"], found["waited"], found["stillWaiting"]) == (3, 1, 1)
    (never,) = found["never"]
    assert (found["neverFit"], never["cause"]) == (1, "claim")
    assert "has memory 79Gi in all, 90Gi is asked for" in never["message"]
    # In the end 30 of 79 GiB, two MIG devices of 0.496 each, and a whole GPU.
    assert found["overTime"][-1]["held"] == 2.372


def test_a_claim_that_is_written_wrong_is_said_with_its_place(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("claims.yaml").write_text(CLAIMS)
    words = ["simulate", "--trace", "pods.json", "--machines", "3xh100-sxm5-80gb", "--policy", "claims.yaml"]
    wrong = [{"name": "a", "claims": [{"devices": {"requests": [{"name": "gpu"}]}}]}]
    Path("pods.json").write_text(json.dumps({"pods": wrong}))
    assert run(words) == 2
    said = capsys.readouterr().err
    assert "claims[0].devices.requests[0]" in said
    assert "needs one of exactly and firstAvailable" in said


ON_DEMAND = """\
version: partage/v1
gpus: [{select: all, via: claims, mig: {on-demand: true}}]
"""


@pytest.mark.parametrize("domain", ["partage.dev", "nvidia.com"])
def test_mig_devices_are_made_of_a_gpu_as_claims_ask_for_them(
    folder: Path, capsys: pytest.CaptureFixture[str], domain: str
) -> None:
    """Two halves of one GPU, and the other one whole. Who wants a third half waits until the first has ended;
    who wants all of a GPU, until both halves of one have.
    """
    driver = "gpu.partage.dev" if domain == "partage.dev" else "gpu.nvidia.com"
    half = asking(f"mig.{domain}", f"device.attributes['{driver}'].profile == '3g.40gb'")
    whole = asking(f"gpu.{domain}")
    pods = [
        {"name": "half-0", "lastsSeconds": 10, "claims": [half]},
        {"name": "half-1", "lastsSeconds": 20, "claims": [half]},
        {"name": "whole-0", "createdSeconds": 1, "claims": [whole]},
        {"name": "third", "createdSeconds": 2, "lastsSeconds": 30, "claims": [half]},
        {"name": "whole-1", "createdSeconds": 3, "claims": [whole]},
    ]
    Path("pods.json").write_text(json.dumps({"pods": pods}))
    Path("claims.yaml").write_text(ON_DEMAND)
    words = ["simulate", "--trace", "pods.json", "--machines", "2xh100-sxm5-80gb", "--policy", "claims.yaml"]
    assert run([*words, "-o", "json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["policies"]
    assert (found["atOnce"], found["waited"], found["stillWaiting"], found["neverFit"]) == (3, 2, 0, 0)
    held = {moment["atSeconds"]: moment["held"] for moment in found["overTime"]}
    assert held == {0.0: 0.992, 1.0: 1.992, 2.0: 1.992, 3.0: 1.992, 10.0: 1.992, 20.0: 1.496, 40.0: 2.0}
