"""The deadline of an update: what it interrupts, and what it ends."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from simic.contracts.errors import TransientError, UpdateTimeoutError
from simic.learning.safety.watchdog import Watchdog

HANGING = """
import sys, time
from simic.learning.safety.watchdog import Watchdog
with Watchdog(0.1, grace_s=0.3):
    {hangs}
"""


def test_an_update_that_hangs_in_python_is_interrupted_with_a_typed_error() -> None:
    with (
        pytest.raises(UpdateTimeoutError, match=r"more than 0\.05 s \(train\.safety\.update_timeout_s"),
        Watchdog(0.05),
    ):
        while True:
            time.sleep(0.01)
    assert issubclass(UpdateTimeoutError, TransientError)


def test_the_deadline_counts_from_the_last_update_and_may_change() -> None:
    with Watchdog(3.0) as watchdog:
        for _ in range(8):
            time.sleep(0.5)
            watchdog.reset(3.0)
        watchdog.reset(0.5)
        watchdog.reset(60.0)
        time.sleep(0.6)
    with pytest.raises(UpdateTimeoutError), Watchdog(60.0) as watchdog:
        watchdog.reset(0.05)
        while True:
            time.sleep(0.01)


def test_the_thread_that_trains_is_interrupted_whichever_it_is() -> None:
    """A stage of Prefect may run in a thread, where no signal arrives."""
    seen: list[BaseException] = []

    def train() -> None:
        try:
            with Watchdog(0.05):
                while True:
                    time.sleep(0.01)
        except UpdateTimeoutError as error:
            seen.append(error)

    thread = threading.Thread(target=train)
    thread.start()
    thread.join(10.0)
    assert len(seen) == 1


def test_an_error_of_the_training_passes_and_no_thread_stays() -> None:
    with pytest.raises(ZeroDivisionError), Watchdog(60.0):
        _ = 1 / 0
    assert "simic-watchdog" not in {thread.name for thread in threading.enumerate()}


def test_a_deadline_that_passes_as_the_training_ends_is_raised_here_and_nowhere_else() -> None:
    for _ in range(20):
        try:
            with Watchdog(0.002):
                time.sleep(0.002)
        except UpdateTimeoutError:
            pass
        for _ in range(100):
            time.sleep(0)


def test_a_thread_that_is_profiled_goes_on_after_a_deadline_that_passed() -> None:
    """CPython 3.11 runs a profiled call for ever if an error that was to arrive has been taken back."""
    script = """
import sys, time
from simic.contracts.errors import UpdateTimeoutError
from simic.learning.safety.watchdog import Watchdog
def call():
    return "went on"
try:
    with Watchdog(0.05):
        while True:
            time.sleep(0.01)
except UpdateTimeoutError:
    sys.setprofile(lambda *_: None)
    print(call())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "went on", "")


def test_a_training_that_the_error_ended_before_it_could_say_so_is_no_hanging() -> None:
    """The error may arrive where the watchdog is left; the process, which goes on, must not end half a minute later."""
    script = """
import time
from simic.contracts.errors import UpdateTimeoutError
from simic.learning.safety.watchdog import Watchdog
def training():
    Watchdog(0.05, grace_s=0.2).__enter__()
    try:
        while True:
            time.sleep(0.01)
    except UpdateTimeoutError as error:
        print(error)
training()
time.sleep(1.0)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "train.safety.update_timeout_s" in done.stdout


@pytest.mark.parametrize(
    "hangs",
    ["time.sleep(60)", "import ctypes; ctypes.CDLL(None).sleep(60)"],
    ids=["a call of Python that waits", "native code"],
)
def test_an_update_that_cannot_be_interrupted_ends_the_process_with_4_and_shows_where(hangs: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HANGING.format(hangs=hangs)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 4
    assert "hangs in native code" in done.stderr
    assert 'File "<string>", line 5' in done.stderr, "the stack of the training"
