"""Chat templates: the same text and ids as transformers for templates of several families, and hostile ones end soon."""

from __future__ import annotations

import json
import resource
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from thinlm.runtime_min import chat
from thinlm.runtime_min.chat import ChatTemplate, chat_ids
from thinlm.runtime_min.tokenizer import Tokenizer
from thinlm.schemas.errors import InputError
from tiny_tokenizers import build

PICO = Path(__file__).parents[2] / "examples" / "pico"
NAMES = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}

CHATML = json.loads((PICO / "tokenizer_config.json").read_text())["chat_template"]
HEADERS = """{{- bos_token }}
{%- set date = strftime_now("%d %b %Y") if strftime_now is defined else "26 Jul 2024" %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = "" %}
{%- endif %}
{{- "<|im_start|>system\n\n" }}
{%- if tools is not none %}{{- "Environment: ipython\n" }}{%- endif %}
{{- "Knowledge date: " + date[-4:] + "\n\n" + system }}<|im_end|>
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|im_start|>' + message['role'] + '\n\n' + message['content'] | trim + '<|im_end|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("only one tool call at a time") }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|im_start|>assistant\n\n{"name": "' + call.name + '", "parameters": ' }}{{ call.arguments | tojson }}{{- "}<|im_end|>" }}
    {%- else %}
        {{- "<|im_start|>ipython\n\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n\n' }}{%- endif %}
"""
TOOLS = """{%- macro kind(spec) -%}
  {%- if spec.type == "array" -%}{{ kind(spec['items']) ~ "[]" }}
  {%- elif spec.enum is defined -%}{{ spec.enum | map('tojson') | join(' | ') }}
  {%- else -%}{{ spec.type | default('any') | upper }}{%- endif -%}
{%- endmacro -%}
{%- if tools %}
# Tools
{%- for tool in tools | selectattr('type', 'equalto', 'function') %}
  {%- set f = tool['function'] %}
{{ loop.index }}. {{ f.name }}(
  {%- for name, spec in f.parameters.properties | dictsort -%}
    {{ name }}: {{ kind(spec) }}{{ ", " if not loop.last }}
  {%- endfor %})
   {{ f | tojson(indent=2) | replace('\\n', '\\n   ') }}
{%- endfor %}
{%- endif %}
    {% for message in messages %}
    {%- if message.role == "system" %}{% continue %}{% endif %}
{{ message.role }}: {{ message.content if message.content is defined else "-" }} {{ message | length }}
    {% if loop.index > 5 %}
        {% break %}
    {% endif %}
    {% endfor %}
"""
SCOPES = """{%- set ns = namespace(last=-1, seen=[]) -%}
{%- for message in messages -%}
  {%- if message.role == 'user' -%}{%- set ns.last = loop.index0 -%}{%- set ns.seen = ns.seen + [message.content | length] -%}{%- endif -%}
{%- endfor -%}
{{ bos_token }}{{ ns.last }}{{ ns.seen }}{{ dict(a=1, b="é") | tojson }}
{% for message in messages %}
{% if message.role == 'assistant' %}
{% generation %}{{ message.content }}{{ eos_token }}{% endgeneration %}
{% else %}{{ message.content | e }}{% endif %}

{% endfor %}
{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}"""
TEMPLATES = {"chatml": CHATML, "headers": HEADERS, "tools": TOOLS, "scopes": SCOPES}

CHAT = [
    {"role": "system", "content": " Be brief, <b>kind</b> & 東京. "},
    {"role": "user", "content": 'What is "1+1"?\n'},
    {"role": "assistant", "content": "2", "reasoning": None},
    {"role": "user", "content": "And 2+2? {{ bos_token }} 🙂"},
]
CALLS = [
    {"role": "user", "content": "Wie ist das Wetter in Köln?"},
    {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": {"city": "Köln", "days": [1, 2]}}}]},
    {"role": "tool", "content": {"°C": 21.5, "rain": None, "sure": True}},
]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": 'Says "how" it is <there>',
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "unit": {"enum": ["°C", "°F"]},
                "days": {"type": "array", "items": {"type": "integer"}},
            },
        },
    },
}


def template(source: str) -> ChatTemplate:
    return ChatTemplate({"default": source}, NAMES)


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tokenizer")
    build("byte-level").save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(NAMES))
    return PreTrainedTokenizerFast.from_pretrained(folder)


@pytest.fixture(scope="module")
def ours() -> Tokenizer:
    return Tokenizer.from_files({"tokenizer.json": build("byte-level").to_str().encode(), "tokenizer_config.json": json.dumps(NAMES).encode()})


CASES = {
    "chat": (CHAT, {"add_generation_prompt": True}),
    "one": (CHAT[1:2], {"enable_thinking": False}),
    "tools": (CALLS, {"tools": [WEATHER], "add_generation_prompt": True}),
}


# pico's template reads the content of every message, which a tool call lacks
@pytest.mark.parametrize(("name", "case"), [(n, c) for n in TEMPLATES for c in CASES if (n, c) != ("chatml", "tools")])
def test_text_and_ids_equal_transformers(name: str, case: str, theirs: Any, ours: Tokenizer) -> None:
    source, (messages, options) = TEMPLATES[name], CASES[case]
    variables = {key: value for key, value in options.items() if key == "enable_thinking"}
    mine = template(source).render(
        messages, tools=options.get("tools"), add_generation_prompt=options.get("add_generation_prompt", False), variables=variables
    )
    assert mine == theirs.apply_chat_template(messages, chat_template=source, tokenize=False, **options)
    ids = theirs.apply_chat_template(messages, chat_template=source, tokenize=True, return_dict=False, **options)
    assert chat_ids(ours, mine) == list(ids)


def test_no_second_bos(ours: Tokenizer) -> None:
    ids = chat_ids(ours, template("{{ bos_token }}{{ messages[0].content }}").render([{"role": "user", "content": "hi"}]))
    assert ids.count(ours.bos_id) == 1


def test_the_clock_is_given() -> None:
    text = template("{{ strftime_now('%Y-%m-%d %H:%M') }}").render([], now=datetime(2031, 2, 3, 4, 5))
    assert text == "2031-02-03 04:05"


def test_pico_continues_as_the_assistant() -> None:
    pico = ChatTemplate.from_files({"tokenizer_config.json": (PICO / "tokenizer_config.json").read_bytes()}, {})
    assert pico.render([{"role": "user", "content": "hi"}]) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_where_the_template_is_found() -> None:
    def found(**files: object) -> str:
        raw = {f"{name}.json": json.dumps(value).encode() for name, value in files.items() if name != "jinja"}
        raw |= {"chat_template.jinja": str(files["jinja"]).encode()} if "jinja" in files else {}
        given = ChatTemplate.from_files(raw, {})
        return given.render([]) + "|" + given.render([], tools=[{}])

    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tool"}]
    assert found(tokenizer_config={"chat_template": "text"}) == "text|text"
    assert found(tokenizer_config={"chat_template": named}) == "plain|tool"
    assert found(tokenizer_config={"chat_template": named}, jinja="file") == "file|file"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "no chat template.*thinc run"),
        ({"tokenizer_config.json": b'{"chat_template": null}'}, "no chat template"),
        ({"tokenizer_config.json": b'{"chat_template": [1]}'}, "neither text nor a list"),
        ({"chat_template.jinja": b"\xff"}, "not UTF-8"),
    ],
)
def test_no_usable_template(files: dict[str, bytes], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ChatTemplate.from_files(files, {})


def test_only_named_otherwise() -> None:
    with pytest.raises(InputError, match="named rag; there is no 'default'"):
        ChatTemplate({"rag": "x"}, {}).render([])


HOSTILE = {
    "attribute": ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "SecurityError"),
    "globals": ("{{ raise_exception.__globals__.sys }}", "SecurityError"),
    "method": ("{{ messages.append(1) }}", "SecurityError"),
    "format": ("{{ '{0.__class__.__init__.x}'.format(messages) }}", "SecurityError"),
    "namespace": ("{% set ns = namespace() %}{% set ns.__class__ = 1 %}", "SecurityError"),
    "import": ("{% include '/etc/passwd' %}", "TypeError|TemplateNotFound|no loader"),
    "range": ("{% for i in range(10**9) %}{% endfor %}", "MAX_RANGE"),
    "nested loops": ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "longer than"),
    "power": ("{{ 10 ** (10 ** 9) }}", "longer than|MemoryError"),
    "doubling": ("{% set ns = namespace(s='a') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}", "longer than|MemoryError"),
    "repeat": ("{{ 'a' * 10**10 }}", "MemoryError"),
    "filter": ("{{ 'a' | center(10**11) }}", "MemoryError|OverflowError"),
    "recursion": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
    "compare": (
        "{% set n = namespace(a=[1], b=[1]) %}{% for i in range(60) %}{% set n.a = [n.a, n.a] %}{% set n.b = [n.b, n.b] %}{% endfor %}"
        "{{ n.a == n.b }}",
        "longer than|RecursionError",
    ),
    "depth": ("{{" + "(" * 3000 + "1" + ")" * 3000 + "}}", "RecursionError|SyntaxError"),
    "output": ("{% for i in range(1000) %}{{ 'a' * 100000 }}{% endfor %}", "grew beyond"),
    "syntax": ("{% if %}", "TemplateSyntaxError: Expected an expression"),
    "undefined": ("{{ nope.x }}", "'nope' is undefined"),
    "refusal": ("{{ raise_exception('no\nsystem role') }}", "TemplateError: no system role"),
    "surrogate": ("{{ '\\ud800' }}", "surrogates not allowed"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_templates_end_in_time(name: str) -> None:
    source, message = HOSTILE[name]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with pytest.raises(InputError, match=f"chat template: .*({message})") as caught:
        template(source).render([{"role": "user", "content": "hi"}])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert spent < 1.5, "processor seconds; wall time would measure the machine's other work"
    assert len(str(caught.value)) < 600


def test_a_process_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "PATIENCE", 0.001)
    with pytest.raises(InputError, match="no text within"):
        template("x").render([])


def test_the_process_sees_only_the_libraries(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A json.py in the current folder or on PYTHONPATH must not run."""
    (tmp_path / "json.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert template("ok").render([]) == "ok"
