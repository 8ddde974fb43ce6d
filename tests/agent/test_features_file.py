"""Labels in a file for node-feature-discovery, in place of the Node."""

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from partage.agent.node_labels import FeaturesFile
from partage.agent.status.status import AgentStatus
from partage.cli.main import run
from partage.edges.files.catalogue import geometry_of
from partage.edges.files.policy import parse_policy
from partage.model.node_labels import WrittenLabels
from partage.plan.offer.desired import resolve
from partage.sim.node.files.load import load_machine
from tests.agent.harness import native, place
from tests.agent.test_api_outage import report
from tests.agent.test_cluster import _agent, _until

REPLICAS = "nvidia.com/gpu.replicas=4\n"


def _report(number: int, policy: str = "version: partage/v1"):
    read = parse_policy(policy, "policy.yaml").policy
    return report(resolve(read, load_machine("1xl4").inventory, geometry_of), number)


@asynccontextmanager
async def _kept(path: Path, status: AgentStatus, writes: WrittenLabels = WrittenLabels.ALL):
    task = asyncio.create_task(FeaturesFile(path, status, writes, retry_s=0.01).run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_the_file_follows_what_is_offered_and_the_node_gets_no_labels(tmp_path: Path):
    file = tmp_path / "features"
    policy = native("{select: all, time-slicing: {replicas: 4}}")
    async with _agent(policy, features_file=file) as (here, api, agent):
        await _until(lambda: file.exists() and REPLICAS in file.read_text(), "labels", agent)
        assert file.stat().st_mode & 0o777 == 0o644
        here.write_policy(native())
        await _until(lambda: REPLICAS not in file.read_text(), "the new ones", agent)
        await _until(lambda: api.conditions, "the rest is written to the Node", agent)
        assert api.labels == {"mine": "1"}
    assert "nvidia.com/gpu.count=4\n" in file.read_text(), "as labels of a Node, they stay"
    assert [one.name for one in tmp_path.iterdir()] == ["features"]


async def test_a_file_that_cannot_be_written_is_tried_again_and_one_that_is_gone_is_written_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    file = tmp_path / "features.d" / "partage"
    status = AgentStatus(lambda: 0.0)
    status.publish(_report(1))
    async with _kept(file, status):
        await _until(lambda: "labels are not written to the file" in caplog.text, "told")
        file.parent.mkdir()
        await _until(file.exists, "written")
        file.unlink()
        status.publish(_report(2))
        await _until(file.exists, "written again")
    assert caplog.text.count("labels are not written to the file") == 1


async def test_beside_nvidias_feature_discovery_the_file_has_only_own_labels(tmp_path: Path):
    file = tmp_path / "partage"
    status = AgentStatus(lambda: 0.0)
    status.publish(_report(1))
    async with _kept(file, status, WrittenLabels.OWN):
        await _until(file.exists, "written")
    assert {line.partition("/")[0] for line in file.read_text().splitlines()} == {"partage.dev"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--features-file=/no/such/directory/file"], "there is no directory /no/such/directory"),
        (["--features-file=/tmp/file", "--labels=none"], "--labels none writes none"),
    ],
)
def test_options_that_cannot_work_end_the_agent(options, said, capsys: pytest.CaptureFixture[str]):
    with place() as here:
        assert run(["agent", *here.options(), "--machine=1xl4", *options]) == 2
    assert said in capsys.readouterr().err
