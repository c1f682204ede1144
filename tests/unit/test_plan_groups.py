"""``adelfl plan`` says which device group does what."""

import io
import json
import re

import numpy as np
import pytest
from rich.console import Console

from adelfl import Fleet, Problem, plan
from adelfl.report.terminal import print_plan
from support.small_worlds import typed

NAMES = ("flagships", "mid-range", "old phones", "one in a tunnel")
FLEET = Fleet.of([30.0, 12.0, 5.0, 5.0], [0.05, 0.1, 0.2, 12.0], [20, 50, 19, 1], NAMES)


def printed(fleet: Fleet) -> list[str]:
    out = io.StringIO()
    solution = plan(Problem(fleet, layers=4, rounds=100, budget=80.0))
    print_plan(solution, Console(file=out, highlight=False, width=200))
    return out.getvalue().splitlines()


@pytest.mark.parametrize("i", range(4), ids=NAMES)
def test_the_table_has_the_batch_sizes_of_every_named_group(i):
    lines = printed(FLEET)
    schedule = plan(Problem(FLEET, layers=4, rounds=100, budget=80.0)).schedule
    header = next(line for line in lines if line.startswith("batch size of"))
    rounds = [int(number) - 1 for number in re.findall(r"round (\d+)", header)]
    assert rounds[0] == 0
    assert rounds[-1] == 99
    row = next(line for line in lines if line.startswith(NAMES[i]))
    wanted = [str(FLEET.count[i]), *(str(s) if s else "–" for s in schedule.batch_sizes()[rounds, i])]
    assert row.removeprefix(NAMES[i]).split() == wanted


def test_of_many_groups_some_are_shown_the_slowest_and_the_fastest_among_them():
    lines = printed(Fleet.of(np.linspace(5.0, 30.0, 60), 0.1, names=[f"site {i}" for i in range(60)]))
    shown = [line.split()[1] for line in lines if line.startswith("site")]
    assert shown[0] == "0"
    assert shown[-1] == "59"
    assert f"{len(shown)} of 60 device groups, from the slowest to the fastest" in lines


def test_json_names_the_groups_in_the_order_of_the_batch_sizes(tmp_path):
    path = tmp_path / "plan.toml"
    devices = "".join(
        f'[[device]]\nname = "{name}"\ncompute = {P}\nupload = {B}\ncount = {n}\n'
        for name, P, B, n in zip(NAMES, FLEET.compute, FLEET.upload, FLEET.count, strict=True)
    )
    path.write_text(f"[problem]\nrounds = 5\nbudget = 8.0\nlayers = 4\n{devices}")
    told = json.loads(typed("plan", path, "--json").out)
    assert [(g["name"], g["count"]) for g in told["groups"]] == list(zip(NAMES, FLEET.count.tolist(), strict=True))
    assert {len(row) for row in told["batch_sizes"]} == {len(told["groups"])}
