import inspect

import pytest

from gatekeeper import errors
from gatekeeper.config import Settings
from gatekeeper.errors import GatekeeperError, InputError


def test_the_tree_in_the_docstring_is_complete() -> None:
    def below(kind: type[GatekeeperError]) -> set[str]:
        return {kind.__name__}.union(*(below(k) for k in kind.__subclasses__()))

    named = {word for word in (errors.__doc__ or "").split() if word in dir(errors)}
    here = {
        n for n, k in inspect.getmembers(errors, inspect.isclass) if k.__module__ == errors.__name__
    }
    assert below(GatekeeperError) & here == named == here == set(errors.__all__)


def test_an_error_is_one_printable_line_with_field_value_and_remedy() -> None:
    error = InputError("is\nodd", field="name", value="a\x1b[2Jb\nc", remedy="use letters")
    assert str(error) == r"name=a\x1b[2Jb c: is odd; use letters"


@pytest.mark.parametrize("text", ["²", "-1", "65536", "8" * 5000, "80 80"])
def test_a_port_that_is_none_is_refused_by_name(text: str) -> None:
    with pytest.raises(InputError, match="GATEKEEPER_PORT"):
        Settings.load({"GATEKEEPER_PORT": text})


def test_a_subject_that_stands_already_is_not_named_again() -> None:
    long = "x" * 200  # longer than a value is shown
    for name in ("docs", long):
        error = InputError("is a folder", field="file", value=name, remedy="name a file")
        assert error.about(name) == "is a folder; name a file"
        assert error.about("other") == str(error)


@pytest.mark.parametrize(
    "value", ["secret", 7319, 0.7319, True, ["secret"], {"secret": 1}, b"secret"]
)
def test_a_line_without_the_value_tells_its_kind_alone(value: object) -> None:
    line = InputError("is no id", field="spans[3]", value=value, remedy="use hex").unquoted()
    assert line.startswith("spans[3] (")
    assert line.endswith("): is no id; use hex")
    assert "secret" not in line
    assert "7319" not in line
    assert InputError("x", field="f", value="absent").unquoted() == "f (absent): x"
