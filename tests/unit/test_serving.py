import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from sft.errors import SftError
from sft.gate.serving import EMPTY_REASONING, REASONING, load_serving
from tests.unit.served import CHATML, FAMILIES, IM, QWEN3, write_family, write_served
from tests.workflow.stub_trainer import write_tokenizer

SYSTEM = {"role": "system", "content": "Be brief."}
QUESTION = {"role": "user", "content": "How many?"}
ANSWER = {"role": "assistant", "content": "Seven."}
TALK = [QUESTION, ANSWER, {"role": "user", "content": "And now?"}, ANSWER]


def serve(folder: Path, template: str, controls: tuple[str, ...] = IM, **other):
    return load_serving(write_served(folder, template, controls, **other))


@pytest.fixture(scope="module")
def servings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("families")
    return {
        name: load_serving(write_family(folder / name, family)) for name, family in FAMILIES.items()
    }


# What a template shows by itself.


@pytest.mark.parametrize("name", FAMILIES)
def test_header_end_and_tail_are_those_of_the_template(servings, name):
    serving, family = servings[name], FAMILIES[name]

    assert (serving.header, serving.end, serving.tail) == (family.header, family.end, family.tail)


@pytest.mark.parametrize("name", FAMILIES)
def test_end_is_one_token(servings, name):
    serving = servings[name]

    assert serving.encode([serving.end]) == [[serving.end_id]]


def test_header_has_no_empty_block_that_the_template_opens_with(tmp_path):
    closed = CHATML.replace("assistant\\n'", "assistant\\n<think>\\n\\n</think>\\n\\n'")

    assert serve(tmp_path, closed).header == "<|im_start|>assistant\n"


def test_projects_own_template_is_served(tmp_path):
    write_tokenizer(tmp_path)

    serving = load_serving(tmp_path)

    assert (serving.header, serving.end_id, serving.tail) == ("<|im_start|>assistant\n", 258, "\n")


def test_control_string_that_begins_another_is_not_taken_for_it(tmp_path):
    template = CHATML.replace("<|im_end|>", "</s>>")

    assert serve(tmp_path, template, ("<|im_start|>", "</s>", "</s>>")).end == "</s>>"


def test_control_strings_may_hold_characters_of_patterns(tmp_path):
    template = CHATML.replace("<|im_start|>", "[^(*").replace("<|im_end|>", "$.+?)")
    serving = serve(tmp_path, template, ("[^(*", "$.+?)"))

    found = [control[0] for control in serving.find_controls("a [^(* b $.+?) c $x+?)")]

    assert (serving.header, found) == ("[^(*assistant\n", ["[^(*", "$.+?)"])


# Templates that cannot be served.


def test_tokenizer_without_a_template_is_refused(tmp_path):
    write_served(tmp_path, None, IM)

    with pytest.raises(SftError, match=f"^{tmp_path}: .*without a chat template"):
        load_serving(tmp_path)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (CHATML.replace("<|im_end|>", ""), "shows no end of an answer: found '\\n' after one"),
        (CHATML.replace("<|im_end|>", "<|eot_id|>"), "found '<|eot_id|>\\n' after one"),
        (CHATML.replace("message['content']", "''"), "does not render a turn"),
        (
            CHATML.replace("'<|im_start|>assistant\\n'", "'<|im_start|>bot\\n'"),
            "asks for an answer with '<|im_start|>bot\\n'",
        ),
        (
            "{{- '<|im_start|>bot\n' -}}"
            + CHATML.replace("'<|im_start|>assistant\\n'", "'<|im_start|>bot\\n'"),
            "asks for an answer with '<|im_start|>bot\\n'",
        ),
        ("{{ raise_exception('No chat here.') }}", "cannot render it: No chat here."),
        ("{% for message in %}", "cannot render it"),
        ("{%- for each in messages -%}{{- each['content'] -}}{%- endfor -%}", "answer with ''"),
    ],
    ids=[
        "no_end",
        "end_in_pieces",
        "no_text",
        "other_header",
        "header_elsewhere",
        "raises",
        "no_jinja",
        "no_header",
    ],
)
def test_template_that_shows_no_answer_is_refused(tmp_path, template, message):
    with pytest.raises(SftError) as caught:
        serve(tmp_path, template)

    assert str(caught.value).startswith(f"{tmp_path}: ")
    assert message in str(caught.value)


def test_tokenizer_without_special_tokens_is_refused(tmp_path):
    with pytest.raises(SftError, match="shows no end"):
        serve(tmp_path, CHATML, ())


# Rendering.


def test_template_error_keeps_its_words(tmp_path):
    serving = serve(
        tmp_path,
        "{%- if messages[0]['role'] == 'system' -%}"
        "{{- raise_exception('System role not supported') -}}{%- endif -%}" + CHATML,
    )

    with pytest.raises(SftError, match="System role not supported"):
        serving.render([SYSTEM, *TALK])


def test_text_where_a_template_takes_an_object_is_an_error_of_the_template(tmp_path):
    items = "{%- for item in message['tool_calls'] or [] -%}{%- for key, value in "
    template = CHATML.replace(
        "{{- '<|im", items + "item['arguments'] | items -%}{%- endfor -%}{%- endfor -%}{{- '<|im", 1
    )
    call = ANSWER | {"tool_calls": [{"name": "look", "arguments": '{"at": 1}'}]}

    with pytest.raises(SftError, match="cannot render it"):
        serve(tmp_path, template).render([QUESTION, call])


@pytest.mark.parametrize(
    ("thinking", "rendered"), [(None, "unset"), (True, "True"), (False, "False")]
)
def test_thinking_of_the_config_reaches_the_template(tmp_path, thinking, rendered):
    template = "{{- enable_thinking if enable_thinking is defined else 'unset' -}}" + CHATML
    serving = load_serving(write_served(tmp_path, template, IM), thinking)

    assert serving.render(TALK).startswith(f"{rendered}<|im_start|>")


def test_tools_reach_the_template(tmp_path):
    serving = serve(tmp_path, "{%- if tools -%}{{- tools | tojson -}}{%- endif -%}" + CHATML)

    assert serving.render(TALK, [{"name": "look"}]).startswith('[{"name": "look"}]<|im_start|>')


def test_no_tools_are_none(tmp_path):
    serving = serve(tmp_path, "{{- 'none' if tools is none else 'some' -}}" + CHATML)

    assert serving.render(TALK).startswith("none<|im_start|>")


# Pieces.


@pytest.mark.parametrize("name", FAMILIES)
def test_pieces_are_prompts_and_answers_by_turns(servings, name):
    serving = servings[name]

    first, said, second, again, rest = serving.split(serving.render(TALK))

    assert first.endswith(serving.header) and "How many?" in first
    assert said.strip().endswith("Seven." + " " * (name == "llama2") + serving.end)
    assert second.endswith(serving.header) and "And now?" in second
    assert "Seven." in again and again.endswith(serving.end + serving.tail)
    assert rest == ""


@pytest.mark.parametrize("name", FAMILIES)
def test_pieces_join_to_the_text(servings, name):
    text = servings[name].render(TALK)

    assert "".join(servings[name].split(text)) == text


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("", [""]),
        ("<|im_start|>user\nHi", ["<|im_start|>user\nHi"]),
        ("Hi<|im_start|>assistant\n", ["Hi<|im_start|>assistant\n", "", ""]),
        ("<|im_start|>assistant\nYes.", ["<|im_start|>assistant\n", "Yes.", ""]),
        ("<|im_start|>assistant\nNo<|im_end|>", ["<|im_start|>assistant\n", "No<|im_end|>", ""]),
        (
            "<|im_start|>assistant\nNo<|im_end|>\n<|im_start|>us",
            ["<|im_start|>assistant\n", "No<|im_end|>\n", "<|im_start|>us"],
        ),
    ],
)
def test_cut_text_has_pieces_too(servings, text, pieces):
    assert servings["chatml"].split(text) == pieces


# Tokens.


def test_tokens_are_those_of_the_text_alone(servings):
    serving = servings["llama3"]

    assert serving.encode(["<|eot_id|>a", ""]) == [[serving.end_id, *serving.encode(["a"])[0]], []]


def test_tokens_that_the_tokenizer_adds_by_itself_are_left_out(tmp_path):
    write_served(tmp_path, CHATML, IM)
    path = str(tmp_path / "tokenizer.json")
    tokenizer = Tokenizer.from_file(path)
    tokenizer.post_processor = TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", 257)]
    )
    tokenizer.save(path)

    assert load_serving(tmp_path).encode(["<|im_end|>"]) == [[258]]


@pytest.mark.parametrize("text", ["", "naïve 日本 👩🏽‍🚀\n", "<|im_end|><|im_start|> <|im_end|>"])
def test_decoding_gives_the_text_back(servings, text):
    serving = servings["chatml"]

    assert serving.decode(serving.encode([text])[0]) == text


def test_ids_that_no_token_has_are_left_out_of_the_text(servings):
    serving = servings["chatml"]
    [ids] = serving.encode(["ab"])

    assert serving.decode([-100, ids[0], 10**7, ids[1]]) == "ab"


def test_special_tokens_are_controls(servings):
    serving = servings["chatml"]
    [ids] = serving.encode(["a<|im_start|>b<|im_end|>"])

    assert serving.controls_of(ids) == [serving.controls["<|im_start|>"], serving.end_id]


def test_tokens_that_are_added_but_not_special_count_as_controls_of_tokens_only(tmp_path):
    serving = serve(tmp_path, CHATML, added=["<think>"])
    [ids] = serving.encode(["<think>"])

    assert (serving.controls_of(ids), list(serving.find_controls("<think>"))) == (ids, [])


def test_controls_of_a_text_are_those_of_its_tokens(tmp_path):
    serving = serve(tmp_path, CHATML, added=["<think>", "<think>>"])
    text = "a<think>>b<|im_end|><think><|im_end"

    assert serving.controls_in(text) == serving.controls_of(serving.encode([text])[0])


def test_blanks_that_are_added_tokens_are_no_controls(tmp_path):
    serving = serve(tmp_path, CHATML, added=["\n\n"])

    assert serving.controls_of(serving.encode(["a\n\n"])[0]) == []


def test_control_strings_are_never_split_whatever_the_tokenizer_was_told(tmp_path):
    write_served(tmp_path, CHATML, IM)
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"split_special_tokens": True}))

    serving = load_serving(tmp_path)

    assert serving.encode(["<|im_end|>"]) == [[serving.end_id]]


def test_every_control_string_is_spelled(servings):
    spelled = servings["qwen3"].spelled

    assert all(each in spelled for each in ("<|endoftext|>", "<|im_end|>", "</think>"))


def test_templates_with_names_are_all_spelled(tmp_path):
    write_served(tmp_path, None, IM)
    path = tmp_path / "tokenizer_config.json"
    named = [
        {"name": "default", "template": CHATML},
        {"name": "tool_use", "template": "[TOOL_CALLS]" + CHATML},
    ]
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": named}))

    assert "[TOOL_CALLS]" in load_serving(tmp_path).spelled


# Reasoning.


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("<think>\nHm.\n</think>\n\nYes.", "Yes."),
        ("<|start_think|>Hm.\n\nHm.<|end_think|>Yes.", "Yes."),
        ("<think></think>Yes.", "Yes."),
        ("<think>Hm.<|end_think|>Yes.", "<think>Hm.<|end_think|>Yes."),
        ("<think>Hm.", "<think>Hm."),
    ],
)
def test_reasoning_is_a_closed_block_of_one_family(text, left):
    assert REASONING.sub("", text) == left


@pytest.mark.parametrize(
    ("text", "is_empty"),
    [
        ("<think>\n\n</think>\n\n", True),
        ("<think></think>", True),
        ("<|start_think|>\n\n<|end_think|>", True),
        ("<think>.</think>", False),
    ],
)
def test_empty_reasoning_holds_white_space_alone(text, is_empty):
    assert bool(EMPTY_REASONING.fullmatch(text)) == is_empty


def test_last_block_of_reasoning_is_rendered_even_if_it_is_empty(tmp_path):
    assert "<think>\n\n</think>\n\nSeven." in serve(tmp_path, QWEN3).render(TALK)
