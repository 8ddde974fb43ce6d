"""What a GPU is called in Slurm: ``h200`` in ``--gres=gpu:h200:1``.

A type is written in lower case and, except under ``profile``, begins with a letter: Slurm 22.05 reads a bare
``gpu:1g.10gb`` as a number.
"""

from __future__ import annotations

import re
from enum import StrEnum

from partage.model.gpu import Gpu
from partage.model.ids import MEMORY_RESOURCE, VENDOR
from partage.model.share import DeviceOffer

_FORM = re.compile(r"-(?:sxm\d|pcie|nvl)(?=-|$)", re.ASCII)
_SIZE = re.compile(r"-\d+gb(?=-|$)", re.ASCII)
_STRANGE = re.compile(r"[^a-z0-9_.+-]+", re.ASCII)
_LIST_SIGNS = str.maketrans({",": "."})
SHARED_SUFFIX = "_shared"


class TypeNames(StrEnum):
    """How GPUs are named.

    short:   family, ``h100``; MIG devices ``h100_1g.10gb``.
    model:   model of the catalogue, ``h100_sxm5_80gb``, where a cluster has several of one family.
    profile: as short, MIG devices by their profile alone, ``1g.10gb``.
    """

    SHORT = "short"
    MODEL = "model"
    PROFILE = "profile"


def gpu_type(gpu: Gpu, model: str, names: TypeNames) -> str:
    """The type of a whole GPU. model: its id in the catalogue; empty: it is not there."""
    if not model:
        words = _STRANGE.sub("_", gpu.product.lower()).removeprefix("nvidia_").strip("_")
        return _letter_first(words or "gpu")
    if names is not TypeNames.MODEL:
        model = _SIZE.sub("", _FORM.sub("", model))
    return _letter_first(model.replace("-", "_"))


def device_type(offer: DeviceOffer, gpu_named: str, names: TypeNames) -> str:
    """The type of a device as it is offered. gpu_named: the type of its GPU.

    A name that the policy gives to the resource is the type too. A device that is shared has a type of its
    own, so that a job that asks for a whole GPU by its type is never given a shared one.
    """
    if own := _own_name(offer):
        return _letter_first(own)
    suffix = SHARED_SUFFIX if offer.traits.in_shares else ""
    if offer.profile is None:
        return gpu_named + suffix
    profile = offer.profile.translate(_LIST_SIGNS)
    return (profile if names is TypeNames.PROFILE else f"{gpu_named}_{profile}") + suffix


def _own_name(offer: DeviceOffer) -> str:
    """The name that the policy gives to this resource; empty for a default name."""
    domain, _, name = offer.resource.partition("/")
    plain = name.removesuffix(".shared")
    if offer.resource == MEMORY_RESOURCE:
        return ""
    if domain == VENDOR and (plain == "gpu" or plain.startswith("mig-")):
        return ""
    if offer.count != offer.replicas:
        return ""  # one of several unequal MPS clients: the name is that of the client, not of the GPU
    return name.removeprefix("gpu.")


def _letter_first(text: str) -> str:
    return text if text[:1].isalpha() else f"gpu_{text}"
