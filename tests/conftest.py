"""Every test starts clean: a home of its own, no network habits, one thread, the same examples each time."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Read when the libraries load, so they are set before any test module is imported.
os.environ.update(
    {
        "DO_NOT_TRACK": "1",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "passive",  # a thread that waits leaves its core to the tests beside it
        "MPLBACKEND": "Agg",
    }
)
for _name in (
    "SIMIC_HOME",
    "SIMIC_SIGNING_KEY",
    "REDIS_URL",
    "MLFLOW_TRACKING_URI",
    "PREFECT_API_URL",
    "PREFECT_PROFILE",
    "SIMIC_LAKE_URL",
    "COLUMNS",  # 80 in the processes that pytest starts
):
    os.environ.pop(_name, None)

# A run in the background of a shell ignores Ctrl-C, and so would the processes that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A machine may be slow; how long examples take to make is no property of the code.
settings.register_profile("simic", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("simic")

ALLOWED_SKIPS = ("needs a CUDA device",)
"""Beginnings of the reasons for which a test may be skipped where CI is set: only what this machine cannot run."""

_refused_skips: list[str] = []
_too_little_covered: list[str] = []


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Hide the modules from the garbage collector: each visit to their millions of objects takes a second."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        atexit.register(gc.unfreeze)  # a library tells of what it takes for leaks when the interpreter ends


@pytest.hookimpl(tryfirst=True, optionalhook=True)  # xdist has its own, and a run without it none
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Give each file to one process, as ``--dist=loadfile`` does, and the files of tests/flows to the same one.

    They share a Prefect server, whose start and idle services cost as much as a dozen of their tests.
    """
    from xdist.scheduler import LoadFileScheduling

    class OneServer(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "tests/flows" if nodeid.startswith("tests/flows/") else super()._split_scope(nodeid)

    return OneServer(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.fixture(scope="session", autouse=True)
def _session_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fixtures that outlive a test write outside the checkout too."""
    home = tmp_path_factory.mktemp("session-home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SIMIC_HOME", str(home))
        patch.setenv("PREFECT_HOME", str(home / ".prefect"))
        yield


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``SIMIC_HOME`` of this test; it does not exist yet."""
    root = tmp_path / "home"
    monkeypatch.setenv("SIMIC_HOME", str(root))
    return root


@pytest.fixture(autouse=True)
def _one_torch_thread() -> None:
    if (torch := sys.modules.get("torch")) is not None and torch.get_num_threads() != 1:
        torch.set_num_threads(1)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Remember skipped tests without an allowed reason."""
    _note_skip(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Remember skipped files without an allowed reason."""
    _note_skip(report)


def _note_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.skipped and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if not reason.startswith(ALLOWED_SKIPS):
            _refused_skips.append(f"{report.nodeid}: {reason}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run that skipped a test under CI which this machine could run, or that covered too little code."""
    if session.exitstatus == pytest.ExitCode.OK and is_full_and_measured(session.config):
        import coverage_floors  # reads the report of a full run only, so no other run needs the module

        report = coverage_floors.read_report(session.config.rootpath / session.config.option.cov_config)
        _too_little_covered.extend(coverage_floors.problems(report, coverage_floors.read_record()))
    refused = _refused_skips and "CI" in os.environ
    if (refused or _too_little_covered) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def is_full_and_measured(config: pytest.Config) -> bool:
    """Whether the run measured coverage and left nothing out, so that its figures are those of the suite."""
    options = vars(config.option)
    narrowed = ("keyword", "markexpr", "lf", "failedfirst", "deselect", "ignore", "ignore_glob", "stepwise")
    return (
        bool(options.get("cov_source"))
        and "workerinput" not in vars(config)
        and config.args_source is pytest.Config.ArgsSource.TESTPATHS
        and not any(options.get(name) for name in narrowed)
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name what made the run fail although every test passed."""
    if _too_little_covered:
        terminalreporter.section("too little code is covered", sep="!", red=True)
        for line in _too_little_covered:
            terminalreporter.write_line(line)
    if _refused_skips and "CI" in os.environ:
        terminalreporter.section("skipped without an allowed reason", sep="!", red=True)
        for line in _refused_skips:
            terminalreporter.write_line(line)
