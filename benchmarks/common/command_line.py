"""Command line of a benchmark: its results as a table or as JSON, and the file that keeps them."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from pathlib import Path
from typing import Any

__all__ = ["make_parser", "show"]


def make_parser(doc: str | None) -> ArgumentParser:
    """Return a parser with ``--json`` and ``--out``, whose help begins with the docstring of the benchmark."""
    parser = ArgumentParser(description=doc, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--out", type=Path, help="also write the results here, as JSON")
    return parser


def show(arguments: Namespace, result: dict[str, Any], table: str) -> None:
    """Write the result to the file of ``--out``, if there is one, and print it, or its table without ``--json``."""
    text = json.dumps(result)
    if arguments.out is not None:
        arguments.out.write_text(text + "\n", "utf-8")
    print(text if arguments.json else table)
