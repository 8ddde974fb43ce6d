"""The two walks of ``make walks`` go where they say."""

from tools.walks import __main__ as walks


def test_a_new_policy_and_a_new_layout_are_followed_to_their_ends(capsys):
    assert walks.main([]) == 0
    to_the_kubelet, to_an_instance = capsys.readouterr().out.split("\n\nFrom ")
    for walk in (to_the_kubelet, to_an_instance):
        ran = [line.split()[0] for line in walk.splitlines() if line.startswith("  ")]
        assert "(agent/loop.py)" in ran, "it runs at rest, too"
        assert ran.index("edges/files/native.py") < ran.index("plan/offer/desired.py") < len(ran) - 1
    assert "plan/reconcile/mig_plan.py" in to_an_instance
    assert "plan/reconcile/mig_plan.py" not in to_the_kubelet


def test_a_verb_is_followed(capsys):
    assert walks.main(["fits", "a100-40gb"]) == 0
    assert "packing/decide/openings.py" in capsys.readouterr().out
