"""The metrics of a compute node: a simulated GPU with a job, a script in place of squeue, and real HTTP."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from partage.agent.options import AgentOptions, Intervals
from partage.agent.state_writer import StateWriter
from partage.agent.status.status import AgentStatus
from partage.edges.files.state import StateDir
from partage.edges.hardware.supervisor import HelperState
from partage.model.dcgm_names import DcgmNames
from partage.serve_http.agent_pages import agent_pages
from partage.serve_http.http import HttpServer
from partage.serve_http.http_access import HttpAccess, HttpOptions, listen
from partage.slurm.agent.options import SlurmOptions
from partage.slurm.agent.service import SlurmService, import_metrics
from partage.slurm.model import SlurmVersion
from partage.units import GIB
from tests.slurm.agent.test_history import NAMED, hardware_with_a_job, squeue

Ask = Callable[[str], tuple[int, str]]


@contextmanager
def served(status: AgentStatus, intervals: Intervals) -> Iterator[Ask]:
    taken = listen("127.0.0.1:0")
    pages = agent_pages(
        status,
        intervals,
        lambda: HelperState(up=True, restarts=2),
        "g1",
        DcgmNames.OLD,
        metrics_of=import_metrics,
    )
    server = HttpServer(taken, pages, HttpAccess(HttpOptions()))
    where = f"http://127.0.0.1:{taken.getsockname()[1]}"

    def ask(path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(where + path, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    try:
        yield ask
    finally:
        server.close()


@asynccontextmanager
async def compute_node(home: Path) -> AsyncIterator[SlurmService]:
    """Its agent, of which no task runs."""
    squeue(home, json.dumps({"jobs": NAMED}))
    hardware = await hardware_with_a_job("job_7")
    options = AgentOptions(state_dir=home / "state", run_dir=home / "run")
    slurm = SlurmOptions("g1", SlurmVersion(24, 11, 5), home, home / "devices.json", programs=home)
    status = AgentStatus(time.monotonic, pulse_s=time.monotonic())
    directory = StateDir(options.state_dir)
    try:
        yield SlurmService(
            options, slurm, hardware, status, StateWriter(directory, options.report_file, status.clock)
        )
    finally:
        directory.close()


async def test_a_compute_node_tells_what_its_jobs_use(tmp_path: Path) -> None:
    async with compute_node(tmp_path) as node, asyncio.TaskGroup() as group:
        with served(node.status, Intervals()) as ask:
            assert (await asyncio.to_thread(ask, "/livez"))[0] == 200
            code, said = await asyncio.to_thread(ask, "/healthz")
            assert (code, "has not looked at the node yet" in said) == (503, True)
            await node.first_turn(group)
            code, said = await asyncio.to_thread(ask, "/healthz")
            assert (code, "the hardware has not answered yet" in said) == (503, True)
            assert "partage_gpu" not in (await asyncio.to_thread(ask, "/metrics"))[1]

            await node.hardware.observe()
            await node.first_turn(group)
            assert (await asyncio.to_thread(ask, "/healthz"))[0] == 200
            _, text = await asyncio.to_thread(ask, "/metrics")
            code, said = await asyncio.to_thread(ask, "/history.json")
            assert (code, "--history 0" in said) == (404, True)
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    gpu = next(key[1:] for key in found if key[0] == "partage_gpu_memory_used_bytes")
    assert found["partage_job_info", "7", "train", "anna"] == 1
    used = {key[1:]: value for key, value in found.items() if key[0] == "partage_job_memory_used_bytes"}
    assert list(used.values()) == [3 * GIB]
    assert found["partage_gpu_memory_used_bytes", *gpu] >= 3 * GIB
    assert found[("partage_helper_restarts_total",)] == 2
    assert {key[0] for key in found} >= {"partage_xids_total", "partage_driver_up", "DCGM_FI_DEV_FB_USED"}
    assert not any(name.startswith("partage_container") for name, *_ in found)


async def test_without_an_answer_of_slurm_a_job_has_a_number(tmp_path: Path) -> None:
    async with compute_node(tmp_path) as node, asyncio.TaskGroup() as group:
        squeue(tmp_path, "squeue: error", code=1)
        await node.hardware.observe()
        await node.first_turn(group)
        with served(node.status, Intervals()) as ask:
            _, text = await asyncio.to_thread(ask, "/metrics")
    assert "partage_job_memory_used_bytes{" in text
    assert "partage_job_info{" not in text
