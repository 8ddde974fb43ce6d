"""Makes the layout of the house: python3 move.py CHECKOUT. Reads rooms.py beside it; refuses files that have no place.

Works on a clean checkout of any commit. Writes map.tsv (old, new module) beside itself. Runs ruff of CHECKOUT/.venv or --ruff PATH.
"""

from __future__ import annotations

import ast
import collections
import os
import re
import subprocess
import sys
from pathlib import Path, PurePosixPath

sys.path.insert(0, str(Path(__file__).parent))
from contracts import PYPROJECT  # noqa: E402
from rooms import DOCS, FOLDERS, new_path  # noqa: E402
from rooms_of_tests import new_test_path  # noqa: E402

ROOT = Path(sys.argv[1]).resolve()
RUFF = sys.argv[2] if len(sys.argv) > 2 else str(ROOT / ".venv/bin/ruff")
SKIP = ("_generated", ".venv", "build", ".git", "node_modules")


def git(*words: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *words], check=True, capture_output=True, text=True).stdout


def module(path: str) -> str:
    parts = PurePosixPath(path).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


# --- which file goes where ---
if git("status", "--porcelain").strip():
    sys.exit("the checkout is not clean")
tracked = git("ls-files").splitlines()
moves: dict[str, str] = {}
refused = []
for path in tracked:
    if path.startswith("src/partage/"):
        rel = path.removeprefix("src/partage/")
        new = new_path(rel)
        if new is None and rel.endswith("__init__.py"):
            if (ROOT / path).read_text().count("\n") > 3:
                refused.append(path + " (a package with content)")
            continue
        if new is None:
            refused.append(path)
        elif new != rel:
            moves[path] = f"src/partage/{new}"
modules = {module(old.removeprefix("src/")): module(new.removeprefix("src/")) for old, new in moves.items() if old.endswith(".py")}
for path in tracked:
    if path.startswith("tests/"):
        new = new_test_path(path, {old: new for old, new in moves.items()})
        if new is None:
            refused.append(path)
        elif new != path:
            moves[path] = new
def line_for(path: str) -> str:
    """What to add where, so that this file has a place."""
    if path.startswith("tests/"):
        return f'rooms_of_tests.py, BY_HAND: "{path.removeprefix("tests/").rpartition(".")[0]}": "ROOM",'
    name = path.split(" ")[0].removeprefix("src/partage/")
    if path.endswith("(a package with content)"):
        return f'rooms.py: move what {name} says into a module, or _room("ROOM", "{name.removesuffix(".py")}")'
    return f'rooms.py, after the other _room lines: _room("ROOM", "{name.removesuffix(".py")}")'


if refused:
    sys.exit("nothing was moved; no place is known for these files, add for each:\n  " + "\n  ".join(f"{path}\n      {line_for(path)}" for path in refused))
twice = [new for new, count in collections.Counter([*moves.values(), *(p for p in tracked if p not in moves)]).items() if count > 1]
twice = [new for new in twice if not new.endswith("__init__.py")]
if twice:
    sys.exit("two files for:\n  " + "\n  ".join(twice))
modules |= {module(old): module(new) for old, new in moves.items() if old.startswith("tests/") and old.endswith(".py") and not old.endswith("__init__.py")}
modules = {old: new for old, new in modules.items() if old != new}
known = {module(p.removeprefix("src/")) for p in tracked if p.endswith(".py") and p.startswith(("src/partage", "tests/"))}
packages = {
    "partage.serve_http.pages": "partage.serve_http.pages", "partage.cli": "partage.cli", "partage.answers.documents": "partage.answers.documents",
    "partage.answers.render": "partage.answers.render", "partage.cli": "partage.cli",
    **{f"partage.{old.strip('/').replace('/', '.')}": f"partage.{new.strip('/').replace('/', '.')}" for old, new in FOLDERS},
}
Path(__file__).with_name("map.tsv").write_text("".join(f"{old}\t{new}\n" for old, new in sorted(modules.items())))

# --- move ---
def make_packages(path: Path) -> None:
    folder = path.parent
    while folder != ROOT and folder.name not in ("src", "static"):
        if path.suffix == ".py" and not (folder / "__init__.py").exists():
            (folder / "__init__.py").touch()
        folder = folder.parent


for old, new in moves.items():
    if old.endswith("__init__.py") and not (ROOT / old).read_text().strip():
        continue  # made anew
    (ROOT / new).parent.mkdir(parents=True, exist_ok=True)
    if (ROOT / new).exists() and new.endswith("__init__.py"):
        (ROOT / new).unlink()
    git("mv", "-f", old, new)
    make_packages(ROOT / new)
for path in sorted((p for top in ("src/partage", "tests") for p in (ROOT / top).rglob("__init__.py")), key=lambda p: -len(p.parts)):
    others = [p for p in path.parent.iterdir() if p.name not in ("__init__.py", "__pycache__")]
    if not others and not path.read_text().strip():
        path.unlink()
        for cache in path.parent.rglob("*.pyc"):
            cache.unlink()
        for folder in sorted(path.parent.rglob("__pycache__")):
            folder.rmdir()
        path.parent.rmdir()

for name, text in DOCS.items():
    init = ROOT / "src/partage" / name / "__init__.py"
    if init.parent.is_dir() and not init.read_text().strip():
        init.write_text(f'"""{text}"""\n')

# --- imports ---
left: list[str] = []


def target_of(package: str, name: str) -> tuple[str, str, str]:
    """Of 'from package import name': package, name, and what it is bound to if that is another name."""
    full = f"{package}.{name}"
    if full in known:
        new = modules.get(full, full)
        into, _, last = new.rpartition(".")
        return into, last, name
    return modules.get(package, package), name, name


def rewritten(node: ast.ImportFrom, indent: str, comment: str) -> str:
    groups: dict[str, list[str]] = collections.defaultdict(list)
    for alias in node.names:
        into, name, bound = target_of(str(node.module), alias.name)
        bound = alias.asname or bound
        groups[into].append(name if name == bound else f"{name} as {bound}")
    lines = [f"{indent}from {into} import {', '.join(names)}" for into, names in groups.items()]
    lines[0] += comment
    return "\n".join(lines) + "\n"


def rewrite_imports(path: Path) -> None:
    text = path.read_text()
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return
    lines = text.splitlines(keepends=True)
    for node in sorted((n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom | ast.Import)), key=lambda n: -n.lineno):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name in modules:
                    left.append(f"{path}:{node.lineno}: import {alias.name}")
            continue
        name = node.module or ""
        if node.level or not (name.split(".")[0] in ("partage", "tests")):
            continue
        if all(target_of(name, a.name) == (name, a.name, a.name) for a in node.names):
            continue
        first, last = node.lineno - 1, node.end_lineno or node.lineno
        segment = "".join(lines[first:last])
        comments = re.findall(r"#[^\n]*", segment)
        if ";" in segment.split("#")[0]:
            left.append(f"{path}:{node.lineno}: two statements in a line")
            continue
        indent = lines[first][: node.col_offset]
        lines[first:last] = [rewritten(node, indent, f"  {' '.join(comments)}" if comments else "")]
    path.write_text("".join(lines))


def python_files() -> list[Path]:
    found = [p for top in ("src", "tests", "tools", "bench", "deploy", "proto", "docs") for p in (ROOT / top).rglob("*.py")]
    return [p for p in found if not set(SKIP) & set(p.parts[len(ROOT.parts):])]


for path in python_files():
    rewrite_imports(path)

# --- names and paths in texts ---
dotted = {**packages, **modules}
slashed = {}
for old, new in moves.items():
    slashed[old] = new
    if old.startswith("src/"):
        slashed[old.removeprefix("src/")] = new.removeprefix("src/")
        if "/" in old.removeprefix("src/partage/"):
            slashed[old.removeprefix("src/partage/")] = new.removeprefix("src/partage/")
bases = {module(p.removeprefix("src/")) for p in (str(x.relative_to(ROOT)) for x in python_files()) if p.startswith(("src/", "tests/"))}
DOTTED = re.compile(r"(?<![\w./-])(?:partage|tests)(?:\.[A-Za-z_]\w*)+")
SLASHED = re.compile(r"(?<![\w.-])(?:[\w-]+/)+[\w.-]*\w")


def new_dotted(match: re.Match[str]) -> str:
    words = match[0].split(".")
    for length in range(len(words), 1, -1):
        head = ".".join(words[:length])
        if head in modules:
            return ".".join([modules[head], *words[length:]])
        if head in bases and head not in packages:
            return match[0]
        if head in packages:
            return ".".join([packages[head], *words[length:]])
    return match[0]


def new_slashed(match: re.Match[str]) -> str:
    text = match[0]
    for prefix in ("", "../"):
        if text in slashed:
            return slashed[text]
    return text


TEXTS = (".py", ".md", ".toml", ".yaml", ".yml", ".json", ".sh", ".tpl", ".cfg", ".txt", ".service", "Makefile", "Containerfile", "prepare.sh")
for name in git("ls-files").splitlines() + git("ls-files", "--others", "--exclude-standard").splitlines():
    path = ROOT / name
    if not path.is_file() or path.is_symlink() or set(SKIP) & set(Path(name).parts) or name.startswith("docs/adr/"):
        continue
    if not name.endswith(TEXTS) and os.access(path, os.X_OK) is False:
        continue
    try:
        text = path.read_text()
    except UnicodeDecodeError:
        continue
    new = DOTTED.sub(new_dotted, text)
    new = SLASHED.sub(new_slashed, new)
    if new != text:
        path.write_text(new)

# --- depth of a file ---
for old, new in moves.items():
    path = ROOT / new
    if not (old.endswith(".py") and path.exists()):
        continue
    depth = len(PurePosixPath(new).parts) - len(PurePosixPath(old).parts)
    text = path.read_text()
    before = len(PurePosixPath(old).parts)

    def deeper(match: re.Match[str]) -> str:
        number = int(match[1])
        if number < before - 2:
            left.append(f"{new}: parents[{number}] stays inside the folder that moved")
            return match[0]
        return f"parents[{number + depth}]"

    if depth:
        path.write_text(re.sub(r"(?<=__file__\)\.)parents\[(\d+)\]", deeper, text))

# --- what no rule covers ---
BY_HAND = [
    ("tests/explain/test_explain_job.py", 'Path(__file__).parents[1] / "plan" / "explain" / "recorded"', 'Path(__file__).parent / "decide" / "recorded"'),
    ("tests/web/prepare.sh", "tests/faces/web", "tests/web"),
    ("docs/evidence/performance.md", "faces/lean_imports", "answers/lean_imports"),
]
for name, before, after in BY_HAND:
    path = ROOT / name
    text = path.read_text()
    if before in text:
        path.write_text(text.replace(before, after))
    elif after not in text:
        left.append(f"{name}: no {before}")

# --- rendered manifests name the digest of their chart in their first lines ---
HEADERS = """
import runpy
ours = runpy.run_path("deploy/render_chart.py")
for path, values in ours["outputs"]().items():
    new, text = ours["header"](values), path.read_text()
    path.write_text(new + "".join(text.splitlines(True)[new.count("\\n"):]))
"""
subprocess.run([Path(RUFF).with_name("python"), "-c", HEADERS], cwd=ROOT, check=True)

# --- pyproject: contracts, exceptions ---
project = (ROOT / "pyproject.toml").read_text()
for pattern, new in PYPROJECT:
    project, count = re.subn(pattern, lambda _, new=new: new, project, flags=re.DOTALL)
    if count != 1:
        left.append(f"pyproject.toml: {count} places for {pattern[:50]}")
(ROOT / "pyproject.toml").write_text(project)

# --- the module by which charts of the last release start the helper ---
stub = ROOT / "src/partage/cli/hardware.py"
stub.parent.mkdir(parents=True, exist_ok=True)
for folder in (stub.parent, stub.parent.parent):
    (folder / "__init__.py").write_text('"""Names of the release before, see cli/hardware."""\n')
stub.write_text('''"""The helper by the name that charts up to 0.1 start it with: ``python -m partage.cli.hardware``.

For one release: a node may get the new image before the new chart.
"""

from partage.cli.hardware import main

if __name__ == "__main__":
    main()
''')

subprocess.run([RUFF, "check", "-q", "--fix", "--select", "I", "src", "tests", "tools", "bench", "deploy", "proto"], cwd=ROOT, check=False)
subprocess.run([RUFF, "format", "-q", "."], cwd=ROOT, check=False)
print(len(moves), "files moved;", len(modules), "modules renamed")
rest = subprocess.run(["git", "-C", str(ROOT), "grep", "-nE", r"partage[./]faces|\bfaces/|agent/(cluster|slurm)/|edges/(slurm|node)/", "--", ":!docs/adr", ":!CHANGELOG.md", ":!tools/house"], capture_output=True, text=True, check=False).stdout
for line in [*left, *rest.splitlines()]:
    print("by hand:", line[:220])
