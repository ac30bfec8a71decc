"""The command as a whole: help, one-sentence errors, exit codes, closed pipes, locales."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import nanoinfer
from nanoinfer import cli
from nanoinfer.cli import options
from nanoinfer.llm import LLM
from nanoinfer.model.config import ModelConfig
from nanoinfer.model.gpt2 import GPT2
from nanoinfer.model.weights import random_model

# What a person's environment is like: output is buffered, and so fails once more when the interpreter ends.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
ENVIRONMENT |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
TINY = ModelConfig(n_layer=2, n_head=2, n_embd=16, n_positions=128, vocab_size=50257)


posix = pytest.mark.skipif(sys.platform == "win32", reason="signals, pipes and byte arguments are POSIX's")


class Result(NamedTuple):
    code: int
    out: str
    err: str


def invoke(capsys: pytest.CaptureFixture[str], *arguments: str) -> Result:
    """Run a command line in this process."""
    capsys.readouterr()
    code = cli.run(arguments)
    return Result(code, *capsys.readouterr())


def start(*arguments: str, **more: object) -> subprocess.Popen[bytes]:
    """A real process."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": ENVIRONMENT}
    return subprocess.Popen([sys.executable, *arguments], **(pipes | more))  # type: ignore[call-overload]


def use_model(monkeypatch: pytest.MonkeyPatch, model: GPT2) -> None:
    """Every name of a model means this one."""

    def make(
        asked: object, *, device: object = None, dtype: object = None, revision: object = None, **more: object
    ) -> LLM:
        return LLM(asked if isinstance(asked, GPT2) else model, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(options, "LLM", make)


def assert_refused(result: Result, *parts: str, code: int = 2) -> None:
    """One sentence on standard error, and nothing else anywhere."""
    assert (result.code, result.out) == (code, "")
    assert result.err.startswith("nanoinfer: ")
    assert result.err.count("\n") == 1
    assert result.err.endswith("\n")
    for part in parts:
        assert part in result.err


@pytest.fixture(scope="module")
def tiny() -> GPT2:
    return random_model(TINY, 0)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(capsys, "--version") == (0, f"nanoinfer {nanoinfer.__version__}\n", "")


def test_no_arguments_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    bare, asked = invoke(capsys), invoke(capsys, "--help")
    assert bare == asked
    assert bare.code == 0
    for word in ("generate", "shell", "doctor", "Examples"):
        assert word in bare.out


def test_a_group_alone_is_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    result = invoke(capsys, "course")
    assert "Usage: nanoinfer course" in result.out
    assert result.err == ""


@pytest.mark.parametrize("command", ["generate", "shell", "doctor", "read"])
def test_help_of_a_command_has_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    result = invoke(capsys, command, "--help")
    assert result.code == 0
    assert f"nanoinfer {command}" in result.out.split("Examples")[1]


def test_help_says_the_limit_of_input(capsys: pytest.CaptureFixture[str]) -> None:
    from nanoinfer.cli.prompts import LIMIT_MIB

    assert f"{LIMIT_MIB} MiB" in invoke(capsys, "generate", "--help").out


REFUSED = [
    (["generate", ""], "empty"),
    (["generate", "word " * 300, "-m", "random:tiny"], "context is 256"),
    (["generate", "x", "-n", "0"], "--max-tokens must be"),
    (["generate", "x", "-n", "1.5"], "--max-tokens"),
    (["generate", "x", "--temperature", "nan"], "--temperature must be", "not nan"),
    (["generate", "x", "--temperature", "inf"], "--temperature must be"),
    (["generate", "x", "--temperature", "-1"], "--temperature must be"),
    (["generate", "x", "--temperature", "warm"], "--temperature"),
    (["generate", "x", "--greedy", "--temperature", "0.5"], "--greedy", "contradicts"),
    (["generate", "x", "--top-p", "0"], "--top-p must be"),
    (["generate", "x", "--top-p", "nan"], "--top-p must be"),
    (["generate", "x", "--top-k", "-1"], "--top-k must be"),
    (["generate", "x", "--seed", "-1"], "--seed must be"),
    (["generate", "x", "--stop", ""], "--stop must"),
    (["generate", "x", "--stop-token-id", "-1"], "--stop-token-id must"),
    (["generate", "x", "--engine", "warp"], "--engine must be auto", "'warp'"),
    (["generate", "x", "--device", "tpu"], "--device must be cpu"),
    (["generate", "x", "--dtype", "int8"], "--dtype must be one of float32"),
    (["generate", "x", "--max-len", "1"], "--max-len must be"),
    (["generate", "x", "--max-len", "257", "-m", "random:tiny"], "--max-len must be at most", "256"),
    (["generate", "x", "--max-batch", "0"], "--max-batch must be"),
    (["generate", "x", "-m", "gtp2"], "no model 'gtp2'", "gpt2?"),
    (["generate", "x", "-m", "random:huge"], "no model 'random:huge'"),
    (["generate", "x", "-m", ""], "--model"),
    (["generate", "x", "-m", "./nope"], "./nope"),
    (["generate", "x", "--revision", ""], "--revision"),
    (["generate", "x", "-q", "-v"], "--quiet", "--verbose"),
    (["generate", "x", "--bogus"], "--bogus"),
    (["generate", "x", "-n"], "-n"),
    (["generate", "two", "words"], "quotes"),
    (["generate", "--file", "nope.txt"], "nope.txt cannot be read"),
    (["generate", "x", "--file", "y"], "two prompts"),
    (["generate", "-", "--file", "y"], "two prompts"),
    (["shell", "--top-k", "-1"], "--top-k must be"),
    (["shell", "-m", "gtp2"], "gtp2"),
    (["frobnicate"], "frobnicate"),
]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: " ".join(case[0])[:40])
def test_a_bad_argument_is_refused_in_one_sentence(
    case: tuple[list[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, *parts = case
    assert_refused(invoke(capsys, *arguments), *parts)


def test_nothing_heavy_is_imported_to_refuse() -> None:
    program = (
        "import sys, nanoinfer.cli as cli\n"
        "names = (['x', option, 'y'] for option in ('--model', '--device', '--dtype', '--engine'))\n"
        "bad = [['x', '--top-p', '2'], [''], ['x ' * 999, '-m', 'random:tiny'], *names]\n"
        "codes = [cli.run(['generate', *arguments]) for arguments in bad]\n"
        "heavy = {'torch', 'transformers', 'prompt_toolkit', 'triton'} & set(sys.modules)\n"
        "print(codes, sorted(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=ENVIRONMENT, check=True)
    assert done.stdout == f"{[2] * 7} []\n"
    assert done.stderr.count("\n") == 7


def test_cuda_is_refused_where_there_is_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert_refused(invoke(capsys, "generate", "x", "--device", "cuda"), "cuda", "use device cpu")


@pytest.mark.parametrize(
    ("content", "part"), [(None, "model.safetensors"), (b"", "config.json"), (b"not weights", "config.json")]
)
def test_a_folder_without_weights_is_refused(
    content: bytes | None, part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / "model.safetensors").write_bytes(content)
    assert_refused(invoke(capsys, "generate", "x", "-m", str(tmp_path)), part)


def test_what_the_user_typed_is_neither_markup_nor_control(capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--model", "--file"):
        result = invoke(capsys, "generate", option, "./[bold]a\x1b[31m\n\u202e", *["x"] * (option == "--model"))
        assert_refused(result, "[bold]a")
        assert not set("\x1b\u202e") & set(result.err)


def test_a_warning_is_one_sentence() -> None:
    program = "import warnings; from nanoinfer import cli; cli.run = lambda _: warnings.warn('slow here'); cli.main()"
    out, err = start("-c", program).communicate()
    assert (out, err) == (b"", b"nanoinfer: slow here\n")


class OutOfMemoryError(RuntimeError):
    """Has the name of torch's."""


@pytest.mark.parametrize(
    ("error", "part"),
    [
        (OutOfMemoryError("CUDA out of memory. Tried\nto allocate"), "out of memory (CUDA"),
        (RuntimeError("first line\nsecond line"), "RuntimeError: first line"),
        (ValueError("from deep inside"), "ValueError: from deep inside"),
        (KeyError(), "KeyError"),
    ],
)
def test_a_failure_at_work_is_one_sentence_too(
    error: Exception, part: str, tiny: GPT2, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    use_model(monkeypatch, tiny)

    def fail(*arguments: object) -> None:
        raise error

    monkeypatch.setattr(GPT2, "forward", fail)
    monkeypatch.delenv("NANOINFER_TRACEBACK", raising=False)
    assert_refused(invoke(capsys, "generate", "x", "--json", "-m", "gpt2"), part, code=1)
    assert invoke(capsys, "generate", "x").out == "x\n"
    monkeypatch.setenv("NANOINFER_TRACEBACK", "1")
    assert "Traceback" in invoke(capsys, "generate", "x", "-q").err


def test_a_broken_torch_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise OSError('libtorch.so is gone')")
    environment = ENVIRONMENT | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ENVIRONMENT['PYTHONPATH']}"}
    process = start("-m", "nanoinfer", "generate", "x", env=environment)
    out, err = process.communicate()
    assert_refused(Result(process.returncode, out.decode(), err.decode()), "libtorch.so", "doctor", code=1)


@posix
@pytest.mark.parametrize(
    "arguments",
    [["generate", "x", "-q"], ["doctor"], ["read", "1", "--terminal"], ["--version"], ["--help"]],
    ids=" ".join,
)
def test_a_closed_pipe_ends_silently(arguments: list[str]) -> None:
    """Rich, which prints the help, has an exit code of its own; without it, which old typers are, the help is plain."""
    if arguments == ["--help"]:
        ends_silently(start("-m", "nanoinfer", *arguments), 1)
        ends_silently(start("-m", "nanoinfer", *arguments, env=ENVIRONMENT | {"TYPER_USE_RICH": "0"}), 141)
    else:
        ends_silently(start("-m", "nanoinfer", *arguments), 141)


def ends_silently(process: subprocess.Popen[bytes], code: int) -> None:
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()  # before anything can have been written: the interpreter itself takes longer to start
    err = process.stderr.read().decode()
    process.stderr.close()
    assert err == ""
    assert process.wait() == code


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_sentence() -> None:
    with Path("/dev/full").open("wb") as full:
        process = start("-m", "nanoinfer", "generate", "x", "-n", "2", "-q", stdout=full)
        _, err = process.communicate()
    assert (process.returncode, err.count(b"\n")) == (1, 1)
    assert err.startswith(b"nanoinfer: standard output cannot be written")


@posix
def test_output_is_utf8_where_the_locale_is_c() -> None:
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    prompt = "caf\u00e9 \u4e2d"
    process = start("-m", "nanoinfer", "generate", prompt.encode(), "-n", "1", "-q", env=ENVIRONMENT | ascii_only)
    out, err = process.communicate()
    assert (process.returncode, err) == (0, b"")
    assert out.decode().startswith(prompt)


@posix
def test_an_argument_that_is_no_utf8_is_refused() -> None:
    process = start("-m", "nanoinfer", "generate", b"a\xff", "-q")
    out, err = process.communicate()
    assert_refused(Result(process.returncode, out.decode(), err.decode()), "not UTF-8", "0xff")
