"""Policies in ConfigMaps."""

import json

import pytest
import yaml

from partage.agent.node_policy import NodeChoice, NodePolicy, PolicyRefusal, node_policy, restored
from partage.cli.main import run
from partage.edges.files.policy import configurations, parse_policy
from partage.edges.files.policy_directory import PolicyFiles
from partage.errors import InputError
from partage.model.policy import GpuEntry, Mps, ResourceEntry, TimeSlicing
from partage.plan.offer.policy_choice import ChoiceRules
from partage.plan.report import PolicyReason

NATIVE = "version: partage/v1\ngpus:\n  - select: all\n    mps: {replicas: 3}\n"
NVIDIA = "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n"
MIG = """\
version: v1
mig-configs:
  halves: [{devices: all, mig-enabled: true, mig-devices: {3g.40gb: 2}}]
  off: [{devices: all, mig-enabled: false}]
"""


def config_map(name="configs", **data):
    """The ConfigMap as kubectl prints it, with texts as blocks."""

    class Dumper(yaml.SafeDumper):
        pass

    Dumper.add_representer(
        str,
        lambda dumper, text: dumper.represent_scalar(
            "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
        ),
    )
    return yaml.dump(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data},
        Dumper=Dumper,
        sort_keys=False,
    )


def sharing(text, config=None):
    """How the first entry of the policy that is taken shares."""
    entry = parse_policy(text, "cm.yaml", config).policy.entries[0]
    return entry.mig if isinstance(entry, GpuEntry) and entry.mig else entry.sharing


def refusal(text, config=None):
    with pytest.raises(InputError) as caught:
        parse_policy(text, "cm.yaml", config)
    return caught.value.problems


@pytest.mark.parametrize(
    ("data", "config", "taken"),
    [
        ({"x.yaml": NATIVE}, None, Mps),
        ({"a": NVIDIA, "default": NATIVE}, None, Mps),
        ({"a": NVIDIA, "default": NATIVE}, "a", TimeSlicing),
        ({"a": NVIDIA, "readme": "for people\n"}, None, TimeSlicing),
    ],
)
def test_a_key_is_taken_as_nvidias_config_manager_takes_it(data, config, taken):
    assert isinstance(sharing(config_map(**data), config), taken)


@pytest.mark.parametrize("config", ["halves", "mig/halves"])
def test_a_configuration_of_mig_parted_is_found_in_its_key(config):
    mig = sharing(config_map(a=NVIDIA, mig=MIG), config)
    assert [str(item) for item in mig.items] == ["3g.40gb", "3g.40gb"]
    assert sharing(config_map(mig=MIG), "halves") == mig


def test_several_keys_need_a_name_and_the_error_lists_them():
    (problem,) = refusal(config_map(fast=NATIVE, slow=NVIDIA))
    assert "2 configurations" in problem.message
    assert "fast, slow" in problem.hint
    (problem,) = refusal(config_map(fast=NATIVE, mig=MIG), "fats")
    assert "did you mean 'fast'? it has: fast, mig/halves, mig/off" in problem.hint
    (problem,) = refusal(config_map(a=MIG, b=MIG), "off")
    assert "a/off, b/off" in problem.hint


def test_a_configmap_is_found_among_documents_and_in_a_list():
    namespace = "kind: Namespace\napiVersion: v1\nmetadata: {name: gpu}\n"
    assert isinstance(sharing(f"# all of it\n{namespace}---\n{config_map(a=NATIVE)}"), Mps)
    listed = {
        "apiVersion": "v1",
        "kind": "List",
        "items": [{"kind": "Pod"}, yaml.safe_load(config_map(a=NATIVE))],
    }
    assert isinstance(sharing(json.dumps(listed)), Mps)
    listed["kind"], listed["items"] = "ConfigMapList", [{"data": {"a": NVIDIA}}]
    assert isinstance(sharing(json.dumps(listed)), TimeSlicing)


def test_equal_keys_of_two_configmaps_are_told_apart():
    both = f"{config_map('one', x=NATIVE)}---\n{config_map('two', x=NVIDIA)}"
    assert configurations(both.encode(), "f") == ["one/x", "two/x"]
    assert isinstance(sharing(both, "two/x"), TimeSlicing)


@pytest.mark.parametrize("above", ["", "# one\n\n# two\n", "kind: Namespace\napiVersion: v1\n---\n"])
def test_a_problem_names_file_key_and_the_line_in_the_file(above):
    text = above + config_map(good=NVIDIA, **{"b.yaml": NATIVE.replace("3", "1")})
    (problem,) = refusal(text, "b.yaml")
    assert problem.file == "cm.yaml"
    assert problem.path.endswith('data["b.yaml"].gpus[0].mps.replicas')
    line = next(n for n, found in enumerate(text.splitlines(), 1) if "replicas: 1" in found)
    assert problem.message.startswith(f"line {line}: ")


def test_yaml_that_is_broken_is_named_with_line_and_column_of_the_file():
    text = config_map(a="version: v1\nsharing: [\n  }\n")
    (problem,) = refusal(text)
    lines = text.splitlines()
    line = next(n for n, found in enumerate(lines, 1) if found.strip() == "}")
    assert problem.message.startswith(f"line {line}, column {lines[line - 1].index('}') + 1}: not YAML")


def test_a_text_that_is_no_block_has_lines_of_its_own():
    (problem,) = refusal(json.dumps(yaml.safe_load(config_map(a=NATIVE.replace("3", "1")))))
    assert problem.message.startswith("line 4 of the text: has to be 2 or more")


def test_a_policy_that_is_no_text_is_told_what_to_write():
    (problem,) = refusal("apiVersion: v1\nkind: ConfigMap\ndata:\n  a: {version: v1}\n")
    assert (problem.path, problem.message.partition(":")[0]) == ("data.a", "line 4")
    assert "write 'a: |'" in problem.hint


@pytest.mark.parametrize(
    "text", ["kind: ConfigMap\n", "kind: ConfigMap\ndata: {}\n", "kind: ConfigMap\ndata: 3\n"]
)
def test_a_configmap_without_data_is_an_error(text):
    (problem,) = refusal(text)
    assert "no 'data'" in problem.message


def test_a_policy_that_speaks_of_configmaps_is_a_policy():
    assert isinstance(sharing(f"# from a ConfigMap\n{NATIVE}"), Mps)


def test_problems_that_the_node_brings_name_the_key_too(capsys, tmp_path):
    file = tmp_path / "cm.yaml"
    file.write_text(config_map(a=MIG))
    machine = ("--machine", "2xl4")
    assert run(["plan", "--policy", str(file), "--config", "halves", *machine]) == 3
    assert f"{file}: data.a.mig-configs.halves" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("verb", "code"), [(["plan"], 0), (["apply", "--dry-run"], 0), (["assert"], 1), (["show"], 0)]
)
def test_every_verb_takes_a_configmap(capsys, tmp_path, verb, code):
    file = tmp_path / "cm.yaml"
    file.write_text(config_map(a=NVIDIA, b=NATIVE, default=MIG.replace("  off", "  # off")))
    assert run([*verb, "--policy", str(file), "--machine", "2xh100-sxm5-80gb"]) == code
    assert "MIG" in capsys.readouterr().out


BY_PARTAGE, BY_NVIDIA = "partage.dev/policy", "nvidia.com/device-plugin.config"


AS_IN_A_DIRECTORY = [
    ({BY_PARTAGE: "b"}, None, ("b", f"label {BY_PARTAGE}")),
    ({BY_NVIDIA: "a"}, None, ("a", f"label {BY_NVIDIA}")),
    ({BY_NVIDIA: "a", BY_PARTAGE: "b"}, "default", ("b", f"label {BY_PARTAGE}")),
    ({BY_NVIDIA: ""}, "a", ("a", "default")),
    ({}, None, ("default", "fallback named")),
    ({BY_NVIDIA: "b"}, "mig/halves", ("b", f"label {BY_NVIDIA}")),
]
IN_A_FILE_ONLY: list[tuple[dict[str, str], str, tuple[str, str]]] = [
    ({}, "mig/halves", ("mig/halves", "")),
    ({}, "halves", ("halves", "")),
]


@pytest.mark.parametrize(
    ("labels", "default", "taken", "in_directory"),
    [
        *((*case, False) for case in (*AS_IN_A_DIRECTORY, *IN_A_FILE_ONLY)),
        *((*case, True) for case in AS_IN_A_DIRECTORY),
    ],
)
def test_labels_choose_among_its_keys_as_among_the_files_of_a_directory(
    tmp_path, labels, default, taken, in_directory
):
    data = {"a": NVIDIA, "b": NATIVE, "default": NATIVE, "mig": MIG, "readme": "for people\n"}
    file = tmp_path / "cm.yaml"
    file.write_text(config_map(**data))
    if in_directory:
        file = tmp_path / "policies"
        (file / "..data").mkdir(parents=True)  # as the kubelet mounts it
        for name, text in data.items():
            (file / name).write_text(text)
    found = node_policy(PolicyFiles(file).read(), NodeChoice(labels, rules=ChoiceRules(default)))
    assert isinstance(found, NodePolicy)
    assert (found.name, found.by) == taken
    assert found.saved is not None
    again = restored(found.saved, {})
    assert (again.loaded.policy, again.loaded.text) == (found.loaded.policy, found.loaded.text)


@pytest.mark.parametrize(
    ("choice", "reason", "said"),
    [
        (NodeChoice({BY_PARTAGE: "bb"}), PolicyReason.UNKNOWN_NAME, "no policy has that name"),
        (NodeChoice({}), PolicyReason.NONE_CHOSEN, "no policy is chosen"),
        (NodeChoice(awaited=True), PolicyReason.LABELS_UNKNOWN, "not known yet"),
        (NodeChoice({BY_PARTAGE: "wrong"}), PolicyReason.WRONG, "data.wrong.gpus[0].mps.replicas"),
    ],
)
def test_a_choice_that_cannot_be_made_is_refused(tmp_path, choice, reason, said):
    file = tmp_path / "cm.yaml"
    file.write_text(config_map(a=NVIDIA, b=NATIVE, wrong=NATIVE.replace("3", "1")))
    found = node_policy(PolicyFiles(file).read(), choice)
    assert isinstance(found, PolicyRefusal)
    assert found.reason is reason
    assert said in str(found.problems[0])


def test_the_label_of_a_layout_finds_it_in_a_key(tmp_path):
    file = tmp_path / "cm.yaml"
    file.write_text(config_map(default=NATIVE, layouts=MIG))
    choice = NodeChoice({"nvidia.com/mig.config": "halves"})
    found = node_policy(PolicyFiles(file).read(), choice)
    assert isinstance(found, NodePolicy)
    assert (found.name, found.layouts_problems) == ("default", ())
    assert found.layouts is not None
    (entry,) = found.layouts.layouts.entries
    assert entry.mig is not None
    assert [str(item) for item in entry.mig.items] == ["3g.40gb", "3g.40gb"]
    assert found.layouts.source == str(file)
    saved = found.remembered(found.layouts)
    assert saved is not None
    again = restored(saved, {})
    assert again.layouts is not None
    assert again.layouts.layouts == found.layouts.layouts


def test_a_label_names_a_key_of_mig_parted_and_another_its_configuration(tmp_path):
    file = tmp_path / "cm.yaml"
    file.write_text(config_map(mig=MIG, b=NATIVE))
    choice = NodeChoice({BY_NVIDIA: "mig", "nvidia.com/mig.config": "off"})
    found = node_policy(PolicyFiles(file).read(), choice)
    assert isinstance(found, NodePolicy)
    assert (found.loaded.policy.entries, found.layouts is not None) == ((), True)


def test_the_agent_reads_a_configmap(tmp_path):
    file = tmp_path / "cm.yaml"
    file.write_text(config_map(a=NVIDIA, b=NATIVE))
    found = node_policy(PolicyFiles(file).read(), NodeChoice(rules=ChoiceRules("a")))
    assert isinstance(found, NodePolicy)
    (entry,) = found.loaded.policy.entries
    assert isinstance(entry, ResourceEntry)
    assert entry.origin == "data.a.sharing.timeSlicing.resources[0]"
