"""The JSON answer of ``labels``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from partage.answers.documents.document import Document


class LabelsDocument(Document, kw_only=True):
    """The labels of a node: full key to value."""

    kind: Literal["Labels"] = "Labels"
    labels: Mapping[str, str]
