"""What tests of Growers share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def steer(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Lets a controller decide for the Growers that are made next."""

    def choose(controller: Any) -> None:
        monkeypatch.setattr("simic.api.grower_policy.make", lambda *_: controller)

    return choose
