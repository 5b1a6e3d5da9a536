import datetime
import tracemalloc

import pytest
from tests.support.chat_templates import GEMMA, LLAMA3, QWEN, SMOLLM2, TEMPLATES, TOOLS
from tests.support.fake_clock import FakeClock
from transformers import PreTrainedTokenizerFast

from headrace.core.errors import BadRequestError, ConfigError
from headrace.preprocess.chat_template import CHATML, MAX_RANGE_TOTAL, ChatTemplate, choose_template
from headrace.preprocess.special_text import free_mark
from headrace.preprocess.template_bounds import MAX_MADE

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": None}
CALL = {"type": "function", "id": "c1", "function": {"name": "look_up", "arguments": {"q": "é<&"}}}
CONVERSATIONS = {
    "one turn": [{"role": "user", "content": "Hi"}],
    "spaces": [{"role": "user", "content": "  two  \n\n"}],
    "turns": [
        {"role": "user", "content": "Wer bist du?"},
        {"role": "assistant", "content": " Ich bin's. "},
        {"role": "user", "content": "漢字 😀 \"quoted\" <|im_end|> {{ x }}"},
    ],
    "system": [
        {"role": "system", "content": " Be brief.\n"},
        {"role": "user", "content": "Hi"},
    ],
    "empty": [{"role": "user", "content": ""}],
    "tool": [
        {"role": "user", "content": "Look it up"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "42 <ok>", "tool_call_id": "c1"},
    ],
}  # fmt: skip


def ours(source, clock=None):
    return ChatTemplate(source, SPECIAL, clock or FakeClock())


@pytest.fixture(scope="module")
def fast(byte_core):
    return PreTrainedTokenizerFast(
        tokenizer_object=byte_core, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


@pytest.fixture(scope="module")
def byte_core():
    from tokenizers import Tokenizer, models

    return Tokenizer(models.BPE())


def outcome(render):
    try:
        return render()
    except Exception:  # noqa: BLE001
        return "refused"


@pytest.mark.parametrize("with_tools", [False, True], ids=["", "tools"])
@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_rendering_equals_transformers(fast, name, conversation, with_tools):
    messages, tools = CONVERSATIONS[conversation], TOOLS if with_tools else None
    # Both read the clock; ours shows the moment that transformers' does.
    clock = FakeClock(wall=datetime.datetime.now().timestamp())
    template = ours(TEMPLATES[name], clock)
    for ends in ({}, {"add_generation_prompt": True}, {"continue_final_message": True}):
        for extra in ({}, {"enable_thinking": False}):
            theirs = outcome(
                lambda ends=ends, extra=extra: fast.apply_chat_template(
                    messages, tools=tools, chat_template=TEMPLATES[name], tokenize=False,
                    **ends, **extra,
                )
            )  # fmt: skip
            mine = outcome(
                lambda ends=ends, extra=extra: template.render(
                    messages, tools=tools, extra=extra, **{"add_generation_prompt": False} | ends
                )
            )
            if conversation == "empty" and "continue_final_message" in ends:
                # Nothing to go on from: refused here, cut at an arbitrary place there.
                assert mine == "refused"
            else:
                assert mine == theirs


def test_a_template_s_refusal_is_a_bad_request_with_its_words():
    with pytest.raises(BadRequestError, match="System role not supported") as caught:
        ours(GEMMA).render([{"role": "system", "content": "x"}])
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[5].content }}",
        "{{ 1 / 0 }}",
        "{{ messages + 1 }}",
        "{{ messages[0].content + none }}",
        "{{ nothing.at.all }}",
        "{% for m in 5 %}{% endfor %}",
        "{{ 'x' | tojson(indent='a') | int('b', base=99) }}{{ undefined_function() }}",
        "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
    ],
)
def test_a_template_that_fails_is_a_bad_request(source):
    with pytest.raises(BadRequestError, match="cannot render these messages"):
        ours(source).render([{"role": "user", "content": "x"}])


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='system') }}",
        "{{ messages.__class__ }}{{ cycler.__init__.__globals__ }}",
        "{{ strftime_now.__globals__['datetime'] }}",
    ],
)
def test_the_sandbox_holds(source):
    messages = [{"role": "user", "content": "x"}]
    with pytest.raises(BadRequestError):
        ours(source).render(messages)
    assert messages == [{"role": "user", "content": "x"}]


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * 10000000000 }}",
        "{{ 10000000000 * 'a' }}",
        "{{ [0] * 10000000000 }}",
        "{{ 9 ** 9 ** 9 ** 9 }}",
        "{{ ('x' * 1000000) * ('y' * 1000000) }}",
        "{% for i in range(99999999999999999999999) %}{% endfor %}",
        "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
        "{% for i in range(900) %}{% for j in range(900) %}{{ 'a' * 900 }}{% endfor %}{% endfor %}",
    ],
)
def test_runaway_templates_end(source):
    with pytest.raises(BadRequestError, match="cannot render"):
        ours(source).render([{"role": "user", "content": "x"}])


DOUBLING = "{%% set ns = namespace(x='ab') %%}{%% for i in range(60) %%}{%% set ns.x = %s %%}{%% endfor %%}"


@pytest.mark.parametrize(
    "expression",
    [
        "ns.x ~ ns.x",
        "ns.x + ns.x",
        "(ns.x, ns.x) | join",
        "(ns.x, ns.x) | map('upper') | join(ns.x)",
        "ns.x.join((ns.x, ns.x))",
        "ns.x.replace('a', 'aa')",
        "ns.x.replace('', 'ab')",
        "ns.x | replace('b', 'abab')",
        "'%s%s' % (ns.x, ns.x)",
        "'%s%s' | format(ns.x, ns.x)",
        "'{0}{0}'.format(ns.x)",
        "'{a}{a}'.format_map({'a': ns.x})",
        "ns.x.translate({97: 'ab', 98: 'ab'})",
        "ns.x | indent(ns.x) ~ '\n' * 1000",
        "[ns.x, ns.x] | string",
        "[ns.x, ns.x] | tojson",
        "[ns.x, ns.x] | pprint",
        "{'a': [ns.x, ns.x]} | xmlattr",
        "[ns.x, ns.x] ~ ''",
        "[ns.x, ns.x]",
        "(ns.x | list) + (ns.x | list)",
        "[[ns.x], [ns.x]] | sum(start=[])",
        "ns.x * 2",
        "(ns.x.encode() + ns.x.encode()).decode()",
    ],
)
def test_doubling_ends(expression):
    template = ours(DOUBLING % expression + "{{ ns.x }}")
    with pytest.raises(BadRequestError, match=r"makes more than|repeats a text"):
        template.render([{"role": "user", "content": "x"}])


@pytest.mark.parametrize(
    "source",
    [
        "{% set x = 'ab' %}" + "{% set x %}{{ x }}{{ x }}{% endset %}" * 40,
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% else %}"
        + "x" * 1000
        + "{% endif %}{% endmacro %}{% set x = m(40) %}",
        "{{ 'a'.center(1000000000) }}",
        "{{ 'a'.zfill(1000000000) }}",
        "{{ 'a' | center(1000000000) }}",
        "{{ ['a'] | map('center', 1000000000) | list }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%*d' % (1000000000, 1) }}",
        "{{ '{:>1000000000}'.format(1) }}",
        "{{ '{:{}}'.format('a', 1000000000) }}",
        "{{ 'a\tb'.expandtabs(1000000000) }}",
        "{{ 'a\nb' | indent(1000000000) }}",
        "{{ [1] | batch(1000000000, 'x') | list }}",
        "{{ [1] | slice(1000000000, 'x') | list }}",
        "{{ [1] | tojson(indent=1000000000) }}",
        "{{ lipsum(1000000) }}",
        "{% set ns = namespace(n=10) %}{% for i in range(60) %}{% set ns.n = ns.n * ns.n %}{% endfor %}",
        "{% set big = 'x' * 1000000 %}{% set ns = namespace(l=[]) %}"
        "{% for i in range(10000) %}{% set ns.l = ns.l + [big[1:]] %}{% endfor %}",
        "{% set big = 'x' * 1000000 %}{% set ns = namespace(l=[]) %}"
        "{% for i in range(10000) %}{% set ns.l = ns.l + [big.upper()] %}{% endfor %}",
        "{% set big = 'x' * 1000000 %}{% set ns = namespace(l=[]) %}"
        "{% for i in range(10000) %}{% set ns.l = ns.l + [big | lower] %}{% endfor %}",
    ],
)
def test_what_a_template_makes_is_bounded(source):
    tracemalloc.start()
    try:
        with pytest.raises(BadRequestError, match="cannot render"):
            ours(source).render([{"role": "user", "content": "x"}])
        assert tracemalloc.get_traced_memory()[1] < 4 * MAX_MADE
    finally:
        tracemalloc.stop()


def test_the_allowance_is_large_for_real_conversations_and_each_has_its_own():
    messages = [{"role": "user", "content": "word " * 20_000}] * 10
    for source in TEMPLATES.values():
        template = ours(source)
        texts = []
        for _ in range(3):
            try:
                texts.append(len(template.render(messages, tools=TOOLS)))
            except BadRequestError as error:
                assert "makes more" not in str(error)  # noqa: PT017
        assert all(size >= 1_000_000 for size in texts)


def test_formats_and_arithmetic_still_work():
    source = "{{ '%03d|%s' % (7, 'a') }}{{ '{:>4}{}'.format(1700000000, 'b') }}{{ 6 * 7 % 5 }}{{ 2 ** 10 }}"
    assert ours(source).render([]) == "007|a1700000000b21024"
    assert ours("{{ [1, 2] + [3] }}{{ 'abc'[1:] ~ 1 ~ none }}").render([]) == "[1, 2, 3]bc1None"


def test_the_range_budget_is_for_one_rendering():
    template = ours("{% for i in range(600000) %}{% endfor %}ok")
    assert MAX_RANGE_TOTAL < 600_000 * 2
    assert [template.render([]) for _ in range(3)] == ["ok"] * 3


def test_range_in_a_macro_is_the_bounded_one():
    source = "{% macro f() %}{% for i in range(2000000) %}{% endfor %}{% endmacro %}{{ f() }}"
    with pytest.raises(BadRequestError, match="loops over more"):
        ours(source).render([])


def test_strftime_reads_the_clock_it_was_given():
    clock = FakeClock(wall=86_400.0 * 365)
    assert "Today: " + datetime.datetime.fromtimestamp(clock.wall()).strftime("%d %b %Y") in ours(
        LLAMA3, clock
    ).render([{"role": "user", "content": "x"}])


def test_a_broken_template_stops_the_start():
    with pytest.raises(ConfigError, match="cannot be compiled"):
        ours("{% for x in %}")


@pytest.mark.parametrize("name", ["messages", "tools", "range", "raise_exception"])
def test_extra_values_must_not_replace_ours(name):
    with pytest.raises(BadRequestError, match=f"must not set '{name}'"):
        ours(SMOLLM2).render([], extra={name: 1})


def test_special_tokens_that_the_model_lacks_are_undefined():
    assert ours("{{ pad_token is defined }} {{ bos_token }}").render([]) == "False <s>"


def test_continuing_needs_a_message_that_is_written_out():
    messages = [{"role": "user", "content": "x"}]
    with pytest.raises(BadRequestError, match="does not write out"):
        ours("constant").render(messages, continue_final_message=True)
    with pytest.raises(BadRequestError, match="last message with text"):
        ours(SMOLLM2).render([{"role": "user", "content": " "}], continue_final_message=True)


def test_continuing_is_not_fooled_by_text_that_the_template_writes_too():
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "im"}]
    assert ours(QWEN).render(messages, continue_final_message=True).endswith("assistant\nim")


def test_the_template_is_chosen_by_need():
    both = {"default": "a", "tool_use": "b"}
    assert choose_template(both, has_chatml=False, with_tools=True) == "b"
    assert choose_template(both, has_chatml=False, with_tools=False) == "a"
    assert choose_template({"default": "a"}, has_chatml=True, with_tools=True) == "a"
    assert choose_template({}, has_chatml=True, with_tools=False) == CHATML
    assert choose_template({}, has_chatml=False, with_tools=False) is None


def test_chatml():
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert ours(CHATML).render(messages) == (
        "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n<|im_start|>assistant\n"
    )


def test_marks_are_free_ones():
    marks = [chr(code) for code in range(0xFDD0, 0xFDF0)]
    assert free_mark(["x", {"k": marks[0]}]) == marks[1]
    assert free_mark({marks[0]: [marks[2], "a" + marks[1]]}) == marks[3]
    assert free_mark("".join(marks)) is None
