"""Where which table stands: between ``<!-- make reference: NAME -->`` and ``<!-- end -->``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from tools.reference.documents import documents
from tools.reference.exit_codes import exit_codes
from tools.reference.metrics import dcgm, extender, metrics, webhook
from tools.reference.options import options
from tools.reference.policy_keys import policy_keys

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"

TABLES: Mapping[str, Callable[[], str]] = {
    "options": options,
    "exit-codes": exit_codes,
    "policy-keys": policy_keys,
    "metrics": metrics,
    "dcgm": dcgm,
    "extender": extender,
    "webhook": webhook,
    "documents": documents,
}

_REGION = re.compile(r"(<!-- make reference: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def written(page: str) -> str:
    """The page with its tables as the code says. Raises KeyError for a table that nothing writes."""
    return _REGION.sub(lambda found: f"{found[1]}\n{TABLES[found[2]]().strip()}\n\n{found[3]}", page)


def names(page: str) -> list[str]:
    """The tables of a page."""
    return [found[2] for found in _REGION.finditer(page)]


def stale() -> dict[Path, str]:
    """The pages that are not as the code says, and what they should be."""
    texts = {page: page.read_text(encoding="utf-8") for page in sorted(REFERENCE.glob("*.md"))}
    return {page: new for page, text in texts.items() if (new := written(text)) != text}
