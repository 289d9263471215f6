"""Builds the site and looks at it in a browser: `python -m tests.docs_site.look FOLDER [PAGE ...]`.

Each page is opened in Chromium at the width of a desktop and of a phone, on light and on dark. What is reported is
what a reader would meet: a page that scrolls sideways, code, a table or a picture that is cut, words in a picture that
are too small or have the colour of the page, a search that finds nothing. Screenshots of the named pages, or of some,
are for the eye.
"""

from __future__ import annotations

import argparse
import functools
import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from typing_extensions import override

from tests.docs_site.building import build_site

BROWSERS = ("chromium", "chromium-browser", "chromium-headless-shell", "google-chrome")
WIDTHS = {"desktop": 1440, "phone": 390}
THEMES = ("light", "dark")
SHOWN = ("index", "getting-started", "run", "logging", "schedulers", "performance", "callbacks", "api/pa_core")
FOUND = "plot_run_history"
SMALLEST = 11
SECONDS = 300
INSPECTION = Path(__file__).with_suffix(".html")
"""Opens one page after the other in a frame of each width, and leaves what it met in the document."""


class Pages(SimpleHTTPRequestHandler):
    """Serves the site; `?theme=` chooses the colours of a page, as a reader of Furo does by a button."""

    inspection = ""

    @override
    def do_GET(self) -> None:
        address = urlsplit(self.path)
        theme = parse_qs(address.query).get("theme")
        file = Path(self.translate_path(self.path))
        if address.path == "/inspection":
            self.answer(self.inspection)
        elif theme and file.is_file():
            chosen = f'document.body.dataset.theme = "{theme[0]}"'
            self.answer(re.sub(r"document\.body\.dataset\.theme = [^;]+", chosen, file.read_text(encoding="utf-8")))
        else:
            super().do_GET()

    def answer(self, page: str) -> None:
        """Send a page."""
        body = page.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    @override
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def served(site: Path, inspection: str) -> Generator[str]:
    """Serve a site to this machine alone, and give its address."""
    handler = type("Served", (Pages,), {"inspection": inspection})
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@dataclass(frozen=True)
class Browser:
    """Chromium without a window."""

    program: str

    @classmethod
    def of_this_machine(cls) -> Browser:
        """The first one that is installed."""
        found = next(filter(None, map(shutil.which, BROWSERS)), None)
        if found is None:
            sys.exit(f"No browser is installed; one of {', '.join(BROWSERS)} is needed.")
        return cls(found)

    def run(self, *arguments: str) -> str:
        """Start it with a profile of its own, and return what it writes."""
        with tempfile.TemporaryDirectory() as profile:
            command = [self.program, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
            command += [f"--user-data-dir={profile}", f"--virtual-time-budget={SECONDS * 1000}", *arguments]
            return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True).stdout


def pages_to_open(site: Path) -> list[str]:
    """The pages that are read: not the sources of the theme, nor what is only looked things up in."""
    names = (path.relative_to(site).with_suffix("").as_posix() for path in sorted(site.rglob("*.html")))
    return [name for name in names if not name.startswith(("_", "genindex", "py-modindex", "search"))]


def inspection_of(pages: list[str]) -> str:
    """The page that opens all others."""
    filled = INSPECTION.read_text(encoding="utf-8").replace("FOUND", FOUND).replace("SMALLEST", str(SMALLEST))
    for name, value in (("PAGES", pages), ("WIDTHS", WIDTHS), ("THEMES", THEMES)):
        filled = filled.replace(name, json.dumps(value), 1)
    return filled


def main(site: Path, screenshots: Path, shown: list[str]) -> None:
    """Inspect every page, take screenshots of some, and end with an error if a reader would meet one."""
    browser = Browser.of_this_machine()
    pages = pages_to_open(site)
    screenshots.mkdir(parents=True, exist_ok=True)
    with served(site, inspection_of(pages)) as address:
        document = browser.run("--dump-dom", f"{address}/inspection")
        for page in shown or [page for page in SHOWN if page in pages]:
            for device, width in WIDTHS.items():
                for theme in THEMES:
                    picture = screenshots / f"{page.replace('/', '-')}-{device}-{theme}.png"
                    size = f"--window-size={width},{2400 if device == 'phone' else 1600}"
                    browser.run(size, f"--screenshot={picture}", f"{address}/{page}.html?theme={theme}")
    found = re.search(r'<pre id="met">(.*?)</pre>', document, re.DOTALL)
    if found is None:
        sys.exit(f"The inspection did not end within {SECONDS} seconds.")
    report = json.loads(found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    print(f"{len(pages)} pages, {report['results']} results of a search; screenshots are in {screenshots}")
    if report["met"]:
        sys.exit("\n".join(report["met"]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.docs_site.look", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the folders `site` and `screenshots` are made")
    parser.add_argument("pages", nargs="*", metavar="PAGE", help="what to take screenshots of, such as api/pa_core")
    arguments = parser.parse_args()
    build_site(arguments.folder.resolve() / "site")
    main(arguments.folder / "site", arguments.folder / "screenshots", arguments.pages)
