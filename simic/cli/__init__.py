"""The command line: the commands; does not import Prefect itself."""

from simic.cli.main import main

__all__ = ["main"]
