"""``partage bench``: the users' own experiments on the GPU at hand, measured, saved, summed up and drawn."""

from __future__ import annotations

import datetime as dt
import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from partage import __version__
from partage.faces.cli import common

if TYPE_CHECKING:
    from partage.faces.bench.model import Bench, Machine, Settings
    from partage.faces.bench.places import Place

_EXPERIMENTS = ("pi", "memory", "inference")
_POINTS = {"torch": {"cuda": (2**16, 2**25), "cpu": (2**10, 2**18)}, "python": {"cpu": (50, 5000)}}
"""Of small and of saturating kernels, by engine and device."""


def _numbers(ctx: click.Context, parameter: click.Parameter, value: str) -> tuple[int, ...]:
    del ctx, parameter
    try:
        found = tuple(sorted({int(part) for part in value.split(",")}))
    except ValueError:
        found = ()
    if not found or not all(1 <= one <= 60 for one in found):
        raise click.BadParameter("numbers of processes from 1 to 60, with commas: 1,2,4,8")
    return found


def _chosen(ctx: click.Context, parameter: click.Parameter, value: str) -> tuple[str, ...]:
    del ctx, parameter
    found = tuple(one for one in _EXPERIMENTS if one in value.split(","))
    if len(found) != len(set(value.split(","))):
        raise click.BadParameter(f"some of {', '.join(_EXPERIMENTS)}, with commas")
    return found


def _bytes(ctx: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    del ctx, parameter
    from partage.units import parse_bytes

    try:
        return None if value is None else parse_bytes(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.command(name="bench")
@click.option("--read", metavar="FILE", help="Show a recorded run; nothing is measured.")
@click.option("--save", metavar="FILE", help="Write the run down, every sample (JSON).")
@click.option("--plot", metavar="FILE", help="Draw it: .png or .svg.")
@click.option("--quick", is_flag=True, help="Three repeats of half a second in one pass, for a first look.")
@click.option("--gpu", metavar="INDEX|UUID", help="Which GPU (the first).")
@click.option(
    "--processes", default="1,2,4,8", show_default=True, callback=_numbers, help="How many tenants."
)
@click.option(
    "--only", default=",".join(_EXPERIMENTS), show_default=True, callback=_chosen, help="Experiments."
)
@click.option("--repeats", type=click.IntRange(1, 1000), help="Of every cell (6; 3 with --quick).")
@click.option(
    "--seconds", type=click.FloatRange(0.01, 600), help="That one process alone takes (2; 0.5 with --quick)."
)
@click.option("--small", type=click.IntRange(1), metavar="POINTS", help="Points of a small kernel.")
@click.option("--saturating", type=click.IntRange(1), metavar="POINTS", help="Points of a saturating kernel.")
@click.option(
    "--memory", callback=_bytes, metavar="AMOUNT", help="Limit of a share, 8Gi (half of the device's memory)."
)
@click.option(
    "--mps-pipe", metavar="DIR", help="CUDA_MPS_PIPE_DIRECTORY of an MPS daemon (our agent's, if any)."
)
@click.option(
    "--run-dir", default=common.DEFAULT_RUN_DIR, show_default=True, metavar="DIR", help="Of the agent."
)
@click.option("--guard", is_flag=True, help="What the guard costs, too.")
@click.option("--python", metavar="PATH", help="The interpreter that has PyTorch.")
@click.option(
    "--device",
    type=click.Choice(("cuda", "cpu")),
    help="cpu tries the tool on a machine without a GPU; its figures are the CPU's.",
)
@click.option(
    "--engine",
    type=click.Choice(("torch", "python")),
    default="torch",
    help="python: without PyTorch, on the CPU.",
)
@click.option(
    "--deadline",
    type=click.FloatRange(1, 3600),
    default=120,
    show_default=True,
    metavar="SECONDS",
    help="What a tenant may take beyond its work before it counts as hung.",
)
@click.option("--machine", metavar="NAME|FILE", help="Refused: a simulated node computes nothing.")
@common.output_option("table", "json", "yaml")
def command(read: str | None, plot: str | None, save: str | None, output: str, **asked: object) -> None:
    """Measure what sharing a GPU costs and gives, as its users do.

    Processes that compute pi by Monte Carlo, with small and with saturating kernels: alone, one after the
    other, time-sliced, under MPS where a daemon serves the GPU, on MIG devices where there are any. Tensors
    up to the limit of a share and over it. Requests to a small model, alone and with neighbours. No setting
    of the GPU is changed. docs/bench.md explains every figure.

    Exit code 4: no GPU, or no PyTorch for it; partage bench --read FILE shows a recorded run.
    """
    from partage.faces.bench.document import read_bench

    if plot is not None:
        from partage.faces.render.paper import check_picture_name

        check_picture_name(plot)
    for path in (save, plot):
        _check_writable(path)
    bench = read_bench(read) if read is not None else _measure(asked)
    if save is not None:
        _save(bench, save)
    if plot is not None:
        _draw(bench, plot)
    _print(bench, output)


def _measure(asked: dict[str, object]) -> Bench:
    """A run on this machine. Raises HardwareError where there is nothing to measure."""
    from partage.errors import Unsatisfiable
    from partage.faces.bench.interpreter import find_python
    from partage.faces.bench.model import Bench
    from partage.faces.bench.node import remarks_on
    from partage.faces.bench.runner import Runner, run
    from partage.faces.bench.tenant import Launch

    if asked["machine"] is not None:
        raise Unsatisfiable(
            "a simulated node computes nothing that could be measured", "--device cpu tries the tool"
        )
    settings = _settings(asked)
    machine, place = _node(settings, asked)
    python = find_python(_text(asked["python"]), settings.device, settings.engine)
    runner = Runner(settings, place, Launch(python, settings.engine, settings.device), _say())
    cells, memory = run(runner)
    versions = {"partage": __version__, "engine": settings.engine, **runner.facts}
    return Bench(
        at=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        command=("partage", *sys.argv[1:]),
        versions={name: version for name, version in versions.items() if version},
        machine=machine,
        settings=settings,
        cells=cells,
        memory=memory,
        remarks=(*remarks_on(machine, place, settings), *runner.remarks()),
    )


def _settings(asked: dict[str, object]) -> Settings:
    from partage.faces.bench.model import Settings

    quick, engine = asked["quick"], str(asked["engine"])
    device = _text(asked["device"]) or ("cpu" if engine == "python" else "cuda")
    if device not in _POINTS[engine]:
        raise click.UsageError("--engine python computes on the CPU only")
    small, saturating = _POINTS[engine][device]
    wanted = {
        "repeats": asked["repeats"] or (3 if quick else 6),
        "passes": 1 if quick else 2,
        "seconds": asked["seconds"] or (0.5 if quick else 2.0),
        "small_points": asked["small"] or small,
        "saturating_points": asked["saturating"] or saturating,
        "processes": asked["processes"],
        "experiments": asked["only"],
        "memory_bytes": asked["memory"],
        "guard": asked["guard"],
        "deadline_s": asked["deadline"],
    }
    return replace(Settings(device=device, engine=engine), **wanted)  # type: ignore[arg-type]


def _node(settings: Settings, asked: dict[str, object]) -> tuple[Machine, Place]:
    from partage.errors import DriverUnavailable
    from partage.faces.bench import node
    from partage.model.gpu import NoDriver

    if settings.device == "cpu":
        return node.cpu_machine(), node.cpu_place(settings)
    inventory, uses = common.look(None)
    if isinstance(inventory.driver, NoDriver):
        raise DriverUnavailable(
            f"there is no GPU to measure here: {inventory.driver.reason}",
            "partage bench --read FILE shows a recorded run; --device cpu tries the tool without a GPU",
        )
    gpu = node.chosen(inventory, _text(asked["gpu"]))
    pipe = node.pipe_of(gpu, str(asked["run_dir"]), _text(asked["mps_pipe"]))
    return node.gpu_machine(inventory, gpu, uses), node.gpu_place(gpu, settings, pipe)


def _check_writable(path: str | None) -> None:
    """Before anything is measured. Raises InputError."""
    from partage.errors import InputError, Problem

    folder = Path(path or ".").parent
    if not os.access(folder, os.W_OK):
        raise InputError(
            [Problem(str(path), "", "error", f"cannot be written: nothing can be put into {folder}")]
        )


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _say() -> Callable[[str], None]:
    return lambda text: click.echo(text, err=True)


def _save(bench: Bench, path: str) -> None:
    from partage.faces.bench.document import to_document

    common.write_file(path, json.dumps(to_document(bench), ensure_ascii=False, separators=(",", ":")) + "\n")


def _draw(bench: Bench, path: str) -> None:
    from partage.faces.bench.chart import chart
    from partage.faces.render.paper import picture_file

    common.write_file(path, picture_file(chart(bench), path))


def _print(bench: Bench, output: str) -> None:
    if output != "table":
        from partage.faces.bench.document import to_document

        common.print_document(to_document(bench), output)
        return
    from partage.faces.bench.tables import lines

    console = common.console()
    for line in lines(bench):
        console.print(line)
