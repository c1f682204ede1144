"""Whole runs on a Ray cluster: the same records as here, also if a machine fails."""

import pytest

from adelfl.config.run import load_run
from adelfl.pools import run_all
from adelfl.records.schema import RunResult
from adelfl.runner import jobs_of
from support.small_worlds import kept_bytes

RUNS = load_run(None, ["fleet.devices=10", "training.rounds=12000", "training.evaluations=50"])


def jobs(folder):
    return jobs_of(RUNS, ["salf", "drop"], 1, 0, folder)


@pytest.fixture
def cluster():
    """Two machines with one processor each."""
    ray = pytest.importorskip("ray", reason="needs Ray: pip install 'adelfl[scale]'")
    from ray.cluster_utils import Cluster

    size = {"num_cpus": 1, "object_store_memory": 80_000_000}
    cluster = Cluster(initialize_head=True, head_node_args=size)
    second = cluster.add_node(**size)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    yield cluster, second
    ray.shutdown()
    cluster.shutdown()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_runs_on_a_cluster_whose_second_machine_fails_have_the_same_records(tmp_path, cluster):
    machines, second = cluster
    expected = dict(run_all(jobs(tmp_path / "here"), 1, lambda job, row: None))
    seen = []

    def report(job, row):
        seen.append((job, row.round))
        if second in machines.worker_nodes and len({job for job, _ in seen}) == 2:  # each machine has one
            machines.remove_node(second, allow_graceful=False)

    results = dict(run_all(jobs(tmp_path / "ray"), 1, report, "ray"))
    assert second not in machines.worker_nodes
    assert len(seen) > len(set(seen))  # one was cut back to its last checkpoint, and went on from there
    for job, own in zip(jobs(tmp_path / "ray"), jobs(tmp_path / "here"), strict=True):
        assert isinstance(results[job], RunResult), results[job]
        assert results[job].final_accuracy == expected[own].final_accuracy
        assert kept_bytes(job.folder) == kept_bytes(own.folder)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_an_error_of_a_run_on_a_cluster_is_that_of_the_run(tmp_path, cluster):
    broken = load_run(None, ["training.rounds=60", "training.weight_decay=50", "learning_rate.initial=1.0"])
    ((_, error),) = run_all(jobs_of(broken, ["salf"], 1, 0, tmp_path), 1, lambda job, row: None, "ray")
    assert "lower the learning rate" in str(error)
    assert "Traceback" not in str(error)
