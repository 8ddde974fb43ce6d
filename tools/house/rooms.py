"""Where each file of src/partage goes: rules, by hand; `new_path(old)` is None where no rule fits."""

from __future__ import annotations

import re

# Exact files first. Values without .py. Relative to src/partage.
FILES: dict[str, str] = {}


def _room(room: str, text: str) -> None:
    for row in text.split():
        old, _, new = row.partition("=")
        assert old not in FILES, old
        FILES[old] = f"{room}/{new or old.rsplit('/', 1)[-1]}"


_room("edges/host", """edges/child_process edges/directory_changes edges/listening edges/procfs edges/read_file
  edges/replace_file edges/ticks edges/service_manager edges/device_users edges/empty_directory edges/http_exchange edges/own_task
  faces/token_file""")
_room("plan/history", "plan/rightsize/evidence")
_room("answers", """faces/cli/cluster_options faces/cli/common_node faces/cli/common_options faces/cli/common_output
  faces/cli/completion faces/cli/verb faces/machine_list faces/report faces/report_origin faces/unknown_models
  faces/wording faces/share_counts faces/idle_gpus faces/node_problems faces/use_words faces/lean_imports lab/share_names
  faces/umask faces/cli/plot_file faces/cli/findings faces/cli/node_plan""")
_room("answers/documents", """faces/documents/assertion faces/documents/document faces/documents/node
  faces/documents/plan faces/documents/report faces/documents/resources faces/documents/show
  faces/documents/usage_history faces/documents/use faces/documents/watch lab/document=lab""")
_room("answers/render", """faces/render/cards faces/render/drawing faces/render/fitting_table faces/render/picture
  faces/render/picture_files faces/render/rows faces/render/slices faces/render/tables faces/render/use_tables faces/render/terminal""")
_room("serve_http", "faces/agent_pages faces/http faces/http_access faces/cli/http_options=options faces/listen")
_room("serve_http/metrics", """agent/status/dcgm_metrics agent/status/exposition agent/status/families
  agent/status/metric_definition agent/status/metric_definitions agent/status/metrics agent/status/process_metrics
  agent/status/usage_definitions agent/status/usage_metrics""")
_room("serve_http/pages", """faces/web/agent_page faces/web/card faces/web/holdings faces/web/live faces/web/markup
  faces/web/moment faces/web/node_page faces/web/page faces/web/parts faces/web/sources faces/web/legend faces/web/use""")
_room("kubernetes/manifests", """faces/input_files faces/manifest faces/manifest_names=names faces/manifest_node=node
  faces/manifest_owners=owners faces/manifest_pods=pods faces/manifest_settings=settings""")
_room("kubernetes", """faces/cli/handback=verb_handback faces/cli/rollout=verb_rollout faces/cli/takeover=verb_takeover
  faces/documents/rollout=rollout_document faces/documents/takeover=takeover_document faces/plugin_exchange
  faces/render/rollout_table faces/rollout""")
_room("kubernetes/decide", """plan/cluster/drain plan/cluster/event_budget plan/cluster/events plan/cluster/pod_uids
  plan/cluster/taints plan/takeover""")
_room("slurm", """faces/cli/show_jobs faces/cli/slurm=verb faces/cli/slurm_agent=verb_agent
  faces/cli/slurm_check=verb_check faces/cli/slurm_job=verb_job faces/cli/slurm_version=version
  faces/documents/slurm=document faces/slurm_cluster=cluster faces/slurm_pages=pages""")
_room("slurm/model", "model/slurm=version model/slurm_devices=devices model/slurm_job=job model/slurm_live=live")
_room("slurm/text", """codec/hostlist codec/slurm_answers=answers codec/slurm_conf=conf codec/slurm_job_text=job_text
  codec/slurm_queue=queue codec/slurm_text=text""")
_room("slurm/host", "edges/files/slurm_files=conf_files")
_room("rightsize", """edges/files/usage_trace=trace edges/prometheus faces/cli/rightsize=verb
  faces/documents/rightsize=document faces/render/rightsize=tables faces/render/rightsize_plot=plot
  faces/rightsize_changes=changes faces/rightsize_sources=sources faces/usage_history=history""")
_room("advise", """edges/files/advise_file=file faces/advise_dialogue=dialogue faces/advised_gpu=gpu
  faces/advised_policy=policy faces/cli/advise=verb faces/documents/advice=document faces/render/advice_path=path
  faces/render/advice_text=text""")
_room("explain", """faces/cluster_views faces/explain_jobs=jobs faces/explain_shares=shares faces/node_views
  faces/pod_needs faces/pod_not_judged faces/cli/explain=verb faces/cli/explain_job=verb_job
  faces/cli/explain_nodes=verb_nodes faces/cli/explain_pod=verb_pod faces/cli/explain_share=verb_share
  faces/documents/explain=document faces/render/explain_job_tables=job_tables faces/render/explain_tables=tables""")
_room("doctor", "faces/cli/doctor=verb faces/documents/doctor=document faces/render/doctor_text=text")
_room("packing", """faces/packed_policy=policy faces/cli/fits=verb_fits faces/cli/packing=verb_demand
  faces/documents/fits=fits_document faces/documents/packing=document faces/render/fits_tables
  faces/render/packing_table=tables""")
_room("whatif", """edges/files/fleet_table edges/files/pod_trace faces/what_if_fleet=fleet faces/what_if_texts=texts
  faces/cli/what_if=verb faces/documents/what_if=document faces/render/what_if=tables faces/render/what_if_plot=plot""")
_room("providers", "edges/files/provider_rules=rules_file edges/files/worker_groups faces/provider_check=check")
_room("web", """faces/cli/web=verb faces/web/agents faces/web/fleet_head faces/web/glance faces/web/cluster_fleet faces/web/cluster_source
  faces/web/fleet_page faces/web/published faces/web/published_page faces/web/published_views
  faces/web/published_words faces/web/report_views""")
_room("lab", "faces/cli/lab=options")
_room("lab/prove", "faces/cli/prove=verb faces/render/proof_page faces/render/proof_tables faces/render/proof_text")
_room("lab/bench", "faces/cli/bench=verb faces/render/bench_plot=plot faces/render/bench_tables=tables")
_room("lab/stories", "faces/documents/simulation=document faces/render/stories=tables")
_room("cli", """faces/cli/apply faces/cli/apply_state faces/cli/assertion faces/cli/cordon faces/cli/drain
  faces/cli/export faces/cli/inspect faces/cli/labels faces/cli/plan faces/cli/show faces/cli/uncordon
  faces/cli/watch faces/cli/free faces/cli/check faces/cli/simulate faces/cli/agent faces/cli/hardware
  faces/cli/hardware_options faces/cli/help faces/cli/memory faces/cli/version faces/cli/main faces/cli/verbs faces/cli/record faces/cli/machines
  faces/documents/machines=machines_document faces/documents/apply=apply_document
  faces/documents/labels=labels_document faces/live_policy faces/render/memory_tables faces/render/plan_tables
  faces/agent=run_agent faces/checked_files faces/dialects faces/manifest_amounts faces/checked_offers
  faces/story_page faces/observed_machine""")

# Whole folders: the first that fits, after the files above.
FOLDERS = [
    ("agent/cluster/", "kubernetes/agent/"),
    ("agent/slurm/", "slurm/agent/"),
    ("plan/slurm/", "slurm/decide/"),
    ("edges/slurm/", "slurm/host/"),
    ("plan/advise/", "advise/decide/"),
    ("plan/doctor/", "doctor/decide/"),
    ("plan/explain/", "explain/decide/"),
    ("plan/packing/", "packing/decide/"),
    ("plan/providers/", "providers/decide/"),
    ("plan/rightsize/", "rightsize/decide/"),
    ("plan/whatif/", "whatif/decide/"),
    ("edges/node/", "doctor/host/"),
    ("faces/doctor/", "doctor/"),
]
STAY = ("agent/", "codec/", "edges/", "guard/", "lab/", "model/", "plan/", "sim/", "schema/")
DATA = [("faces/web/static/", "serve_http/pages/static/")]


def new_path(old: str) -> str | None:
    """Of one file of src/partage, with its suffix. Packages' __init__ are made anew where they are needed."""
    for before, after in DATA:
        if old.startswith(before):
            return after + old[len(before) :]
    stem, suffix = re.fullmatch(r"(.*?)(\.[^/]*)?", old).groups()
    if suffix == ".py" and stem in FILES:
        return FILES[stem] + ".py"
    for before, after in FOLDERS:
        if old.startswith(before):
            return after + old[len(before) :]
    new_in_old_places = re.fullmatch(r"edges/\w+\.py|(model|codec|plan)/slurm_\w+\.py|lab/\w+\.py|agent/status/\w*metric\w*\.py", old)
    if new_in_old_places and old not in STAYS_FILES and not old.endswith("__init__.py"):
        return None
    if "/" not in old or old.startswith(STAY):
        return old
    return None


STAYS_FILES = {f"lab/{name}.py" for name in "child daemon gpus interpreter place sizes tenant tenant_program".split()}
DOCS = {
    "advise": "Which strategy fits a GPU model and a workload.",
    "answers": "What several verbs share: options, output, documents and tables of the node, its picture.",
    "answers/documents": "The JSON documents that several verbs share: what they have, and how they are made.",
    "answers/render": "Tables and pictures that several verbs share.",
    "cli": "The command: the table of verbs, the verbs of the node, and what combines rooms.",
    "doctor": "What is wrong with a node, and what to do.",
    "doctor/host": "What the doctor looks at on a node.",
    "edges/host": "Files, processes and sockets of this machine, below all other edges.",
    "explain": "Why a pod or a job waits, and who holds a share.",
    "kubernetes": "What only a cluster of Kubernetes needs: labels and taints of the Node, drain, rollout, takeover.",
    "kubernetes/agent": "The part of the agent that speaks to its cluster.",
    "kubernetes/decide": "What a cluster is told of a node, and whom it is asked to evict. Pure.",
    "kubernetes/manifests": "What manifests ask for, and what is wrong with them.",
    "packing": "Which layouts serve a demand, and which fit on a GPU.",
    "providers": "What a provider allows.",
    "rightsize": "The right size of a share, from what was used.",
    "serve_http": "The server: access, pages of the agent, metrics.",
    "serve_http/metrics": "What /metrics says.",
    "serve_http/pages": "The page of a node for a browser.",
    "slurm": "Everything of Slurm: its files, its jobs, the agent of a compute node, the verb.",
    "slurm/agent": "The agent of a compute node.",
    "slurm/decide": "What Slurm is to be told, and what its files and jobs mean. Pure.",
    "slurm/host": "Slurm's programs and files on this machine.",
    "slurm/model": "Values of Slurm: releases, devices, jobs.",
    "slurm/text": "What Slurm's files and programs say, as values and back. Pure.",
    "web": "Many nodes in a browser.",
    "whatif": "What becomes of the pods of a trace on a fleet.",
}
