"""Imports that stand against the order, before anything is moved: python3 count.py CHECKOUT."""
import ast, collections, pathlib, sys
from rooms import new_path
src = pathlib.Path(sys.argv[1]) / "src/partage"
def mod(rel): 
    parts = ("partage", *pathlib.PurePath(rel).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
old, unmapped = {}, []
for p in src.rglob("*.py"):
    rel = str(p.relative_to(src))
    if "_generated" in rel: continue
    to = new_path(rel)
    if to is None:
        if p.name != "__init__.py" : unmapped.append(rel)
        elif p.read_text().count("\n") > 3: unmapped.append(rel + " (init with content)")
        continue
    old[mod(rel)] = (mod(to), p)
print("unmapped:", unmapped)
targets = collections.Counter(n for n, _ in old.values())
print("twice:", [n for n, c in targets.items() if c > 1])
CAP = "advise doctor explain providers packing rightsize whatif web lab".split()
LEVEL = [["cli","__main__"], CAP, ["kubernetes","slurm"], ["serve_http"], ["answers"], ["agent","sim"], ["edges"], ["plan"], ["codec"], ["model"], ["errors","text","units",""], ["values"]]
level = {r: i for i, rs in enumerate(LEVEL) for r in rs}
def room(m):
    parts = m.split(".") + [""]
    return parts[1]
bad = collections.defaultdict(set)
for m, (n, p) in old.items():
    for node in ast.walk(ast.parse(p.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("partage"):
            for a in node.names:
                full = node.module + "." + a.name
                t = full if full in old else node.module
                if t not in old: continue
                tn = old[t][0]
                r, s = room(n), room(tn)
                if s == "guard" or r == "guard": continue
                if r != s and (level[s] < level[r] or (level[s] == level[r])):
                    bad[f"{r} -> {s}"].add(f"{n} -> {tn}  {a.name}")
                if r == s == "edges":
                    x, y = n.split(".")[2], tn.split(".")[2]
                    if x != y and y != "host": bad[f"edges {x} -> {y}"].add(f"{n} -> {tn} {a.name}")
for k, v in sorted(bad.items()):
    print(k, len(v)); [print("   ", x) for x in sorted(v)[:30]]
folders = collections.Counter(n.rpartition(".")[0] for n, _ in old.values())
print({k: v for k, v in folders.items() if v > 30})
