"""docs/schema.md, generated from the contracts and the views: ``python -m simic.catalogue.schema_doc``."""

from __future__ import annotations

import ast
import inspect
import itertools
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pyarrow as pa  # type: ignore[import-untyped]
from pydantic import BaseModel

from simic.catalogue.query import create_views, load_views
from simic.contracts.field_report import FieldReport
from simic.lake.duck import connect
from simic.lake.quarantine import Reason
from simic.lake.schema import LANDED_SCHEMA, LANDING_COLUMNS, arrow_type, plain_annotation
from simic.runtime.home import Home
from simic.snapshots.schema import SNAPSHOT_TABLES

__all__ = ["main", "render"]

_HEAD = """\
# Schema

Written by `simic schema --markdown > docs/schema.md` from the contracts and the views; a test holds it current.
Times are UTC. A column that may be null says so; null means absent or not measured, never zero. Accuracies, shares and
alpha are fractions from 0 to 1, losses mean cross-entropy in nats, points the unit of rewards and returns: one point is
one percentage point of validation accuracy. An epoch is one pass over the training data of a host.
"""
_LANDED = """\
## Landed reports

Parquet under `data/experience/<UTC day of landing, of the first row>/`, or below the prefix of `lake.url`, one row per
field report.
Only parts that are live by `data/ledger/ingest.jsonl` count. Names of structs in the type column are sections below.
"""
_SNAPSHOTS = """\
## Snapshots

Parquet under `data/snapshots/<first 16 characters of the digest>/`, beside `curation.json` (the settings that
affect rows) and `manifest.json` (a `SnapshotManifest`).
"""
_VIEWS = """\
## Views

For `simic sql "SELECT ..."`. They exist, empty, before anything has landed.
"""


def render() -> str:
    """Return the whole document."""
    return "\n".join(
        [
            _HEAD,
            _LANDED,
            *_report_columns(),
            *_structs(),
            *_enumerations(),
            _SNAPSHOTS,
            *_snapshot_tables(),
            _VIEWS,
            *_views(),
        ]
    )


def main() -> None:
    """Write the document to stdout."""
    sys.stdout.write(render())


def _report_columns() -> Iterator[str]:
    yield from _table(("column", "type", "bounds", "null", "meaning"))
    yield from _field_rows(FieldReport)
    for name, (field, meaning) in LANDING_COLUMNS.items():
        yield _row(f"`{name}`", _arrow_name(field.type), "", "", meaning)
    yield ""


def _structs() -> Iterator[str]:
    for model in _nested_models(FieldReport):
        yield f"### {model.__name__}\n\n{_summary(model)}\n"
        yield from _table(("field", "type", "bounds", "null", "meaning"))
        yield from _field_rows(model)
        yield ""


def _enumerations() -> Iterator[str]:
    kinds: list[type[Enum]] = [*_nested_enums(FieldReport), Reason]
    for kind in kinds:
        title = "Reasons of the quarantine" if kind is Reason else kind.__name__
        yield f"### {title}\n\n{_summary(kind)}\n"
        yield from _table(("value", "meaning"))
        meanings = _member_meanings(kind)
        for member in kind:
            yield _row(f"`{member.value}`", meanings.get(member.name, ""))
        yield ""


def _snapshot_tables() -> Iterator[str]:
    for name, columns in SNAPSHOT_TABLES.items():
        yield f"### {name}.parquet\n"
        yield from _table(("column", "type", "meaning"))
        for column, (kind, meaning) in columns.items():
            yield _row(f"`{column}`", "as landed" if pa.types.is_nested(kind) else _arrow_name(kind), meaning)
        yield ""


def _views() -> Iterator[str]:
    types = _view_types()
    for view in load_views():
        yield f"### {view.name}\n\n{view.meaning} One row: {view.grain}. Key: {view.key}.\n"
        if not view.columns:
            yield f"Columns: the {len(LANDED_SCHEMA)} of the landed reports above.\n"
            continue
        yield from _table(("column", "type", "meaning"))
        for column, kind in types[view.name].items():
            yield _row(f"`{column}`", kind, view.columns[column])
        yield ""


def _view_types() -> dict[str, dict[str, str]]:
    """Return DuckDB's types of the columns of every view, from an empty home."""
    with tempfile.TemporaryDirectory() as folder:
        home = Home(Path(folder))
        with connect(tmp=home.tmp, memory_limit_mb=256, threads=1) as connection:
            create_views(connection, home)
            return {
                view.name: {row[0]: row[1] for row in connection.execute(f'DESCRIBE "{view.name}"').fetchall()}
                for view in load_views()
            }


def _field_rows(model: type[BaseModel]) -> Iterator[str]:
    properties = model.model_json_schema(ref_template="{model}")["properties"]
    for name, info in model.model_fields.items():
        annotation, is_nullable = plain_annotation(info.annotation)
        meaning = " ".join((info.description or _type_summary(annotation)).split()).replace("``", "`")
        bounds = _bounds(properties[name])
        yield _row(f"`{name}`", _type_name(annotation), bounds, "null" if is_nullable else "", meaning)


def _bounds(schema: dict[str, Any]) -> str:
    """Return the constraints of a field's JSON schema in words; empty if there is none."""
    branches = [branch for branch in schema.get("anyOf", [schema]) if branch.get("type") != "null"]
    (only,) = branches or [{}]
    least, most = only.get("minimum"), only.get("maximum", only.get("exclusiveMaximum"))
    is_open = "exclusiveMaximum" in only
    if least is not None and most is not None:
        return f"{_number(least)} to {_number(most)}{' (excluded)' if is_open else ''}"
    if least is not None:
        return f"at least {_number(least)}"
    if "pattern" in only:
        return f"matches `{only['pattern']}`"
    if "maxLength" in only:
        return f"at most {only['maxLength']} characters"
    if only.get("type") == "array":
        fewest, longest = only.get("minItems", 0), only.get("maxItems")
        if longest is not None:
            return f"{fewest} to {longest} items" if fewest != longest else f"{longest} items"
    return ""


def _number(value: float) -> str:
    powers = {2.0**31: "2^31", 2.0**53: "2^53"}
    return powers.get(float(value)) or (f"{value:,.0f}" if float(value).is_integer() else f"{value:g}")


def _type_name(annotation: Any) -> str:
    """Return a type as text: names of structs and enumerations, other types in full."""
    plain, _ = plain_annotation(annotation)
    origin, arguments = get_origin(plain), get_args(plain)
    if origin is list:
        return f"list of {_type_name(arguments[0])}"
    if origin is tuple:
        return f"{len(arguments)} x {_type_name(arguments[0])}"
    if origin is Literal:
        return f"{_arrow_name(arrow_type(plain))}: {', '.join(str(choice) for choice in arguments)}"
    if isinstance(plain, type) and issubclass(plain, (Enum, BaseModel)):
        return f"[{plain.__name__}](#{plain.__name__.lower()})"
    return _arrow_name(arrow_type(plain))


def _arrow_name(kind: pa.DataType) -> str:
    return "uuid" if kind == pa.uuid() else str(kind).replace(", tz=", ", ")


def _nested_models(model: type[BaseModel]) -> list[type[BaseModel]]:
    return [kind for kind in _nested(model) if issubclass(kind, BaseModel)]


def _nested_enums(model: type[BaseModel]) -> list[type[Enum]]:
    return [kind for kind in _nested(model) if issubclass(kind, Enum)]


def _nested(model: type[BaseModel]) -> list[type[Any]]:
    """Yield every contract and enumeration within, each once, in order of appearance."""
    kinds: dict[type[Any], None] = {}
    for info in model.model_fields.values():
        for kind in _named_types(info.annotation):
            kinds.setdefault(kind)
            if issubclass(kind, BaseModel):
                for inner in _nested(kind):
                    kinds.setdefault(inner)
    return list(kinds)


def _named_types(annotation: Any) -> Iterator[type[Any]]:
    plain, _ = plain_annotation(annotation)
    if get_origin(plain) in (list, tuple):
        for argument in get_args(plain):
            yield from _named_types(argument)
    elif isinstance(plain, type) and issubclass(plain, (Enum, BaseModel)):
        yield plain


def _member_meanings(kind: type[Enum]) -> dict[str, str]:
    """Return the docstring under each member, which Python does not store."""
    statements = [
        statement
        for definition in ast.parse(textwrap.dedent(inspect.getsource(kind))).body
        if isinstance(definition, ast.ClassDef)
        for statement in definition.body
    ]
    meanings: dict[str, str] = {}
    for statement, following in itertools.pairwise(statements):
        if (
            isinstance(statement, ast.Assign)
            and isinstance(statement.targets[0], ast.Name)
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
        ):
            meanings[statement.targets[0].id] = " ".join(str(following.value.value).split()).replace("``", "`")
    return meanings


def _type_summary(annotation: Any) -> str:
    """Return the docstring of a struct, for a field without its own."""
    return next((_summary(kind) for kind in _named_types(annotation) if issubclass(kind, BaseModel)), "")


def _summary(kind: type[Any]) -> str:
    return (inspect.getdoc(kind) or "").split("\n\n")[0].replace("\n", " ").replace("``", "`")


def _table(heads: Iterable[str]) -> Iterator[str]:
    names = list(heads)
    yield _row(*names)
    yield _row(*("---" for _ in names))


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    main()
