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
DESKTOP, PHONE = {"width": 1180, "height": 1000}, {"width": 390, "height": 800}
SHOTS = {  # picture → tab, window, device pixels per pixel, where to scroll
    "page-compare": ("compare", DESKTOP, 1.25, None),
    "page-explain": ("explain", DESKTOP, 1.25, ".result h3"),
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


def has_chinese_font() -> bool:
    found = shutil.which("fc-list") and subprocess.run(["fc-list", ":lang=zh"], capture_output=True, check=True).stdout
    return bool(found)


def shoot(browser: Browser, name: str) -> Path:
    """Open a tab, wait until its example is computed, and write the picture with few colours."""
    tab, window, scale, below = SHOTS[name]
    page = browser.new_page(viewport=window, device_scale_factor=scale, locale="en-US", color_scheme="light")
    page.set_default_timeout(120_000)
    page.goto(f"{URL}/#{tab}")
    page.locator(f"#panel-{tab} .result[aria-busy=false] > *").first.wait_for()
    if below is not None:
        page.locator(f"#panel-{tab} {below}").first.evaluate(
            "node => scrollBy(0, node.getBoundingClientRect().top - 16)"
        )
    if not has_chinese_font():
        page.locator("#language").evaluate("node => { node.style.visibility = 'hidden' }")  # else two empty boxes
    page.wait_for_timeout(500)
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    path = IMAGES / f"{name}.png"
    picture.save(path, optimize=True)
    page.close()
    return path


def main() -> None:
    if not has_chinese_font():
        print("no Chinese font: the button 中文 is hidden; install fonts-noto-cjk to show it")
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
