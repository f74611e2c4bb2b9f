"""The pages of `simic up` in a real browser: nothing before the login, everything after it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.servers.chromium import CHROMIUM, Page, open_page

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")

SIMIC = Path(sys.executable).with_name("simic")
FIELD = "input[type=password]"


def _free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Addresses by name, and the login."""
    root = tmp_path_factory.mktemp("pages")
    environment = {**os.environ, "SIMIC_HOME": str(root)}
    environment.pop("PREFECT_HOME", None)

    def simic(*arguments: str) -> Any:
        command = [SIMIC, *arguments, "--json"]
        return json.loads(subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout)

    try:
        records = simic("up", "--port", _free_port(), "--mlflow-port", _free_port())
        login = Path(records[0]["login"]).read_text().strip()
        yield {record["name"]: record["url"] for record in records} | {"ui": simic("ui")["url"], "login": login}
    finally:
        simic("down")


@pytest.fixture
def page(tmp_path: Path, services: dict[str, Any]) -> Iterator[Page]:
    """A browser that has never been here."""
    with open_page(tmp_path / "browser") as page:
        yield page


@pytest.mark.parametrize(
    ("address", "elsewhere"),
    [("/v2/deployments", "/v2/work-pools"), ("/deployments", "/work-pools")],
    ids=["v2", "v1"],
)
def test_prefect_shows_the_deployments_after_the_login_and_nothing_before(
    page: Page, services: dict[str, Any], address: str, elsewhere: str
) -> None:
    """The list is fetched by POST, so it also shows that the page gets its token against forged requests."""
    page.open(services["prefect-server"] + address)
    page.wait(lambda: bool(page.evaluate(f"!!document.querySelector('{FIELD}')")), "login")
    assert "nightly" not in page.text()
    page.type(FIELD, "simic:guessed")
    page.wait(lambda: _refused(page) > 0, "refusal")
    assert page.evaluate(f"!!document.querySelector('{FIELD}')")
    assert "nightly" not in page.text()

    page.open(services["prefect-server"] + address)
    page.type(FIELD, services["login"])
    page.wait_for_text("4 Deployments", "nightly", "offline", "collect")
    page.open(services["prefect-server"] + elsewhere)
    page.wait_for_text("simic-local")
    assert services["login"].partition(":")[2] not in page.evaluate("location.href")


def _refused(page: Page) -> int:
    """Requests to the API that were answered with 401."""
    page.text()
    answers = [event["params"]["response"] for event in page.events if event["method"] == "Network.responseReceived"]
    return sum(answer["status"] == 401 and "/api/" in answer["url"] for answer in answers)


def test_prefect_works_under_both_names_of_loopback(page: Page, services: dict[str, Any]) -> None:
    page.open(services["prefect-server"].replace("127.0.0.1", "localhost") + "/v2/deployments")
    page.type(FIELD, services["login"])
    page.wait_for_text("4 Deployments", "nightly")


def test_the_address_of_mlflow_opens_the_list_of_runs_after_the_login_and_nothing_before(
    page: Page, services: dict[str, Any]
) -> None:
    page.answer_logins(None)
    page.open(services["ui"])
    page.wait_for_text("log in with the name and password")
    assert "MLflow" not in page.evaluate("document.title")
    page.answer_logins(services["login"])
    page.open("about:blank")
    page.open(services["ui"])
    page.wait_for_text("Model training", "simic", "Runs", "Sort: Created", "Columns", "Live: no policy", "shared view")
