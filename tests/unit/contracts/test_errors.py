"""One tree, each branch with the exit code it promises."""

from __future__ import annotations

import pytest

from simic.contracts import errors
from simic.contracts.errors import DatasetError, SimicError

CODES = {
    "SimicError": 1,
    "ConfigError": 2,
    "GateRejectedError": 3,
    "RolloutFailedError": 3,
    "TransientError": 4,
    "BusyError": 4,
    "RolloutWaitsError": 4,
    "CircuitOpenError": 4,
    "UpdateTimeoutError": 4,
    "ContractError": 1,
    "DatasetError": 1,
    "IntegrityError": 1,
    "SmokeTestError": 1,
    "ResourceLimitError": 1,
    "OutOfMemoryError": 1,
    "IllegalActionError": 1,
    "TrainingError": 1,
    "DivergenceError": 1,
    "HopelessError": 1,
}

INHERITED = (
    "DatasetError",
    "BusyError",
    "RolloutWaitsError",
    "CircuitOpenError",
    "UpdateTimeoutError",
    "OutOfMemoryError",
    "SmokeTestError",
    "DivergenceError",
    "HopelessError",
)
"""Errors that have the exit code of another kind of theirs."""


def test_the_list_is_complete() -> None:
    assert set(errors.__all__) == set(CODES)


@pytest.mark.parametrize(("name", "code"), CODES.items())
def test_exit_codes(name: str, code: int) -> None:
    error = getattr(errors, name)
    assert issubclass(error, SimicError)
    assert error.exit_code == code


def test_the_picture_in_the_docstring_is_the_tree() -> None:
    assert errors.__doc__ is not None
    for name, code in CODES.items():
        assert name in errors.__doc__
        if name not in INHERITED:
            (line,) = [line for line in errors.__doc__.splitlines() if name in line]
            assert f"exit {code}" in line
    assert issubclass(DatasetError, errors.ContractError)
