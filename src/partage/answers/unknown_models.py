"""GPUs that the catalogue lacks. Beside ``edges.hardware``, which does not know the catalogue."""

from __future__ import annotations

from partage.model.gpu import Gpu


def lacks_geometry(gpu: Gpu) -> bool:
    """Whether only the driver can say what this GPU allows under MIG. Without MIG no catalogue is read."""
    if gpu.mig_mode is None:
        return False
    from partage.edges.files import catalogue

    return catalogue.lacks_geometry(gpu)
