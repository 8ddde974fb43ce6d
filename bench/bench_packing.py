"""How long packing takes for 1,000 GPUs: ``python -m bench.bench_packing``.

Fleets of the catalogue's models, empty or with a random layout on every GPU, random devices of it held. Time
is wall clock of one process, from the inventory to the answer; importing scipy comes on top, once.
"""

from __future__ import annotations

import platform
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from partage.edges.files.catalogue import geometry_of, load_catalogue, why_no_geometry
from partage.errors import Unsatisfiable
from partage.model.gpu import Gpu, Inventory, MigMode
from partage.model.ids import DeviceUuid
from partage.model.layout import LayoutItem
from partage.packing.decide.candidates import survey
from partage.packing.decide.demand import Demand
from partage.packing.decide.integer_program import need_solver
from partage.packing.decide.pack import Packing, pack
from partage.sim.node.machine import DRIVER, new_gpu
from partage.sim.node.mig import create_layout
from tests.oracle import enumerate_mig as oracle

H100 = ("h100-sxm5-80gb",)
FOUR = ("h100-sxm5-80gb", "a100-80gb", "a30-24gb", "h200-141gb")
TIME_LIMIT_S = 6.0


@dataclass(frozen=True)
class Case:
    """A fleet and a demand. live: which part of the GPUs has a layout; held: which part of its devices."""

    what: str
    demand: str
    models: Sequence[str] = H100
    gpus: int = 1000
    live: float = 0.0
    held: float = 0.0


CASES = (
    Case("8 empty H100", "3g.40gb=2,1g.10gb=9", gpus=8),
    Case("1,000 empty H100", "3g.40gb=500,2g.20gb=700,1g.10gb=1900,4g.40gb=100"),
    Case("1,000 empty, four models", "3g.40gb=200,2g.20gb=300,1g.10gb=900,1g.6gb=300,3g.71gb=111", FOUR),
    Case("1,000, one too many", "3g.40gb=2000,1g.10gb=1"),
    Case("1,000 random, all free", "3g.40gb=300,2g.20gb=500,1g.10gb=1500", live=1.0),
    Case("1,000 random, half held", "3g.40gb=100,2g.20gb=200,1g.10gb=900", live=1.0, held=0.5),
    Case("1,000 random, half held, tight", "3g.40gb=400,2g.20gb=300,1g.10gb=1100", live=1.0, held=0.5),
    Case(
        "1,000 random, four models, nine profiles",
        "3g.40gb=100,2g.20gb=200,1g.10gb=600,4g.40gb=20,7g.80gb=20,1g.20gb=100,1g.10gb+me=20,1g.18gb=77,"
        "1c.3g.40gb=50",
        FOUR,
        live=0.8,
        held=0.3,
    ),
)


def fleet(case: Case) -> tuple[Inventory, frozenset[DeviceUuid]]:
    """The GPUs, and which of their MIG devices are held; the same every time."""
    chance = random.Random(1)
    gpus, held = [], set[DeviceUuid]()
    for index in range(case.gpus):
        gpu = _gpu(index, chance.choice(case.models), chance if chance.random() < case.live else None)
        held |= {device.uuid for device in gpu.mig_devices if chance.random() < case.held}
        gpus.append(gpu)
    return Inventory(DRIVER, tuple(gpus), simulated=True), frozenset(held)


def _gpu(index: int, model_id: str, chance: random.Random | None) -> Gpu:
    model = load_catalogue().by_id(model_id)
    assert model is not None
    assert model.geometry is not None
    gpu = new_gpu(index, model, model.products[0], 0)
    if chance is None:
        return gpu
    layout = chance.choice(sorted(oracle.fixed_layouts(model_id)))
    items = [LayoutItem.parse(f"{name}@{start}") for name, start in layout]
    devices = create_layout(gpu, model.geometry, items, "bench")
    return replace(gpu, mig_mode=MigMode(current=True, pending=True), mig_devices=devices)


def timed(case: Case) -> tuple[float, Packing | Unsatisfiable]:
    """Seconds, and the answer."""
    inventory, held = fleet(case)
    started = time.perf_counter()
    candidates, _ = survey(None, inventory, geometry_of, why_no_geometry, held)
    try:
        answer: Packing | Unsatisfiable = pack(
            Demand.parse(case.demand), candidates, time.monotonic, TIME_LIMIT_S
        )
    except Unsatisfiable as error:
        answer = error
    return time.perf_counter() - started, answer


def table() -> list[str]:
    """The lines of the table."""
    need_solver()
    lines = [f"{'packing':42}{'s':>7}{'GPUs':>7}{'bound':>7}{'disturbed':>11}{'bound':>7}  {'answer'}"]
    for case in CASES:
        seconds, answer = timed(case)
        lines.append(f"{case.what:42}{seconds:7.2f}{_answer_words(answer)}")
    return lines


def _answer_words(answer: Packing | Unsatisfiable) -> str:
    if isinstance(answer, Unsatisfiable):
        return f"{'':32}  impossible: {answer}"
    counts = f"{answer.gpus_used:7}{answer.bound:7}{answer.disturbed:11}{answer.disturbed_bound:7}"
    return f"{counts}  {'proven' if answer.optimal else 'the time was over'}"


def main() -> None:
    """Print the table."""
    print(
        f"CPython {platform.python_version()}, {platform.machine()}, at most {TIME_LIMIT_S:g} s of search\n"
    )
    print("\n".join(table()))


if __name__ == "__main__":
    main()
