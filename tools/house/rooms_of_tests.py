"""Where each file of tests/ goes: beside what it tests."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

# tests/faces/test_*.py (and helpers) whose name is not that of a module.
BY_HAND = {
    "faces/nodes": "answers", "faces/reports": "answers", "faces/test_any_input": "cli", "faces/test_documents": "answers",
    "faces/test_explain_cluster": "explain", "faces/test_files_without_end": "cli", "faces/test_hardware_left": "cli",
    "faces/test_hostile_text": "cli", "faces/test_memory_units": "cli", "faces/test_node_labels": "cli",
    "faces/test_plan_demand": "packing", "faces/test_widths": "cli", "faces/test_verb_imports": "cli",
    "faces/test_drawing": "answers", "faces/test_picture": "answers", "faces/test_slices": "answers",
    "faces/test_cluster_options": "answers", "faces/test_completion": "answers", "faces/test_release_stub": "cli", "faces/test_report_origin": "answers",
    "faces/test_wording": "answers", "faces/test_use": "answers", "faces/test_verb": "answers", "faces/test_umask": "answers",
    "faces/test_http": "serve_http", "faces/test_rightsize_changes": "rightsize", "faces/test_slurm_config": "slurm",
    "faces/test_slurm_agent": "slurm", "faces/test_slurm_check": "slurm", "faces/test_show_jobs": "slurm",
    "faces/test_explain_job": "explain", "faces/test_what_if": "whatif", "faces/test_takeover": "kubernetes",
    "faces/test_manifest": "kubernetes/manifests", "faces/test_manifest_settings": "kubernetes/manifests",
    "faces/test_check": "cli", "faces/test_apply": "cli", "faces/test_dialects": "cli", "faces/test_fits": "packing",
    "faces/test_advise": "advise", "faces/test_explain": "explain", "faces/test_node_views": "explain",
    "faces/test_provider_check": "providers", "faces/test_rightsize": "rightsize", "faces/test_record": "cli",
    "faces/test_labels": "cli", "faces/test_main": "cli", "faces/test_plan": "cli", "faces/test_show": "cli",
    "faces/test_simulate": "cli", "faces/test_story_page": "cli", "faces/test_watch": "cli",
    "edges/files/test_pod_trace": "whatif", "edges/files/test_slurm_files": "slurm/host",
    "plan/cluster/test_drain": "kubernetes/decide", "plan/cluster/test_events": "kubernetes/decide",
    "plan/cluster/test_event_budget": "kubernetes/decide", "plan/cluster/test_taints": "kubernetes/decide",
    "plan/cluster/test_pod_uids": "kubernetes/decide", "plan/test_takeover": "kubernetes/decide",
    "agent/test_exposition": "serve_http",
}
FOLDERS = [
    ("faces/doctor/", "doctor/"), ("faces/web/", "web/"), ("agent/slurm/", "slurm/agent/"), ("edges/slurm/", "slurm/host/"),
    ("edges/node/", "doctor/host/"), ("plan/slurm/", "slurm/decide/"),
    *((f"plan/{one}/", f"{one}/decide/") for one in ("advise", "doctor", "explain", "packing", "providers", "rightsize", "whatif")),
]
CODEC = re.compile(r"(codec|model)/test_(hostlist|slurm_\w+|slurm)$")


def new_test_path(old: str, moves: dict[str, str]) -> str | None:
    del moves
    rel = old.removeprefix("tests/")
    stem, _, suffix = rel.rpartition(".") if "." in PurePosixPath(rel).name else (rel, "", "")
    name = PurePosixPath(rel).name
    if stem in BY_HAND:
        return f"tests/{BY_HAND[stem]}/{name}"
    if match := CODEC.match(stem):
        return f"tests/slurm/{'text' if match[1] == 'codec' else 'model'}/{name}"
    if re.fullmatch(r"edges/[^/]+\.py", rel) and name != "__init__.py":
        return f"tests/edges/host/{name}"
    for before, after in FOLDERS:
        if rel.startswith(before):
            return f"tests/{after}{rel[len(before):]}"
    if rel == "faces/__init__.py":
        return old
    if rel.startswith("faces/"):
        return None
    return old
