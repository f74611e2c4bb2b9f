"""A user's own pictures take the digits' place, and nothing about them is believed before it is checked."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from support.builders.ensembles import stack, step_with

from simic.contracts.errors import ConfigError, DatasetError
from simic.contracts.settings.run import WorldConfig
from simic.hosts.batched import images as picture_files
from simic.hosts.batched import images as pictures
from simic.hosts.batched.data import digit_pool
from simic.hosts.batched.images import MIN_PICTURES, load_pictures, pictures_digest, pool_source, read_album
from simic.hosts.ensemble import Ensemble
from simic.hosts.host_sets import identify
from simic.hosts.interfaces import DataSplit

COUNT = 420


def _album(classes: int = 3, count: int = COUNT) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Colour pictures [n, 3, 32, 32] that differ, classes told apart by their brightness."""
    labels = np.arange(count) % classes
    noise = np.random.default_rng(0).integers(0, 100, (count, 3, 32, 32))
    return (noise + 20 * labels[:, None, None, None]).astype(np.uint8), labels


def _save(path: Path, **arrays: Any) -> str:
    np.savez(path, **arrays)
    return str(path)


def _cifar(path: Path) -> str:
    data, labels = _album()
    return _save(path, data=data.reshape(len(data), -1), labels=labels)


def _folder(root: Path, count: int = COUNT, suffix: str = "png") -> str:
    data, labels = _album(count=count)
    for index, (one, label) in enumerate(zip(data, labels.tolist(), strict=True)):
        (root / f"class{label}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.moveaxis(one, 0, 2)).save(root / f"class{label}" / f"{index}.{suffix}")
    return str(root)


def test_every_layout_means_the_same_pictures(tmp_path: Path) -> None:
    data, labels = _album()
    wanted = load_pictures(_cifar(tmp_path / "a.npz"))
    for name, pixels in {
        "planes": data,
        "last": np.moveaxis(data, 1, 3),
        "fortran": np.asfortranarray(data),
        "floats": data.astype(np.float64),
    }.items():
        assert load_pictures(_save(tmp_path / f"{name}.npz", images=pixels, labels=labels)).digest == wanted.digest
    from_files = load_pictures(_folder(tmp_path / "folder")).pools[DataSplit.TRAIN].images
    assert from_files.shape == wanted.pools[DataSplit.TRAIN].images.shape
    grey = np.einsum("c,nchw->nhw", [0.299, 0.587, 0.114], data)
    cells = read_album(Path(_save(tmp_path / "grey.npz", images=grey, labels=labels))).images
    np.testing.assert_allclose(cells, grey.reshape(-1, 8, 4, 8, 4).mean(axis=(2, 4)))
    np.testing.assert_allclose(read_album(tmp_path / "a.npz").images, cells)
    in_files = np.sort(read_album(tmp_path / "folder").images.mean(axis=(1, 2)))
    np.testing.assert_allclose(in_files, np.sort(cells.mean(axis=(1, 2))), atol=1.0)


def test_cells_are_means_over_area_whatever_the_size(tmp_path: Path) -> None:
    ramp = np.broadcast_to(np.arange(12.0), (5, 20, 12))
    images = read_album(Path(_save(tmp_path / "a.npz", images=ramp, labels=np.zeros(5, dtype=int)))).images
    expected = [(0 + 0.5 * 1) / 1.5, (0.5 * 1 + 2) / 1.5, (3 + 0.5 * 4) / 1.5]
    np.testing.assert_allclose(images[0, 0, :3], expected)
    np.testing.assert_allclose(images, np.broadcast_to(images[:1, :1], images.shape))


def test_the_cut_has_the_digits_proportions_and_ignores_order_and_repeats(tmp_path: Path) -> None:
    data, labels = _album()
    first = load_pictures(_save(tmp_path / "a.npz", images=data, labels=labels))
    assert [len(first.pools[part].labels) for part in DataSplit] == [210, 105, 105]
    order = np.random.default_rng(1).permutation(COUNT * 2) % COUNT
    again = load_pictures(_save(tmp_path / "b.npz", images=data[order], labels=labels[order]))
    assert again.digest == first.digest
    for part in DataSplit:
        assert all(map(np.array_equal, first.pools[part], again.pools[part]))
    rows = np.concatenate([first.pools[part].images for part in DataSplit])
    assert len(np.unique(rows, axis=0)) == COUNT, "no picture is in two parts"
    taught = first.pools[DataSplit.TRAIN]
    assert taught.images.mean() == pytest.approx(0, abs=1e-5)
    assert taught.images.std() == pytest.approx(1, abs=1e-5)
    assert np.abs(taught.features.mean(axis=0)).max() < 1e-5


def test_more_pictures_than_digits_are_thinned_to_their_number(tmp_path: Path) -> None:
    images = np.random.default_rng(0).random((2500, 8, 8))
    pools = load_pictures(_save(tmp_path / "a.npz", images=images, labels=np.arange(2500) % 10)).pools
    assert [len(pools[part].labels) for part in DataSplit] == [900, 450, 447]


def test_other_pictures_or_labels_have_another_digest_and_a_changed_file_is_read_again(tmp_path: Path) -> None:
    data, labels = _album()
    path = _save(tmp_path / "a.npz", images=data, labels=labels)
    before = pictures_digest(path)
    other = data.copy()
    other[7, 0, 0, 0] ^= 64
    assert pictures_digest(_save(tmp_path / "b.npz", images=other, labels=labels)) != before
    assert pictures_digest(_save(tmp_path / "c.npz", images=data, labels=labels[::-1])) != before
    (tmp_path / "b.npz").replace(tmp_path / "a.npz")
    assert pictures_digest(path) != before
    assert pictures_digest(None) is None
    assert pool_source(None) is None


def test_hosts_of_the_images_set_see_them_and_others_refuse(tmp_path: Path) -> None:
    path = _cifar(tmp_path / "a.npz")
    world = WorldConfig(set="images", horizon=4, images=path)
    grown = Ensemble(identify("images", range(5)), world)
    samples = stack(grown).dataset.validation
    assert samples.valid == 105
    assert set(samples.labels[4, :105].tolist()) <= {0, 1, 2}
    shown = samples.inputs[4, :105, :, :, :4].reshape(105, 4, 4, 2, 2).swapaxes(2, 3).reshape(105, 8, 8)
    assert np.array_equal(shown.numpy(), load_pictures(path).pools[DataSplit.VALIDATION].images)
    for _ in range(4):
        outcome = step_with(grown)
    assert np.isfinite(outcome.test_accuracy).all()
    digits = Ensemble(identify("images", range(5)), WorldConfig(set="images", horizon=4))
    assert stack(digits).dataset.validation.valid == len(digit_pool(DataSplit.VALIDATION).labels)
    with pytest.raises(ConfigError, match="do not read images"):
        Ensemble(identify("benchmark", [0]), world.model_copy(update={"set": "benchmark"}))


class _Explosive:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("unpickled"),))


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "no labels": ({"data": np.zeros((9, 3072), np.uint8)}, "labels"),
    "one class": ({"labels": np.zeros(COUNT, int)}, "2 to 10 classes, found 1"),
    "eleven classes": ({"labels": np.arange(COUNT) % 11}, "2 to 10 classes, found 11"),
    "one label too few": ({"labels": np.arange(COUNT - 1) % 2}, "one integer per picture"),
    "labels of two dimensions": ({"labels": np.zeros((COUNT, 2), int)}, "one integer per picture"),
    "labels that are fractions": ({"labels": np.arange(COUNT) / 7}, "one integer per picture"),
    "pickled labels": ({"labels": np.array([_Explosive()] * COUNT, dtype=object)}, "plain numbers"),
    "pickled pixels": ({"data": np.array([_Explosive()] * COUNT, dtype=object)}, "plain numbers"),
    "text": ({"data": np.array(["red"] * COUNT)}, "uint8 or floats"),
    "a strange shape": ({"data": np.zeros((COUNT, 3071), np.uint8)}, r"found \(420, 3071\)"),
    "two colours": ({"data": np.zeros((COUNT, 2, 9, 9), np.uint8)}, r"found \(420, 9, 2, 9\)"),
    "tiny pictures": ({"data": np.zeros((COUNT, 3, 7, 7), np.uint8)}, "at least 8x8"),
    "one picture over and over": ({"data": np.ones((COUNT, 3072), np.uint8)}, "distinct ones, found 1"),
    "no pictures": ({"data": np.ones((0, 3072), np.uint8), "labels": np.ones(0, int)}, "found 0"),
    "too few": (
        dict(zip(("data", "labels"), (part[: MIN_PICTURES - 1] for part in _album()), strict=True)),
        "at least 400 distinct ones, found 399",
    ),
    "all but one of a class": ({"labels": np.eye(1, COUNT, dtype=int)[0] * 0}, "found 1"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_useless_archive_is_a_dataset_error(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data, labels = _album()
    changed, message = BROKEN[name]
    arrays = changed if name == "no labels" else {"data": data, "labels": labels, **changed}
    with pytest.raises(DatasetError, match=message):
        load_pictures(_save(tmp_path / "a.npz", **arrays))
    assert not Path("unpickled").exists()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_pixels_that_are_no_numbers_are_refused(value: float, tmp_path: Path) -> None:
    data, labels = _album()
    pixels = data.astype(np.float32)
    pixels[17, 1, 5, 5] = value
    with pytest.raises(DatasetError, match="NaN or infinity in picture 17"):
        load_pictures(_save(tmp_path / "a.npz", images=pixels, labels=labels))


def _header(shape: tuple[int, ...]) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "|u1", "fortran_order": False, "shape": shape})
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (_header((10**12, 3072)), "at most 1073741824 bytes"),
        (_header((2**40, 2**40)), "at most 1073741824 bytes"),
        (_header((COUNT, 3072)) + bytes(5000), "found 5000; is it cut off"),
        (b"\x93NUMPY\x01\x00\xff\xff{", "intact .npz"),
        (pickle.dumps(_Explosive()), "intact .npz"),
        (b"", "intact .npz"),
    ],
)
def test_an_array_that_lies_about_its_size_is_not_unpacked(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data.npy", content)
        archive.writestr("labels.npy", content)
    with pytest.raises(DatasetError, match=message):
        load_pictures(str(path))


@pytest.mark.parametrize("keep", [0, 10, 5000, -30])
def test_a_truncated_archive_is_a_dataset_error(keep: int, tmp_path: Path) -> None:
    path = Path(_cifar(tmp_path / "a.npz"))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DatasetError, match=r"intact \.npz"):
        load_pictures(str(path))


def test_an_archive_whose_bytes_rotted_is_a_dataset_error(tmp_path: Path) -> None:
    path = Path(_cifar(tmp_path / "a.npz"))
    content = bytearray(path.read_bytes())
    content[4000:4100] = bytes(100)
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=r"intact \.npz"):
        load_pictures(str(path))


def test_a_path_to_nothing_or_to_an_empty_folder_is_a_dataset_error(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="found nothing at"):
        load_pictures(str(tmp_path / "missing"))
    with pytest.raises(DatasetError, match="2 to 10 classes, found 0"):
        load_pictures(str(tmp_path))


def _png(width: int, height: int, pixels: bytes = b"") -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(pixels)) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (_png(5_000, 5_000), "at most 16777216 pixels, found 5000x5000"),
        (_png(60_000, 60_000), "intact PNG or JPEG file, found Image size"),
        (_png(4, 4, bytes(20)), "at least 8x8"),
        (_png(64, 64), "intact PNG or JPEG"),
        (b"GIF89a" + bytes(50), "intact PNG or JPEG"),
        (b"not a picture", "intact PNG or JPEG"),
        (b"", "found 0"),
    ],
)
def test_a_picture_that_is_a_bomb_or_broken_is_a_dataset_error(content: bytes, message: str, tmp_path: Path) -> None:
    root = tmp_path / "folder"
    _folder(root, count=6)
    (root / "class1" / "evil.png").write_bytes(content)
    with pytest.raises(DatasetError, match=message):
        load_pictures(str(root))


def test_too_many_or_too_large_files_are_refused_before_they_are_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = _folder(tmp_path / "folder", count=12)
    monkeypatch.setattr(picture_files, "MAX_FILES", 11)
    with pytest.raises(DatasetError, match="at most 11 files"):
        load_pictures(root)
    monkeypatch.undo()
    monkeypatch.setattr(picture_files, "MAX_FILE_BYTES", 100)
    with pytest.raises(DatasetError, match="at most 100 bytes"):
        load_pictures(root)


def test_a_folder_gives_its_classes_in_the_order_of_their_names(tmp_path: Path) -> None:
    root = Path(_folder(tmp_path / "folder", suffix="jpg"))
    (root / "class0" / "notes.txt").write_text("passed over")
    (root / "class0" / ".hidden.png").write_bytes(b"likewise")
    deep = np.full((16, 16), 257 * 100, dtype=np.uint16)
    Image.fromarray(deep).save(root / "class2" / "deep.png")
    loaded = pictures.load_pictures(str(root))
    bright = loaded.pools[DataSplit.TRAIN]
    means = [bright.images[bright.labels == label].mean() for label in range(3)]
    assert means == sorted(means)
    assert read_album(root).images.max() < 256


def _archive(path: Path, header: bytes, content: bytes = b"") -> Path:
    """An .npz whose ``data`` has this header."""
    labels = io.BytesIO()
    np.save(labels, np.zeros(4, dtype=np.int64))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data.npy", header + content)
        archive.writestr("labels.npy", labels.getvalue())
    return path


def _header(shape: str) -> bytes:
    text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


@pytest.mark.parametrize("shape", ["(-1, 3072)", "(4, -3072)", "(200000, 8, 8)", "(1, 1, 1, 8, 8)"])
def test_an_archive_that_claims_an_impossible_shape_is_refused_before_it_is_unpacked(
    tmp_path: Path, shape: str
) -> None:
    with pytest.raises(DatasetError, match="plain numbers"):
        read_album(_archive(tmp_path / "a.npz", _header(shape), bytes(10_000)))


def test_a_header_of_any_claimed_length_is_not_read(tmp_path: Path) -> None:
    claims = b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**31)
    with pytest.raises(DatasetError, match="format version"):
        read_album(_archive(tmp_path / "a.npz", claims, bytes(10_000)))


def test_a_path_that_is_none_is_a_data_error() -> None:
    with pytest.raises(DatasetError):
        load_pictures("x" * 300)


def test_files_changed_in_place_are_other_pictures(tmp_path: Path) -> None:
    folder = Path(_folder(tmp_path / "folder"))
    before = load_pictures(str(folder)).digest
    for file in sorted(folder.glob("class0/*.png"))[:20]:
        pixels = np.asarray(Image.open(file)).copy()
        pixels[:4] = 255 - pixels[:4]
        Image.fromarray(pixels).save(file)
    assert load_pictures(str(folder)).digest != before


def test_every_part_needs_several_classes(tmp_path: Path) -> None:
    data, labels = _album(classes=2)
    labels[:] = 0
    labels[7] = 1
    with pytest.raises(DatasetError, match="several classes in every part"):
        load_pictures(_save(tmp_path / "a.npz", images=data, labels=labels))


def test_label_noise_stays_within_the_classes_there_are(tmp_path: Path) -> None:
    data, labels = _album(classes=2)
    world = WorldConfig(set="images", images=_save(tmp_path / "a.npz", images=data, labels=labels))
    grown = Ensemble(identify("images", [3, 8, 13]), world)
    assert {host.family for host in grown.identities} == {"noisy"}
    assert set(stack(grown).dataset.training.labels.unique().tolist()) == {0, 1}
