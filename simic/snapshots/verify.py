"""Full verification of a snapshot: every byte and every count against its manifest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import duckdb

from simic.contracts.errors import IntegrityError
from simic.contracts.results.receipts import SnapshotManifest
from simic.contracts.results.snapshots import SnapshotCheck
from simic.lake.duck import connect, exactly
from simic.snapshots.manifest import (
    MANIFEST_NAME,
    SETTINGS_NAME,
    Verify,
    file_problems,
    identity_problems,
    read_manifest,
    settings_problems,
)
from simic.snapshots.parts import is_linked_part

__all__ = ["check_snapshot", "files_of"]

_MEMORY_LIMIT_MB = 512


def files_of(folder: Path) -> int:
    """Return how many files ``check_snapshot`` will report to ``on_file``."""
    return sum(1 for _ in folder.iterdir())


def check_snapshot(
    folder: Path,
    *,
    tmp: Path,
    committed: Mapping[str, set[str]] | None = None,
    on_file: Callable[[int], None] = lambda _: None,
) -> SnapshotCheck:
    """Return every problem of the snapshot at ``folder``; an intact one has none.

    Verifies digest and size of every file, missing and added files, the digest over all of them, the folder's name, and
    discount and reward against the sealed settings. Rows are counted again per split and per reason, because the digest
    does not cover the manifest's counts. It does not cover the linked parts either: they are compared with
    ``committed``, the digests with which the ledger committed each part, if given. ``on_file`` is called with the
    number of files done.
    """
    try:
        manifest = read_manifest(folder, Verify.NONE)
    except IntegrityError as error:
        on_file(files_of(folder))
        return SnapshotCheck(folder=folder.name, digest=None, files=0, size_bytes=0, damage=[str(error)])
    damage, intact = [], set()
    listed = {file.name: file for file in (*manifest.files, *manifest.sources)}
    for name, problem in file_problems(folder, manifest, Verify.ALL):
        if problem is None:
            intact.add(name)
        else:
            damage.append(problem)
        if name in listed:
            on_file(1)
    damage += identity_problems(folder, manifest)
    if SETTINGS_NAME in intact:
        damage += settings_problems(folder, manifest)
    if committed is not None:
        damage += _source_problems(manifest, committed)
    damage += _count_problems(folder, manifest, intact, tmp)
    on_file(1)
    return SnapshotCheck(
        folder=folder.name,
        digest=manifest.digest,
        files=len(listed),
        size_bytes=sum(file.size_bytes for file in listed.values()),
        damage=damage,
    )


def _source_problems(manifest: SnapshotManifest, committed: Mapping[str, set[str]]) -> Iterator[str]:
    names = {Path(name).name: name for name in manifest.ledger_parts}
    for file in manifest.sources:
        if is_linked_part(file.name) and file.sha256 not in committed.get(names.get(file.name, ""), set()):
            yield f"{file.name}: the ledger never committed a part of that name and SHA-256 {file.sha256}"


def _count_problems(folder: Path, manifest: SnapshotManifest, intact: set[str], tmp: Path) -> Iterator[str]:
    """Count the rows of intact files; counts of damaged files mean nothing."""
    expected: dict[str, tuple[str, dict[str, int]]] = {
        "steps.parquet": ("'rows_out'", {"rows_out": manifest.rows_out}),
        "episodes.parquet": ("split", manifest.episodes),
        "rejected.parquet": ("reason", manifest.rejected),
    }
    with connect(tmp=tmp, memory_limit_mb=_MEMORY_LIMIT_MB, threads=1) as connection:
        for name in sorted(expected.keys() & intact):
            key, listed = expected[name]
            try:
                held = _counts(connection, folder / name, key)
            except duckdb.OutOfMemoryException:
                raise  # the limit was reached; the file may be intact
            except duckdb.Error as error:
                yield f"{name}: cannot be read: {error}"
                continue
            for group in sorted(listed.keys() | held.keys()):
                if listed.get(group, 0) != held.get(group, 0):
                    yield f"{name}: {MANIFEST_NAME} says {listed.get(group, 0)} {group}, it holds {held.get(group, 0)}"
    accounted = manifest.rows_out + sum(manifest.rejected.values())
    if manifest.rows_in != accounted:
        yield f"{MANIFEST_NAME}: rows_in is {manifest.rows_in}, but rows kept and rejected are {accounted}"


def _counts(connection: duckdb.DuckDBPyConnection, path: Path, key: str) -> dict[str, int]:
    sql = f"SELECT {key}, count(*) FROM read_parquet($path) GROUP BY ALL"  # noqa: S608 - a name of ours
    return dict(connection.execute(sql, {"path": exactly(path)}).fetchall())
