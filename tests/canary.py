"""The canary: reasoning, a tool call, its result and an answer, with its mask written out by hand.

Each line of EXPECTED is a stretch of Delphi's tokens, divided by `¦`; those of a line that starts
with `+` are trained, those with `-` not. `↵` stands for a newline.
"""

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
_CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Oslo"}}}
CANARY = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Is it cold in Oslo?"},
    {"role": "assistant", "content": "<think>\nAsk.\n</think>\n\n", "tool_calls": [_CALL]},
    {"role": "tool", "content": "-3 C"},
    {"role": "assistant", "content": "<think>\nBelow zero.\n</think>\n\nYes, -3 °C."},
]
# The same as LLaMA-Factory reads it.
ROW = {
    "conversations": [
        {"from": "system", "value": "Be brief."},
        {"from": "human", "value": "Is it cold in Oslo?"},
        {
            "from": "function_call",
            "value": "<think>\nAsk.\n</think>\n\n"
            '{"name": "weather", "arguments": {"city": "Oslo"}}',
        },
        {"from": "observation", "value": "-3 C"},
        {"from": "gpt", "value": "<think>\nBelow zero.\n</think>\n\nYes, -3 °C."},
    ],
}

EXPECTED = """\
- <|begin_of_text|>¦<|start_header_id|>¦system¦<|end_header_id|>¦↵↵¦Be¦ brief¦.↵↵¦#
-  Tools¦↵↵¦To¦ call¦ a¦ tool¦,¦ write¦ a¦ JSON¦ object¦ with¦ its¦ name¦ and¦ its¦ arguments
-  between¦ ¦<|tool_call|>¦ and¦ ¦<|tool_call_end|>¦:¦ {"¦name¦":¦ <¦tool¦ name¦>,¦ "
- arguments¦":¦ <¦JSON¦ object¦>¦}.¦ Each¦ call¦ has¦ a¦ pair¦ of¦ its¦ own¦.¦ The¦ tools
- :↵¦{"¦name¦":¦ "¦weather¦",¦ "¦parameters¦":¦ {"¦type¦":¦ "¦object¦",¦ "¦properties
- ":¦ {"¦city¦":¦ {"¦type¦":¦ "¦string¦"}}¦}}¦<|eot_id|>¦<|start_header_id|>¦user¦<|end_header_id|>
- ↵↵¦Is¦ it¦ cold¦ in¦ Oslo¦?¦<|eot_id|>¦<|start_header_id|>¦assistant¦<|end_header_id|>
- ↵↵
+ <|start_think|>¦↵¦Ask¦.↵¦<|end_think|>¦↵↵↵¦<|tool_call|>¦↵¦{"¦name¦":¦ "¦weather¦",
+  "¦arguments¦":¦ {"¦city¦":¦ "¦Os¦lo¦"}}↵¦<|tool_call_end|>¦<|eot_id|>
- <|start_header_id|>¦tool¦<|end_header_id|>¦↵↵¦<|tool_result|>¦↵¦-¦3¦ C¦↵¦<|tool_result_end|>
- <|eot_id|>¦<|start_header_id|>¦assistant¦<|end_header_id|>¦↵↵
+ <|start_think|>¦↵¦Below¦ zero¦.↵¦<|end_think|>¦↵↵¦Yes¦,¦ -¦3¦ °¦C¦.¦<|eot_id|>
"""


def expected_mask() -> list[tuple[str, bool]]:
    """The text of each token, and whether it is trained."""
    return [
        (token.replace("↵", "\n"), line[0] == "+")
        for line in EXPECTED.splitlines()
        for token in line[2:].split("¦")
    ]
