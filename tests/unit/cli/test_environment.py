"""What Prefect is told."""

from __future__ import annotations

import http.server
import threading
import tomllib
from pathlib import Path

import pytest

from simic.cli.services import stack
from simic.cli.services.environment import (
    answers,
    ask,
    mlflow_environment,
    prefect_environment,
    prefect_profiles,
    write_prefect_profile,
)
from simic.runtime.settings import Home


def test_paths_are_absolute_and_pickle_is_off(tmp_path: Path) -> None:
    settings = prefect_environment(Home(tmp_path), None, {})
    assert settings["PREFECT_HOME"] == str(tmp_path / ".prefect")
    assert settings["SIMIC_HOME"] == str(tmp_path)
    assert settings["PREFECT_RESULTS_DEFAULT_SERIALIZER"] == "json"
    assert settings["PREFECT_SERVER_ANALYTICS_ENABLED"] == "false"
    assert settings["DO_NOT_TRACK"] == "1"


def test_without_a_server_of_ours_nobody_elses_is_used(tmp_path: Path) -> None:
    stale = {"PREFECT_API_URL": "http://127.0.0.1:1/api", "PREFECT_PROFILE": "other"}
    alone = prefect_environment(Home(tmp_path), None, stale)
    assert "PREFECT_API_URL" not in alone
    assert alone["PREFECT_PROFILE"] == "ephemeral"
    served = prefect_environment(Home(tmp_path), "http://127.0.0.1:4200/api", stale)
    assert served["PREFECT_API_URL"] == "http://127.0.0.1:4200/api"
    assert "PREFECT_PROFILE" not in served


def test_only_what_runs_stages_is_handed_the_signing_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMIC_SIGNING_KEY", "secret")
    home = Home(tmp_path)
    handed: dict[str, bool] = {}

    def started(_folder: Path, name: str, _command: object, environment: dict[str, str], *_: object) -> None:
        handed[name] = environment.get("SIMIC_SIGNING_KEY") == "secret"

    def ran(what: str, _command: object, environment: dict[str, str], _cwd: Path) -> None:
        handed[what] = "SIMIC_SIGNING_KEY" in environment

    monkeypatch.setattr(stack, "start", started)
    monkeypatch.setattr(stack, "_run", ran)
    monkeypatch.setattr(stack, "project_root", lambda: tmp_path)
    stack._worker_up(home, "http://127.0.0.1:1/api", lambda _: None)
    assert handed.pop("prefect-worker")
    assert len(handed) == 3
    assert not any(handed.values()), handed
    assert "SIMIC_SIGNING_KEY" not in prefect_environment(home, "http://127.0.0.1:1/api")
    assert "SIMIC_SIGNING_KEY" not in mlflow_environment(home)
    assert stack.environment_for_flows(home)["SIMIC_SIGNING_KEY"] == "secret"


def test_the_profile_names_the_server_while_it_runs(tmp_path: Path) -> None:
    home = Home(tmp_path)
    write_prefect_profile(home, "http://127.0.0.1:4200/api")
    profile = tomllib.loads(prefect_profiles(home).read_text())
    assert profile["profiles"][profile["active"]] == {"PREFECT_API_URL": "http://127.0.0.1:4200/api"}
    write_prefect_profile(home, None)
    profile = tomllib.loads(prefect_profiles(home).read_text())
    assert "PREFECT_API_URL" not in profile["profiles"][profile["active"]]


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/well" else 503)
        self.end_headers()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_health_is_asked_directly_whatever_proxy_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        base = f"http://127.0.0.1:{server.server_port}"
        found = answers(f"{base}/well"), answers(f"{base}/ill"), ask(base, {"a": 1})
        server.shutdown()
        thread.join()
    assert found == (True, False, {"a": 1})
    assert not answers(f"{base}/well")
