"""``partage explain share``: who holds it, since when, with what guarantee and why."""

from __future__ import annotations

from partage.answers import common_output
from partage.errors import InputError
from partage.explain.verb_nodes import Where, need_reports, see_nodes


def explain_share(what: str, where: Where, output: str) -> int:
    """The shares of that name; the exit code. Raises InputError where nothing is called so."""
    from partage.explain.document import ShareExplanationDocument
    from partage.explain.shares import share_rows
    from partage.text import listed

    reports = need_reports(see_nodes(where))
    rows = tuple(row for node, report in reports.items() for row in share_rows(node, report, what))
    if not rows:
        names = [str(one.name) for report in reports.values() for one in report.resources]
        indexes = [f"{gpu.index}" for report in reports.values() for gpu in report.gpus]
        raise InputError(
            f"nothing here is called {what[:80]!r}, and no pod of that name holds a share",
            f"a GPU ({listed(list(dict.fromkeys(indexes)), 8)}), a resource "
            f"({listed(list(dict.fromkeys(names)), 8)}), NAMESPACE/POD, or the id of a share",
        )
    if output == "table":
        from partage.explain.tables import share_lines

        console = common_output.console()
        for line in share_lines(rows):
            console.print(line)
    else:
        common_output.print_document(ShareExplanationDocument(what=what, shares=rows), output)
    return 0
