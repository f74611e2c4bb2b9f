"""The command line: the commands; does not import Prefect itself."""

import sys

from simic.contracts.errors import SimicError

__all__ = ["main"]

try:
    from simic.cli.main import main
except SimicError as error:  # a file that settings are made of at import, such as the SQL of a reward family, is wrong
    _found = error

    def main() -> None:
        """Say why no command can be loaded, and exit with the code of the error; the console needs the settings."""
        sys.stderr.write(f"{type(_found).__name__}: {_found}\n")
        sys.exit(_found.exit_code)
