"""What the webhook says of itself."""

from __future__ import annotations

from partage.serve_http.metrics.exposition import AnswerCounts, Family, label_text
from partage.values import Frozen

BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
RESULTS = ("translated", "refused", "unchanged", "failed", "malformed")
DIALECTS = ("HAMi", "Volcano", "KAI", "ACK", "nos", "GKE", "several", "none")


class AdmissionNow(Frozen):
    """leads: whether this replica sweeps and renews certificates. certificate_ends_s: of the one that is
    served, seconds since 1970; None: it comes from files. made, swept: templates.
    """

    leads: bool
    following: bool
    certificate_ends_s: float | None
    made: int
    swept: int


class AdmissionCounts:
    """Answers since the start."""

    def __init__(self) -> None:
        self._answers = AnswerCounts(("dialect", "result"), BUCKETS_S)

    def ended(self, dialect: str, result: str, seconds: float) -> None:
        """One answer. dialect: as a refusal names it, also of several systems at once."""
        known = dialect if dialect in DIALECTS else "several"
        self._answers.ended(seconds, known, result)

    def families(self, now: AdmissionNow) -> list[Family]:
        """All metrics of the webhook."""
        templates = [
            (label_text([("what", what)]), float(count))
            for what, count in (("made", now.made), ("swept", now.swept))
        ]
        ends = [] if now.certificate_ends_s is None else [("", now.certificate_ends_s)]
        made: dict[str, list[tuple[str, float]]] = {
            "partage_admission_requests": self._answers.rows(),
            "partage_admission_seconds": self._answers.seconds.rows(),
            "partage_admission_templates": templates,
            "partage_admission_leader": [("", now.leads)],
            "partage_admission_following": [("", now.following)],
            "partage_admission_certificate_end_seconds": ends,
        }
        return [Family(name, *DEFINITIONS[name], made[name]) for name in DEFINITIONS]


DEFINITIONS = {
    "partage_admission_requests": (
        "Answers by system and result: translated; refused, with a sentence; unchanged: left as it is; "
        "failed: the API server did not answer; malformed: no AdmissionReview.",
        "counter",
    ),
    "partage_admission_seconds": ("Duration of answers to the API server, in this process.", "histogram"),
    "partage_admission_templates": ("ResourceClaimTemplates by this replica: made, swept.", "counter"),
    "partage_admission_leader": ("Whether this replica sweeps and renews certificates: 1 or 0.", "gauge"),
    "partage_admission_following": ("Whether the API server answers all watches: 1 or 0.", "gauge"),
    "partage_admission_certificate_end_seconds": (
        "When the certificate in use ends, if it is the webhook's own, seconds since 1970.", "gauge",
    ),
}  # fmt: skip
"""Text and kind of each metric."""
