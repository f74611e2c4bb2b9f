"""How the end of a deployment's run becomes an exit code."""

from __future__ import annotations

import pytest

from simic.cli.services.nightly import DeploymentRun, raise_for_state
from simic.contracts.errors import GateRejectedError, SimicError, TransientError


def _ended(state: str, name: str, message: str) -> DeploymentRun:
    return DeploymentRun(
        deployment="simic/nightly", id="1", name="nightly-s0", state=state, state_name=name, message=message, url="u"
    )


@pytest.mark.parametrize(
    ("state", "name", "message", "error", "code"),
    [
        ("COMPLETED", "Rejected", "the gate rejected policy 1", GateRejectedError, 3),
        ("FAILED", "Failed", "Flow run encountered an exception: TrainingError: NaN", SimicError, 1),
        ("FAILED", "Failed", "Flow run encountered an exception: TransientError: disk full", TransientError, 4),
        ("FAILED", "Failed", "Flow run encountered an exception: CircuitOpenError: disk full", TransientError, 4),
        ("FAILED", "Failed", "Flow run encountered an exception: UpdateTimeoutError: slow", TransientError, 4),
        ("CRASHED", "Crashed", "Flow run infrastructure exited with non-zero status code -9.", SimicError, 1),
        ("CANCELLED", "Cancelled", "Deployment concurrency limit reached.", TransientError, 4),
        ("CANCELLED", "Cancelled", "", SimicError, 1),
    ],
)
def test_every_end_but_success_is_an_error_with_its_own_code(
    state: str, name: str, message: str, error: type[SimicError], code: int
) -> None:
    with pytest.raises(error) as caught:
        raise_for_state(_ended(state, name, message))
    assert type(caught.value) is error
    assert caught.value.exit_code == code
    assert message in str(caught.value)


def test_a_promotion_is_success() -> None:
    raise_for_state(_ended("COMPLETED", "Completed", "promoted 1.0.0"))
