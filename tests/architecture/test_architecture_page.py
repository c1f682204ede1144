"""docs/architecture.md names files that exist, and few enough to read."""

import re
from pathlib import Path

REPO = Path(__file__).parents[2]
PAGE = (REPO / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_a_simulated_round_is_followed_through_at_most_eight_files_that_exist():
    section = PAGE.split("## One simulated round")[1].split("\n## ")[0]
    files = re.findall(r"`(src/[\w/]+\.py)`", section)
    assert 1 <= len(files) <= 8
    assert all((REPO / name).is_file() for name in files)


def test_the_loop_can_be_read_in_one_sitting():
    assert len((REPO / "src/adelfl/runtime/loop.py").read_text(encoding="utf-8").splitlines()) < 200
    assert len((REPO / "src/adelfl/strategies/fedbuff.py").read_text(encoding="utf-8").splitlines()) <= 60


def test_every_file_that_the_page_names_exists():
    for name in re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", PAGE):
        assert (REPO / name).is_file() or (REPO / "src" / "adelfl" / name).is_file(), name
