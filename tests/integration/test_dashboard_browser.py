"""The dashboard in a real browser: it loads, lives, obeys the keyboard, fits on a phone."""

import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

from adelfl.records.schema import Row
from support.dashboard_world import begin, finish, row

playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")]


@contextmanager
def serving(folder, *words):
    """A dashboard as a user starts it: its process and address. Ctrl-C must end it, viewers or not."""
    command = [sys.executable, "-m", "adelfl", "dashboard", str(folder), "--port", "0", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        try:
            yield server, server.stdout.readline().split()[-1]
        finally:
            server.send_signal(signal.SIGINT)
            try:
                _, printed = server.communicate(timeout=20)
            except subprocess.TimeoutExpired:
                server.kill()
                raise
    lines = [line for line in printed.splitlines() if not line.startswith("note: ")]
    assert (server.returncode, lines) == (0, ["Press Ctrl-C to stop."])


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as tools:
        found = tools.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def runs(tmp_path):
    """One run of each kind; the one called going is still being written."""
    finish(begin(tmp_path / "done", 20, label="ADEL", seed=1))
    begin(tmp_path / "bad", 3).close()
    (tmp_path / "bad" / "run.json").write_text("{")
    begin(tmp_path / "nasty", 3, label="<img src=x onerror=alert(1)>", data="<b>x</b>").close()
    with begin(tmp_path / "going", 4) as writer:
        yield tmp_path, writer


@pytest.fixture
def opened(browser, runs):
    """A page that shows the runs; at its end nothing may have gone wrong in it."""
    contexts, troubles = [], []
    with serving(runs[0]) as (_, address):

        def open_page(path="", **said):
            contexts.append(browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **said}))
            page = contexts[-1].new_page()
            page.on("console", lambda m: troubles.append(m.text) if m.type in ("error", "warning") else None)
            page.on("pageerror", lambda error: troubles.append(str(error)))
            page.on("dialog", lambda dialog: troubles.append("a dialog"))
            here = urlsplit(address).netloc
            page.on("request", lambda r: troubles.append(r.url) if urlsplit(r.url).netloc != here else None)
            page.goto(address + path)
            expect(page.locator("#link")).to_have_text("live")
            return page

        yield open_page
        for context in contexts:
            context.close()
    assert troubles == []


def test_a_page_loads_and_shows_the_run_that_is_under_way(opened):
    page = opened()
    expect(page.locator("[role=option]")).to_have_count(4)
    expect(page.locator("#label")).to_have_text("SALF")
    expect(page.locator("#state")).to_have_text("running")
    expect(page.locator("#budget-left")).to_have_text("8.00 s")
    expect(page.locator("#cover [role=listitem]")).to_have_count(3)
    expect(page.locator("#devices-title")).to_have_text("Devices in round 4")


def test_what_is_written_appears_at_once(opened, runs):
    folder, writer = runs
    page = opened("#run=going")
    expect(page.locator("#accuracy")).to_have_text("14.0 %")
    writer.append(Row.from_json(row(5, 0.625)), 0.01)
    expect(page.locator("#accuracy")).to_have_text("62.5 %")
    expect(page.locator("#devices-title")).to_have_text("Devices in round 5")
    expect(page.locator("#round-left")).to_have_text("closed")  # after its little animation
    begin(folder / "new", 1).close()
    expect(page.locator("[role=option]")).to_have_count(5)
    finish(writer)
    expect(page.locator("#state")).to_have_text("finished")
    shutil.rmtree(folder / "new")
    expect(page.locator("[role=option]")).to_have_count(4)


def test_the_keyboard_does_it_all(opened):
    page = opened("#run=going")
    page.keyboard.press("/")
    page.keyboard.type("adel")
    expect(page.locator("[role=option]")).to_have_count(1)
    page.keyboard.press("ArrowDown")
    page.keyboard.press(" ")
    expect(page.locator("#legend li")).to_have_count(2)
    expect(page.locator("#label")).to_have_text("SALF")
    page.keyboard.press("Enter")
    expect(page.locator("#label")).to_have_text("ADEL")
    page.keyboard.press("/")
    page.keyboard.press("Control+A")
    page.keyboard.press("Delete")
    expect(page.locator("[role=option]")).to_have_count(4)
    page.keyboard.press("Enter")
    page.keyboard.press("End")
    active = page.locator("#list").get_attribute("aria-activedescendant")
    last = page.locator("[role=option]").last
    assert active == last.get_attribute("id")
    outline = last.evaluate("element => getComputedStyle(element).outlineStyle")
    assert outline == "solid"
    page.keyboard.press("Home")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.locator("#label")).to_have_text("ADEL")


def test_rounds_are_turned_back_and_followed_again(opened, runs):
    page = opened("#run=going")
    expect(page.locator("#devices-title")).to_have_text("Devices in round 4")
    page.locator("#scrub").focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#devices-title")).to_have_text("Devices in round 2")
    runs[1].append(Row.from_json(row(5, 0.5)), 0.01)
    expect(page.locator("#accuracy")).to_have_text("50.0 %")
    expect(page.locator("#devices-title")).to_have_text("Devices in round 2")
    page.locator("#play").click()
    expect(page.locator("#devices-title")).to_have_text("Devices in round 5", timeout=15_000)
    page.locator("#follow").click()
    expect(page.locator("#follow")).to_have_attribute("aria-pressed", "true")


def test_a_corrupt_run_is_shown_as_such(opened):
    page = opened("#run=bad")
    expect(page.locator("#state")).to_have_text("corrupt")
    expect(page.locator("#why")).to_contain_text("run.json")
    expect(page.locator("#chart")).to_be_visible()
    page.get_by_role("button", name="corrupt 1").click()
    expect(page.locator("[role=option]")).to_have_count(1)


def test_a_finished_run_without_a_round_awaits_none(opened, runs):
    finish(begin(runs[0] / "none"))
    page = opened("#run=none")
    expect(page.locator("#state")).to_have_text("finished")
    expect(page.locator("#budget-left")).to_have_text("0.00 s")
    expect(page.locator("#depth-note")).to_have_text("no round closed")
    expect(page.locator("#round-name")).to_have_text("No round")
    expect(page.locator("#round-left")).to_have_text("closed within the budget")
    expect(page.locator("#glass")).to_have_attribute("aria-label", "Hourglass: 0 % of the round's time is left")


def test_what_a_record_says_is_text(opened):
    page = opened("#run=nasty&run=going")
    expect(page.locator("#label")).to_have_text("<img src=x onerror=alert(1)>")
    expect(page.locator("#legend li")).to_have_count(2)
    assert page.locator("main img, nav img, main b b").count() == 0


@pytest.mark.parametrize("width", [380, 320, 768])
def test_a_phone_shows_it_without_scrolling_sideways(opened, width):
    page = opened("#run=going&run=done&run=nasty", viewport={"width": width, "height": 800}, has_touch=True)
    expect(page.locator("#legend li")).to_have_count(3)
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
    page.locator("[role=option]").first.tap()
    expect(page.locator("#state")).to_have_text("corrupt")
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")


def test_dark_and_light_follow_the_system_until_told(opened):
    page = opened(color_scheme="dark")
    ground = "() => getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(ground)
    page.locator("#theme").click()
    light = page.evaluate(ground)
    assert light != dark
    page.reload()
    expect(page.locator("#link")).to_have_text("live")
    assert page.evaluate(ground) == light
    page.locator("#theme").click()
    assert page.evaluate(ground) == dark


def test_a_real_clock_runs_between_rows(opened, runs):
    from adelfl.clock import wall_seconds

    said = {"clock": "real", "started": wall_seconds() - 10.0, "budget": 1000.0, "schedule": {"deadlines": [50.0] * 20}}
    with begin(runs[0] / "real", 2, **said):
        page = opened("#run=real")
        expect(page.locator("#round-name")).to_have_text("Round 3, under way")
        before = page.locator("#round-left").inner_text()
        expect(page.locator("#round-left")).not_to_have_text(before)
        expect(page.locator("#devices-note")).to_contain_text("at the pace of round 2")


def test_a_token_opens_the_page_and_leaves_the_address(browser, runs):
    with serving(runs[0], "--token", "a-token-of-some-length") as (_, address):
        context = browser.new_context()
        page = context.new_page()
        assert page.goto(address).status == 401
        page.goto(f"{address}?token=a-token-of-some-length#run=done")
        expect(page.locator("#label")).to_have_text("ADEL")
        assert "token" not in page.url
        page.reload()
        expect(page.locator("#label")).to_have_text("ADEL")
        context.close()


def test_a_page_finds_its_server_again(browser, runs):
    with serving(runs[0]) as (_, address):
        port = str(urlsplit(address).port)
        context = browser.new_context()
        page = context.new_page()
        page.goto(f"{address}#run=done")
        expect(page.locator("#link")).to_have_text("live")
    expect(page.locator("#link")).to_contain_text("not connected")
    with serving(runs[0], "--port", port):
        expect(page.locator("#link")).to_have_text("live", timeout=20_000)
        context.close()
