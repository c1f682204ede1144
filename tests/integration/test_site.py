"""The site builds without a warning, loads no external resources, and has every page and every public name."""

import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

import adelfl

REPO = Path(__file__).parents[2]
PAGES = sorted(path.relative_to(REPO / "docs").as_posix() for path in (REPO / "docs").rglob("*.md"))
NEEDED = [name for name in ("mkdocs", "material", "mkdocstrings") if importlib.util.find_spec(name) is None]

with_mkdocs = pytest.mark.skipif(
    bool(NEEDED), reason=f"the extra adelfl[docs] is not installed: no {', '.join(NEEDED)}"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Build the site as `make docs` does, in a folder of its own."""
    folder = tmp_path_factory.mktemp("site")
    # Without --quiet, which hides warnings from --strict.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=REPO, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


class Resources(HTMLParser):
    """Collect the resources that a browser loads with a page, without the links that a reader follows."""

    def __init__(self):
        super().__init__()
        self.addresses = []

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        if tag == "link" and not {"stylesheet", "icon", "preload", "preconnect"}.isdisjoint(
            (values["rel"] or "").split()
        ):
            self.addresses.append(values["href"])
        self.addresses += [values[key] for key in ("src", "data", "poster") if key in values and tag not in ("a",)]
        self.addresses += [part.split()[0] for part in (values.get("srcset") or "").split(",") if part.strip()]
        # The theme would fetch a script for either of these.
        assert "mermaid" not in (values.get("class") or "").split()
        assert "polyfill" not in (values.get("src") or "")


@with_mkdocs
def test_a_strict_build_passes_and_has_every_page(site):
    built = {path.relative_to(site).as_posix() for path in site.rglob("*.html")} - {"404.html"}
    assert built == {page.removesuffix(".md") + ".html" for page in PAGES}


@with_mkdocs
def test_the_site_loads_nothing_from_elsewhere(site):
    for page in site.rglob("*.html"):
        reader = Resources()
        reader.feed(page.read_text(encoding="utf-8"))
        assert len(reader.addresses) > 3
        for address in reader.addresses:
            assert not re.match(r"(?:[a-z]+:)?//", address), f"{page.name} loads {address}"
            if page.name != "404.html":  # its addresses are those of a server's root
                assert (page.parent / address.split("?")[0]).exists(), f"{page.name}: {address}"
    for style in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", style.read_text(encoding="utf-8")), style.name


@with_mkdocs
def test_every_public_name_is_in_the_reference(site):
    written = "".join(page.read_text(encoding="utf-8") for page in (site / "reference").glob("*.html"))
    anchors = set(re.findall(r'id="(adelfl\.[\w.]+)"', written))
    for name in adelfl.__all__:
        if name != "__version__":
            assert f"{adelfl._HOME[name]}.{name}" in anchors, name


def test_members_that_the_reference_lists_exist():
    listed = re.compile(r"^::: ([\w.]+)\n(?:    .*\n)*?    .*members: \[([^\]]+)\]", re.M)
    for page in (REPO / "docs" / "reference").glob("*.md"):
        for module, members in listed.findall(page.read_text(encoding="utf-8")):
            for name in members.split(", "):
                assert hasattr(importlib.import_module(module), name), f"{page.name}: {module}.{name}"


@with_mkdocs
@pytest.mark.slow
def test_opened_from_files_the_site_can_be_searched_without_a_network(site):
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("there is no Chromium")
    requested, errors = [], []
    with playwright.sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.on("request", lambda request: requested.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto((site / "index.html").as_uri())
        query = page.locator("input.md-search__input")
        query.focus()  # the index is read now
        playwright.expect(page.locator(".md-search-result__meta")).to_contain_text("Type to start", timeout=60_000)
        query.press_sequentially("straggler")
        playwright.expect(page.locator(".md-search-result__item").first).to_contain_text("traggler", timeout=60_000)
        for name in ("concepts.html", "reference/planning.html", "howto/flower.html"):
            page.goto((site / name).as_uri())
            page.wait_for_load_state("networkidle")
        browser.close()
    assert not errors
    assert not [url for url in requested if not url.startswith("file:")]


def entries(tree):
    """The pages that a part of the navigation names."""
    if isinstance(tree, str):
        return [tree]
    return [page for part in (tree.values() if isinstance(tree, dict) else tree) for page in entries(part)]


def test_every_page_is_in_the_navigation_once():
    # mkdocs.yml may hold tags that only mkdocs knows: the navigation is read alone.
    text = (REPO / "mkdocs.yml").read_text(encoding="utf-8")
    nav = yaml.safe_load(text[text.index("\nnav:") :])["nav"]
    assert sorted(entries(nav)) == PAGES


def test_pictures_of_the_site_are_used_and_small():
    written = "".join((REPO / "docs" / page).read_text(encoding="utf-8") for page in PAGES)
    for picture in (REPO / "docs" / "img").glob("*.png"):
        assert picture.name in written, f"{picture.name} is shown nowhere"
        assert picture.stat().st_size < 300_000
    assert len(list((REPO / "docs" / "img").glob("concepts-*.png"))) >= 5


def test_the_citation_names_the_software_and_the_paper():
    citation = yaml.safe_load((REPO / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors", "version", "license", "preferred-citation"} <= set(citation)
    assert (citation["title"], citation["version"]) == ("adelfl", adelfl.__version__)
    paper = citation["preferred-citation"]
    assert paper["title"] == "Adaptive Deadline and Batch Layered Synchronized Federated Learning"
    assert [a["family-names"] for a in paper["authors"]] == ["Goren", "Lang", "Shlezinger", "Cohen"]
    assert {"type", "title", "authors"} <= set(paper)
