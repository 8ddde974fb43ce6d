"""Any file as a trace or a list of nodes: it is read, or refused with the file's name."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partage.errors import InputError
from partage.units import MIB
from partage.whatif.decide.pods import PodWants, TracePod
from partage.whatif.fleet import read_fleet
from partage.whatif.pod_trace import NEEDED, read_pod_trace

CELLS = st.one_of(
    st.sampled_from(
        ["", "0", "1", "8", "1000", "2.5", "-1", "nan", "inf", "1e30", "T4|A10", '"', "a,b", "\0"]
    ),
    st.text(max_size=6),
)
LINES = st.lists(st.lists(CELLS, max_size=12).map(",".join), max_size=6)


@given(LINES, st.booleans())
def test_any_text_is_read_or_refused(lines: list[str], named: bool) -> None:
    with TemporaryDirectory() as folder:
        for name, head, read in (
            ("pods.csv", ",".join((*NEEDED, "gpu_spec", "creation_time", "deletion_time")), read_pod_trace),
            ("nodes.csv", "sn,gpu,model,cpu_milli", read_fleet),
            ("pods.json", "", read_pod_trace),
        ):
            path = Path(folder, name)
            path.write_text("\n".join([head, *lines] if named else lines), errors="replace")
            refused: InputError | None = None
            try:
                assert read(path)
            except InputError as error:
                refused = error
            assert refused is None or all(problem.file == str(path) for problem in refused.problems)


def test_a_line_becomes_a_pod(tmp_path: Path) -> None:
    path = tmp_path / "pods.csv"
    path.write_text(
        "qos,gpu_spec,name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time,scheduled_time\n"
        "LS,V100M16|T4,a,500,64,2,1000,10,100,40\n"
        "LS,T4,b,500,64,0,0,10,,\n"
    )
    models = frozenset({"v100m16", "t4"})
    assert read_pod_trace(path) == (
        TracePod(
            "a",
            PodWants(cpu_milli=500, memory_bytes=64 * MIB, gpus=2, gpu_milli=1000, models=models),
            10.0,
            60.0,
        ),
        TracePod("b", PodWants(cpu_milli=500, memory_bytes=64 * MIB), 10.0, None),
    )


@pytest.mark.parametrize("name", ["pods.csv", "pods.json"])
def test_a_cell_that_is_too_long_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("x" * 200_000)
    with pytest.raises(InputError):
        read_pod_trace(path)


def test_a_trace_that_is_too_long_is_refused_and_not_cut(tmp_path: Path) -> None:
    """Before all of it has become pods: of a trace of 10 million pods that takes minutes."""
    path = tmp_path / "pods.csv"
    line = "a,500,64,0,0\n"
    path.write_text(",".join(NEEDED) + "\n" + 4 * line + "b,wrong\n")
    with pytest.raises(InputError, match="has more than 3 lines"):
        read_pod_trace(path, most=3)
