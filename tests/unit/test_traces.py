"""Fleets of measured devices: files are read, plans use means, the world follows the traces."""

import json
import os
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from adelfl.config.build import build_experiment
from adelfl.config.run import load_run
from adelfl.durations import Trace
from adelfl.errors import ConfigError
from adelfl.fleet import Fleet
from adelfl.simulation import simulate
from adelfl.simulation.draws import draw_available, draw_work, fitted
from adelfl.simulation.world import World
from adelfl.strategies.actions import Tasks
from adelfl.traces.formats import read_availability, read_bandwidth, read_speeds
from adelfl.traces.playback import Availability, Links, Schedules, deal

DEVICES = Path(os.environ.get("ADELFL_DATA", "nowhere")) / "devices"
HOUR = 3600.0


def write(path, text):
    path.write_text(text)
    return path


def speeds(folder):
    """Phone a needs 10 + 2 S ms for a step of a small network, phone b 4 S ms; both twice as much for a large one."""
    steps = [("a", S, 10 + 2 * S) for S in (1, 4, 16)] + [("b", S, 4 * S) for S in (1, 4, 16)]
    lines = [f"{name},{net},{S},{k * ms},1" for k, net in ((1, "small"), (2, "large")) for name, S, ms in steps]
    return write(folder / "speeds.csv", "device,network,batch,train_ms,infer_ms\n" + "\n".join(lines) + "\n")


def bandwidth(folder):
    """One uplink alternates between 1 and 3 Mbit/s every ten seconds, one has 8 Mbit/s."""
    rows = [(0, 0, 1), (0, 10, 3), (1, 0, 8), (1, 10, 8)]
    text = "trace,seconds,Mbps\n" + "".join(f"{a},{b},{c}\n" for a, b, c in rows)
    return write(folder / "bandwidth.csv", text)


def availability(folder):
    """One phone is available in the first hour of two, one in the second, one never."""
    return write(folder / "availability.csv", "device,half_hours\n0,1100\n1,?011\n2,00??\n")


@pytest.fixture
def files(tmp_path):
    return [
        "fleet.kind=traces",
        f"fleet.speeds='{speeds(tmp_path)}'",
        "fleet.network=small",
        f"fleet.bandwidth='{bandwidth(tmp_path)}'",
        f"fleet.availability='{availability(tmp_path)}'",
    ]


# -- files


def test_step_times_are_a_line_of_the_batch_size(tmp_path):
    for network, factor in (("small", 1e-3), ("large", 2e-3)):
        fixed, per_sample = read_speeds(speeds(tmp_path), network)
        assert fixed == pytest.approx([10 * factor, 0.0], abs=1e-9)
        assert per_sample == pytest.approx([2 * factor, 4 * factor])
    one_size = write(tmp_path / "one.csv", "device,batch,train_ms\na,8,40\n")
    assert read_speeds(one_size) == (pytest.approx([0.0]), pytest.approx([0.005]))


def test_the_time_of_an_inference_stands_for_a_third_of_a_step(tmp_path):
    ranking = write(tmp_path / "ranking.csv", "device,latency_ms\nA,4\nB,8\n")
    assert read_speeds(ranking)[1] == pytest.approx([0.012, 0.024])


@pytest.mark.parametrize("kind", ["pickle", "json"])
def test_fedscales_files_are_read(tmp_path, kind):
    info = {"7": {"computation": 20.0, "communication": 5000.0}, "9": {"computation": 40.0, "communication": 1000.0}}
    times = {"7": {"duration": 9, "active": [100, 500], "inactive": [200, 600], "finish_time": 1000, "model": "x"}}
    for name, content in (("info", info), ("behave", times)):
        path = tmp_path / f"{name}.{kind}"
        path.write_bytes(pickle.dumps(content) if kind == "pickle" else json.dumps(content).encode())
    assert read_speeds(tmp_path / f"info.{kind}")[1] == pytest.approx([0.06, 0.12])
    assert [t.mean_rate for t in read_bandwidth(tmp_path / f"info.{kind}")] == pytest.approx([5.0, 1.0])
    schedules = read_availability(tmp_path / f"behave.{kind}")
    here = [bool(schedules.available(np.array([0]), t)[0]) for t in (50, 150, 550, 700, 1150)]
    assert here == [False, True, True, False, True]


MESSAGES = """
2020-01-31 22:00:00\tscreen_lock
2020-01-31 22:30:00\tbattery_charged_on
2020-01-31 23:00:00\tWIFI
2020-02-01 06:00:00\t87.0%
2020-02-01 07:00:00\tscreen_unlock
2020-02-01 08:00:00\t4G
"""


@pytest.mark.parametrize(
    "line",
    [{"guid": "x", "messages": MESSAGES}, {"x": {"messages": MESSAGES, "model": "y"}}, {"x": MESSAGES}],
    ids=["records", "mapping", "texts"],
)
@pytest.mark.parametrize("lines", [1, 3])
def test_flashs_phones_are_available_when_locked_charged_and_on_wifi(tmp_path, line, lines):
    path = write(tmp_path / "behaviour.json", "\n".join([json.dumps(line)] * lines))
    schedules = read_availability(path)
    assert schedules.length.tolist() == [2 * 86400.0] * lines
    assert schedules.starts.tolist() == [23 * HOUR] * lines
    assert schedules.ends.tolist() == [31 * HOUR] * lines


def test_steady_uplinks_are_read_in_kilobytes(tmp_path):
    path = write(tmp_path / "uplinks.csv", "user,down_mean,down_std,up_mean,up_std\n0,1,1,1000,3\n")
    assert read_bandwidth(path)[0].mean_rate == pytest.approx(8.0)


@pytest.mark.parametrize(
    "text",
    [
        "trace,seconds,speed\n0,0,1\n0,1,2\n",
        "trace,seconds,Mbps\n0,1,1\n0,0,1\n",
        "trace,seconds,Mbps\n0,0,x\n0,1,1\n",
        "trace,seconds,Mbps\n0,0,1\n",
        "trace,seconds,Mbps\n0,0,0\n0,1,0\n",
        "trace,seconds,Mbps\n0,0,1\n0,1,inf\n",
    ],
)
def test_a_bandwidth_that_cannot_be_is_refused(tmp_path, text):
    path = write(tmp_path / "trace.csv", text)
    with pytest.raises(ConfigError, match=r"trace\.csv: .*above zero" if "0,1,0" in text else r"trace\.csv: "):
        read_bandwidth(path)


@pytest.mark.parametrize("values", ["4,nan", "4,0", "0,10", "inf,10"])
def test_step_times_that_are_no_positive_numbers_are_refused(tmp_path, values):
    path = write(tmp_path / "speeds.csv", f"device,batch,train_ms\nphone,2,5\nphone,{values}\n")
    with pytest.raises(ConfigError, match=r"speeds\.csv: batch and train_ms of phone must be positive numbers"):
        read_speeds(path)


@pytest.mark.parametrize("value", ["0", "-4", "nan", "inf"])
def test_inference_times_that_are_no_positive_numbers_are_refused(tmp_path, value):
    path = write(tmp_path / "ranking.csv", f"device,latency_ms\nA,4\nB,{value}\n")
    with pytest.raises(ConfigError, match=r"ranking\.csv: times of an inference must be positive numbers"):
        read_speeds(path)


MISTAKES = {
    "network": ("fleet.network=tiny", "fleet.network must be one of large, small, not 'tiny'"),
    "no file": ("fleet.speeds='none.csv'", "none.csv: no such file"),
    "wrong file": ("fleet.speeds='availability.csv'", "cannot be read as step times .'batch' is missing"),
    "wrong states": ("fleet.availability='wrong.csv'", "half_hours may contain 0, 1 and"),
    "never": ("fleet.availability='never.csv'", "no device is ever available"),
    "code": ("fleet.availability='code.pkl'", "it holds objects of"),
}


@pytest.mark.parametrize(("change", "sentence"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_in_a_file_is_one_sentence(tmp_path, files, monkeypatch, change, sentence):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "wrong.csv", "device,half_hours\n0,1x0\n")
    write(tmp_path / "never.csv", "device,half_hours\n0,0?0\n")
    (tmp_path / "code.pkl").write_bytes(pickle.dumps({"0": Path("x")}))
    with pytest.raises(ConfigError, match=sentence) as error:
        build_experiment(load_run(None, [*files, "strategy.name=salf", change]))
    assert "\n" not in str(error.value)


def test_traces_need_a_file_and_files_need_traces(files):
    with pytest.raises(ConfigError, match=r"needs fleet\.speeds, fleet\.bandwidth or fleet\.availability"):
        build_experiment(load_run(None, ["fleet.kind=traces"]))
    with pytest.raises(ConfigError, match='need kind = "traces"'):
        load_run(None, ["fleet.bandwidth=x.csv"])


# -- plans use means


def test_a_step_of_the_model_takes_as_long_as_the_measured_one_and_an_upload_its_mean(files):
    experiment = build_experiment(load_run(None, [*files, "fleet.devices=6", "strategy.name=salf"]))
    fleet, L = experiment.world.fleet, len(experiment.layers)
    for S in (1, 16, 100):
        steps = L * (S + fleet.overhead) / fleet.compute
        assert sorted(steps) == pytest.approx(sorted([(10 + 2 * S) / 1e3, 4 * S / 1e3] * 3))
    megabits = 8e-6 * sum(p.numel() * 4 for p in experiment.model.parameters())
    assert sorted(fleet.upload) == pytest.approx([megabits / 8] * 3 + [megabits / 2] * 3)
    assert np.array_equal(experiment.strategy.problem.upload, fleet.upload)


def test_rows_are_dealt_evenly_and_by_the_seed():
    rows = deal(3, 7, 0, "speeds")
    assert sorted(np.bincount(rows)) == [2, 2, 3]
    assert np.array_equal(rows, deal(3, 7, 0, "speeds"))
    assert any(not np.array_equal(rows, deal(3, 7, seed, "speeds")) for seed in range(1, 5))


# -- the world follows the traces


def links(begin=0.0):
    alternating = Trace(np.array([0.0, 10.0]), np.array([1.0, 3.0]))  # mean 2
    return Links((alternating,), np.array([0]), np.array([begin]))


@pytest.mark.parametrize(
    ("moment", "amount", "seconds"), [(0, 1, 2), (10, 3, 2), (9, 2, 2), (0, 20, 20), (25, 5, 5 + 5 / 3), (0, 0, 0)]
)
def test_an_upload_takes_as_long_as_its_bandwidth_says(moment, amount, seconds):
    args = np.array([0]), np.array([[float(moment)]]), np.array([[float(amount)]])
    assert links().seconds(*args)[0, 0] == pytest.approx(seconds)
    begun = links().lead(np.array([0]), moment + seconds, np.array([float(amount)]))[0]
    assert begun == pytest.approx(seconds)  # that is when it must begin to be in by then


def test_a_later_upload_never_arrives_earlier():
    moments = np.linspace(0, 60, 301)[None]
    arrived = moments + links(0.3).seconds(np.array([0]), moments, np.array([[1.7]]))
    assert (np.diff(arrived) >= -1e-9).all()


def test_who_is_available_follows_the_schedules_for_ever():
    schedules = Schedules.of([([(0, 2 * HOUR)], 4 * HOUR), ([(3 * HOUR, 4 * HOUR)], 4 * HOUR), ([], 4 * HOUR)])
    assert schedules.share.tolist() == [0.5, 0.25, 0.0]
    for lap in (0, 1, 7):
        moments = [4 * HOUR * lap + h * HOUR for h in (1, 2.5, 3.5)]
        here = [schedules.available(np.arange(3), t).tolist() for t in moments]
        assert here == [[True, False, False], [False, False, False], [False, True, False]]


def test_a_period_after_the_end_of_its_row_changes_nothing():
    rows = [([(0.0, 50.0), (300.0, 400.0)], 200.0), ([(0.0, 50.0)], 200.0)]
    schedules = Schedules.of(rows)
    assert schedules.share.tolist() == [0.25, 0.25]
    assert schedules.available(np.array([0, 1]), 10.0).tolist() == [True, True]


def test_hours_pass_faster_on_request_and_devices_that_never_are_available_are_left_out(tmp_path):
    schedules = read_availability(availability(tmp_path))
    dealt = Availability.dealt(schedules, 4, 0, begin=0.0, speedup=HOUR)
    first = dealt.at(np.arange(4), 0.5)
    assert set(dealt.row.tolist()) == {0, 1}
    assert first.tolist() == (dealt.row == 0).tolist()
    assert dealt.at(np.arange(4), 1.5).tolist() == (~first).tolist()
    assert dealt.at(np.arange(4), 2.5).tolist() == first.tolist()


def tasks(devices, cutoff, batch=16):
    batches = np.full(len(devices), batch)
    return Tasks(np.asarray(devices), batches, 1, 0.1, cutoff)


def test_the_clairvoyants_batches_fit_the_bandwidth_of_the_moment(files):
    changes = [*files, "fleet.devices=6", "strategy.name=clairvoyant", "fleet.start_hour=0"]
    experiment = build_experiment(load_run(None, changes))
    world, L = replace(experiment.world, availability=None), len(experiment.layers)
    for number, now in enumerate((0.0, 7.0, 33.0)):
        own = fitted(world, tasks(range(6), 0.5, 1000), number, now, L)
        work = draw_work(world, own, number, now, L)
        assert (work.z[own.batch > 1] == L).all()
        more = draw_work(world, replace(own, batch=own.batch + 2), number, now, L)
        assert (more.z < L).all()


def test_a_device_that_is_not_available_delivers_nothing_and_is_asked_last(files):
    changes = [*files, "fleet.devices=8", "fleet.start_hour=0.5", "training.cohort=3", "strategy.name=salf"]
    experiment = build_experiment(load_run(None, [*changes, "training.rounds=20", "training.budget=100"]))
    world = experiment.world
    assert world.links is not None
    here = world.available(np.arange(8), 0.0)
    assert here.sum() == 4
    work = draw_work(world, tasks(range(8), 100.0), 0, 0.0, len(experiment.layers))
    assert ((work.z > 0) == here).all()
    rows = []
    simulate(experiment, report=rows.append)
    assert [row.contributors[-1] for row in rows if row.contributors] == [3] * 20  # time is ample, and all are there


def test_a_device_that_leaves_before_it_is_done_delivers_nothing(files):
    changes = [*files, "fleet.devices=8", "fleet.start_hour=0.5", "fleet.speedup=3600", "strategy.name=salf"]
    experiment = build_experiment(load_run(None, changes))
    world, L = experiment.world, len(experiment.layers)
    here = world.available(np.arange(8), 0.0)  # for half an hour, which passes in half a second
    seen = set()
    for number in range(10):
        own = tasks(range(8), 1.4, 200)  # before they are available again
        always = draw_work(replace(world, availability=None), own, number, 0.0, L)
        in_time = here & (always.done < 0.5)
        assert ((draw_work(world, own, number, 0.0, L).z > 0) == in_time).all()
        seen |= set(in_time[here].tolist())
    assert seen == {True, False}


@pytest.mark.parametrize("name", ["wait", "over-selection", "oort"])
def test_time_passes_in_rounds_without_a_deadline_while_no_device_is_available(name):
    schedules = Schedules.of([([(0.0, 50.0)], 100.0)])
    changes = ["fleet.devices=4", "training.rounds=20", "training.budget=100", f"strategy.name={name}"]
    experiment = build_experiment(load_run(None, changes))
    own = Availability(schedules, np.zeros(4, dtype=np.int64), begin=60.0)
    fleet, rows = experiment.strategy.problem.fleet, []
    simulate(replace(experiment, world=World(fleet, 0, 100.0, availability=own)), report=rows.append)
    times = np.array([row.time for row in rows])
    assert (np.diff(times) > 0).all()
    silent = [row.time for row in rows[1:] if not any(row.depth)]
    assert 0 < len(silent) < len(rows) - 1  # they are available from second 40 on


def test_a_cohort_is_drawn_from_the_available_devices_of_a_large_fleet_and_filled_up_from_a_small_one():
    schedules = Schedules.of([([(0.0, HOUR)], 10 * HOUR), ([(HOUR, 2 * HOUR)], 10 * HOUR)])

    def world(rows):
        own = Availability(schedules, np.asarray(rows), begin=0.0)
        return World(Fleet.of(np.ones(len(rows))), 0, 1.0, availability=own)

    large = world([0] * 2_000 + [1] * 18_000)
    drawn = [draw_available(large, 20_000, 50, 60.0, k) for k in range(20)]
    assert all((cohort < 2_000).all() and np.unique(cohort).size == 50 for cohort in drawn)
    mean, error = np.mean(drawn), 2_000 / np.sqrt(12 * 50 * 20)
    assert abs(mean - 999.5) < 4 * error
    assert np.array_equal(drawn[3], draw_available(large, 20_000, 50, 60.0, 3))
    small = draw_available(world([0, 0, 1, 1, 1]), 5, 3, 60.0, 0)
    assert {0, 1} < set(small.tolist())


def test_runs_are_the_same_for_a_seed_and_differ_between_seeds(files):
    def run(seed):
        changes = [*files, "strategy.name=salf", "training.rounds=5", "fleet.speedup=1e6", f"training.seed={seed}"]
        return simulate(build_experiment(load_run(None, changes))).final_accuracy

    assert run(0) == run(0) != run(1)


@pytest.mark.skipif(not DEVICES.is_dir(), reason="needs devices/ in $ADELFL_DATA")
def test_the_sample_files_are_read():
    fixed, per_sample = read_speeds(DEVICES / "phone_training_ms.csv", "lenet")
    assert per_sample.size == 3
    assert (fixed > 0).all()
    assert len(read_bandwidth(DEVICES / "bandwidth_traces_oboe.csv")) == 428
    assert len(read_bandwidth(DEVICES / "bandwidth_traces_3g.csv")) == 80
    assert len(read_bandwidth(DEVICES / "uplinks_kBps.csv")) == 19
    assert read_speeds(DEVICES / "phones_mobilenetv2_fp16_ms.csv")[1].size == 403
    schedules = read_availability(DEVICES / "availability_flash.csv")
    assert schedules.length.size == 723
    assert 0.05 < schedules.share.mean() < 0.12
