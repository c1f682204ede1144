"""Parquet files in, pixels out; and a cache that is whole, absent, or rebuilt."""

import os
import sys
import types

import numpy as np
import pytest

from adelfl.data import images as data_images
from adelfl.data import load_dataset
from adelfl.errors import ConfigError, MissingExtraError
from adelfl.seeds import rng_for
from support.parquet_world import TEST, TRAIN, assert_right, pa, pixels, png, pq, write_parquet, write_set

BLANK = np.zeros((28, 28), np.uint8)


def listing(folder):
    return sorted(path.name for path in folder.glob("*")) if folder.exists() else []


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def mnist(tmp_path):
    return write_set(tmp_path / "mnist").parent


@pytest.mark.parametrize("column", ["image", "img"])
@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_images_are_decoded_channels_first_and_scaled_under_both_column_names(tmp_path, cache, name, column):
    write_set(tmp_path / name, name, column)
    data = load_dataset(name, tmp_path, cache)
    assert_right(data, name)
    assert data.sample_shape == {"mnist": (1, 28, 28), "cifar10": (3, 32, 32)}[name]
    assert (data.x_train.dtype, data.y_train.dtype) == (np.float32, np.int64)
    assert_right(load_dataset(name, tmp_path, cache), name)


def test_black_and_white_are_exactly_minus_one_and_one(tmp_path, cache):
    for split in ("train", "test"):
        write_parquet(tmp_path / f"{split}.parquet", [BLANK, BLANK + 255], [0, 1])
    data = load_dataset("mnist", tmp_path, cache)
    assert np.all(data.x_train[0] == -1.0)
    assert np.all(data.x_train[1] == 1.0)


@pytest.mark.parametrize(
    ("folder", "pattern"),
    [
        ("mnist", "{split}-00000-of-00001.parquet"),
        (".", "{split}-00000-of-00001.parquet"),
        ("mnist/mnist", "{split}-00000-of-00001.parquet"),
        ("ylecun/mnist/mnist", "{split}-00000-of-00001.parquet"),
        ("datasets--ylecun--mnist/snapshots/77f3279/mnist", "{split}-00000-of-00001.parquet"),
        ("plain_text", "{split}-00000-of-00001-5a2f4b.parquet"),
        ("default", "{split}/0000.parquet"),
        ("mnist/data", "{split}.parquet"),
    ],
)
def test_files_are_found_where_people_put_them(tmp_path, cache, folder, pattern):
    write_set(tmp_path / "data" / folder, pattern=pattern)
    assert_right(load_dataset("mnist", tmp_path / "data", cache))


def test_the_folder_may_come_from_the_environment(mnist, cache, monkeypatch):
    monkeypatch.setenv("ADELFL_DATA", str(mnist))
    monkeypatch.setenv("ADELFL_CACHE", str(cache))
    assert_right(load_dataset("mnist"))
    assert len(listing(cache)) == 1


def test_two_sets_in_one_folder_are_told_apart(mnist, cache):
    write_set(mnist / "cifar10", "cifar10")
    assert_right(load_dataset("mnist", mnist, cache))
    assert_right(load_dataset("cifar10", mnist, cache), "cifar10")


def test_shards_are_read_in_order_and_a_missing_one_is_noticed(tmp_path, cache):
    x, y = pixels("mnist", "train", TRAIN), np.arange(TRAIN)
    write_set(tmp_path)
    (tmp_path / "train-00000-of-00001.parquet").unlink()
    write_parquet(tmp_path / "train-00001-of-00002.parquet", x[2:], y[2:])
    with pytest.raises(ConfigError, match="shard 00000-of-00002 is missing"):
        load_dataset("mnist", tmp_path, cache)
    write_parquet(tmp_path / "train-00000-of-00002.parquet", x[:2], y[:2])
    assert_right(load_dataset("mnist", tmp_path, cache))


@pytest.mark.parametrize("terminal", [True, False])
def test_the_bar_is_drawn_on_a_terminal_only_and_never_on_stdout(mnist, cache, monkeypatch, capsys, terminal):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    assert_right(load_dataset("mnist", mnist, cache))
    out, err = capsys.readouterr()
    assert out == ""
    assert ("decoding mnist" in err) == terminal


# The cache


def test_a_cached_load_needs_neither_pyarrow_nor_pillow_and_is_the_same_to_the_bit(mnist, cache, monkeypatch):
    first = load_dataset("mnist", mnist, cache)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    again = load_dataset("mnist", mnist, cache)
    for key in ("x_train", "y_train", "x_test", "y_test"):
        assert np.array_equal(getattr(first, key), getattr(again, key))


def test_pillow_missing_names_its_extra(mnist, cache, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(MissingExtraError, match="pillow is not installed"):
        load_dataset("mnist", mnist, cache)


def test_a_package_that_does_not_fit_the_others_is_one_sentence(mnist, cache, monkeypatch, tmp_path):
    (tmp_path / "PIL").mkdir()
    (tmp_path / "PIL" / "__init__.py").write_text("raise ImportError('built for another Python')")
    for name in [name for name in sys.modules if name.partition(".")[0] == "PIL"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"pillow is installed but cannot be imported \(built for another Python\)"):
        load_dataset("mnist", mnist, cache)


def test_changed_files_are_decoded_anew(mnist, cache):
    load_dataset("mnist", mnist, cache)
    path = mnist / "mnist" / "test-00000-of-00001.parquet"
    write_parquet(path, pixels("mnist", "test", TEST), [7, 8, 9])
    os.utime(path, ns=(1, 1))
    assert load_dataset("mnist", mnist, cache).y_test.tolist() == [7, 8, 9]
    assert len(listing(cache)) == 2


def test_a_cache_damaged_anywhere_is_noticed_and_rebuilt(mnist, cache):
    load_dataset("mnist", mnist, cache)
    (file,) = cache.iterdir()
    whole = file.read_bytes()
    draws = rng_for(0, "damage")
    # The ends hold the headers of the archive; every byte there, and some of the pixels.
    places = [*range(256), *range(len(whole) - 400, len(whole)), *draws.integers(0, len(whole), 100)]
    for place in places:
        bit = 1 << int(draws.integers(8))
        file.write_bytes(whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :])
        assert_right(load_dataset("mnist", mnist, cache))
    for length in (0, 1, 30, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:length])
        assert_right(load_dataset("mnist", mnist, cache))
        assert len(file.read_bytes()) == len(whole)
    assert listing(cache) == [file.name]


def test_a_full_disk_costs_a_warning_not_the_run(mnist, cache, monkeypatch):
    def full(file, **arrays):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(data_images.np, "savez", full)
    with pytest.warns(UserWarning, match=r"cannot be kept \(No space left on device\).*ADELFL_CACHE"):
        data = load_dataset("mnist", mnist, cache)
    assert_right(data)
    assert listing(cache) == []


def test_a_cache_folder_that_is_a_file_costs_a_warning_not_the_run(mnist, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="cannot be kept") as caught:
        assert_right(load_dataset("mnist", mnist, tmp_path / "file"))
    assert caught[0].filename == __file__


# What is wrong with the files


def test_another_set_s_images_are_refused(tmp_path, cache):
    write_set(tmp_path, "cifar10")
    with pytest.raises(ConfigError, match=r"expected images of 28 × 28 pixels, mode L, not 32 × 32, mode RGB"):
        load_dataset("mnist", tmp_path, cache)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda path: path.write_bytes(b"not parquet"), "cannot be read as a parquet file"),
        (lambda path: pq.write_table(pa.table({"a": [1]}), path), "expected the columns 'label' and 'image' or 'img'"),
        (lambda path: pq.write_table(pa.table({"image": [b"x"], "label": [1]}), path), "cannot be read in the layout"),
        (lambda path: write_parquet(path, [b"not an image"], [1]), "an image cannot be decoded"),
        (
            lambda path: write_parquet(path, [png(pixels("mnist", "test", 1)[0])[:400]], [1]),
            "an image cannot be decoded",
        ),
        (lambda path: write_parquet(path, [BLANK], [10]), "label must be 0 to 9 in mnist, not 10"),
        (lambda path: write_parquet(path, [BLANK], [-1]), "label must be 0 to 9"),
        (
            lambda path: write_parquet(path, [BLANK], pa.array([None], pa.int64())),
            "label must be 0 to 9",
        ),
        (lambda path: write_parquet(path, [BLANK], ["cat"]), "label must be 0 to 9 in mnist, not cat"),
        (lambda path: write_parquet(path, [], pa.array([], pa.int64())), "holds no images"),
    ],
    ids=["bytes", "columns", "layout", "no image", "half an image", "label 10", "label -1", "gap", "word", "empty"],
)
def test_broken_files_are_one_sentence_and_leave_no_cache(tmp_path, cache, write, message):
    write_set(tmp_path)
    write(tmp_path / "test-00000-of-00001.parquet")
    with pytest.raises(ConfigError, match=message) as caught:
        load_dataset("mnist", tmp_path, cache)
    assert "\n" not in str(caught.value)
    assert listing(cache) == []


# The hub


@pytest.fixture
def hub(monkeypatch):
    """A stand-in for huggingface_hub, of which a test sets what it holds locally and remotely."""
    module = types.ModuleType("huggingface_hub")
    module.local, module.remote, module.asked = None, None, []

    def snapshot_download(repo, *, repo_type, allow_patterns, local_files_only):
        module.asked.append((repo, repo_type, local_files_only))
        folder = module.local if local_files_only else module.remote
        if folder is None:
            raise ConnectionError("no route to huggingface.co\nand a second line")
        return str(folder)

    module.snapshot_download = snapshot_download
    monkeypatch.delenv("ADELFL_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    return module


def test_without_a_folder_the_hub_is_asked_once(hub, tmp_path, cache):
    hub.remote = write_set(tmp_path / "snapshot" / "mnist").parent
    assert_right(load_dataset("mnist", cache_dir=cache))
    assert hub.asked == [("ylecun/mnist", "dataset", True), ("ylecun/mnist", "dataset", False)]
    hub.local, hub.remote = hub.remote, None
    assert_right(load_dataset("mnist", cache_dir=cache))


def test_what_was_fetched_only_in_part_is_fetched_again(hub, tmp_path, cache):
    hub.local = write_set(tmp_path / "partial", pattern="{split}-00000-of-00002.parquet")
    hub.remote = write_set(tmp_path / "whole")
    assert_right(load_dataset("mnist", cache_dir=cache))


def test_an_unreachable_hub_is_one_sentence_that_says_how_to_give_a_folder(hub):
    advice = r"\(no route to huggingface.co\); name a folder .* as data_dir or in \$ADELFL_DATA$"
    with pytest.raises(ConfigError, match=advice):
        load_dataset("cifar10")


def test_a_hub_that_holds_other_files_is_one_sentence(hub, tmp_path):
    hub.local = hub.remote = tmp_path
    with pytest.raises(ConfigError, match="holds no parquet files of the expected names"):
        load_dataset("cifar10")
