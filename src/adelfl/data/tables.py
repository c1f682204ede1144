"""Data of real users: a table with a row per sample, a column of users, and a column of labels.

Rules, for files and arrays alike:

- A row without a user or a label is an error.
- Labels may be text or numbers; classes are numbered from 0 in sorted order. ``1`` and ``1.0`` are the same number.
- Missing features (empty, ``?``, ``NA``, ``NaN``) are replaced by the column's mean over the training rows.
- Columns that are constant or empty over the training rows are left out.
- The other columns are standardised: mean 0 and standard deviation 1 over the training rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from adelfl.array_types import Floats
from adelfl.data.arrays import Ints
from adelfl.data.datasets import Dataset
from adelfl.errors import ConfigError
from adelfl.seeds import rng_for
from adelfl.tables import numbers, read_csv, read_parquet

Split = Literal["within", "users"]

_MISSING = {"", "?", "na", "n/a", "nan", "null", "none"}


def read_users(
    path: str | Path,
    user_column: str,
    label_column: str,
    *,
    skip: Sequence[str] = (),
    split: Split = "within",
    test_share: float = 0.2,
    seed: int = 0,
) -> Dataset:
    """Read a CSV or Parquet file with the samples of users.

    Parameters
    ----------
    path : path
        File with a row per sample; ``.parquet`` needs the extra ``data``, everything else is read as CSV.
    user_column, label_column : str
        Names of the columns with the user and the label.
    skip : sequence of str
        Columns that are not features.
    split, test_share, seed
        See :func:`users_dataset`.
    """
    path = Path(path)
    columns = read_parquet(path) if path.suffix.lower() == ".parquet" else read_csv(path)
    for key, name in (("user_column", user_column), ("label_column", label_column), *(("skip", name) for name in skip)):
        if name not in columns:
            raise ConfigError(f"{path}: there is no column {name!r} (data.{key}); there are {', '.join(columns)}")
    if user_column == label_column:
        raise ConfigError(f"{path}: data.user_column and data.label_column must be two columns, not {user_column!r}")
    users, labels = columns.pop(user_column), columns.pop(label_column)
    try:
        features = [numbers(path, name, values, _MISSING) for name, values in columns.items() if name not in skip]
    except ConfigError as error:
        raise ConfigError(f"{error}; encode the column as numbers, or add it to data.skip_columns") from None
    if not features:
        raise ConfigError(f"{path}: has no column of features besides the user, the label and skipped columns; add one")
    x = np.stack(features, axis=1)
    try:
        return users_dataset(x, labels, users, split=split, test_share=test_share, seed=seed, name=path.stem)
    except ConfigError as error:
        raise ConfigError(f"{path}: {str(error).removeprefix(f'{path.stem}: ')}") from None


def users_dataset(
    x: ArrayLike,
    labels: Any,  # noqa: ANN401 - any sequence
    users: Any,  # noqa: ANN401
    *,
    split: Split = "within",
    test_share: float = 0.2,
    seed: int = 0,
    name: str = "users",
) -> Dataset:
    """Build a data set from the samples of users, with the rules of this module.

    Parameters
    ----------
    x : array, shape (N, features)
        Features; NaN where missing.
    labels, users : sequence of N numbers or texts
        Label and user of each sample.
    split : {"within", "users"}
        Whether the test set holds some samples of every user, or all samples of some users.
    test_share : float
        Share of the samples of each user, or of the users, in the test set. A user keeps at least one training sample,
        and two users remain.
    seed : int
        Seed of the split, which is the same for all runs.
    name : str
        Name of the data set.

    Returns
    -------
    Dataset
        ``users`` numbers the user of each training sample from 0, in the order of the users.
    """
    table = np.array(x, dtype=np.float64)
    if table.ndim != 2 or not len(table) == len(labels) == len(users):
        raise ConfigError(f"{name}: give a row of features, a label and a user for each sample")
    if split not in get_args(Split) or not 0.0 < test_share < 1.0:
        raise ConfigError(f"{name}: split must be 'within' or 'users', and the test share between 0 and 1")
    if np.isinf(table).any():
        row, column = np.argwhere(np.isinf(table))[0]
        raise ConfigError(f"{name}: row {row + 2}, feature {column + 1} is infinite")
    class_names, y = _codes(name, "label", labels)
    user_names, owner = _codes(name, "user", users)
    if len(class_names) < 2 or len(user_names) < 2:
        raise ConfigError(f"{name}: needs two or more labels and users, not {len(class_names)} and {len(user_names)}")
    if split == "users" and len(user_names) < 3:
        raise ConfigError(f"{name}: split 'users' needs three or more users, not 2; use 'within'")
    test = _within(owner, test_share, seed) if split == "within" else _by_user(owner, test_share, seed)
    if not test.any():
        raise ConfigError(
            f"{name}: no sample is left for the test set; raise test_share (now {test_share:g}), or use split 'users'"
        )
    features = _standardised(table, ~test)
    if features.shape[1] == 0:
        raise ConfigError(f"{name}: every feature is constant over the training samples; give features that vary")
    _, trained = np.unique(owner[~test], return_inverse=True)
    return Dataset(
        name,
        features[~test],
        y[~test],
        features[test],
        y[test],
        len(class_names),
        class_names,
        users=trained.astype(np.int64),
    )


def _codes(name: str, what: str, values: Any) -> tuple[tuple[str, ...], Ints]:  # noqa: ANN401
    """Return the sorted names of labels or users, and for each sample the number of its name."""
    words = [str(value).strip() for value in np.asarray(values, dtype=object).tolist()]
    for row, word in enumerate(words):
        if word.lower() in _MISSING:
            raise ConfigError(f"{name}: row {row + 2} has no {what}; remove rows without one")
    keys: dict[str, Any] = {word: word for word in words}
    order: list[Any]
    try:
        exact = {word: Decimal(word) for word in keys}  # floats confuse long numbers of users
        order, keys = sorted(set(exact.values())), exact
    except (ArithmeticError, TypeError):  # a text or NaN
        order = sorted(keys)
    names = {keys[word]: word for word in reversed(words)}  # a number has the name that comes first
    number = {key: i for i, key in enumerate(order)}
    return tuple(names[key] for key in order), np.array([number[keys[word]] for word in words], dtype=np.int64)


def _within(owner: Ints, share: float, seed: int) -> NDArray[np.bool_]:
    """Select a share of the samples of each user for the test set; a user keeps at least one."""
    test = np.zeros(owner.size, dtype=np.bool_)
    for user in np.unique(owner):
        own = rng_for(seed, "split", int(user)).permutation(np.flatnonzero(owner == user))
        test[own[: min(round(share * own.size), own.size - 1)]] = True
    return test


def _by_user(owner: Ints, share: float, seed: int) -> NDArray[np.bool_]:
    """Select all samples of a share of the users for the test set; two users remain."""
    users = rng_for(seed, "split").permutation(np.unique(owner))
    return np.isin(owner, users[: min(max(1, round(share * users.size)), users.size - 2)])


def _standardised(table: Floats, train: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Fill in missing values, remove constant columns and standardise, by the statistics of the training rows."""
    known = ~np.isnan(table[train])
    count = np.maximum(known.sum(axis=0), 1)
    mean = np.where(known, table[train], 0.0).sum(axis=0) / count
    deviation = np.sqrt(np.where(known, (table[train] - mean) ** 2, 0.0).sum(axis=0) / count)
    varies = deviation > 1e-12 * np.maximum(np.abs(mean), 1e-300)
    scaled = (np.where(np.isnan(table), mean, table) - mean)[:, varies] / deviation[varies]
    return np.ascontiguousarray(scaled, dtype=np.float32)
