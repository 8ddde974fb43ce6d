"""What holds for all tests."""

import gc
import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests import leftovers
from tests.examples import examples

# How long an example takes says how busy the machine is. What is slow is seen by the benchmarks.
settings.register_profile(
    "any", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=examples(100)
)
# The same commit has the same result. New examples are looked for with PARTAGE_EXAMPLES (make soak).
settings.register_profile("same", settings.get_profile("any"), derandomize=True)
settings.load_profile("any" if "PARTAGE_EXAMPLES" in os.environ else "same")

# A shell that starts the tests in the background lets them ignore Ctrl-C, and so all that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """A directory whose path leaves room for a socket's 107 bytes, and that other users may pass."""
    with tempfile.TemporaryDirectory(prefix="ptg-", dir="/tmp") as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


_ENDS_WITHIN_S = 5.0
"""A thread that waits for the driver's events sees after a second at the latest that it is to stop."""


def _of_drivers() -> set[threading.Thread]:
    """The threads of every NvmlHardware of this process."""
    return {one for one in threading.enumerate() if one.name.startswith("nvml")}


@pytest.fixture(scope="session")
def _left_threads() -> Iterator[dict[threading.Thread, str]]:
    """Threads that a test left behind, and its name. They may take a moment, and nobody waits for them."""
    left: dict[threading.Thread, str] = {}
    yield left
    for thread in left:
        thread.join(_ENDS_WITHIN_S)
    unclosed = sorted({test for thread, test in left.items() if thread.is_alive()})
    assert not unclosed, f"tests that did not close their NvmlHardware: {', '.join(unclosed)}"


@pytest.fixture(autouse=True)
def _every_driver_is_closed(
    request: pytest.FixtureRequest, _left_threads: dict[threading.Thread, str]
) -> Iterator[None]:
    before = _of_drivers()
    yield
    _left_threads.update(dict.fromkeys(_of_drivers() - before, request.node.nodeid))


_BEFORE = pytest.StashKey[set[str]]()
LEFT_SOMETHING = 6
"""Exit code, pytest's own end at 5. A second try of failed tests cannot mend this: make test gives up."""
_TURN = pytest.StashKey[leftovers.Turn]()
_LEFT = pytest.StashKey[list[str]]()
_UNKNOWN = pytest.StashKey[list[str]]()


_YOUNG_OBJECTS = 20_000
"""So many are made before they are looked through for garbage: after 700 it took a tenth of laws' time."""


def pytest_collection() -> None:
    """What is collected stays."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Half a million objects are the tests themselves: nobody looks through them again for garbage."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, *gc.get_threshold()[1:])
    gc.enable()


def pytest_configure(config: pytest.Config) -> None:
    """Not in the workers of pytest-xdist: what they leave is seen by who started them."""
    if not hasattr(config, "workerinput"):
        os.environ[leftovers.MARK] = str(os.getpid())
        config.stash[_TURN] = leftovers.Turn(Path(tempfile.gettempdir(), "partage-tests.lock"))
        config.stash[_BEFORE] = leftovers.leftovers()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests of one group must not meet: a pytest that takes no group from pytest-xdist is refused."""
    if not config.getoption("loadgroup", default=False):  # in workers only
        return
    for item in items:
        if item.get_closest_marker("xdist_group") and "@" not in item.nodeid:
            raise pytest.UsageError(f"{item.nodeid} is in no group: pytest-xdist does not fit this pytest")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    from tests.scheduling import scheduling

    return scheduling(config, log)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tests that leave a process, a mount or a cgroup on the machine have failed."""
    stash = session.config.stash
    if _BEFORE in stash:
        found = leftovers.new_leftovers(stash[_BEFORE])
        stash[_LEFT] = leftovers.of_this_run(found, alone=stash[_TURN].alone())
        stash[_UNKNOWN] = [line for line in found if line not in stash[_LEFT]]
        stash[_TURN].end()
        if stash[_LEFT]:
            session.exitstatus = LEFT_SOMETHING


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for line in config.stash.get(_LEFT, []):
        terminalreporter.write_line(f"left behind by the tests: {line}", red=True)
    for line in config.stash.get(_UNKNOWN, []):
        terminalreporter.write_line(f"left behind by these tests or by others that ran meanwhile: {line}")
