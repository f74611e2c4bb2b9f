"""Take the pictures of MLflow's and Prefect's pages in docs/img: ``python docs/scripts/make_screenshots.py HOME``.

``HOME`` is a home of Simic with a champion, a rejected policy and a finished `simic run`. The script starts the
services of `simic up` there, opens each page in headless Chromium with the login, and stops the services.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "img"
sys.path.insert(0, str(FOLDER.parents[1] / "tests"))

from support.servers.chromium import Page, open_page  # noqa: E402

from simic.cli.services.http import PrefectApi  # noqa: E402
from simic.contracts.names import MODEL_NAME  # noqa: E402
from simic.registry.mlflow_store import EXPERIMENT, open_client  # noqa: E402
from simic.runtime.home import Home  # noqa: E402

LIMIT_BYTES = 250_000
WIDTH, HEIGHT = 1500, 850
COMPARE_HEIGHT = 2000
"""The tables of the compare page lie below its plot."""
SETTLE_S = 5.0
"""After the expected text is there: charts and tables are drawn a little later."""
CLOSE_ASSISTANT = """
if (document.body.innerText.includes('MLflow Assistant'))
  document.querySelector('[aria-label="Close"], [aria-label="close"]')?.click()
"""
"""A fresh browser shows the assistant's panel over a quarter of the page."""
MODE = "workflowType=machine_learning"


def main() -> None:
    """Write ``<page>.png`` for every page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("home", type=Path)
    home = Home(parser.parse_args().home.resolve())
    environment = {**os.environ, "SIMIC_HOME": str(home.root)}
    simic = Path(sys.executable).with_name("simic")

    def run(*arguments: str) -> Any:
        return json.loads(subprocess.check_output([simic, *arguments, "--json"], env=environment))  # noqa: S603 - our own command

    try:
        services = {record["name"]: record for record in run("up")}
        login = Path(services["prefect-server"]["login"]).read_text().strip()
        _mlflow(home, run("ui")["url"], login)
        _prefect(services["prefect-server"]["url"], login)
    finally:
        run("down")


def _mlflow(home: Home, runs_page: str, login: str) -> None:
    client = open_client(home.tracking_uri)
    experiment = client.get_experiment_by_name(EXPERIMENT)
    if experiment is None:
        raise SystemExit(f"{home.root} has no experiment {EXPERIMENT!r}: give `simic run` there first")
    runs = client.search_runs([experiment.experiment_id], order_by=["attributes.start_time DESC"], max_results=4)
    standings = {run.data.tags.get("standing") for run in runs}
    if not {"champion", "rejected"} <= standings:
        raise SystemExit(f"{home.root}: expected a champion and a rejected policy, found {sorted(map(str, standings))}")
    champion = client.get_model_version_by_alias(MODEL_NAME, "champion")
    root = runs_page.partition("/#/")[0] + "/#"
    ids = json.dumps([run.info.run_id for run in runs], separators=(",", ":"))
    pages = {
        "mlflow-runs": (runs_page, ("rejected", "champion")),
        "mlflow-compare": (
            f"{root}/compare-runs?runs={ids}&experiments=[%22{experiment.experiment_id}%22]&{MODE}",
            ("Comparing", "rejected"),
        ),
        "mlflow-run": (
            f"{root}/experiments/{experiment.experiment_id}/runs/{champion.run_id}?{MODE}",
            ("candidate minus",),
        ),
        "mlflow-model": (f"{root}/models/{MODEL_NAME}?{MODE}", ("champion", "standing")),
        "mlflow-version": (
            f"{root}/models/{MODEL_NAME}/versions/{champion.version}?{MODE}",
            ("champion", "standing"),
        ),
    }
    for name, (url, texts) in pages.items():
        with tempfile.TemporaryDirectory() as folder, open_page(Path(folder) / "browser") as page:
            page.answer_logins(login)
            page.open(url)
            _take(page, name, texts)


def _prefect(url: str, login: str) -> None:
    found = PrefectApi(f"{url}/api", login).post(
        "flow_runs/filter",
        {
            "sort": "START_TIME_DESC",
            "limit": 1,
            "flows": {"name": {"any_": ["simic"]}},
            "flow_runs": {"state": {"type": {"any_": ["COMPLETED", "FAILED"]}}, "start_time": {"is_null_": False}},
        },
    )
    if not found:
        raise SystemExit("Prefect knows no finished run of the flow simic in this home: give `simic run` there first")
    with tempfile.TemporaryDirectory() as folder, open_page(Path(folder) / "browser") as page:
        page.open(f"{url}/v2/deployments")
        page.type("input[type=password]", login)
        page.wait_for_text("Deployments", "nightly")
        page.open(f"{url}/v2/runs/flow-run/{found[0]['id']}")
        _take(page, "prefect-run", (found[0]["name"],))


def _take(page: Page, name: str, texts: tuple[str, ...]) -> None:
    height = COMPARE_HEIGHT if name == "mlflow-compare" else HEIGHT
    page.call("Emulation.setDeviceMetricsOverride", width=WIDTH, height=height, deviceScaleFactor=1, mobile=False)
    page.wait_for_text(*texts)
    page.evaluate(CLOSE_ASSISTANT)
    time.sleep(SETTLE_S)
    path = FOLDER / f"{name}.png"
    page.screenshot(path)
    size = path.stat().st_size
    if size >= LIMIT_BYTES:
        raise SystemExit(f"{path} has {size} bytes, expected fewer than {LIMIT_BYTES}")
    sys.stdout.write(f"{path} {size}\n")


if __name__ == "__main__":
    main()
