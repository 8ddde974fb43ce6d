"""The options about other systems that several verbs have."""

from __future__ import annotations

import click

from partage.units import GIB, MIB

GPU_MEM_UNITS = {"GiB": GIB, "MiB": MIB}

gpu_mem_unit_option = click.option(
    "--gpu-mem-unit",
    type=click.Choice(tuple(GPU_MEM_UNITS)),
    default="GiB",
    show_default=True,
    help="What 1 of aliyun.com/gpu-mem is: the --memory-unit of gpushare's device plugin.",
)
