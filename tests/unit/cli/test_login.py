"""The login of a home: random, one, and for its owner only."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from simic.cli.services.login import load_login, login_file, new_login
from simic.contracts.errors import ConfigError
from simic.runtime.home import Home


def test_a_login_is_random_and_stays(tmp_path: Path) -> None:
    first, second = Home(tmp_path / "a"), Home(tmp_path / "b")
    login = load_login(first)
    assert login.startswith("simic:")
    assert len(login) == len("simic:") + 43
    assert load_login(first) == login
    assert len({login, load_login(second), new_login()}) == 3
    assert stat.S_IMODE(login_file(first).stat().st_mode) == 0o600
    assert stat.S_IMODE(login_file(first).parent.stat().st_mode) == 0o700


def test_processes_that_create_it_at_once_agree(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from simic.cli.services.login import load_login; "
        "from simic.runtime.home import Home; print('ready', flush=True); sys.stdin.read(); "
        "print(*[load_login(Home(Path(sys.argv[1]) / str(home))) for home in range(20)])"
    )
    start, go = os.pipe()  # all read one pipe until it is closed, and so begin together
    command = [sys.executable, "-c", code, str(tmp_path)]
    running = [subprocess.Popen(command, stdin=start, stdout=subprocess.PIPE) for _ in range(4)]
    os.close(start)
    assert [process.stdout.readline() for process in running if process.stdout] == [b"ready\n"] * 4
    os.close(go)
    ends = [process.communicate(timeout=60)[0] for process in running]
    assert [process.returncode for process in running] == [0] * 4
    assert len(set(ends)) == 1
    assert len(set(ends[0].split())) == 20


def test_a_login_that_others_may_read_is_refused(tmp_path: Path) -> None:
    home = Home(tmp_path)
    load_login(home)
    login_file(home).chmod(0o644)
    with pytest.raises(ConfigError, match="found mode 0644"):
        load_login(home)


@pytest.mark.parametrize("content", ["", "simic:short", "no colon at all in this line", "simic:" + "a" * 190])
def test_a_damaged_login_is_refused_and_not_quoted(tmp_path: Path, content: str) -> None:
    home = Home(tmp_path)
    load_login(home)
    login_file(home).write_text(content)
    with pytest.raises(ConfigError, match="must hold one line") as caught:
        load_login(home)
    assert not content or content not in str(caught.value)
