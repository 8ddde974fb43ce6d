"""Partage shares the NVIDIA GPUs of a node among containers and jobs, card by card."""

__version__ = "0.1.0"
