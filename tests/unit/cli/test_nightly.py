"""How the end of a deployment's run becomes an exit code."""

from __future__ import annotations

from typing import Any

import pytest

from simic.cli.services import nightly
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


class _BusyServer:
    """Answers every poll but those in ``silent``; the run ends with poll ``polls``."""

    def __init__(self, silent: set[int], polls: int) -> None:
        self.silent, self.polls, self.asked = silent, polls, 0

    def get(self, _path: str) -> dict[str, Any]:
        self.asked += 1
        if self.asked in self.silent:
            raise TransientError("Prefect did not answer")
        return {"id": "1", "state_type": "COMPLETED" if self.asked >= self.polls else "RUNNING"}

    def post(self, _path: str, _question: object) -> list[Any]:
        return []


def test_a_busy_server_is_asked_again_and_a_dead_one_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nightly, "POLL_S", 0.0)
    run = {"id": "1", "state_type": "SCHEDULED"}
    busy = _BusyServer({1, 2, 4, 5}, polls=6)
    assert nightly._follow(busy, run, lambda: True, print)["state_type"] == "COMPLETED"  # type: ignore[arg-type]
    dead = _BusyServer(set(range(2, 9)), polls=9)
    with pytest.raises(TransientError, match="did not answer"):
        nightly._follow(dead, run, lambda: True, print)  # type: ignore[arg-type]
    assert dead.asked == 1 + nightly.MOST_SILENT


class _Ending(_BusyServer):
    """Does not answer the first question about the stages of a run that has ended."""

    def post(self, _path: str, _question: object) -> list[Any]:
        if self.asked < self.polls:
            return []
        if self.asked == self.polls:
            raise TransientError("Prefect did not answer")
        stage = {"id": "2", "name": "promote", "state_type": "COMPLETED", "state_name": "Completed"}
        return [{**stage, "end_time": "2026-01-05", "total_run_time": 2.0}]


def test_the_last_stages_of_a_run_are_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nightly, "POLL_S", 0.0)
    said = list[str]()
    run = nightly._follow(_Ending(set(), polls=2), {"id": "1", "state_type": "RUNNING"}, lambda: True, said.append)  # type: ignore[arg-type]
    assert (run["state_type"], said) == ("COMPLETED", ["promote: Completed after 2.0 s"])
