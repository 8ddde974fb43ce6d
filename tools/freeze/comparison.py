"""What differs between the answers of two checkouts."""

from __future__ import annotations

import difflib
from pathlib import Path

_MOST_LINES = 12
_MOST_FILES = 40


def compare(before: Path, after: Path, moved: Path | None) -> int:
    """Print it; 1 if anything differs."""
    names = _moved_names(moved)
    olds, news = _files(before), _files(after)
    different = 0
    for name in sorted(olds | news):
        if name in olds and name in news:
            old, new = (folder / name for folder in (before, after))
            texts = old.read_bytes(), new.read_bytes()
            if texts[0] == texts[1]:
                continue
            if name.startswith("modules/") and _renamed(texts[0].decode(), names) == texts[1].decode():
                continue
            said = _difference(*texts)
        else:
            said = [f"only {'before' if name in olds else 'after'}"]
        different += 1
        if different <= _MOST_FILES:
            print(f"{name}:", *said, sep="\n    ")
    print(f"{len(olds | news)} files, {different} differ")
    return int(different > 0)


def _files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def _difference(old: bytes, new: bytes) -> list[str]:
    before, after = (text.decode(errors="backslashreplace").splitlines() for text in (old, new))
    found = list(difflib.unified_diff(before, after, lineterm="", n=0))[2:]
    more = [f"... {len(found) - _MOST_LINES} more lines"] if len(found) > _MOST_LINES else []
    return [line[:200] for line in found[:_MOST_LINES]] + more


def _moved_names(path: Path | None) -> dict[str, str]:
    if path is None:
        return {}
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines() if line]
    return {old: new for old, new, *_ in rows}


def _renamed(text: str, names: dict[str, str]) -> str:
    """Modules by their new names; packages, which a move makes and removes, are left out of 'modules'."""
    return "".join(f"{line}\n" for line in sorted(names.get(line, line) for line in text.splitlines()))
