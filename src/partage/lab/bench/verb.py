"""``partage bench``: measure what sharing a GPU costs; save, summarise and plot the result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from partage import __version__
from partage.answers import common_node, common_options, common_output, completion
from partage.answers.verb import verb
from partage.errors import DriverUnavailable, Unsatisfiable
from partage.lab import options as lab

if TYPE_CHECKING:
    from partage.lab.bench.model import BenchMachine, BenchReport, BenchSettings
    from partage.lab.place import TenantPlace

_EXPERIMENTS = ("pi", "memory", "inference")
_POINTS = {
    "torch": {"cuda": (2**16, 2**25), "cpu": (2**10, 2**18)},
    "cuda": {"cuda": (2**16, 2**25)},
    "python": {"cpu": (50, 5000)},
}
"""Of small and of saturating kernels, by engine and device."""


def _numbers(ctx: click.Context, parameter: click.Parameter, value: str) -> tuple[int, ...]:
    del ctx, parameter
    try:
        found = tuple(sorted({int(part) for part in value.split(",")}))
    except ValueError:
        found = ()
    if not found or not all(1 <= count <= 60 for count in found):
        raise click.BadParameter(f"{value!r} is no list of numbers from 1 to 60, such as 1,2,4,8")
    return found


def _chosen(ctx: click.Context, parameter: click.Parameter, value: str) -> tuple[str, ...]:
    del ctx, parameter
    found = tuple(experiment for experiment in _EXPERIMENTS if experiment in value.split(","))
    if len(found) != len(set(value.split(","))):
        raise click.BadParameter(f"{value!r} is no list of experiments; they are {','.join(_EXPERIMENTS)}")
    return found


def _bytes(ctx: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    del ctx, parameter
    from partage.units import parse_gpu_memory

    try:
        return None if value is None else parse_gpu_memory(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@verb("bench")
@click.option(
    "--read",
    metavar="FILE",
    shell_complete=completion.files,
    help="Show a recorded run; nothing is measured.",
)
@click.option(
    "--save", metavar="FILE", shell_complete=completion.files, help="Save the run with every sample (JSON)."
)
@click.option(
    "--plot",
    metavar="FILE",
    shell_complete=completion.files,
    help="Plot the run: .png or .svg (needs matplotlib).",
)
@click.option("--quick", is_flag=True, help="Three repeats of half a second in one pass, for a first look.")
@click.option("--gpu", metavar="INDEX|UUID", help="Which GPU (default: the first).")
@click.option(
    "--processes",
    default="1,2,4,8",
    show_default=True,
    callback=_numbers,
    metavar="COUNT,...",
    help="Numbers of processes to measure.",
)
@click.option(
    "--only",
    default=",".join(_EXPERIMENTS),
    show_default=True,
    callback=_chosen,
    metavar="NAME,...",
    help="Experiments.",
)
@click.option(
    "--repeats",
    type=click.IntRange(1, 1000),
    metavar="COUNT",
    help="Repeats of every measurement (6; 3 with --quick).",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0.01, 600),
    metavar="SECONDS",
    help="Duration for one process alone (2; 0.5 with --quick).",
)
@click.option("--small", type=click.IntRange(1), metavar="POINTS", help="Points of a small kernel.")
@click.option("--saturating", type=click.IntRange(1), metavar="POINTS", help="Points of a saturating kernel.")
@click.option(
    "--memory",
    callback=_bytes,
    metavar="AMOUNT",
    help="Memory limit of a share, for example 8Gi (default: half of the device's memory).",
)
@lab.mps_pipe_option
@click.option(
    "--run-dir",
    default=common_options.DEFAULT_RUN_DIR,
    show_default=True,
    metavar="DIR",
    help="Run directory of the agent.",
)
@common_options.driver_root_option
@click.option("--guard", is_flag=True, help="Also measure what the guard costs.")
@click.option("--python", metavar="PATH", help="The interpreter that has PyTorch.")
@click.option(
    "--device",
    type=click.Choice(("cuda", "cpu")),
    help="cpu: try the tool without a GPU; the figures are those of the CPU.",
)
@click.option(
    "--engine",
    type=click.Choice(tuple(_POINTS)),
    default="torch",
    help="cuda: without PyTorch, through the driver's library: pi and memory; python: the same on the CPU.",
)
@click.option(
    "--deadline",
    type=click.FloatRange(1, 3600),
    default=120,
    show_default=True,
    metavar="SECONDS",
    help="Extra time of a process before it counts as hung.",
)
@click.option("--machine", metavar="NAME|FILE", help="Refused: a simulated node cannot compute.")
@common_options.output_option("table", "json", "yaml")
def command(read: str | None, plot: str | None, save: str | None, output: str, **asked: object) -> None:
    """Measure what sharing a GPU costs and gives.

    Processes compute pi by Monte Carlo with small and with saturating kernels: alone, one after the other,
    time-sliced, under MPS if a daemon serves the GPU, and on MIG devices if there are any. Others allocate
    tensors up to and over the limit of a share, or serve a small model, alone and with neighbours. No setting
    of the GPU is changed. docs/reference/bench.md explains every figure.

    Exit code 4: no GPU, or no PyTorch for it (--engine cuda needs none); partage bench --read FILE shows a
    recorded run.
    """
    from partage.lab.bench.report import BENCH, bench_lines

    for path in filter(None, (save, plot)):
        lab.check_writable(path, Path(path).parent)
    if plot is not None:
        from partage.answers.render.drawing import check_plot

        check_plot(plot)
    report = BENCH.read(read) if read is not None else _measure(asked)
    if save is not None:
        document = json.dumps(BENCH.to_document(report), ensure_ascii=False, separators=(",", ":"))
        common_output.write_file(save, document + "\n")
    if plot is not None:
        from partage.lab.bench.plot import plot_file

        common_output.write_file(plot, plot_file(report, plot))
    lab.print_report(report, BENCH, output, bench_lines)


def _measure(asked: dict[str, object]) -> BenchReport:
    """A run on this machine. Raises HardwareError where there is nothing to measure."""
    from partage.answers.documents.lab import command_line, now
    from partage.lab.bench.model import BenchReport
    from partage.lab.bench.node import remarks_on
    from partage.lab.bench.runner import BenchRunner
    from partage.lab.tenant import TenantLaunch, find_python

    if asked["machine"] is not None:
        raise Unsatisfiable(
            "a simulated node cannot compute, so nothing can be measured", "--device cpu tries the tool"
        )
    settings = _settings(asked)
    machine, place = _node(settings, asked)
    python = find_python(_text(asked["python"]), settings.device, settings.engine)
    launch = TenantLaunch(python, settings.engine, settings.device)
    runner = BenchRunner(settings, place, launch, lab.print_progress)
    cells, memory = runner.run()
    versions = {"partage": __version__, "engine": settings.engine, **runner.versions()}
    return BenchReport(
        at=now(),
        command=command_line(),
        versions={name: version for name, version in versions.items() if version},
        machine=machine,
        settings=settings,
        cells=cells,
        memory=memory,
        remarks=(*remarks_on(machine, place, settings), *runner.remarks()),
    )


def _settings(asked: dict[str, object]) -> BenchSettings:
    from partage.lab.bench.model import BenchSettings

    quick, engine = asked["quick"], str(asked["engine"])
    device = _text(asked["device"]) or ("cpu" if engine == "python" else "cuda")
    if device not in _POINTS[engine]:
        where = "CPU" if engine == "python" else "GPU"
        raise click.UsageError(f"--engine {engine} computes on the {where} only")
    small, saturating = _POINTS[engine][device]
    wanted = {
        "repeats": asked["repeats"] or (3 if quick else 6),
        "passes": 1 if quick else 2,
        "seconds": asked["seconds"] or (0.5 if quick else 2.0),
        "small_points": asked["small"] or small,
        "saturating_points": asked["saturating"] or saturating,
        "processes": asked["processes"],
        "experiments": _possible(engine, asked["only"]),
        "memory_bytes": asked["memory"],
        "guard": asked["guard"],
        "deadline_s": asked["deadline"],
    }
    return replace(BenchSettings(device=device, engine=engine), **wanted)


def _possible(engine: str, experiments: object) -> tuple[str, ...]:
    """What was asked for; without PyTorch there is no model on a GPU."""
    assert isinstance(experiments, tuple)
    return tuple(name for name in experiments if engine != "cuda" or name != "inference")


def _node(settings: BenchSettings, asked: dict[str, object]) -> tuple[BenchMachine, TenantPlace]:
    from partage.lab.bench import node
    from partage.lab.daemon import find_pipe
    from partage.lab.gpus import find_gpu
    from partage.model.gpu import NoDriver

    if settings.device == "cpu":
        return node.cpu_machine(), node.cpu_place(settings)
    inventory, uses = common_node.observe_with_uses(None)
    if isinstance(inventory.driver, NoDriver):
        raise DriverUnavailable(
            f"there is no GPU to measure here: {inventory.driver.reason}",
            "partage bench --read FILE shows a recorded run; --device cpu tries the tool without a GPU",
        )
    gpu = find_gpu(inventory, _text(asked["gpu"]))
    device = gpu.mig_devices[0].uuid if gpu.mig_devices else gpu.uuid
    pipe = find_pipe(device, Path(str(asked["run_dir"])), asked["mps_pipe"])  # type: ignore[arg-type]
    place = node.gpu_place(gpu, settings, pipe)
    if root := common_options.driver_root():
        place = replace(place, driver_root=root)
    return node.gpu_machine(inventory, gpu, uses), place


def _text(value: object) -> str | None:
    return None if value is None else str(value)
