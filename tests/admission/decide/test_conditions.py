"""Whoever is translated is sent to the webhook; ``nvidia.com/gpu`` alone is not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partage.admission.decide import ack, hami, kai, nos_gke, volcano
from partage.admission.decide.settings import DialectSettings
from partage.admission.decide.translate import AdmissionTerms, translate
from partage.admission.webhook import read_review, write_allowed
from partage.codec.values import CodecError, encode
from tests.admission.conditions import is_sent, match_condition, sent_names
from tests.admission.pods import SIZES, container, pod

SETTINGS = (
    DialectSettings(),
    DialectSettings(hami_count="example.com/gpu", hami_memory="example.com/mem", default_gpus=2),
)
NAMES = sorted(
    {
        *volcano.RESOURCES,
        *ack.RESOURCES,
        *sent_names(SETTINGS[0]).resources,
        *sent_names(SETTINGS[1]).resources,
        "nvidia.com/gpu",
        "example.com/gpu",
        "nvidia.com/gpu-10gb",
        "nvidia.com/gpu-0gb",
        "nvidia.com/mig-1g.5gb",
        "cpu",
    }
)
MARKS = (*kai.MARKS, *hami.MARKS, "gpu-fraction-container-name", "volcano.sh/vgpu-mode", "other")
amounts = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(("0", "1", "50", "100", "x")), max_size=4)
pods = st.builds(
    lambda limits, requests, annotations, selector, labels, scheduler: pod(
        container(limits) | ({"resources": {"requests": requests}} if requests else {}),
        container(limits, "second"),
        annotations=annotations,
        labels=labels,
        nodeSelector=selector,
        schedulerName=scheduler,
        initContainers=[container(requests, "before")],
    ),
    amounts,
    amounts,
    st.dictionaries(st.sampled_from(MARKS), st.sampled_from(("0.5", "1", "binpack", "mig", "")), max_size=3),
    st.dictionaries(st.sampled_from((*nos_gke.SELECTORS, "a")), st.sampled_from(("mps", "4")), max_size=2),
    st.dictionaries(st.sampled_from(("aliyun.com/gpu-count", "a")), st.just("2"), max_size=2),
    st.sampled_from(("default-scheduler", "volcano", "kai-scheduler")),
)


@given(pods, st.sampled_from(SETTINGS))
def test_whoever_is_translated_or_refused_is_sent(
    document: dict[str, Any], settings: DialectSettings
) -> None:
    if translate(document, AdmissionTerms(settings, SIZES)) is not None:
        assert is_sent(document, settings)


@pytest.mark.parametrize("name", ["nvidia.com/gpu", "nvidia.com/mig-1g.5gb", "cpu", "nvidia.com/gpu.shared"])
def test_nobodys_pods_are_not_sent(name: str) -> None:
    assert not is_sent(pod(container({name: "1"})), DialectSettings())
    assert not is_sent(pod(container({name: "1"}), annotations={"a": "b"}), DialectSettings())


def test_names_of_an_admin_stay_texts_in_the_expression() -> None:
    settings = DialectSettings(hami_memory="""a/"] || true || ['""")
    assert r'"a/\"] || true || [' in match_condition(settings)["expression"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)
shapes = st.fixed_dictionaries(
    {},
    optional={
        "metadata": JSON | st.fixed_dictionaries({"annotations": JSON, "labels": JSON}),
        "spec": JSON
        | st.fixed_dictionaries(
            {},
            optional={
                "containers": JSON
                | st.lists(
                    st.fixed_dictionaries(
                        {"name": JSON},
                        optional={
                            "resources": JSON
                            | st.fixed_dictionaries(
                                {"limits": st.dictionaries(st.sampled_from(NAMES), JSON, max_size=3) | JSON}
                            )
                        },
                    ),
                    max_size=3,
                ),
                "resourceClaims": JSON,
                "nodeSelector": JSON,
                "schedulerName": JSON,
                "nodeName": JSON,
            },
        ),
    },
)


@given(shapes, st.sampled_from(SETTINGS))
def test_whatever_a_pod_looks_like_there_is_an_answer(
    document: dict[str, Any], settings: DialectSettings
) -> None:
    """No exception, and an answer that can be written."""
    is_sent(document, settings)
    outcome = translate(document, AdmissionTerms(settings, SIZES))
    write_allowed("u", getattr(outcome, "patch", ()), getattr(outcome, "warnings", ()))


@given(JSON)
def test_whatever_is_no_review_is_said_to_be_none(document: Any) -> None:
    with pytest.raises(CodecError):
        read_review(encode(document))
