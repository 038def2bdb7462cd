"""The preview as text and as markup: every token is shown, and shown as what it is."""

import io
import re
import unicodedata
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from sft.files import read_json, write_json
from sft.gate.preview import (
    FIRST,
    Finding,
    Gap,
    Sample,
    Summary,
    Token,
    preview_page,
    preview_text,
    shorten,
    wants_color,
)
from sft.gate.preview.transcript import split_turns, visible, width_of

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
HOSTILE = {
    "script": "</script><script>alert(1)</script>",
    "image": "<img src=x onerror=alert(1)>",
    "attribute": '" onmouseover="alert(1)" \'',
    "comment": "<!-- --> ]]> &lt; &#0;",
    "template": "{{ 7 * 7 }}{% raw %}",
    "controls": "\0\x07\x1b[31m\x1b]0;title\x07\x9b31m\r\f\x7f",
    "directions": "a\u202eb\u202cc\u2066d\u2069",
    "invisible": "a\u200bb\ufeffc\u2028d\u3164e\U000e0041f\U000e0101",
    "surrogate": "a\ud800b\udfffc",
}


def token(text="a", number=1, **state):
    """A token without any state but the given one."""
    names = ("trained", "control", "marked", "ends_turn")
    return Token(number, text, **{name: state.get(name, False) for name in names})


def words(text, first=100, **state):
    """A token for each word with the white space before it, with ids from `first`."""
    pieces = re.findall(r"\s*\S+|\s+$", text)
    return [token(piece, number, **state) for number, piece in enumerate(pieces, first)]


def turn(role, text, trained):
    """A turn of ChatML."""
    return [
        token("<|im_start|>", 1, control=True),
        *words(f"{role}\n"),
        *words(text, 200, trained=trained),
        token("<|im_end|>", 2, trained=trained, control=True, ends_turn=True),
        token("\n", 3),
    ]


CHAT = [*turn("user", "What is\n2 + 2?", False), *turn("assistant", "It is\n4.", True)]


def sample(tokens=CHAT, source="chats", row=0, why=FIRST, note=""):
    shown = [each for each in tokens if isinstance(each, Token)]
    trained = sum(each.trained for each in shown)
    return Sample(source, row, why, note, len(shown), trained, tuple(tokens))


def summary(source="chats", *findings):
    return Summary(source, 10, 9, 9, 2000, 500, 400, 1, findings)


def text_of(tokens, width=80, color=False):
    """The lines of the tokens in a terminal, without what stands around the sample."""
    lines = preview_text([summary()], [sample(tokens)], width, color).splitlines()
    start = next(number for number, line in enumerate(lines) if "tokens trained" in line)
    return lines[start + 1 : -2]


class Page(HTMLParser):
    """A page as a browser reads it: its tags, and for each token its title, text and classes."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.tokens, self.open, self.text = set(), [], [], ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.add((tag, *(name for name, _ in attrs)))
        if tag not in ("meta", "link"):
            self.open.append((tag, dict(attrs)))
        if tag == "i":
            classes = {each for _, held in self.open for each in held.get("class", "").split()}
            self.tokens.append((dict(attrs)["title"], "", classes & {"t", "c", "m"}))

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        self.text += data
        if any(tag == "i" for tag, _ in self.open):
            title, text, classes = self.tokens.pop()
            self.tokens.append((title, text + data, classes))


def page_of(*tokens, **names):
    return Page(preview_page("title", [summary()], [sample(tokens, **names)]))


# --- JSON ----------------------------------------------------------------------------------------


def test_sample_comes_back_from_a_json_file(tmp_path):
    tokens = (*CHAT, Gap(12, 3), token("", 5), token("é", 6, marked=True, trained=True))
    written = sample(tokens, why="prompt_in_loss", note="found “x”")
    write_json(tmp_path / "a.json", written.to_json())

    assert Sample.from_json(read_json(tmp_path / "a.json")) == written


def test_summary_comes_back_from_a_json_file(tmp_path):
    written = summary("chats", Finding("no_loss", 3, "refused", "have no loss", "drop them"))
    write_json(tmp_path / "a.json", written.to_json())

    assert Summary.from_json(read_json(tmp_path / "a.json")) == written


def test_lone_surrogates_do_not_keep_a_sample_from_its_file(tmp_path):
    write_json(tmp_path / "a.json", sample([token("\ud800")], note="found \udfff").to_json())

    assert Sample.from_json(read_json(tmp_path / "a.json")).note == r"found \udfff"


def test_unknown_verdict_names_those_that_are_known():
    with pytest.raises(ValueError, match=r"no_loss: verdict 'fine', expected .*refused"):
        Finding("no_loss", 1, "fine")


def test_source_without_tokens_has_no_trained_share():
    assert Summary("empty", 10, 0, 0, 0, 0, 0, 0).trained_share == 0


# --- Shortening ----------------------------------------------------------------------------------


def long_example(*marks, count=10_000):
    return [token("a", number, marked=number in marks) for number in range(count)]


def test_short_example_stays_whole():
    assert shorten(CHAT, len(CHAT)) == tuple(CHAT)


@pytest.mark.parametrize(
    "marks", [(), (0,), (9_999,), (4_321,), range(10_000), range(7, 10_000, 9)]
)
@pytest.mark.parametrize("most", [10, 1_000, 4_000])
def test_long_example_has_at_most_so_many_tokens_and_accounts_for_all(marks, most):
    shown = shorten(long_example(*marks), most)
    kept = [each for each in shown if isinstance(each, Token)]

    assert len(kept) <= most
    assert len(kept) + sum(each.num_tokens for each in shown if isinstance(each, Gap)) == 10_000
    assert not any(isinstance(a, Gap) and isinstance(b, Gap) for a, b in pairwise(shown))


def test_long_example_keeps_its_beginning_the_marked_places_and_its_end():
    shown = shorten(long_example(3_000, 6_000), 1_000)
    kept = {each.id for each in shown if isinstance(each, Token)}

    assert kept >= {*range(200), 3_000, 6_000, *range(9_800, 10_000)}


def test_marked_place_has_its_surroundings():
    kept = {each.id for each in shorten(long_example(5_000), 1_000) if isinstance(each, Token)}

    assert kept >= {*range(4_970, 5_030)}


def test_first_marked_place_stays_where_not_all_fit():
    shown = shorten(long_example(*range(5_000, 9_000)), 10)

    assert 5_000 in {each.id for each in shown if isinstance(each, Token)}


def test_gap_counts_the_trained_tokens_that_are_left_out():
    tokens = [token("a", number, trained=number >= 50) for number in range(100)]

    assert [each for each in shorten(tokens, 20) if isinstance(each, Gap)] == [Gap(80, 45)]


# --- Turns and characters ------------------------------------------------------------------------


def test_turn_takes_the_white_space_after_its_end():
    assert [turn.num_tokens for turn in split_turns(CHAT)] == [10, 8]
    assert [turn.num_trained for turn in split_turns(CHAT)] == [0, 4]


def test_turns_without_space_between_them_are_apart():
    end, start = token("<|eot_id|>", 2, ends_turn=True, control=True), token("<|start_header_id|>")

    assert len(split_turns([start, end, start, end])) == 2


def test_example_without_tokens_has_no_turn():
    assert split_turns([]) == []


@pytest.mark.parametrize(
    ("character", "shown"),
    [
        ("\n", "↵"),
        ("\t", "⇥"),
        ("\0", "⟨U+0000 NUL⟩"),
        ("\u202e", "⟨U+202E RLO⟩"),
        ("\u200b", "⟨U+200B ZWSP⟩"),
        ("\u2029", "⟨U+2029⟩"),
        ("\u3164", "⟨U+3164⟩"),
        ("\U000e0101", "⟨U+E0101⟩"),
        ("\ud800", "⟨U+D800⟩"),
        ("語", "語"),
        ("🦜", "🦜"),
    ],
)
def test_character_that_cannot_be_seen_has_a_name(character, shown):
    assert visible(character) == shown


# --- The terminal --------------------------------------------------------------------------------


def test_marks_say_what_is_trained_without_colours():
    assert text_of(CHAT) == [
        "│ <|im_start|>user↵",
        "│ What is↵",
        "│ 2 + 2?<|im_end|>↵",
        "╰─ 0 of 10 tokens trained",
        "│ <|im_start|>assistant↵",
        "┃ ⟦It is↵⟧",
        "┃ ⟦4.<|im_end|>⟧↵",
        "╰─ 4 of 8 tokens trained",
    ]


def test_colours_say_what_is_trained():
    line = text_of(CHAT, color=True)[6]

    assert line == "\x1b[32m┃\x1b[0m \x1b[32m4.\x1b[0m\x1b[7;32m<|im_end|>\x1b[0m↵"


def test_text_without_colours_has_no_escape_sequence():
    assert "\x1b" not in "".join(text_of([token(text) for text in HOSTILE.values()]))


def test_place_of_a_fault_is_marked_with_and_without_colours():
    tokens = [token("a"), token("b", marked=True), token("c", marked=True, trained=True)]

    assert text_of(tokens)[0] == "! a►b◄⟦►c◄⟧"
    assert "\x1b[1;31mb\x1b[0m\x1b[1;31;4mc\x1b[0m" in text_of(tokens, color=True)[0]


def test_example_without_the_end_of_a_turn_says_so():
    assert text_of(CHAT[:-2])[-1] == "   The example stops here, without the end of a turn."


def test_end_that_is_not_trained_is_said():
    tokens = [*CHAT[:-2], replace(CHAT[-2], trained=False)]

    assert text_of(tokens)[-1] == "   The token that ends this turn is not trained."


def test_gap_says_what_is_left_out():
    lines = text_of([token("a"), Gap(1234, 56), token("b")])

    assert lines[:3] == ["│ a", "⋯ 1,234 tokens left out here, 56 of them trained", "│ b"]


def test_character_of_several_tokens_is_one_character():
    assert text_of([token("", 7), token("", 8), token("語", 9)])[0] == "│ 語"


def test_part_of_a_character_in_another_state_is_seen():
    assert text_of([token("", 7, trained=True), token("é", 8)])[0] == "┃ ⟦⟨part⟩⟧é"


def test_long_prompt_is_folded_in_the_middle_and_the_answer_is_not():
    prompt = words("\n".join(f"line {number}" for number in range(100)))
    lines = text_of([*prompt, *words("\nthe answer", trained=True)])

    assert "│ ⋯ 89 more lines, not trained" in lines
    assert lines[0] == "│ line 0↵"
    assert "┃ ⟦the answer⟧" in lines


def test_fold_never_hides_the_place_of_a_fault():
    before = words("\n".join(f"line {number}" for number in range(100)))
    lines = text_of([*before, token("\n"), token("here", marked=True), token("\n"), *before])

    assert "! ►here◄↵" in lines


@pytest.mark.parametrize("color", [False, True])
@pytest.mark.parametrize("width", [40, 80, 200])
def test_no_line_is_wider_than_the_terminal(width, color):
    texts = [*HOSTILE.values(), "x" * 3000, "語" * 500, "e\u0301" * 500, "\t" * 90, "a b " * 200]
    tokens = [token(text, trained=number % 2 == 0) for number, text in enumerate(texts)]
    finding = Finding("no_loss", 2, "refused", "m" * 300, "r " * 300)
    shown = sample(tokens, source="s" * 200, why="no_loss", note="語" * 200)
    text = preview_text([summary("s" * 200, finding)], [shown], width, color)

    lines = ESCAPE.sub("", text).splitlines()
    assert max(sum(map(width_of, line)) for line in lines) <= width


def test_line_breaks_after_a_space_where_there_is_one():
    lines = text_of(words("word " * 20), width=40)

    assert lines[0] == "│ " + "word " * 7


def test_terminal_shows_every_character_of_a_short_example():
    tokens = words("one two\nthree\tfour  five " * 3)
    shown = "".join(line[2:] for line in text_of(tokens, width=40) if line.startswith("│"))

    assert shown == "".join(each.text for each in tokens).replace("\n", "↵").replace("\t", "⇥   ")


def test_hostile_text_never_reaches_the_terminal_as_it_is():
    text = preview_text(
        [summary("\x1b[2Jchats\u202e")],
        [sample([token(each)], note=each, source=each) for each in HOSTILE.values()],
        80,
        False,
    )
    seen = {unicodedata.category(each) for each in text.replace("\n", "")}

    assert not seen & {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def test_result_is_the_first_line_and_the_last():
    finding = Finding("no_loss", 3, "refused")
    others = Finding("a", 1, "accepted"), Finding("b", 1, "note"), Finding("c", 1, "note")
    lines = preview_text([summary("chats", finding), summary("b", *others)], [], 80, False)

    expected = "Refused: 1 fault in 1 of 2 sources, 1 accepted, 2 notes"
    assert (lines.splitlines()[0], lines.splitlines()[-1]) == (expected, expected)


def test_good_sources_are_said_to_be_good():
    assert preview_text([summary()], [], 80, False).startswith("Nothing is refused in 1 source\n")


def test_finding_says_rows_meaning_and_remedy():
    finding = Finding("no_loss", 3, "refused", "have no token with a loss", "drop them")
    text = preview_text([summary("chats", finding)], [], 80, False)

    assert "  refused: no_loss, 3 rows: they have no token with a loss\n" in text
    assert "    remedy: drop them\n" in text


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stream", "environment", "wanted"),
    [
        (Terminal(), {}, True),
        (Terminal(), {"NO_COLOR": ""}, True),  # no-color.org: when present and not empty
        (Terminal(), {"NO_COLOR": "1"}, False),
        (Terminal(), {"TERM": "dumb"}, False),
        (io.StringIO(), {}, False),
    ],
)
def test_colours_are_for_terminals_without_no_color(stream, environment, wanted):
    assert wants_color(stream, environment) is wanted


# --- The page ------------------------------------------------------------------------------------


def test_every_token_is_on_the_page_with_its_id_and_state():
    shown = page_of(*CHAT).tokens

    assert [title for title, _, _ in shown] == [f"id {each.id}" for each in CHAT]
    assert [text for _, text, _ in shown] == [each.text for each in CHAT]
    assert [classes for _, _, classes in shown] == [
        {*(["t"] if each.trained else []), *(["c"] if each.control else [])} for each in CHAT
    ]


def test_character_of_several_tokens_has_all_their_ids():
    assert page_of(token("", 7), token("", 8), token("語", 9)).tokens[0][:2] == ("ids 7 8 9", "語")


def test_part_of_a_character_in_another_state_keeps_its_own_id():
    shown = page_of(token("", 7, trained=True), token("é", 8)).tokens

    assert shown == [("id 7", "part", {"t"}), ("id 8", "é", set())]


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_text_adds_no_tag_and_no_hidden_character(text):
    harmless = page_of(token("text\n\0"), note="a", source="b", row=1)
    page = preview_page(text, [summary(text)], [sample([token(text)], text, 1, FIRST, text)])
    shown = Page(page)

    assert shown.tags <= {*harmless.tags, ("a", "href")}
    seen = {unicodedata.category(each) for each in page.replace("\n", "")}
    assert not seen & {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    assert page.encode()


def test_text_of_hostile_tokens_is_all_there():
    for text in (HOSTILE["script"], HOSTILE["attribute"], HOSTILE["comment"], HOSTILE["template"]):
        assert page_of(token(text)).tokens[0][1] == text


def test_page_names_nothing_outside_itself():
    page = preview_page("title", [summary()], [sample()])

    assert not re.findall(r"(?:src|href|action)=\"(?!#|data:,\")|url\(|@import|https?:", page)
    assert "script" not in page


def test_faults_come_before_first_examples_and_refused_ones_first():
    sources = [summary("chats", Finding("noted", 1, "note"), Finding("bad", 1, "refused"))]
    samples = [sample(), sample(why="noted", row=5), sample(why="bad", row=6)]

    for shown in (preview_page("t", sources, samples), preview_text(sources, samples, 80, False)):
        assert re.findall(r"chats, row (\d):? ?\w*", shown) == ["6", "5", "0"]


def test_finding_links_to_its_first_example():
    samples = [sample(why="bad", row=row) for row in (4, 7)]
    page = preview_page("t", [summary("chats", Finding("bad", 2, "refused"))], samples)

    anchor = re.search(r'<a href="#([^"]+)">bad</a>', page)[1]
    assert re.search(rf'<article id="{anchor}".*?<h3>chats, row (\d)', page, re.DOTALL)[1] == "4"


def test_finding_without_an_example_is_listed_all_the_same():
    page = preview_page("t", [summary("chats", Finding("lost_rows", 2, "refused"))], [])

    assert "<strong>lost_rows</strong> in chats, 2 rows" in page


def test_each_place_of_a_fault_has_one_anchor_and_one_link():
    marked = [token("a", marked=True), token("b", marked=True, control=True)]
    page = preview_page("t", [summary()], [sample([*marked, token("c"), *marked])])

    assert re.findall(r'href="#(sample-1-place-\d)"', page) == re.findall(
        r' id="([^"]*place-\d)"', page
    )
    assert len(re.findall(r' id="[^"]*place-\d"', page)) == 2


def test_long_prompt_is_behind_a_click_and_complete():
    tokens = words("word " * 1000)
    page = page_of(*tokens)

    assert "881 tokens more, not trained" in page.text
    assert len(page.tokens) == len(tokens)


def test_long_prompt_is_folded_between_lines():
    tokens = [token("one"), token(" two"), token("\n")] * 500
    page = preview_page("t", [summary()], [sample(tokens)])

    assert "<b>\n</b></i><details>" in page
    assert "<b>\n</b></i></details>" in page


def test_long_answer_is_open():
    assert ("details",) not in page_of(*words("word " * 1000, trained=True)).tags


def test_page_of_4000_tokens_stays_small():
    tokens = [
        token(" word", 100_000 + number, trained=number % 20 < 10, marked=number % 500 == 0)
        for number in range(4000)
    ]

    assert len(preview_page("t", [summary()], [sample(tokens)]).encode()) < 250_000


def test_page_without_sources_and_samples_is_a_page():
    assert Page(preview_page("t", [], [])).open == []


def test_adjacent_tokens_of_one_state_share_one_span():
    page = preview_page("t", [summary()], [sample(words("a b c d e", trained=True))])

    assert page.count('<span class="t"><i') == 1
