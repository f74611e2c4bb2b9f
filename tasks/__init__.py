"""The stages of a run as Prefect tasks: retries, timeouts, cache keys, run log and artifacts."""
