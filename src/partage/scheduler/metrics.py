"""What the extender says of itself."""

from __future__ import annotations

from partage.serve_http.metrics.exposition import AnswerCounts, Family
from partage.values import Frozen

BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
RESULTS = ("scored", "equal", "refused")


class MixState(Frozen):
    """Of which pods the tables are made. version: 1 for the first since the start; 0: none yet. made_s: when,
    seconds of the clock. pods: in the window. types: that differ.
    """

    version: int = 0
    made_s: float = 0.0
    pods: int = 0
    types: int = 0


class ExtenderCounts(AnswerCounts):
    """Answers since the start, by result: ``scored``; ``equal``, all nodes alike; ``refused``, no
    ExtenderArgs.
    """

    def __init__(self) -> None:
        super().__init__(("result",), BUCKETS_S, [(result,) for result in RESULTS])

    def families(self, mix: MixState, now_s: float, nodes: int, *, trouble: bool) -> list[Family]:
        """All metrics of the extender."""
        made: dict[str, list[tuple[str, float]]] = {
            "partage_extender_seconds": self.seconds.rows(),
            "partage_extender_requests": self.rows(),
            "partage_extender_mix_version": [("", mix.version)],
            "partage_extender_mix_age_seconds": [("", now_s - mix.made_s)] if mix.version else [],
            "partage_extender_mix_pods": [("", mix.pods)],
            "partage_extender_nodes": [("", nodes)],
            "partage_extender_following": [("", not trouble)],
        }
        return [Family(name, *DEFINITIONS[name], made[name]) for name in DEFINITIONS]


DEFINITIONS = {
    "partage_extender_seconds": ("Duration of answers to kube-scheduler, in this process.", "histogram"),
    "partage_extender_requests": (
        "Answers by result: scored; equal: all nodes alike, because a claim of the pod or the tables are not "
        "known, or no node is better; refused: no ExtenderArgs.",
        "counter",
    ),
    "partage_extender_mix_version": (
        "How often tables for the expected pods were made since the start; 0: not yet.", "gauge",
    ),
    "partage_extender_mix_age_seconds": ("Time since the tables in use were made.", "gauge"),
    "partage_extender_mix_pods": ("Pods of which the expected mix was made.", "gauge"),
    "partage_extender_nodes": ("Nodes that are known.", "gauge"),
    "partage_extender_following": ("Whether the API server answers all watches: 1 or 0.", "gauge"),
}  # fmt: skip
"""Text and kind of each metric."""
