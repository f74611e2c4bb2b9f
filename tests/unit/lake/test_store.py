"""Both stores keep the same promises; an address is checked before anything is asked of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import fs as arrow_fs

from simic.contracts.errors import ConfigError, TransientError
from simic.contracts.lake_url import parse_url
from simic.lake.store import ArrowParts, LocalParts, PartStore, connect_store
from simic.runtime.home import resolve_home
from simic.runtime.settings import load_profile

NAME = "day=2026-01-06/part-abc-0123456789abcdef.parquet"
OTHER = "day=2026-01-07/part-abd-0123456789abcdef.parquet"


@pytest.fixture(params=["directory", "arrow"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> PartStore:
    root = tmp_path / "store" / "experience"
    root.mkdir(parents=True)
    if request.param == "directory":
        return LocalParts(root)
    # A plain file system asks for folders, which an object store has not.
    for folder in (NAME, OTHER, f"damaged/{NAME}"):
        (root / folder).parent.mkdir(parents=True, exist_ok=True)
    return ArrowParts(arrow_fs.SubTreeFileSystem(str(root), arrow_fs.LocalFileSystem()), "test://store")


def put(store: PartStore, tmp_path: Path, name: str, content: bytes) -> None:
    unfinished = tmp_path / "unfinished"
    unfinished.write_bytes(content)
    store.put(unfinished, name)
    assert not unfinished.exists()


def test_what_was_put_is_there_until_it_is_deleted(store: PartStore, tmp_path: Path) -> None:
    assert store.names() == [] and store.size_bytes(NAME) is None
    put(store, tmp_path, OTHER, b"other")
    put(store, tmp_path, NAME, b"12345678")
    assert store.names() == [NAME, OTHER]
    assert store.size_bytes(NAME) == 8
    assert store.digest(NAME) == hashlib.sha256(b"12345678").hexdigest()
    with store.open(NAME) as file:
        file.seek(2)
        assert file.read(3) == b"345"
    put(store, tmp_path, NAME, b"new")
    assert store.size_bytes(NAME) == 3
    store.delete(NAME)
    store.delete(NAME)
    assert store.names() == [OTHER]
    with pytest.raises(FileNotFoundError):
        store.open(NAME)


def test_what_was_set_aside_is_out_of_the_way_and_kept(store: PartStore, tmp_path: Path) -> None:
    assert not store.move_to_damaged(NAME)
    put(store, tmp_path, NAME, b"damaged")
    assert store.move_to_damaged(NAME)
    assert store.names() == [] and store.size_bytes(NAME) is None
    kept = next(path for path in (tmp_path / "store").rglob("damaged/**/*.parquet"))
    assert kept.read_bytes() == b"damaged"


def test_a_store_that_refuses_is_transient(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    store = LocalParts(tmp_path / "file")
    (tmp_path / "unfinished").write_bytes(b"x")
    with pytest.raises(TransientError, match=r"cannot land .*check the store, space and permissions"):
        store.put(tmp_path / "unfinished", NAME)
    assert (tmp_path / "unfinished").exists()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("/data/lake", "expected s3://bucket/prefix"),
        ("gs://bucket/prefix", "expected s3://bucket/prefix"),
        ("s3:///prefix", "expected s3://bucket/prefix"),
        ("s3://key:secret@bucket/prefix", "must not hold credentials"),
        ("https://key:secret@host/bucket", "must not hold credentials"),
        ("s3://bucket/prefix?endpoint_override=key:secret@host:1", "must not hold credentials"),
        ("s3://bucket/prefix?endpoint_override=key%3Asecret%40host:1", "must not hold credentials"),
        ("https://host/bucket?secret", "found the scheme 'https'"),
        ("s3://[secret/prefix", "not an address"),
        ("s3://bucket/prefix?access_key=a&secret_key=b", "2 other options"),
        ("s3://bucket/prefix?scheme=gopher", "scheme must be http or https"),
        (f"s3://bucket/{'secret' * 1000}", "at most 2048 characters"),
    ],
)
def test_wrong_addresses_are_refused_and_never_repeated(
    url: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever an address comes in: itself, by a recipe, by the environment."""
    monkeypatch.setenv("SIMIC_LAKE_URL", url)
    entrances: list[Callable[[], object]] = [
        lambda: parse_url(url),
        lambda: load_profile("default", {"lake.url": url}),
        resolve_home,
    ]
    for entrance in entrances:
        with pytest.raises(ConfigError, match=message) as caught:
            entrance()
        assert url not in str(caught.value) and "secret" not in str(caught.value)


def test_what_arrow_makes_nothing_of_is_a_wrong_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_options: object) -> None:
        raise pa.ArrowInvalid("no such endpoint")

    monkeypatch.setattr("simic.lake.store.arrow_fs.S3FileSystem", refuse)
    with pytest.raises(ConfigError, match="s3://bucket/prefix cannot be used: no such endpoint"):
        connect_store("s3://bucket/prefix?endpoint_override=nowhere")


def test_addresses_are_taken_apart() -> None:
    parsed = parse_url("s3://bucket/a/b/?endpoint_override=127.0.0.1:9000&scheme=http")
    assert parsed == ("bucket/a/b", {"endpoint_override": "127.0.0.1:9000", "scheme": "http"})


def test_an_upload_of_which_a_part_arrived_is_no_landing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / NAME).parent.mkdir()
    store = ArrowParts(arrow_fs.SubTreeFileSystem(str(tmp_path), arrow_fs.LocalFileSystem()), "test://store")
    monkeypatch.setattr(store, "size_bytes", lambda _name: 3)
    (tmp_path / "unfinished").write_bytes(b"12345")
    with pytest.raises(TransientError, match="sent 5 bytes, the store holds 3"):
        store.put(tmp_path / "unfinished", NAME)
    assert (tmp_path / "unfinished").exists()
