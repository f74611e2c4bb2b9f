"""Every byte and every count of a snapshot against what its manifest says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import duckdb

from simic.contracts.errors import IntegrityError
from simic.contracts.receipts import FileDigest, SnapshotManifest
from simic.contracts.snapshots import SnapshotCheck
from simic.curation.snapshot import MANIFEST_NAME, identity_damage, read_manifest
from simic.lake.duck import connect
from simic.lake.held import is_held_part
from simic.trust.canonical import file_sha256
from simic.trust.settings import SETTINGS_NAME, settings_damage

__all__ = ["check_snapshot", "files_of"]

_MEMORY_LIMIT_MB = 512


def files_of(folder: Path) -> int:
    """How many files a check of ``folder`` will look at."""
    return sum(1 for _ in folder.iterdir())


def check_snapshot(
    folder: Path,
    *,
    tmp: Path,
    committed: Mapping[str, set[str]] | None = None,
    on_file: Callable[[int], None] = lambda _: None,
) -> SnapshotCheck:
    """Names everything that is wrong with the snapshot at ``folder``; nothing, if it is whole.

    Digest and size of every file, files lost or added, the digest over all of them, the folder's name, discount and
    reward against the sealed settings, and the rows: counted again, per split and per reason, for the manifest's counts
    are not under its digest. So are the sources of its states: with ``committed``, the digests by which the ledger
    committed each part, they are held against those.
    """
    try:
        manifest = read_manifest(folder)
    except IntegrityError as error:
        on_file(files_of(folder))
        return SnapshotCheck(folder=folder.name, digest=None, files=0, size_bytes=0, damage=[str(error)])
    damage, whole = [], set()
    listed = [*manifest.files, *manifest.sources]
    for file in listed:
        if problem := _file_damage(folder, file):
            damage.append(problem)
        else:
            whole.add(file.name)
        on_file(1)
    known = {file.name for file in listed} | {MANIFEST_NAME}
    damage += [f"{path.name}: not part of the snapshot" for path in sorted(folder.iterdir()) if path.name not in known]
    damage += identity_damage(folder, manifest)
    if SETTINGS_NAME in whole:
        damage += settings_damage(folder, manifest)
    if committed is not None:
        damage += _source_damage(manifest, committed)
    damage += _count_damage(folder, manifest, whole, tmp)
    on_file(1)
    return SnapshotCheck(
        folder=folder.name,
        digest=manifest.digest,
        files=len(listed),
        size_bytes=sum(file.size_bytes for file in listed),
        damage=damage,
    )


def _file_damage(folder: Path, file: FileDigest) -> str | None:
    path = folder / file.name
    if not path.is_file():
        return f"{file.name}: missing"
    if (size := path.stat().st_size) != file.size_bytes:
        return f"{file.name}: expected {file.size_bytes} bytes, found {size}"
    if (found := file_sha256(path)) != file.sha256:
        return f"{file.name}: expected SHA-256 {file.sha256}, found {found}"
    return None


def _source_damage(manifest: SnapshotManifest, committed: Mapping[str, set[str]]) -> Iterator[str]:
    names = {Path(name).name: name for name in manifest.ledger_parts}
    for file in manifest.sources:
        if is_held_part(file.name) and file.sha256 not in committed.get(names.get(file.name, ""), set()):
            yield f"{file.name}: the ledger never committed a part of that name and SHA-256 {file.sha256}"


def _count_damage(folder: Path, manifest: SnapshotManifest, whole: set[str], tmp: Path) -> Iterator[str]:
    """Only of files that are whole: of the others there is nothing to count."""
    expected: dict[str, tuple[str, dict[str, int]]] = {
        "steps.parquet": ("'rows_out'", {"rows_out": manifest.rows_out}),
        "episodes.parquet": ("split", manifest.episodes),
        "rejected.parquet": ("reason", manifest.rejected),
    }
    with connect(tmp=tmp, memory_limit_mb=_MEMORY_LIMIT_MB, threads=1) as connection:
        for name in sorted(expected.keys() & whole):
            key, told = expected[name]
            try:
                found = _counts(connection, folder / name, key)
            except duckdb.Error as error:
                yield f"{name}: cannot be read: {error}"
                continue
            for group in sorted(told.keys() | found.keys()):
                if told.get(group, 0) != found.get(group, 0):
                    yield f"{name}: {MANIFEST_NAME} says {told.get(group, 0)} {group}, it holds {found.get(group, 0)}"
    accounted = manifest.rows_out + sum(manifest.rejected.values())
    if manifest.rows_in != accounted:
        yield f"{MANIFEST_NAME}: rows_in is {manifest.rows_in}, but rows kept and rejected are {accounted}"


def _counts(connection: duckdb.DuckDBPyConnection, path: Path, key: str) -> dict[str, int]:
    sql = f"SELECT {key}, count(*) FROM read_parquet($path) GROUP BY ALL"  # noqa: S608 - a name of ours
    return dict(connection.execute(sql, {"path": str(path)}).fetchall())
