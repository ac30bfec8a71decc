"""What a user can ask for: every option of every command, its default, and that its help says something."""

from __future__ import annotations

from typing import Any

import pytest
import typer

from nanoinfer.cli import app
from nanoinfer.cli.options import with_options
from nanoinfer.docstrings import described

SAMPLING = """--max-tokens/-n=128 --temperature=0.8 --top-k=40 --top-p=1.0 --greedy --seed=<a new one each time>"""
DRAFTS = """--speculate=nobody --draft-tokens=4 /--all-drafts=<as many as are faster>"""
MODEL = f"""--model/-m=small --revision --engine=auto --device=<a GPU where there is one>
--dtype=<float32 on a CPU, 16 bits on a GPU> --max-len=<the model's own>
--threads=<what is fastest, tried again and again as it runs> {DRAFTS}"""
BATCH = f"""{MODEL} --max-batch=<64, or as many dense rows as half of the free memory holds>
--max-graph-batch=<what memory allows> --tensor-parallel=1"""
SEEN = {
    "generate": f"""prompt --file/-f --lines --echo/--no-echo=True --json --show-steps --quiet/-q --verbose/-v
{SAMPLING} --stop --stop-token-id --ignore-eos {BATCH} --mine""",
    "batch": f"""file=required --out/-o=required --shard=1000 --replicas=1 --workers=<no Ray> --quiet/-q {SAMPLING}
--stop --ignore-eos {BATCH}""",
    "shell": f"--quiet/-q --draft {SAMPLING} {MODEL}",
    "doctor": "--json",
    "serve": f"""--host=127.0.0.1 --port=8000 --api-key --name=<the model's> --replicas=1 --watch --watch-texts
--classroom --queue=256 --connections=1024 --max-body=1048576 --max-prompt-tokens=<the context>
--max-tokens=<none, the context ends a text> --max-rows=128 --max-stops=4 --max-stop-length=256 --request-timeout=600.0
--body-timeout=30.0 --stall-timeout=30.0 --hang-timeout=120.0 --drain-timeout=30.0 {BATCH}""",
    "watch": f"""prompt --file/-f --out/-o=watch.html --texts --every=0.0 --kv-blocks=<what the rows need> {SAMPLING}
{BATCH}""",
}


def shown(option: Any) -> str:
    """An option as in SEEN: its names, and the default that --help tells."""
    names = "/".join([*(option.opts or [""]), *option.secondary_opts])
    default = "required" if option.required else option.default
    if isinstance(option.show_default, str):
        default = f"<{option.show_default}>" if " " in option.show_default else option.show_default
    return names if default is None or default is False else f"{names}={default}"


@pytest.mark.parametrize("name", SEEN)
def test_every_option_is_there_with_its_default_and_a_help(name: str) -> None:
    command = typer.main.get_group(app).commands[name]
    assert " ".join(map(shown, command.params)) == SEEN[name].replace("\n", " ")
    assert [option.name for option in command.params if len(option.help or "") < 8] == []
    assert command.help
    assert f"nanoinfer {name}" in (command.epilog or "")


def function(first: str, *, several: list[int] | None = None, loud: bool = True, as_json: bool = False) -> None:
    """Do something, and no more than
    that: it is enough.

    first NAME: a name, which
    goes on.
    several: numbers. None: three of them.
    loud: whether it is loud.
    as_json: for programs.

    Examples:
    one: two
    """


def test_a_docstring_is_all_that_an_option_needs() -> None:
    lead, told, examples = described(function)
    assert (lead, examples) == ("Do something, and no more than\nthat: it is enough.", "one: two")
    assert told["first"] == ("NAME", "A name, which goes on.", "")
    app = typer.Typer(add_completion=False)
    app.command()(with_options()(function))
    made = typer.main.get_command(app).params
    assert list(map(shown, made)) == ["first=required", "--several=<three of them>", "--loud/--no-loud=True", "--json"]
    assert made[0].help == "A name, which goes on."
    assert made[1].help == "Numbers. May be given again."
