"""Processes that tests start and talk to: Redis, S3, a browser, a process that runs many commands."""
