"""Grow hosts under a controller and report them to the bus."""

from __future__ import annotations

from prefect import flow

from flows.crashed_runs import living
from simic.app import training
from simic.app.container import Container
from simic.runtime.home import resolve_home
from simic.runtime.settings import load_profile

__all__ = ["collect"]


@flow(name="collect", flow_run_name="{controller}-s{seed}")
def collect(controller: str = "explore", episodes: int = 200, profile: str = "default", seed: int = 0) -> str:
    """Report ``episodes`` episodes of training hosts; return the digest of the reports."""
    home = resolve_home()
    with living(home, "collect"):
        config = load_profile(profile, {"collect.episodes": episodes})
        return training.collect(Container(home, config, seed), controller).reports_digest
