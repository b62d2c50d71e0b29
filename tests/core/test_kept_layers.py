from typing import Any

import pytest

from gatekeeper.core.kept_layers import kept_layers, refuse_parameters
from gatekeeper.errors import Incompatible, InputError


@pytest.mark.parametrize(
    ("parameters", "kept"),
    [
        ({"exit_after": 1}, (0,)),
        ({"exit_after": 5}, (0, 1, 2, 3, 4)),
        ({"skip_layers": [0]}, (1, 2, 3, 4, 5)),
        ({"skip_layers": [2, 3]}, (0, 1, 4, 5)),
        ({"skip_layers": (0, 1, 2, 3, 4)}, (5,)),
    ],
)
def test_the_layers_that_draft(parameters: dict[str, Any], kept: tuple[int, ...]) -> None:
    assert kept_layers(parameters, 6) == kept


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({}, "proposer.parameters"),
        ({"exit_after": 2, "skip_layers": [1]}, "proposer.parameters"),
        ({"exit_after": 2, "skip_layers": None}, "proposer.parameters"),
        *(
            ({"exit_after": v}, "proposer.parameters.exit_after")
            for v in (0, -1, True, 2.0, "2", None, [2])
        ),
        *(
            ({"skip_layers": v}, "proposer.parameters.skip_layers")
            for v in ([], None, 3, "1", [-1], [True], [1.0], [2, 1], [1, 1])
        ),
    ],
)
def test_the_wrong_form_is_refused_before_the_target_is_known(
    parameters: dict[str, Any], field: str
) -> None:
    with pytest.raises(InputError) as refused:
        refuse_parameters(parameters)
    assert refused.value.field == field
    assert refused.value.remedy
    with pytest.raises(InputError):
        kept_layers(parameters, 6)


@pytest.mark.parametrize(
    ("parameters", "layers", "remedy"),
    [
        ({"exit_after": 6}, 6, "use 1 to 5"),
        ({"exit_after": 9}, 6, "use 1 to 5"),
        ({"exit_after": 1}, 1, "another proposer"),
        ({"skip_layers": [6]}, 6, "from 0 to 5"),
        ({"skip_layers": [1, 40]}, 6, "from 0 to 5"),
        ({"skip_layers": [0, 1, 2]}, 3, "keep at least one"),
    ],
)
def test_layers_that_this_target_lacks_are_refused(
    parameters: dict[str, Any], layers: int, remedy: str
) -> None:
    refuse_parameters(parameters)
    with pytest.raises(Incompatible, match=remedy) as refused:
        kept_layers(parameters, layers)
    (name,) = parameters
    assert refused.value.field == f"proposer.parameters.{name}"
    assert refused.value.value == parameters[name]
