"""Expressions about devices, each on a device as the agent publishes it: what the scheduler would find."""

import pytest

from partage.claims.decide.book import book_of_offer
from partage.claims.decide.cel import SelectorError, read_selector, selects
from partage.claims.decide.cel_syntax import NotEvaluated
from partage.claims.model.names import OWN_NAMES
from partage.edges.files.catalogue import geometry_of
from tests.claims.offers import amounts, machine, mig, offers

DRIVER = OWN_NAMES.driver

ATTRIBUTES, CAPACITY = f"device.attributes['{DRIVER}']", f"device.capacity['{DRIVER}']"


def published(row):
    (found,) = book_of_offer(offers(row), machine(row), "node-a", geometry_of).devices
    return found.device


AMOUNTS, MIG = published(amounts(0, 79)), published(mig(0, 0))


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        # The chart's, our page's, and those of NVIDIA's manifests and tests.
        (f'device.driver == "{DRIVER}" && {ATTRIBUTES}.mode in ["whole","amounts"]', True),
        (f'device.driver == "{DRIVER}" && {ATTRIBUTES}.mode in ["mig"]', False),
        (f"{ATTRIBUTES}.productName.lowerAscii().matches('^.*h100.*$')", True),
        (f"{ATTRIBUTES}.productName.lowerAscii().matches('^.*a100.*$')", False),
        (f"{ATTRIBUTES}.driverVersion.compareTo(semver('550.0.0')) >= 0", True),
        (f"{ATTRIBUTES}.driverVersion.isLessThan(semver('550.0.0'))", False),
        (f"{CAPACITY}.memory.compareTo(quantity('79Gi')) == 0", True),
        (f"{CAPACITY}.memory.isGreaterThan(quantity('80Gi'))", False),
        # The rest of what is evaluated.
        (f"has({ATTRIBUTES}.profile)", False),
        (f"!has({ATTRIBUTES}.profile) && {ATTRIBUTES}.index == 0", True),
        (f"has({ATTRIBUTES}.profile) ? {ATTRIBUTES}.profile == '1g.10gb' : true", True),
        (f"{ATTRIBUTES}.?profile.orValue('none') == 'none'", True),
        (f"{ATTRIBUTES}[?'mode'].hasValue()", True),
        (f"'mode' in {ATTRIBUTES}", True),
        ("device.attributes['other.example.com'].size() == 0", True),
        ("device.allowMultipleAllocations", True),
        (f"{ATTRIBUTES}.index < -1 || ({ATTRIBUTES}.index >= 0)", True),
        (f"{ATTRIBUTES}.index == '0'", False),
        (f"{ATTRIBUTES}.mode.startsWith(r'am') && {ATTRIBUTES}.mode.contains(\"oun\")", True),
        (f"{ATTRIBUTES}.mode.endsWith('x') || !({ATTRIBUTES}.mode != 'amounts')", True),
        # An error counts only where the other side does not decide.
        (f"{ATTRIBUTES}.profile == 'x' || true", True),
        (f"false && {ATTRIBUTES}.profile == 'x'", False),
    ],
)
def test_what_is_wanted(expression, wanted):
    assert selects(expression, AMOUNTS, DRIVER) is wanted


def test_a_mig_device_by_its_profile():
    assert selects(f"{ATTRIBUTES}.profile == '1g.10gb'", MIG, DRIVER)
    assert not selects(f"{ATTRIBUTES}.profile == '3g.40gb'", MIG, DRIVER)


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        (f"{ATTRIBUTES}.profile == '3g.40gb'", "the device has no profile"),
        (f"{CAPACITY}.memory >= 10", "cannot be compared"),
        (f"{ATTRIBUTES}.mode.compareTo(semver('1.0.0')) > 0", "two amounts or two versions"),
        (f"{ATTRIBUTES}.driverVersion.isGreaterThan(semver('550'))", "no version of three numbers"),
        (f"{ATTRIBUTES}.mode", "not true or false"),
        (f"{ATTRIBUTES}.mode && true", "not true or false"),
        ("device.driver.x", "no fields"),
        (f"has({ATTRIBUTES}.profile) || {ATTRIBUTES}.profile == 'x'", "no profile"),
    ],
)
def test_what_fails_on_a_device(expression, why):
    with pytest.raises(SelectorError, match=why):
        selects(expression, AMOUNTS, DRIVER)


@pytest.mark.parametrize(
    "expression",
    [
        "['a'].exists(x, x == 'a')",
        f"{ATTRIBUTES}.index + 1 == 2",
        "cel.bind(x, device, x.driver == 'a')",
        "other == 1",
        "device.driver ==",
        "device.driver == 'a' extra",
        "device.driver == `a`",
        "device.driver == 1.5",
        "(" * 60 + "true" + ")" * 60,
        "true || " * 2000 + "true",
        # A tenant's pattern that would take minutes, and what Python reads in another way.
        f"{ATTRIBUTES}.mode.matches('(a+)+$')",
        f"{ATTRIBUTES}.mode.matches('.*.*.*.*.*x')",
        f"{ATTRIBUTES}.mode.matches('(a)\\\\1')",
        f"{ATTRIBUTES}.mode.matches('(?=a)')",
        f"{ATTRIBUTES}.mode.matches('[')",
        "",
    ],
)
def test_what_is_not_evaluated_is_said_and_never_guessed(expression):
    with pytest.raises(NotEvaluated):
        read_selector(expression)
