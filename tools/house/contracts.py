"""What of pyproject.toml changes: (pattern, text) pairs, each found once."""

_CAPABILITIES = "advise doctor explain lab packing providers rightsize web whatif".split()
_LAYERS = [
    "partage.cli",
    "partage.cli",
    " | ".join(f"partage.{one}" for one in _CAPABILITIES),
    "partage.kubernetes | partage.slurm",
    "partage.serve_http",
    "partage.answers",
    "partage.agent | partage.sim",
    "partage.edges",
    "partage.plan",
    "partage.codec",
    "partage.model",
    "partage.errors | partage.text | partage.units",
    "partage.values",
]
_quoted = lambda names: "[" + ", ".join(f'"{one}"' for one in names) + "]"  # noqa: E731
_PURE = ["partage.codec", "partage.model", "partage.plan", "partage.slurm.model", "partage.slurm.text",
         *(f"partage.{one}.decide" for one in ["advise", "doctor", "explain", "kubernetes", "packing", "providers", "rightsize", "slurm", "whatif"])]
_EDGES = ["hardware", "kubelet", "files", "cdi", "mps", "kube"]
_SILENT = ["agent", "codec", "edges", "model", "plan", "sim"]
_OTHERS = ["agent", "answers", "cli", "codec", "edges", "errors", "kubernetes", "model", "plan", "serve_http", "sim", "slurm", "text", "units", "values", *_CAPABILITIES]

CONTRACTS = f'''[tool.importlinter]
root_package = "partage"
include_external_packages = true
[[tool.importlinter.contracts]]
name = "Floors and rooms: imports go down, and rooms of one floor do not know each other"
type = "layers"
layers = {_quoted(_LAYERS)}
[[tool.importlinter.contracts]]
name = "Edges do not know each other, and stand on the host alone"
type = "layers"
layers = ["{" | ".join(f"partage.edges.{one}" for one in _EDGES)}", "partage.edges.host"]
[[tool.importlinter.contracts]]
name = "The verbs of the laboratory do not know each other"
type = "independence"
modules = ["partage.lab.bench", "partage.lab.prove", "partage.lab.stories"]
[[tool.importlinter.contracts]]
name = "One module touches NVML"
type = "protected"
protected_modules = ["pynvml"]
allowed_importers = ["partage.edges.hardware.binding"]
as_packages = false
[[tool.importlinter.contracts]]
name = "Decisions do no I/O"
type = "forbidden"
source_modules = {_quoted(_PURE)}
forbidden_modules = ["asyncio", "logging", "os", "pathlib", "socket", "subprocess", "threading", "time"]
[[tool.importlinter.contracts]]
name = "Decisions of a room know neither its documents nor what it prints, nor an outside system"
type = "forbidden"
source_modules = ["partage.*.decide"]
forbidden_modules = ["partage.agent", "partage.answers", "partage.cli", "partage.edges", "partage.serve_http", "partage.sim"]
[[tool.importlinter.contracts]]
name = "The guard stands alone"
type = "forbidden"
source_modules = ["partage.guard"]
forbidden_modules = {_quoted(f"partage.{one}" for one in _OTHERS)}
[[tool.importlinter.contracts]]
name = "The agent is small, and writes to nobody: no tables, no colours on the heart's floors"
type = "forbidden"
source_modules = {_quoted(f"partage.{one}" for one in _SILENT)}
forbidden_modules = ["rich", "click", "matplotlib"]
'''

PYPROJECT = [
    (r"\[tool\.importlinter\]\n.*\Z", CONTRACTS),
    (r'"src/partage/faces/\*\*" = \["T20"\][^\n]*\n', ""),
    (
        r'"src/partage/[^"\n]*" = \["T20", "TID251"\]\n',
        """"src/partage/{answers/common_output,answers/completion,serve_http/listen,cli/run_agent,cli/story_page,cli/help,cli/main}.py" = ["T20", "TID251"]
""",
    ),
]
