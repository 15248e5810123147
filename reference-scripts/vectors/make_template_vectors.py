#!/usr/bin/env python3
"""Makes tests/data/serve/templates.json: what transformers makes of conversations by chat templates.

    pip install transformers==5.0.0 jinja2        # any newer version; no weights are needed
    python3 reference-scripts/vectors/make_template_vectors.py

The templates are of the kinds that models ship with, written for this purpose.
What transformers refuses has an error in place of a text.
"""

import argparse
import json
from pathlib import Path

import transformers
from jinja2.exceptions import TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

OUT = Path(__file__).resolve().parents[2] / "tests" / "data" / "serve" / "templates.json"
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}

CHATML = """{%- for message in messages -%}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|im_start|>assistant\\n' -}}
{%- endif -%}"""

SMOL = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nYou are a helpful AI assistant<|im_end|>\\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

LLAMA2 = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
    "{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}"
    "{% set system_message = false %}{% endif %}{% for message in loop_messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if loop.index0 == 0 and system_message != false %}"
    "{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}"
    "{% else %}{% set content = message['content'] %}{% endif %}"
    "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)

LLAMA3 = """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

GEMMA = (
    "{{ bos_token }}{%- if messages[0]['role'] == 'system' -%}{%- set first_user_prefix = messages[0]['content'] + '\\n\\n' -%}"
    '{%- set loop_messages = messages[1:] -%}{%- else -%}{%- set first_user_prefix = "" -%}'
    "{%- set loop_messages = messages -%}{%- endif -%}{%- for message in loop_messages -%}"
    "{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}"
    '{{ raise_exception("Conversation roles must alternate") }}{%- endif -%}'
    "{%- if (message['role'] == 'assistant') -%}{%- set role = \"model\" -%}{%- else -%}"
    "{%- set role = message['role'] -%}{%- endif -%}"
    "{{ '<start_of_turn>' + role + '\\n' + (first_user_prefix if loop.first else \"\") }}"
    "{%- if message['content'] is string -%}{{ message['content'] | trim }}{%- endif -%}{{ '<end_of_turn>\\n' }}"
    "{%- endfor -%}{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}"
)

QWEN3 = """{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and not(message.content.startswith('<r>') and message.content.endswith('</r>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content %}
    {%- if message.role == "assistant" and '</think>' in content %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{{- ns.last_query_index }}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

BLOCKS = """{# a comment #}
{% for message in messages %}
    {% if loop.last %}
last {{ message.role }}
    {% else %}
  {{ message.role | upper }} {{ loop.index }}/{{ loop.length }}
    {% endif %}
{% endfor %}
{% if add_generation_prompt %}
go:
{% endif %}
"""

JSON = (
    "{{ messages | tojson }}|{{ messages[0] | tojson(indent=2) }}|{{ 'é<&>\"' | tojson }}|{{ none | tojson }}|"
    "{{ [1, 2.5, true] | tojson }}"
)

METHODS = (
    "{% for m in messages %}{% if m.role == 'skip' %}{% continue %}{% endif %}{{ m.content.strip().title() }}|"
    "{{ m.get('name', 'nobody') }}|{% for k, v in m.items() %}{{ k }}={{ v }};{% endfor %}|"
    "{{ m.content.replace('a', 'b').upper() }}|{{ m.content | length }}|{{ missing }}|"
    "{% if m.role == 'stop' %}{% break %}{% endif %}{% endfor %}"
)

TALK = [
    {"role": "user", "content": "  Hello, é 🙂 there "},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHi!"},
    {"role": "user", "content": "Tell a\ntale."},
]
SYSTEM = [{"role": "system", "content": "Be brief."}]


def cases():
    """Name, template, messages, options."""
    kinds = {"chatml": CHATML, "smol": SMOL, "llama2": LLAMA2, "llama3": LLAMA3, "gemma": GEMMA, "qwen3": QWEN3, "blocks": BLOCKS}
    for name, template in kinds.items():
        yield name, template, TALK, {"add_generation_prompt": True}
        yield f"{name} with a system prompt", template, SYSTEM + TALK, {"add_generation_prompt": True}
        yield f"{name} without a prompt for more", template, TALK, {}
    yield "roles do not alternate", LLAMA2, [TALK[0], TALK[0]], {}
    yield "qwen3 without thinking", QWEN3, TALK, {"add_generation_prompt": True, "enable_thinking": False}
    yield "llama3 with a date", LLAMA3, TALK, {"date_string": "1 Jan 2026"}
    yield "the last message goes on", CHATML, TALK[:2], {"continue_final_message": True}
    yield (
        "one with spaces at its end goes on",
        LLAMA2,
        [TALK[0], {"role": "assistant", "content": "Well, "}],
        {"continue_final_message": True},
    )
    yield "json", JSON, [{"content": 'a "b" é\n', "role": "user"}], {}
    named = [{"content": " an apple ", "name": "Eve", "role": "user"}, {"content": "x", "role": "skip"}]
    yield "methods of Python", METHODS, [*named, {"content": "aha", "role": "stop"}, {"content": "y", "role": "user"}], {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT)
    vectors = []
    for name, template, messages, options in cases():
        own = {key: options.get(key, False) for key in ("add_generation_prompt", "continue_final_message")}
        more = {key: value for key, value in options.items() if key not in own}
        vector = {"name": name, "template": template, "messages": messages, "kwargs": more, **own}
        try:
            rendered, _ = render_jinja_template([messages], chat_template=template, **own, **more, **TOKENS)
            vector["expected"] = rendered[0]
        except TemplateError as refused:
            vector["error"] = str(refused)
        vectors.append(vector)
    arguments = parser.parse_args()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(vectors, ensure_ascii=False, indent=1) + "\n")
    print(f"{len(vectors)} vectors of transformers {transformers.__version__} in {arguments.out}")


if __name__ == "__main__":
    main()
