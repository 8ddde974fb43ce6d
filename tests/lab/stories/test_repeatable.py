"""A story is the same each time it is played, to the byte."""

from pathlib import Path

import pytest

from partage.cli.main import run
from tests.examples import variants

EXAMPLES = Path(__file__).parents[3] / "examples"
TIMES = 2


@pytest.mark.parametrize(
    ("example", "output"),
    variants(
        [("12-mps-namespaces", "json"), ("02-time-slicing", "table"), ("10-mig-by-difference", "table")], 3
    ),
)
def test_a_story_is_told_in_the_same_words_each_time(example, output, capsys):
    told = set()
    for _ in range(TIMES):
        assert run(["simulate", str(EXAMPLES / example / "story.yaml"), "-o", output]) == 0
        told.add(capsys.readouterr().out)
    assert len(told) == 1


def test_who_is_waited_for_has_not_ended_and_processes_are_named(capsys):
    assert run(["simulate", str(EXAMPLES / "10-mig-by-difference" / "story.yaml")]) == 0
    said = [line.strip() for line in capsys.readouterr().out.splitlines() if " waits for " in line]
    assert said == [
        "GPU 0 waits for embedder",
        "GPU 0 waits for report",
        "GPU 1 waits for process python3 (pid 4711)",
    ]


def test_a_reboot_is_noticed_before_an_expectation_is_judged(tmp_path, capsys):
    """What the kubelet was told before the reboot is not what comes of it."""
    story = tmp_path / "story.yaml"
    layout = "{select: all, mig: {layout: [3g.40gb]}}"
    story.write_text(
        f"machine: h100-sxm5-80gb\npolicy: {{version: partage/v1, gpus: [{layout}]}}\nsteps:\n"
        "  - expect: {allocatable: {nvidia.com/mig-3g.40gb: 1}}\n  - fault: {reboot: true}\n"
        "  - expect: {allocatable: {nvidia.com/mig-3g.40gb: 1}}\n"
    )
    assert run(["simulate", str(story), "-o", "json"]) == 0
    assert '"current": true' in capsys.readouterr().out
