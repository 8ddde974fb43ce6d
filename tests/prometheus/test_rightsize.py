"""``partage rightsize`` from a real Prometheus: simulated loads whose peaks are known, seen by the exporter.

An hour of scrapes is made in the simulation's time and given to Prometheus as blocks, so that nobody waits
for it.
"""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest

from partage.cli.main import run
from partage.model.ids import ContainerId, PodUid
from partage.plan.serve.ledger_entry import Holder
from partage.sim.node.faults import Occupy
from partage.sim.node.load import Load, LoadShape
from partage.units import GIB
from tests.agent.conftest import kubelet as kubelet  # noqa: PLC0414 - a fixture
from tests.agent.conftest import node as node  # noqa: PLC0414 - a fixture
from tests.agent.test_usage import Planted, Stage
from tests.agent.test_usage import stage as stage  # noqa: PLC0414 - a fixture
from tests.prometheus.server import needs_prometheus, prometheus, promtool

pytestmark = [pytest.mark.real, needs_prometheus, pytest.mark.xdist_group("prometheus")]
HOUR_S = 3600
SPIKE = Load(LoadShape.SPIKES, to_bytes=9 * GIB, idle=0.2, busy=0.2, every_s=700.0, for_s=2.0)
NEEDED = (
    "partage_container_",
    "partage_unattributed_memory_bytes",
    "partage_gpu_memory_used_bytes",
    "partage_gpu_memory_total_bytes",
    "partage_mig_memory_total_bytes",
)


def plant(stage: Stage, name: str, gpu: int, memory_bytes: int, load: Load) -> None:
    """A pod on a share of that GPU."""
    number = len(stage.pods) + 1
    resource, share, uuid, _ = next(one for one in stage.free_shares() if one[3] == gpu)
    holder, container = Holder("team", name, "main"), ContainerId(f"{number:064x}")
    now_s = stage.clock.now_s
    stage.pods[holder] = Planted(holder, container, resource, share, uuid, gpu, (None, None), now_s, 0)
    (stage.node.container_logs / f"{name}_team_main-{container}.log").touch()
    stage._tell_kubelet()
    stage.helper.inject(
        Occupy(
            gpu,
            name,
            pid=1000 + number,
            memory_bytes=memory_bytes,
            container=container,
            pod=PodUid(f"0b5a1e0c-6f1e-4d3c-9b42-{number:012d}"),
            load=load,
        )
    )


async def scrapes(stage: Stage, every_s: float) -> list[str]:
    """An hour of samples with their times, which end now."""
    lines = []
    began_s = time.time() - HOUR_S
    for number in range(int(HOUR_S / every_s)):
        text, _ = await asyncio.to_thread(stage.write, "")
        at_s = began_s + number * every_s
        lines += [f"{line} {at_s:.3f}" for line in text.decode().splitlines() if line.startswith(NEEDED)]
        stage.clock.now_s += every_s
    return lines


@pytest.mark.parametrize("every_s", [15.0, 20.0, 60.0])
async def test_the_right_size_of_loads_that_a_real_prometheus_has_seen(
    stage: Stage, tmp_path: Path, capsys: pytest.CaptureFixture[str], every_s: float
) -> None:
    await asyncio.to_thread(stage.write, "")  # sampling begins with the first scrape
    for number, gpu in enumerate((4, 4, 5)):
        plant(stage, f"train-{number}", gpu, 4 * GIB, SPIKE)
    plant(stage, "llm-x2x4k", 2, int(0.9 * 80 * GIB), Load(busy=0.5))
    plant(
        stage, "batch-7", 1, 2 * GIB, Load(LoadShape.RAMP, to_bytes=30 * GIB, busy=0.9, every_s=HOUR_S - 60)
    )
    await stage.until(stage.ledger_agrees)
    recorded = tmp_path / "scrapes"
    recorded.write_text("\n".join([*await scrapes(stage, every_s), "# EOF\n"]))
    await asyncio.to_thread(
        promtool, "tsdb", "create-blocks-from", "openmetrics", recorded, tmp_path / "data"
    )
    with prometheus(tmp_path) as server:
        options = ["--prometheus", server.url, "--window", "2h", "-o", "json"]
        answers = []
        for model in ("b200-180gb", "h100-sxm5-80gb"):
            assert await asyncio.to_thread(run, ["rightsize", *options, "--gpu", model]) == 0
            answers.append(json.loads(capsys.readouterr().out))
    larger, found = answers
    refused = {one["name"] for one in larger["workloads"] if one["doubt"]}
    assert refused == {"team/llm/main"}, "it took a part of the GPU on which it ran, not of a larger one"
    by_name = {one["name"]: one for one in found["workloads"]}
    train, llm, batch = (by_name[f"team/{name}/main"] for name in ("train", "llm", "batch"))
    # The spikes last two seconds: most scrapes miss them, the exporter's own peak does not.
    assert (train["runs"], train["peakBytes"], train["needBytes"]) == (3, 9 * GIB, 11 * GIB)
    assert (train["mps"], train["doubt"]) == (4, None)
    assert llm["doubt"] == "preallocates"
    assert batch["needBytes"] == 39 * GIB, "it still grows: 30 % more"
    for one in (train, batch):
        assert not [risk for risk in one["risks"] if "samples cover" in risk]
    assert found["unattributed"] == 0
