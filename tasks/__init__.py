"""The verbs of Simic as Prefect tasks: retries, timeouts, cache keys; no order and no judgement."""
