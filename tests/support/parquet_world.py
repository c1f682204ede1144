"""Parquet files of random pictures in the layout of the Hugging Face hub, and what must come out of them."""

import io

import numpy as np
import pytest

from adelfl.seeds import rng_for

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'adelfl[data]'")
pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed: pip install 'adelfl[data]'")
PIL = pytest.importorskip("PIL.Image", reason="pillow is not installed: pip install 'adelfl[data]'")

SHAPES = {"mnist": (28, 28), "cifar10": (32, 32, 3)}
TRAIN, TEST = 5, 3


def pixels(name, split, rows):
    return rng_for(0, name, split).integers(0, 256, (rows, *SHAPES[name]), dtype=np.uint8)


def png(array):
    buffer = io.BytesIO()
    PIL.fromarray(array).save(buffer, "png")
    return buffer.getvalue()


def write_parquet(path, images, labels, column="image"):
    path.parent.mkdir(parents=True, exist_ok=True)
    structs = [{"bytes": image if isinstance(image, bytes) else png(image), "path": None} for image in images]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    pq.write_table(pa.table({column: pa.array(structs, kind), "label": labels}), path)


def write_set(folder, name="mnist", column="image", pattern="{split}-00000-of-00001.parquet", rows=(TRAIN, TEST)):
    for split, n in zip(("train", "test"), rows, strict=True):
        path = folder / pattern.format(split=split)
        write_parquet(path, pixels(name, split, n), np.arange(n) % 10, column)
    return folder


def expected(name, split, rows):
    x = pixels(name, split, rows).reshape(rows, *SHAPES[name][:2], -1).transpose(0, 3, 1, 2)
    return (x / 255 - 0.5) / 0.5


def assert_right(data, name="mnist"):
    # float32 keeps 24 bits; two roundings of numbers up to 2.
    assert np.allclose(data.x_train, expected(name, "train", TRAIN), rtol=0, atol=2.0**-22)
    assert np.allclose(data.x_test, expected(name, "test", TEST), rtol=0, atol=2.0**-22)
    assert data.y_train.tolist() == list(range(TRAIN))
    assert data.y_test.tolist() == list(range(TEST))
