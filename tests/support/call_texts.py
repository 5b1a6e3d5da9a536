"""Answers of models that call tools, good and broken, by format."""

from collections.abc import Sequence

from headrace.completion.pieces import CallArguments, CallBegun, Piece, Said, Thought
from headrace.config.server import ReasoningFormat, ToolFormat
from headrace.preprocess.reading import Reading, ReasoningReading, ToolReading

NAMES = ("get_weather", "add", "get", "time.now")


def tool_reading(kind: ToolFormat, **fields) -> Reading:
    return Reading(tools=ToolReading(format=kind, names=NAMES, **fields))


def think_reading(kind: ReasoningFormat = ReasoningFormat.THINK, **fields) -> Reading:
    return Reading(reasoning=ReasoningReading(format=kind, **fields))


def joined(pieces: Sequence[Piece]) -> list[tuple[str, str]]:
    """(kind, text) with neighbours of one kind as one; arguments belong to the call before them."""
    kinds = {Said: "said", Thought: "thought", CallBegun: "call", CallArguments: "arguments"}
    out: list[tuple[str, str]] = []
    for piece in pieces:
        kind = kinds[type(piece)]
        text = piece.name if isinstance(piece, CallBegun) else piece.text
        if out and out[-1][0] == kind and kind != "call":
            out[-1] = (kind, out[-1][1] + text)
        else:
            out.append((kind, text))
    return out


ONE = [("call", "get_weather"), ("arguments", '{"city": "Paris"}')]
TWO = [*ONE, ("call", "add"), ("arguments", '{"a": 1, "b": [2, {"c": "]}"}]}')]
_A = '{"name": "get_weather", "arguments": {"city": "Paris"}}'
_B = '{"name": "add", "arguments": {"a": 1, "b": [2, {"c": "]}"}]}}'
_P = _A.replace("arguments", "parameters")
_Q = _B.replace("arguments", "parameters")
_TAGS = f"<tool_call>\n{_A}\n</tool_call>\n<tool_call>\n{_B}\n</tool_call>"

#: (format, answer, what it is read as)
GOOD: list[tuple[ToolFormat, str, list[tuple[str, str]]]] = [
    (ToolFormat.HERMES, f"<tool_call>\n{_A}\n</tool_call>", ONE),
    (ToolFormat.HERMES, f"\n\n<tool_call>{_A}", ONE),
    (ToolFormat.HERMES, _TAGS, TWO),
    (ToolFormat.HERMES, f"Let me see.\n{_TAGS}\n", [("said", "Let me see.\n"), *TWO]),
    (ToolFormat.HERMES, f"{_TAGS}\n Done <b>.", [*TWO, ("said", "Done <b>.")]),
    (ToolFormat.SMOLLM2, f"<tool_call>[{_A}, {_B}]</tool_call>", TWO),
    (ToolFormat.SMOLLM2, f"<tool_call>[{_A}]</tool_call>", ONE),
    (ToolFormat.LLAMA3_JSON, _P, ONE),
    (ToolFormat.LLAMA3_JSON, f"<|python_tag|>{_P}; {_Q}", TWO),
    (ToolFormat.LLAMA3_JSON, f" [{_A}, {_B}]", TWO),
    (ToolFormat.MISTRAL, f"[TOOL_CALLS] [{_A}, {_B}]", TWO),
    (ToolFormat.MISTRAL_ARGS, '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}', ONE),
    (
        ToolFormat.MISTRAL_ARGS,
        'Hm. [TOOL_CALLS]get_weather[CALL_ID]abc123def[ARGS]{"city": "Paris"}[TOOL_CALLS]add'
        '{"a": 1, "b": [2, {"c": "]}"}]}',
        [("said", "Hm. "), *TWO],
    ),
    (
        ToolFormat.PYTHONIC,
        "[get_weather(city='Paris')]",
        [("call", "get_weather"), ("arguments", '{"city":"Paris"}')],
    ),
    (
        ToolFormat.PYTHONIC,
        '<|python_start|>[add(a=-1.5, b=[True, None, (1, 2)], c={"k": \'it\\\'s ")]"\'}), '
        'time.now(**{"zone": "UTC"})]<|python_end|>',
        [
            ("call", "add"),
            ("arguments", '{"a":-1.5,"b":[true,null,[1,2]],"c":{"k":"it\'s \\")]\\""}}'),
            ("call", "time.now"),
            ("arguments", '{"zone":"UTC"}'),
        ],
    ),
    (
        ToolFormat.FUNCTIONGEMMA,
        "<start_function_call>call:get_weather{city:<escape>Par{}is<escape>,days:[1,2.5],"
        "deep:{on:true,off:null}}<end_function_call><start_function_call>call:get{}",
        [
            ("call", "get_weather"),
            ("arguments", '{"city":"Par{}is","days":[1,2.5],"deep":{"on":true,"off":null}}'),
            ("call", "get"),
            ("arguments", "{}"),
        ],
    ),
    (
        ToolFormat.FUNCTIONGEMMA,
        '<start_function_call>call:get_weather{"city": "Paris"}<end_function_call>',
        ONE,
    ),
    (
        ToolFormat.GPT_OSS,
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary "
        'to=functions.get_weather <|constrain|>json<|message|>{"city": "Paris"}',
        [("thought", "Hm."), *ONE],
    ),
    (
        ToolFormat.GPT_OSS,
        "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant to=functions.get"
        "<|channel|>commentary<|message|>{}<|call|>",
        [("said", "I look."), ("call", "get"), ("arguments", "{}")],
    ),
]

#: Answers without a good call: all of the text is said.
BROKEN: list[tuple[ToolFormat, str]] = [
    (ToolFormat.HERMES, "<tool_call>\n{'name': 'add', 'arguments': {}}\n</tool_call>"),
    (ToolFormat.HERMES, '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>'),
    (ToolFormat.HERMES, '<tool_call>{"name": "add", "arguments": [1]}</tool_call>'),
    (ToolFormat.HERMES, '<tool_call>{"name": "add", "arguments": {"a": NaN}}</tool_call>'),
    (ToolFormat.HERMES, '<tool_call>{"name": "add", "arguments": {"a": 1'),
    (ToolFormat.HERMES, "<tool_call>\n</tool_call> and <tool_cal"),
    (ToolFormat.HERMES, "<tool_call>" + "[" * 500),
    (ToolFormat.HERMES, "<tool_call>[]</tool_call>"),
    (ToolFormat.HERMES, "A < B, a <tool> and \n\n"),
    (ToolFormat.HERMES, " \n "),
    (ToolFormat.LLAMA3_JSON, '{"name": "Paris", "parameters": {}}'),
    (ToolFormat.LLAMA3_JSON, '{"answer": 42} is the answer'),
    (ToolFormat.LLAMA3_JSON, 'It is {"name": "add", "parameters": {}}'),
    (ToolFormat.LLAMA3_JSON, "<|python_tag|>print(1)"),
    (ToolFormat.MISTRAL, "[TOOL_CALLS] nothing at all"),
    (ToolFormat.MISTRAL, "[TOOL_CALLS][" + " " * 400 + "{}"),
    (ToolFormat.MISTRAL_ARGS, "[TOOL_CALLS]add[ARGS]{1}"),
    (ToolFormat.PYTHONIC, "[1] is a footnote"),
    (ToolFormat.PYTHONIC, "[add(1, 2)]"),
    (ToolFormat.PYTHONIC, "[add(a=b)]"),
    (ToolFormat.PYTHONIC, '[add(a="x"'),
    (ToolFormat.PYTHONIC, "[add(a=" + "[" * 300 + "]" * 300 + ")]"),
    (ToolFormat.PYTHONIC, "[add(a=1e999)]"),
    (ToolFormat.FUNCTIONGEMMA, "<start_function_call>call:add{a:<escape>x}<end_function_call>!"),
    (ToolFormat.FUNCTIONGEMMA, "<start_function_call>add{}<end_function_call>"),
    (ToolFormat.FUNCTIONGEMMA, "<start_function_call>call:add{a:1"),
]
