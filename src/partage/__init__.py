"""Partage shares the NVIDIA GPUs of a node among containers and jobs, GPU by GPU."""

__version__ = "0.1.0"
