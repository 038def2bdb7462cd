"""The preview in a real browser: what a person sees of it, in light and dark, wide and narrow."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import ActionChains, Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.by import By

from sft.gate.preview import FIRST, Finding, Gap, Sample, Summary, Token, preview_page

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")

pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER),
    reason="chromium or chromedriver is not installed; as root, `make chromium` installs both",
)

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--disable-dev-shm-usage",
)
HOSTILE = (
    "</script><script>document.title='hit'</script>",
    "<img src=x onerror=\"document.title='hit'\">",
    '" onmouseover="document.title=\'hit\'" x="',
    "</style></title><svg onload=\"document.title='hit'\">",
    "<a href=javascript:alert(1)>x</a>",
    "\0\x1b[31m\u202eevil\u202c\u200b\ud800",
    "x" * 100_000,
    "語" * 3000,
    "e\u0301\u0327" * 500,
)
VERDICTS = ("refused", "accepted", "note")
STATES = ({}, {"trained": True}, {"control": True}, {"trained": True, "control": True})
# The lowest contrast of each kind of text, by WCAG 2.2's formula.
CONTRAST = """
const channels = color => {
  const [r, g, b, a = 1] = color.match(/[\\d.]+/g).map(Number);
  return {rgb: [r, g, b], alpha: a};
};
const luminance = rgb => {
  const [r, g, b] = rgb.map(c => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = element => {
  for (let each = element; each; each = each.parentElement) {
    const found = channels(getComputedStyle(each).backgroundColor);
    if (found.alpha === 1) return found.rgb;
  }
};
const ratio = (text, ground) => {
  const [low, high] = [luminance(text), luminance(ground)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
};
const worst = {};
const note = (element, pseudo, color, ground) => {
  const name = element.tagName + '.' + element.className + ' in .' +
    element.parentElement.className + pseudo;
  worst[name] = Math.min(worst[name] ?? 99, ratio(color, ground));
};
for (const element of document.body.querySelectorAll('*')) {
  const own = [...element.childNodes].some(n => n.nodeType === 3 && n.data.trim());
  if (own) note(element, '', channels(getComputedStyle(element).color).rgb, behind(element));
  const mark = getComputedStyle(element, '::before');
  if (!['none', 'normal', '""'].includes(mark.content)) {
    const ground = channels(mark.backgroundColor);
    note(element, '::before', channels(mark.color).rgb,
      ground.alpha === 1 ? ground.rgb : behind(element));
  }
}
return worst;
"""


def token(text: str, number: int = 1, **state: bool) -> Token:
    names = ("trained", "control", "marked", "ends_turn")
    return Token(number, text, **{name: state.get(name, False) for name in names})


def turn(text: str, trained: bool) -> list[Token]:
    words = [token(each, 500, trained=trained) for each in re.findall(r"\s*\S+", text)]
    return [
        token("<|im_start|>", 1, control=True),
        token("role", 4093),
        token("\n", 198),
        *words,
        token("<|im_end|>", 2, trained=trained, control=True, ends_turn=True),
        token("\n", 198),
    ]


def sample(tokens: list[Token | Gap], source: str = "chats", why: str = FIRST) -> Sample:
    return Sample(source, 3, why, "found this, expected that", 900, 300, tuple(tokens))


def every_kind() -> str:
    """A page with everything that a page can hold."""
    findings = tuple(Finding(each, 2, each, "hold it", "fix") for each in VERDICTS)
    tokens = [
        *turn("What\tis\u200b\n2 + 2?", False),
        *turn("It is\t4\u200b.\n", True),
        *(token("\n\t\u200b", 5, marked=True, **state) for state in STATES),
        *(token("\n\t\u200b", 6, **state) for state in STATES),
        Gap(12, 3),
        *turn("word " * 400, False),
        *turn("No end", True)[:-2],
    ]
    samples = [sample(tokens, why=why) for why in (FIRST, *VERDICTS)]
    return preview_page("demo", [Summary("chats", 9, 9, 9, 900, 300, 90, 1, findings)], samples)


class Browser:
    """A Chromium that opens pages from files."""

    def __init__(self, driver: Chrome, folder: Path) -> None:
        self.driver = driver
        self.folder = folder

    def open(self, page: str, width: int = 1280, dark: bool = False) -> None:
        """Open a page in a window of that width."""
        command = self.driver.execute_cdp_cmd
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        command("Emulation.setEmulatedMedia", {"features": [scheme]})
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        command("Emulation.setDeviceMetricsOverride", size)
        file = self.folder / "preview.html"
        file.write_text(page, encoding="utf-8")
        for name in ("browser", "performance"):
            self.driver.get_log(name)  # what came before is taken out
        self.driver.get(file.as_uri())

    def run(self, script: str) -> Any:
        """What a script in the page returns."""
        return self.driver.execute_script(script)

    def requested(self) -> list[str]:
        """The addresses that the page asked for, its own among them."""
        events = [
            json.loads(each["message"])["message"] for each in self.driver.get_log("performance")
        ]
        return [
            event["params"]["request"]["url"]
            for event in events
            if event["method"] == "Network.requestWillBeSent"
        ]

    def style(self, selector: str, name: str) -> str:
        """A computed style of the first element that the selector finds."""
        return self.driver.find_element(By.CSS_SELECTOR, selector).value_of_css_property(name)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    options = ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = Chrome(options=options, service=ChromeService(executable_path=DRIVER))
    yield Browser(driver, tmp_path_factory.mktemp("page"))
    driver.quit()


def test_page_loads_without_a_console_message_and_without_a_request(browser):
    browser.open(every_kind())

    assert browser.driver.get_log("browser") == []
    assert [url.partition("?")[0] for url in browser.requested() if "data:," not in url] == [
        browser.driver.current_url
    ]


def test_pointing_at_a_token_shows_its_id(browser):
    browser.open(preview_page("demo", [], [sample(turn("Hello", True))]))
    word = browser.driver.find_element(By.CSS_SELECTOR, 'i[title="id 500"]')
    ActionChains(browser.driver).move_to_element(word).perform()

    assert word.text == "Hello"
    shown = "return getComputedStyle(document.querySelector('i:hover'), '::after').content"
    assert browser.run(shown) == '"id 500"'


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_trained_text_differs_in_background_and_is_underlined(browser, dark):
    browser.open(every_kind(), dark=dark)
    plain, trained = "body", ".turn .t:not(.c):not(.m)"
    control, trained_control = ".turn .c:not(.t):not(.m)", ".turn .c.t:not(.m)"
    grounds = {
        browser.style(each, "background-color")
        for each in (plain, trained, control, trained_control)
    }

    assert len(grounds) == 4
    widths = [
        browser.style(each, "border-bottom-width") for each in (trained, trained_control, control)
    ]
    assert widths == ["2px", "2px", "0px"]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_all_text_has_contrast(browser, dark):
    browser.open(every_kind(), dark=dark)
    worst = browser.run(CONTRAST)

    assert len(worst) > 30
    assert {name: ratio for name, ratio in worst.items() if ratio < 4.5} == {}


def test_dark_page_is_dark(browser):
    grounds = []
    for dark in (False, True):
        browser.open(every_kind(), dark=dark)
        grounds.append(browser.style("body", "background-color"))

    assert grounds == ["rgba(255, 255, 255, 1)", "rgba(15, 19, 24, 1)"]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_runs_nothing_and_is_shown(browser, text):
    tokens = [token(text, 7, trained=True), *turn(text, False)]
    shown = [Sample(text[:2000], 1, why, text, 9, 9, tuple(tokens)) for why in (FIRST, text)]
    browser.open(preview_page("demo", [Summary(text, 1, 1, 1, 1, 1, 1, 0)], shown))
    visible = browser.run("return document.querySelector('i[title=\"id 7\"]').textContent")

    assert browser.driver.title == "demo"
    assert browser.run("return document.querySelectorAll('main img, main svg, script').length") == 0
    assert browser.driver.get_log("browser") == []
    assert visible == text if text.isprintable() else visible.startswith("U+0000 NULU+001B ESC[31m")


@pytest.mark.parametrize("width", [1280, 375])
def test_nothing_overflows_the_window(browser, width):
    tokens = [token(each, trained=True, control=True, marked=True) for each in HOSTILE]
    names = ["n" * 400, "語" * 300]
    samples = [sample(tokens, source=each, why="w" * 300) for each in names]
    finding = Finding("w" * 300, 1, "refused", "m" * 500, "r" * 500)
    sources = [Summary(each, *[10**12] * 7, (finding,)) for each in names]
    for page in (every_kind(), preview_page("t" * 500, sources, samples)):
        browser.open(page, width=width)

        assert browser.run("return innerWidth") == width
        assert browser.run("return document.documentElement.scrollWidth") <= width


def test_link_to_a_fault_brings_it_into_view(browser):
    long = turn("word " * 3000, True)
    tokens = [*long, token("here", 9, marked=True), *long]
    browser.open(preview_page("demo", [], [sample(tokens, why="no_loss")]))
    browser.driver.find_element(By.LINK_TEXT, "1").click()
    place = "const box = document.querySelector('.m.flag[id]').getBoundingClientRect();"

    assert browser.run(f"{place} return box.top > 0 && box.bottom < innerHeight")


def test_long_example_scrolls_in_its_own_box(browser):
    browser.open(preview_page("demo", [], [sample(turn("word " * 4000, True))]))

    assert browser.run("return document.documentElement.scrollHeight < 3 * innerHeight")
    assert browser.run("const s = document.querySelector('.scroll'); return s.scrollHeight > 2000")


def test_folded_prompt_opens_on_a_click(browser):
    browser.open(preview_page("demo", [], [sample(turn("word " * 400, False))]))
    hidden = browser.driver.find_element(By.CSS_SELECTOR, "details i")
    before = hidden.is_displayed()
    browser.driver.find_element(By.TAG_NAME, "summary").click()

    assert (before, hidden.is_displayed()) == (False, True)


def test_copied_text_is_the_text_that_is_trained(browser):
    browser.open(preview_page("demo", [], [sample(turn("def f():\n\treturn 1", True))]))
    copied = browser.run(
        "getSelection().selectAllChildren(document.querySelector('.text'));"
        "return getSelection().toString()"
    )

    assert copied == "<|im_start|>role\ndef f():\n\treturn 1<|im_end|>"


def test_page_prints_long_examples_whole(browser):
    browser.open(preview_page("demo", [], [sample(turn("word " * 4000, True))]))
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})

    assert browser.style(".scroll", "max-height") == "none"
