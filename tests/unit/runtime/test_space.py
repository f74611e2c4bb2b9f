"""Full is transient, everything else is what it was."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest

from simic.cli.edge import errors_become_exit_codes
from simic.contracts.errors import TransientError
from simic.runtime.space import full_disk_is_transient


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_full_says_what_and_what_to_do(code: int) -> None:
    with pytest.raises(TransientError, match=f"{os.strerror(code)}: /some/file; make space"), full_disk_is_transient():
        raise OSError(code, os.strerror(code), "/some/file")


@pytest.mark.parametrize("error", [PermissionError(errno.EACCES, "no"), OSError("odd"), ZeroDivisionError()])
def test_other_errors_pass(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, full_disk_is_transient():
        raise error
    assert caught.value is error


def test_a_command_that_finds_no_room_ends_with_exit_code_4(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For real: this device is always full."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    with pytest.raises(SystemExit) as ended, errors_become_exit_codes():
        Path("/dev/full").write_text("x")
    assert ended.value.code == TransientError.exit_code
    assert capsys.readouterr().err.startswith("TransientError: No space left on device; make space")
