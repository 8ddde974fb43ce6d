"""``python -m tools.freeze write CHECKOUT FOLDER``, ``compare FOLDER FOLDER``, ``cross OLD NEW``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tools.freeze.comparison import compare
from tools.freeze.frames import cross
from tools.freeze.place import Checkout
from tools.freeze.writing import KINDS, write


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.freeze", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    writing = verbs.add_parser("write", help="write the answers of a checkout into a folder")
    writing.add_argument("checkout", type=Path)
    writing.add_argument("folder", type=Path)
    writing.add_argument("--only", choices=KINDS, action="append", help="only these kinds")
    comparing = verbs.add_parser(
        "compare", help="what differs between two folders; exit code 1: something does"
    )
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.add_argument(
        "--moved", type=Path, help="file with OLD<tab>NEW module in each line, for 'modules'"
    )
    crossing = verbs.add_parser("cross", help="verbs of each checkout ask the helper of the other")
    crossing.add_argument("old", type=Path)
    crossing.add_argument("new", type=Path)
    given = parser.parse_args()
    if given.verb == "write":
        write(Checkout(given.checkout.resolve()), given.folder, given.only or KINDS)
        return 0
    if given.verb == "compare":
        return compare(given.before, given.after, given.moved)
    return cross(Checkout(given.old.resolve()), Checkout(given.new.resolve()))


if __name__ == "__main__":
    sys.exit(main())
