"""Take the pictures of the server's page that README and the guides show: `make screenshots`.

Starts the real server with the built-in models, opens the real page in Chromium and writes docs/images/page-*.png.
Needs Playwright and Chromium: the one of the system, or that of `playwright install chromium`.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path
from time import sleep

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

IMAGES = Path(__file__).parent / "images"
PORT = 8497
URL = f"http://127.0.0.1:{PORT}"
DESKTOP, PHONE = {"width": 1200, "height": 780}, {"width": 390, "height": 780}
SHOTS = {  # picture → tab, window, device pixels per pixel, where to scroll
    "page-compare": ("compare", DESKTOP, 1.5, None),
    "page-explain": ("explain", DESKTOP, 1.5, ".result h3"),
    "page-phone": ("compare", PHONE, 2, None),
}
COLOURS = 128


def start_server() -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "albertkit", "serve", "--port", str(PORT), "--no-access-log"]
    server = subprocess.Popen(command)
    for _ in range(120):
        try:
            urllib.request.urlopen(f"{URL}/health/ready", timeout=1)
            return server
        except OSError:
            sleep(1)
    server.terminate()
    raise SystemExit("the server did not start")


def shoot(browser: Browser, name: str) -> Path:
    """Open a tab, wait until its example is computed, and write the picture with few colours."""
    tab, window, scale, below = SHOTS[name]
    page = browser.new_page(viewport=window, device_scale_factor=scale, locale="en-US", color_scheme="light")
    page.set_default_timeout(120_000)
    page.goto(f"{URL}/#{tab}")
    page.locator(f"#panel-{tab} .result[aria-busy=false] > *").first.wait_for()
    if below is not None:
        page.locator(f"#panel-{tab} {below}").first.evaluate("node => node.scrollIntoView({ block: 'start' })")
    page.wait_for_timeout(500)
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    path = IMAGES / f"{name}.png"
    picture.save(path, optimize=True)
    page.close()
    return path


def main() -> None:
    server = start_server()
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            for name in SHOTS:
                path = shoot(browser, name)
                print(f"docs/images/{path.name}: {path.stat().st_size / 1000:.0f} kB")
            browser.close()
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
