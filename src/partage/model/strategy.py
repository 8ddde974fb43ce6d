"""The ways to use a GPU, each with what holds for every GPU and every share of it.

Code that only asks what a strategy is like reads ``traits``. Where the work itself differs, it matches the
value of the policy, ``model.policy.Sharing``.
"""

from __future__ import annotations

from enum import StrEnum

from partage.values import Frozen


class Interval(StrEnum):
    """Length of a time slice (``nvidia-smi compute-policy --set-timeslice``)."""

    DEFAULT = "default"
    SHORT = "short"
    MEDIUM = "medium"
    LONG = "long"


class Via(StrEnum):
    """How pods ask for shares of a GPU: from the device plugin, by an amount in ``limits``; or by a
    ResourceClaim, from the DRA driver. A GPU is offered in one way only.
    """

    DEVICE_PLUGIN = "device-plugin"
    CLAIMS = "claims"


class StrategyTraits(Frozen):
    """What a strategy is like.

    word: as people write it. for_pods: what it means for pods, a sentence.
    in_shares: several containers hold shares of one device.
    in_devices: the GPU is cut into devices, and how each of them is shared is a matter of its own.
    limits_memory: it holds a container to its share of the memory, or tries to; else only the guard does.
    through_daemon: the processes of a share are clients of an MPS control daemon of the device. So a
    container's shares come from one device, and several of them add up.
    gres: the name of Slurm's GRES that counts the shares; empty: Slurm counts the devices.
    """

    word: str
    for_pods: str
    in_shares: bool = False
    in_devices: bool = False
    limits_memory: bool = True
    through_daemon: bool = False
    gres: str = ""


class Strategy(StrEnum):
    """How a GPU is used. All shares held on one GPU belong to one strategy. The value is its key in policies
    and in answers.
    """

    _value_: str
    traits: StrategyTraits

    def __new__(cls, key: str, traits: StrategyTraits) -> Strategy:
        """A strategy and what it is like."""
        strategy = str.__new__(cls, key)
        strategy._value_ = key
        strategy.traits = traits
        return strategy

    EXCLUSIVE = "exclusive", StrategyTraits("exclusive", "One pod has the whole GPU.")
    TIME_SLICING = (
        "time-slicing",
        StrategyTraits(
            "time-slicing",
            "Pods take turns on the GPU.",
            in_shares=True,
            limits_memory=False,
            gres="shard",
        ),
    )
    MPS = (
        "mps",
        StrategyTraits(
            "MPS",
            "Pods work on the GPU at the same time, through NVIDIA's MPS.",
            in_shares=True,
            through_daemon=True,
            gres="mps",
        ),
    )
    MIG = (
        "mig",
        StrategyTraits(
            "MIG",
            "The GPU is divided into MIG devices, each with memory and compute slices of its own.",
            in_devices=True,
        ),
    )


SHARING_STRATEGIES = tuple(strategy for strategy in Strategy if not strategy.traits.in_devices)
"""How one device can be shared, a whole GPU or a MIG device."""
