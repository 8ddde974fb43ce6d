"""The guard in every Python start-up that tenants have: it is armed where it can be, and breaks none."""

from __future__ import annotations

import shutil
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tests.guard.pythons import AWAY, READY, STATE, environment, mounted, run, said

_TELLS = "open(__import__('os').environ['TOLD'], 'a').write({name!r} + '\\n')\n"


@pytest.fixture(scope="module")
def guard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mounted(tmp_path_factory.mktemp("mount"))


def _module(place: Path, name: str, text: str) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    (place / f"{name}.py").write_text(text)
    return place


def test_a_python_with_the_guard_on_its_path_is_armed_and_silent(guard: Path) -> None:
    assert said(["-c", STATE], environment(guard)) == READY


@pytest.mark.parametrize("flag", ["-I", "-E", "-S"])
def test_a_python_that_ignores_its_surroundings_has_no_guard_and_runs(guard: Path, flag: str) -> None:
    """Documented: nothing on PYTHONPATH reaches these."""
    assert said([flag, "-c", STATE], environment(guard)) == AWAY


@pytest.mark.parametrize("flag", ["-s", "-B", "-O", "-u", "-X utf8", "-X dev"])
def test_other_flags_keep_it(guard: Path, flag: str) -> None:
    assert said([*flag.split(), "-c", STATE], environment(guard)) == READY


def test_an_image_that_sets_pythonpath_keeps_its_modules(guard: Path, tmp_path: Path) -> None:
    """The pod writes both, in any order."""
    app = _module(tmp_path / "app", "application", "import json\n" + STATE)
    assert said(["-m", "application"], environment(guard, app)) == READY
    assert said(["-m", "application"], environment(app, guard)) == READY


def test_a_pod_that_sets_pythonpath_without_the_guard_runs_as_if_there_were_none(tmp_path: Path) -> None:
    app = _module(tmp_path / "app", "application", STATE)
    assert said(["-m", "application"], environment(app)) == AWAY


def test_no_share_no_guard(guard: Path) -> None:
    env = environment(guard)
    del env["PARTAGE_MEMORY_BYTES"]
    assert said(["-c", STATE], env) == AWAY


@pytest.mark.parametrize("word", ["off", "OFF"])
def test_off_is_off(guard: Path, word: str) -> None:
    assert said(["-c", STATE], environment(guard, PARTAGE_GUARD=word)) == AWAY


def test_verbose_says_so_on_stderr(guard: Path) -> None:
    done = run(["-c", ""], environment(guard, PARTAGE_GUARD="verbose"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "partage guard: ready\n")


def test_a_closed_stderr_is_no_trouble(guard: Path) -> None:
    code = "import os, sys; os.close(2); os.execv(sys.executable, [sys.executable, '-c', 'print(1)'])"
    done = run(["-c", code], environment(guard, PARTAGE_GUARD="verbose"))
    assert (done.returncode, done.stdout) == (0, "1\n")


@pytest.mark.parametrize("memory", ["", "many", "-1", "1e9", "1,,2", "0", "9" * 400])
def test_nonsense_in_the_share_breaks_nothing(guard: Path, memory: str) -> None:
    assert said(["-c", STATE], environment(guard, PARTAGE_MEMORY_BYTES=memory)) == READY


# --- other people's sitecustomize ----------------------------------------------------------------


def test_the_next_sitecustomize_on_pythonpath_runs_and_is_the_one_that_others_import(
    guard: Path, tmp_path: Path
) -> None:
    theirs = _module(tmp_path / "theirs", "sitecustomize", "import os\nWHOSE = 'theirs'\nHERE = __file__\n")
    code = (
        "import json, sitecustomize as s; print(json.dumps([s.WHOSE, s.HERE, s.__spec__.origin, s.__name__]))"
    )
    file = str(theirs / "sitecustomize.py")
    assert said(["-c", code], environment(guard, theirs)) == ["theirs", file, file, "sitecustomize"]


def test_a_package_called_sitecustomize_runs_too(guard: Path, tmp_path: Path) -> None:
    _module(tmp_path / "sitecustomize", "part", "WHOSE = 'package'\n")
    _module(tmp_path / "sitecustomize", "__init__", "from sitecustomize.part import WHOSE\n")
    code = "import json, sitecustomize as s; print(json.dumps(s.WHOSE))"
    assert said(["-c", code], environment(guard, tmp_path)) == "package"


def test_the_sitecustomize_of_site_packages_runs_and_so_does_usercustomize(
    guard: Path, tmp_path: Path
) -> None:
    base = tmp_path / "venv"
    venv.create(
        base, system_site_packages=True, symlinks=True
    )  # without them, user modules are off in a venv
    packages = next(base.glob("lib/python*/site-packages"))
    told = tmp_path / "told"
    _module(packages, "sitecustomize", _TELLS.format(name="site-packages"))
    _module(packages, "usercustomize", _TELLS.format(name="usercustomize"))
    env = environment(guard, TOLD=str(told))
    assert said(["-c", STATE], env, base / "bin" / "python") == READY
    assert told.read_text().split() == ["site-packages", "usercustomize"]


def test_without_a_share_the_next_sitecustomize_runs_all_the_same(guard: Path, tmp_path: Path) -> None:
    told = tmp_path / "told"
    theirs = _module(tmp_path / "theirs", "sitecustomize", _TELLS.format(name="theirs"))
    for word in ("", "off"):
        assert run(["-c", ""], environment(guard, theirs, TOLD=str(told), PARTAGE_GUARD=word)).returncode == 0
    assert told.read_text().split() == ["theirs", "theirs"]


def test_a_guard_that_stands_twice_on_the_path_runs_the_next_one_once(guard: Path, tmp_path: Path) -> None:
    told = tmp_path / "told"
    theirs = _module(tmp_path / "theirs", "sitecustomize", _TELLS.format(name="theirs"))
    other = mounted(tmp_path / "other")
    assert said(["-c", STATE], environment(guard, f"{guard}/", other, theirs, TOLD=str(told))) == READY
    assert told.read_text().split() == ["theirs"]


@pytest.mark.parametrize(
    "text", ["raise ValueError('theirs')", "raise SystemExit(3)", "1 +", "import nowhere"]
)
def test_a_sitecustomize_that_fails_ends_as_it_would_without_us(
    guard: Path, tmp_path: Path, text: str
) -> None:
    """In how the process ends and what it says; a traceback has our frames in its middle."""
    theirs = _module(tmp_path / "theirs", "sitecustomize", text)
    with_us, alone = (run(["-c", "print(1)"], environment(*path)) for path in ((guard, theirs), (theirs,)))
    assert (with_us.returncode, with_us.stdout) == (alone.returncode, alone.stdout)
    lines, theirs_alone = with_us.stderr.splitlines(), alone.stderr.splitlines()
    assert (lines[0], lines[-1]) == (theirs_alone[0], theirs_alone[-1])


def test_one_that_comes_first_and_hands_on_reaches_us(guard: Path, tmp_path: Path) -> None:
    """As tracers do: take themselves off the path, import sitecustomize again."""
    text = (
        "import os, sys\n"
        "here = os.path.dirname(__file__)\n"
        "sys.path.remove(here)\n"
        "del sys.modules['sitecustomize']\n"
        "import sitecustomize\n"
        "sys.path.insert(0, here)\n"
    )
    tracer = _module(tmp_path / "tracer", "sitecustomize", text)
    assert said(["-c", STATE], environment(tracer, guard)) == READY


# --- children, archives, environments --------------------------------------------------------------


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_of_multiprocessing_have_it(guard: Path, tmp_path: Path, method: str) -> None:
    text = (
        "import json, multiprocessing, os, sys\n"
        "def state(_):\n"
        "    finders = [type(finder).__name__ for finder in sys.meta_path]\n"
        "    return [os.environ.get('PARTAGE_GUARD_APPLIED'), finders.count('Finder')]\n"
        "if __name__ == '__main__':\n"
        f"    with multiprocessing.get_context({method!r}).Pool(1) as pool:\n"
        "        print(json.dumps(pool.map(state, [0])[0]))\n"
    )
    program = _module(tmp_path, "program", text) / "program.py"
    assert said([program], environment(guard)) == READY


def test_a_child_says_what_was_applied_in_it_not_in_its_parent(guard: Path) -> None:
    assert said(["-c", STATE], environment(guard, PARTAGE_GUARD_APPLIED="torch: cuda:0 0.5")) == READY


def test_zip_applications_have_it(guard: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.pyz"
    with zipfile.ZipFile(program, "w") as archive:
        archive.writestr("__main__.py", STATE)
    assert said([program], environment(guard)) == READY


def test_a_sitecustomize_in_a_zip_on_the_path_runs(guard: Path, tmp_path: Path) -> None:
    archive = tmp_path / "modules.zip"
    with zipfile.ZipFile(archive, "w") as modules:
        modules.writestr("sitecustomize.py", "WHOSE = 'zip'\n")
    code = "import json, sitecustomize as s; print(json.dumps(s.WHOSE))"
    assert said(["-c", code], environment(guard, archive)) == "zip"


@pytest.mark.parametrize("system", [True, False], ids=["with-system", "isolated"])
def test_a_venv_has_it(guard: Path, tmp_path: Path, *, system: bool) -> None:
    venv.create(tmp_path / "venv", system_site_packages=system, symlinks=True)
    assert said(["-c", STATE], environment(guard), tmp_path / "venv" / "bin" / "python") == READY


def test_a_prefix_of_its_own_has_it(guard: Path, tmp_path: Path) -> None:
    """What a conda environment is: interpreter and libraries in a prefix, found from the executable.

    An emulation: a copied interpreter, links to its library, no pyvenv.cfg. Conda itself is not run.
    """
    base = Path(sys.base_prefix)
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    prefix = tmp_path / "envs" / "work"
    (prefix / "bin").mkdir(parents=True)
    shutil.copy2(Path(getattr(sys, "_base_executable", sys.executable)).resolve(), prefix / "bin" / "python")
    (prefix / "lib" / name).mkdir(parents=True)
    for entry in (base / "lib" / name).iterdir():
        if entry.name != "site-packages":
            (prefix / "lib" / name / entry.name).symlink_to(entry)
    told = tmp_path / "told"
    _module(prefix / "lib" / name / "site-packages", "sitecustomize", _TELLS.format(name="conda"))
    env = environment(guard, TOLD=str(told), LD_LIBRARY_PATH=str(base / "lib"))
    code = "import sys; assert sys.prefix == sys.base_prefix == sys.argv[1], sys.prefix\n" + STATE
    assert said(["-c", code, prefix], env, prefix / "bin" / "python") == READY
    assert told.read_text().split() == ["conda"]


def test_nothing_is_written_beside_the_guard_where_it_may_not_be(guard: Path, tmp_path: Path) -> None:
    before = sorted(guard.rglob("*"))
    assert said(["-c", STATE], environment(guard)) == READY
    assert sorted(guard.rglob("*")) == before


_VERSION = "import sys; print('%d %d' % sys.version_info[:2])"


def _other_pythons() -> list[Path]:
    found = [Path("/usr/bin/python3"), *Path.home().glob(".pyenv/versions/*/bin/python")]
    return sorted(path for path in found if path.exists())


@pytest.mark.parametrize("python", _other_pythons(), ids=lambda path: str(path.parents[1].name))
def test_every_python_of_this_machine_starts_with_it(guard: Path, python: Path) -> None:
    """From 3.6 on it is armed; before, it is passed by."""
    major, minor = run(["-c", _VERSION], {}, python).stdout.split()
    expected = READY if (int(major), int(minor)) >= (3, 6) else AWAY
    assert said(["-c", STATE], environment(guard), python) == expected


@pytest.mark.parametrize("python", _other_pythons(), ids=lambda path: str(path.parents[1].name))
def test_the_next_sitecustomize_runs_in_every_python(guard: Path, tmp_path: Path, python: Path) -> None:
    theirs = _module(tmp_path / "theirs", "sitecustomize", "WHOSE = 'theirs'\n")
    code = "import json, sitecustomize as s; print(json.dumps([s.WHOSE, s.__name__]))"
    assert said(["-c", code], environment(guard, theirs), python) == ["theirs", "sitecustomize"]
