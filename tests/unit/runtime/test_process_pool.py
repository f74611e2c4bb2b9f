"""Order, types and the death of workers."""

from __future__ import annotations

import importlib
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from simic.contracts.errors import ConfigError, DatasetError, TransientError
from simic.runtime.process_pool import THREAD_VARIABLES, run_jobs, worker_count

HERE = Path(__file__).parent
MALLOC_VARIABLES = ("MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")
linux = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere every worker is a new interpreter")


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(HERE)
    return importlib.import_module("parallel_jobs")


def test_results_stand_in_the_order_of_the_jobs_and_are_announced_as_they_come(
    jobs: ModuleType, tmp_path: Path
) -> None:
    announced: list[int] = []
    work = [(number, str(tmp_path)) for number in range(30)]
    assert run_jobs(jobs.first_waits_for_last, work, 2, announced.append) == list(range(30))
    assert sorted(announced) == list(range(30))
    assert announced[0] != 0


def test_workers_have_one_thread_each_and_the_parent_is_left_alone(
    jobs: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    seen = run_jobs(jobs.look_around, range(2), 2)
    assert all(view["threads"] == ["1"] * len(THREAD_VARIABLES) for view in seen)
    assert run_jobs(jobs.threads_of_torch, range(2), 2) == [1, 1]
    assert os.getpid() not in {view["pid"] for view in seen}
    assert os.environ["OMP_NUM_THREADS"] == "7"
    assert "MKL_NUM_THREADS" not in os.environ


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="no glibc, whose memory is kept")
def test_workers_keep_freed_memory_unless_the_user_tunes_malloc(
    jobs: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 100 * 2**20
    for name in MALLOC_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    # The largest, because a worker that gets both jobs grows only once.
    assert max(run_jobs(jobs.resident_after_freeing, [size, size], 2)) > 0.9 * size
    for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "131072")
            assert max(run_jobs(jobs.resident_after_freeing, [size, size], 2)) < 0.1 * size


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="no glibc, whose memory is kept")
def test_workers_keep_more_than_two_gib_too(jobs: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    size = 5 * 2**29
    for name in MALLOC_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert max(run_jobs(jobs.data_after_freeing, [size, size], 2)) > 0.9 * size


def test_workers_have_the_environment_that_the_parent_has_now(
    jobs: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIMIC_TEST_WAS_SET", "before")
    run_jobs(jobs.look_around, range(2), 2)
    monkeypatch.delenv("SIMIC_TEST_WAS_SET")
    monkeypatch.setenv("SIMIC_TEST_IS_SET", "now")
    for view in run_jobs(jobs.look_around, range(2), 2):
        assert view["environment"].get("SIMIC_TEST_IS_SET") == "now"
        assert "SIMIC_TEST_WAS_SET" not in view["environment"]


def _printed(folder: Path, program: str, **files: str) -> list[str]:
    """Run a program in a folder with these modules, with the modules of this folder in front; return its words."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    begin = f"import sys\nsys.path.insert(0, {str(HERE)!r})\nfrom simic.runtime.process_pool import run_jobs\n"
    found = subprocess.run([sys.executable, "-c", begin + program], cwd=folder, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    return found.stdout.split()


@linux
def test_workers_import_once_for_all_pools_and_never_from_the_present_folder(tmp_path: Path) -> None:
    program = "import parallel_jobs as jobs\nfor _ in range(2):\n    print(*run_jobs(jobs.loaded_by, range(2), 2))\n"
    assert len(set(_printed(tmp_path, program, parallel_jobs="raise RuntimeError"))) == 1


@linux
def test_a_fork_of_a_process_that_had_workers_has_workers_of_its_own(tmp_path: Path) -> None:
    program = (
        "import os, parallel_jobs as jobs\n"
        "run_jobs(jobs.refuse_three, range(2), 2)\n"
        "if (child := os.fork()) == 0:\n"
        "    print(*run_jobs(jobs.refuse_three, range(2), 2), flush=True)\n"
        "    os._exit(0)\n"
        "os.waitpid(child, 0)\n"
    )
    assert _printed(tmp_path, program) == ["0", "1"]


@linux
def test_the_death_of_what_forks_workers_is_a_transient_error(tmp_path: Path) -> None:
    program = (
        "import os\nsys.path.append(os.getcwd())\nimport dying\n"
        "from simic.contracts.errors import TransientError\n"
        "os.environ['DIE'] = 'yes'\n"
        "try:\n"
        "    run_jobs(dying.work, range(2), 2)\n"
        "except TransientError as error:\n"
        "    print(error)\n"
    )
    dying = (
        "import os, signal\nif 'DIE' in os.environ: os.kill(os.getpid(), signal.SIGKILL)\ndef work(job): return job\n"
    )
    assert "died" in _printed(tmp_path, program, dying=dying)


@linux
def test_workers_that_draw_without_a_seed_draw_different_numbers(tmp_path: Path) -> None:
    drawing = "import numpy.random\ndef draw(_job): return float(numpy.random.random())\n"
    program = (
        "import os\nsys.path.append(os.getcwd())\nimport drawing\n"
        "for _ in range(2):\n"
        "    print(*run_jobs(drawing.draw, range(2), 2))\n"
    )
    assert len(set(_printed(tmp_path, program, drawing=drawing))) == 4


@pytest.mark.parametrize(("work", "workers"), [([1], 4), ([1, 2], 1)])
def test_one_worker_or_one_job_stays_in_this_process(jobs: ModuleType, work: list[int], workers: int) -> None:
    announced: list[dict[str, object]] = []
    run_jobs(jobs.look_around, work, workers, announced.append)
    assert [view["pid"] for view in announced] == [os.getpid()] * len(work)


def test_no_jobs_give_no_results(jobs: ModuleType) -> None:
    assert run_jobs(jobs.look_around, [], 4) == []


@pytest.mark.parametrize("workers", [1, 2])
def test_an_exception_keeps_its_type_and_message(jobs: ModuleType, workers: int) -> None:
    with pytest.raises(DatasetError, match="job 3 is unusable"):
        run_jobs(jobs.refuse_three, range(5), workers)


def test_the_first_exception_stops_the_other_jobs(jobs: ModuleType) -> None:
    started = time.monotonic()
    with pytest.raises(DatasetError, match="first"):
        run_jobs(jobs.refuse_or_sleep, range(4), 2)
    assert time.monotonic() - started < 30


def test_a_killed_worker_is_a_transient_error(jobs: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(TransientError, match="a worker process died while 4 jobs ran in 2 processes"):
        run_jobs(jobs.die_at_two, [(number, str(tmp_path)) for number in range(4)], 2)
    assert (tmp_path / "dying").exists()


def test_workers_do_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    command = [sys.executable, HERE / "parallel_jobs.py", tmp_path]
    parent = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    workers = _wait_for(lambda: [int(path.name) for path in tmp_path.iterdir()], 2)
    assert all(_is_alive(pid) for pid in workers)
    parent.kill()
    parent.wait()
    _wait_for(lambda: [pid for pid in workers if not _is_alive(pid)], 2)


def _wait_for(read: Callable[[], list[int]], count: int) -> list[int]:
    deadline = time.monotonic() + 30
    while len(found := read()) < count:
        assert time.monotonic() < deadline, f"only {found} after 30 s"
        time.sleep(0.05)
    return found


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_workers_below_one_are_refused(jobs: ModuleType) -> None:
    with pytest.raises(ConfigError, match="at least 1, found 0"):
        run_jobs(jobs.look_around, [1], 0)


def test_by_default_there_is_one_worker_per_usable_core() -> None:
    assert worker_count(None) == len(os.sched_getaffinity(0))
    assert worker_count(3) == 3


SLOW = """
import multiprocessing.process, sys, time
if multiprocessing.process.parent_process() is None and sys.argv[0] == "-c":
    print("loading", flush=True)
    time.sleep(1.5)
def job(number):
    return number
"""
MAIN = """
import sys
from slow_jobs import job
from simic.runtime.process_pool import run_jobs
if __name__ == "__main__":
    try:
        run_jobs(job, [1, 2, 3, 4], 2)
    except KeyboardInterrupt:
        sys.exit(130)
"""


@linux
def test_ctrl_c_while_workers_start_is_told_by_nobody_but_the_command(tmp_path: Path) -> None:
    """A terminal sends it to all processes, also to the one that loads what workers need."""
    (tmp_path / "slow_jobs.py").write_text(SLOW, "utf-8")
    (tmp_path / "main.py").write_text(MAIN, "utf-8")
    with subprocess.Popen(
        [sys.executable, "main.py"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}, process_group=0,
    ) as command:  # fmt: skip
        assert command.stdout is not None and command.stdout.readline() == "loading\n"
        os.killpg(command.pid, signal.SIGINT)
        _, told = command.communicate(timeout=60)
    assert (command.returncode, told) == (130, "")


def test_ctrl_c_that_another_thread_gets_leaves_no_signal_blocked(
    jobs: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python tells the main thread, which has blocked the signal for itself alone."""
    mask, handler = signal.pthread_sigmask, signal.signal(signal.SIGINT, signal.default_int_handler)
    before = mask(signal.SIG_BLOCK, [])

    def interrupted(how: int, signals: set[int]) -> set[int]:
        found = mask(how, signals)
        present = signal.getsignal(signal.SIGINT)
        if how == signal.SIG_BLOCK and signals == {signal.SIGINT} and callable(present):
            present(signal.SIGINT, None)
        return found

    monkeypatch.setattr(signal, "pthread_sigmask", interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_jobs(jobs.look_around, range(2), 2)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, handler)
        left = mask(signal.SIG_SETMASK, before)
    assert left == before
