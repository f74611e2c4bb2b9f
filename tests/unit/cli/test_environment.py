"""What Prefect is told."""

from __future__ import annotations

import http.server
import stat
import threading
import tomllib
from pathlib import Path

import pytest

from simic.cli.services import stack
from simic.cli.services.environment import (
    guarded,
    mlflow_environment,
    prefect_environment,
    prefect_profiles,
    with_signing_key,
    write_prefect_profile,
)
from simic.cli.services.http import answers, get_json
from simic.runtime.home import Home

LOGIN = "simic:0123456789012345678901234567890123456789"
API = "http://127.0.0.1:4200/api"


def test_paths_are_absolute_and_pickle_is_off(tmp_path: Path) -> None:
    settings = prefect_environment(Home(tmp_path), None, base={})
    assert settings["PREFECT_HOME"] == str(tmp_path / ".prefect")
    assert settings["SIMIC_HOME"] == str(tmp_path)
    assert settings["PREFECT_RESULTS_DEFAULT_SERIALIZER"] == "json"
    assert settings["PREFECT_SERVER_ANALYTICS_ENABLED"] == "false"
    assert settings["DO_NOT_TRACK"] == "1"


def test_without_a_server_of_ours_nobody_elses_is_used_and_none_is_started(tmp_path: Path) -> None:
    stale = {"PREFECT_API_URL": "http://127.0.0.1:1/api", "PREFECT_PROFILE": "other", "PREFECT_API_AUTH_STRING": "a:b"}
    alone = prefect_environment(Home(tmp_path), None, base=stale)
    assert "PREFECT_API_URL" not in alone
    assert "PREFECT_API_AUTH_STRING" not in alone
    assert alone["PREFECT_SERVER_ALLOW_EPHEMERAL_MODE"] == "false"
    served = prefect_environment(Home(tmp_path), API, LOGIN, stale)
    assert (served["PREFECT_API_URL"], served["PREFECT_API_AUTH_STRING"]) == (API, LOGIN)
    assert "PREFECT_PROFILE" not in served


def test_only_the_server_is_told_to_ask_for_the_login(tmp_path: Path) -> None:
    client = prefect_environment(Home(tmp_path), API, LOGIN, {"PREFECT_SERVER_API_AUTH_STRING": "a:b"})
    assert "PREFECT_SERVER_API_AUTH_STRING" not in client
    server = guarded(client, "http://127.0.0.1:4200", LOGIN)
    assert server["PREFECT_SERVER_API_AUTH_STRING"] == LOGIN
    assert server["PREFECT_SERVER_CSRF_PROTECTION_ENABLED"] == "true"
    assert server["PREFECT_SERVER_CORS_ALLOWED_ORIGINS"] == "http://127.0.0.1:4200"
    assert LOGIN not in mlflow_environment(Home(tmp_path), "other:login", server).values()


def test_only_what_runs_stages_is_handed_the_signing_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMIC_SIGNING_KEY", "secret")
    home = Home(tmp_path)
    handed: dict[str, bool] = {}

    def started(_folder: Path, name: str, _command: object, environment: dict[str, str], *_: object) -> None:
        handed[name] = environment.get("SIMIC_SIGNING_KEY") == "secret"

    def ran(what: str, _command: object, environment: dict[str, str], _cwd: Path) -> str:
        handed[what] = "SIMIC_SIGNING_KEY" in environment
        return ""

    monkeypatch.setattr(stack, "start", started)
    monkeypatch.setattr(stack, "_run", ran)
    monkeypatch.setattr(stack, "project_root", lambda: tmp_path)
    stack._worker_up(home, "http://127.0.0.1:1/api", LOGIN, lambda _: None)
    assert handed.pop("prefect-worker")
    assert len(handed) == 3
    assert not any(handed.values()), handed
    assert "SIMIC_SIGNING_KEY" not in prefect_environment(home, "http://127.0.0.1:1/api")
    assert "SIMIC_SIGNING_KEY" not in mlflow_environment(home, LOGIN)
    assert with_signing_key(prefect_environment(home, None))["SIMIC_SIGNING_KEY"] == "secret"


def test_the_profile_names_server_and_login_while_it_runs_and_is_for_its_owner(tmp_path: Path) -> None:
    home = Home(tmp_path)
    write_prefect_profile(home, API, LOGIN)
    settings = _profile(home)
    assert (settings["PREFECT_API_URL"], settings["PREFECT_API_AUTH_STRING"]) == (API, LOGIN)
    assert stat.S_IMODE(prefect_profiles(home).stat().st_mode) == 0o600
    assert stat.S_IMODE(home.prefect.stat().st_mode) == 0o700
    write_prefect_profile(home, None)
    assert _profile(home) == {"PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false"}


def _profile(home: Home) -> dict[str, str]:
    found = tomllib.loads(prefect_profiles(home).read_text())
    return dict(found["profiles"][found["active"]])


def test_a_question_mark_in_the_homes_name_does_not_cut_the_address_of_prefects_database(tmp_path: Path) -> None:
    name = "PREFECT_API_DATABASE_CONNECTION_URL"
    assert name not in prefect_environment(Home(tmp_path / "plain"), None, base={})
    address = prefect_environment(Home(tmp_path / "a?b"), None, base={})[name]
    assert address == f"sqlite+aiosqlite:///file:{tmp_path}/a%3Fb/.prefect/prefect.db?uri=true"
    assert prefect_environment(Home(tmp_path / "a?b"), None, base={name: "mine"})[name] == "mine"


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/well" else 503)
        self.end_headers()
        self.wfile.write(b'{"a": 1}')

    def log_message(self, *_: object) -> None:
        pass


def test_health_is_asked_directly_whatever_proxy_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        base = f"http://127.0.0.1:{server.server_port}"
        found = answers(f"{base}/well"), answers(f"{base}/ill"), get_json(f"{base}/well")
        server.shutdown()
        thread.join()
    assert found == (True, False, {"a": 1})
    assert not answers(f"{base}/well")
