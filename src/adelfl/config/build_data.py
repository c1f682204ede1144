"""Build the data set of a configuration and its partition among the devices."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from adelfl.config.build_fleet import given_fleet
from adelfl.config.run import DataSection, FleetSection, RunFile
from adelfl.data import Dataset, Partition, by_user, dirichlet, iid, load_dataset, read_users, split_validation
from adelfl.data.arrays import Ints
from adelfl.errors import ConfigError
from adelfl.plugins import call_factory, users_code
from adelfl.seeds import rng_for

_VALIDATION_SEED = 0  # the same split for all seeds: tuning and reported runs hold out the same samples


def build_data(config: RunFile) -> tuple[Dataset, Partition]:
    """Return the data set and the partition of its training samples."""
    d, seed = config.data, config.training.seed
    if d.partition_file is None and d.partition in ("iid", "dirichlet"):
        given = given_fleet(config)
        devices = config.fleet.devices if given is None else given.size
        dataset = load_data(d, d.validation)
        # Each device holds at least one batch; in a larger fleet, devices share samples.
        least = min(config.training.batch, dataset.y_train.size)
        if d.partition == "iid":
            partition = iid(dataset.y_train, devices, seed, min_size=least)
        else:
            partition = dirichlet(dataset.y_train, devices, d.alpha, seed, min_size=least)
    else:
        dataset, partition = _given_partition(config)
    return _fewer_tests(dataset, d.test_samples, seed), partition


def load_data(section: DataSection, validation: float = 0.0) -> Dataset:
    """Return the data set; a share ``validation`` of its training samples replaces the test samples if it is not 0."""
    partitioning = {"partition", "partition_file", "alpha", "validation", "test_samples"}
    return _dataset(section.model_dump_json(exclude=partitioning), validation)


@lru_cache(maxsize=2)
def _dataset(section: str, validation: float = 0.0) -> Dataset:
    if validation:
        whole = _dataset(section)
        return _held_out(whole, *split_validation(whole.y_train, validation, _VALIDATION_SEED))
    d = DataSection.model_validate_json(section)
    if d.factory is None and d.file is not None:
        if d.user_column is None or d.label_column is None:
            raise ConfigError("data.file: set data.user_column and data.label_column to the names of two columns")
        split = {"split": d.split, "test_share": d.test_share, "seed": d.split_seed}
        return read_users(d.file, d.user_column, d.label_column, skip=d.skip_columns, **split)  # type: ignore[arg-type]
    if d.factory is None:
        return load_dataset(d.name, data_dir=d.data_dir)
    dataset = call_factory("data.factory", d.factory)
    if not isinstance(dataset, Dataset):
        raise ConfigError(
            f"data.factory: {d.factory} must return an adelfl.data.Dataset, not {type(dataset).__name__}; "
            "Dataset.from_arrays, Dataset.from_torch and adelfl.data.users_dataset make one"
        )
    return dataset


def _held_out(whole: Dataset, kept: Ints, held_out: Ints) -> Dataset:
    """Return the data set with some of its training samples in place of its test samples."""
    x, y = whole.x_train, whole.y_train
    users = None if whole.users is None else whole.users[kept]
    return replace(whole, x_train=x[kept], y_train=y[kept], x_test=x[held_out], y_test=y[held_out], users=users)


def _fewer_tests(dataset: Dataset, samples: int | None, seed: int) -> Dataset:
    """Return the data set with at most ``samples`` test samples, drawn at random by the seed."""
    if samples is None or samples >= dataset.y_test.size:
        return dataset
    chosen = rng_for(seed, "test samples").permutation(dataset.y_test.size)[:samples]
    return replace(dataset, x_test=dataset.x_test[chosen], y_test=dataset.y_test[chosen])


def _given_partition(config: RunFile) -> tuple[Dataset, Partition]:
    """Return the data set and its partition by users, by a user's function, or from a file.

    ``data.validation`` removes samples from a partition of the whole training set; each device keeps at least one. A
    file of ``adelfl partition --save`` may be a partition of the remaining samples instead.
    """
    section, given = config.data, given_fleet(config)
    whole = load_data(section)
    partition = _users_partition(section, whole)
    devices = config.fleet.devices if given is None else given.size
    if given is None and section.partition == "users" and devices == FleetSection.model_fields["devices"].default:
        devices = len(partition)
    key = "data.partition_file" if section.partition_file is not None else "data.partition"
    source, n = section.partition_file or section.partition, len(partition)
    given_sizes = f"{key}: {source} distributes {partition.samples} samples to {n} devices"
    if n != devices:
        raise ConfigError(f"{given_sizes}, but the fleet has {devices} devices; set fleet.devices to {n}")
    if not section.validation:
        dataset = whole
    elif partition.samples == whole.y_train.size:
        kept, held_out = partition.spared(*split_validation(whole.y_train, section.validation, _VALIDATION_SEED))
        return _held_out(whole, kept, held_out), partition.restricted(kept)
    else:
        dataset = load_data(section, section.validation)
    if partition.samples != dataset.y_train.size:
        raise ConfigError(f"{given_sizes}, but the training set has {dataset.y_train.size} samples")
    return dataset, partition


def _users_partition(section: DataSection, whole: Dataset) -> Partition:
    if section.partition_file is not None:
        return Partition.load(section.partition_file)
    if section.partition == "users":
        if whole.users is None:
            raise ConfigError(f'data.partition: {whole.name} has no users; use "iid" or "dirichlet", or set data.file')
        return by_user(whole.users)
    partition = call_factory("data.partition", section.partition, whole)
    if isinstance(partition, Partition):
        return partition
    with users_code(f"data.partition: {section.partition} must return a Partition, or positions for each device"):
        return Partition.of(list(partition), whole.y_train.size)
