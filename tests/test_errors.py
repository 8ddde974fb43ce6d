"""The error tree: what a class promises."""

import pytest

from partage import errors
from partage.errors import InputError, PartageError, Problem


def leaves(cls: type[PartageError]) -> list[type[PartageError]]:
    below = cls.__subclasses__()
    return [leaf for sub in below for leaf in leaves(sub)] if below else [cls]


def test_the_docstring_draws_every_class() -> None:
    drawn = errors.__doc__ or ""
    for leaf in leaves(PartageError):
        if leaf.__module__ == errors.__name__:
            assert leaf.__name__ in drawn


@pytest.mark.parametrize("leaf", leaves(PartageError))
def test_exit_codes_are_those_of_the_command_line(leaf: type[PartageError]) -> None:
    assert leaf.exit_code in {2, 3, 4, 5}


def test_a_message_becomes_one_problem_with_its_hint() -> None:
    error = InputError("no such thing", hint="try another")
    assert [str(problem) for problem in error.problems] == ["no such thing (try another)"]


def test_many_problems_are_told_one_a_line_with_file_and_path() -> None:
    problems = [Problem("p.yaml", f"gpus[{n}]", "error", "wrong") for n in range(2)]
    assert str(InputError(problems)) == "p.yaml: gpus[0]: wrong\np.yaml: gpus[1]: wrong"


@pytest.mark.parametrize("file", [" ", "p.yaml ", "\tp.yaml"])
def test_a_file_whose_name_a_reader_would_not_see_whole_is_in_quotes(file: str) -> None:
    assert str(Problem(file, "a", "error", "wrong", "mend it")) == f"{file!r}: a: wrong (mend it)"
