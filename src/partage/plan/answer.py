"""What a container gets for the shares it was given: environment, mounts, devices, CDI names."""

from __future__ import annotations

from collections.abc import Sequence

from partage.model.answer import ContainerAnswer
from partage.model.gpu import Inventory
from partage.model.policy import Options
from partage.model.share import Resource


class Answerer:
    """Allocate for one resource. Built when the resource changes; asked on the admission path.

    run_dir: host path of ``--run-dir``; MPS mounts lie below ``<run_dir>/mps/<gpu uuid>``.
    """

    def __init__(self, resource: Resource, inventory: Inventory, options: Options, run_dir: str) -> None:
        raise NotImplementedError

    def answer(self, ids: Sequence[str]) -> ContainerAnswer:
        """The answer for one container. Raises AllocationRefused in NVIDIA's words (golden cases)."""
        raise NotImplementedError
