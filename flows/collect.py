"""Grow hosts under a controller and put their field reports on the bus."""

from __future__ import annotations

from prefect import flow

from tasks.session import collect_once

__all__ = ["collect"]


@flow(name="collect", flow_run_name="{controller}-s{seed}")
def collect(controller: str = "explore", episodes: int = 200, profile: str = "default", seed: int = 0) -> str:
    """Report ``episodes`` episodes of training hosts; returns the digest of the reports."""
    return collect_once(controller, episodes, profile, seed).reports_digest
