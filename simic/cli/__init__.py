"""The command line: the verbs of the factory, without Prefect in sight."""

from simic.cli.main import main

__all__ = ["main"]
