"""The command line as a stranger meets it: one clear line for what is wrong, the exit code that
CI needs, the same output for the same seed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvoracle.oracle import cli, console, exits, fleet, scenario
from kvoracle.oracle.commands import explore, fuzz
from kvoracle.oracle.engines import registry

Line = Callable[..., str]
MODULE = [sys.executable, "-m", "kvoracle.oracle.cli"]
HEADER = '{"kvoracle": 1, "name": "x", "config": {"groups": [{"tokens_per_block": 4}]}}'


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Findings and caches go to a folder of the test's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KVORACLE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def bad(capsys: pytest.CaptureFixture[str]) -> Line:
    """``bad(code, *arguments)``: the one line on standard error, and nothing beside it."""

    def run(code: int, *arguments: str) -> str:
        assert cli.main(arguments) == code
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.startswith("kvoracle: ")
        assert said.err.count("\n") == 1 and said.err.endswith("\n")
        return said.err

    return run


# --- bad input --------------------------------------------------------------------------


@pytest.mark.parametrize(("arguments", "says"), [
    ("", "the following arguments are required: COMMAND (see kvoracle --help)"),
    ("chekc", "no command 'chekc'; did you mean check?"),
    ("check --engine imp", "no engine 'imp'; did you mean impl"),
    ("check --engine vllm", "did you mean vllm"),
    ("check --engine vlm==0.30.0", "did you mean vllm==VERSION"),
    ("check --engine vllm==", "did you mean vllm==VERSION"),
    ("check --engine vllm==newest", "'newest' is not a version: write it as in `vllm==0.33.0`"),
    ("check --engine vllm@nowhere", "nowhere is no vLLM checkout: there is no such folder"),
    ("check --engine vllm@.", "there is no vllm/__init__.py in it"),
    ("check --engine model:no-keybound", "no variant 'no-keybound'; did you mean no-key-bound"),
    ("check --engine model:", "no variant ''; there are: advance-on-refusal, "),
    ("check --engine impl --engine x", "no engine 'x'"),
    ("check --scope sed", "no scope 'sed'; did you mean seed"),
    ("check --budget -1", "argument --budget: expected seconds above 0, not '-1'"),
    ("check --budget soon", "argument --budget: expected seconds above 0, not 'soon'"),
    ("check --budget nan", "argument --budget: expected seconds above 0, not 'nan'"),
    ("check --budget inf", "argument --budget: expected seconds above 0, not 'inf'"),
    ("check --seed one", "argument --seed: expected a whole number, not 'one'"),
    ("check --colour", "unrecognized arguments: --colour (see kvoracle --help)"),
    ("check --json nowhere/f.json", "cannot write nowhere/f.json: No such file or directory"),
    ("check --json .", "cannot write .: Is a directory"),
    ("check --json=", "cannot write a file without a name"),
    ("check --out file/below", "cannot write file/below: Not a directory"),
    ("check --out file", "cannot write file: Not a directory"),
    ("prove KeysEqBlock", "no property 'KeysEqBlock'; did you mean KeysEqBlocks"),
    ("prove --variant no-keybound", "no variant 'no-keybound'; did you mean no-key-bound"),
    ("explore --scope sed", "no scope 'sed'; did you mean seed"),
    ("explore --variant x", "no variant 'x'; there are: "),
    ("explore --property NoHoles", "no property 'NoHoles'; did you mean NoHole"),
    ("explore --backend pyton", "no backend 'pyton'; did you mean python or torch?"),
    ("explore --liveness --symmetry", "--liveness needs every state: fairness tells apart what"),
    ("explore --liveness --backend reference",
     "--liveness needs the backend compiled or python, not reference"),
    ("explore --max-states 0", "expected a whole number of at least 1, not '0'"),
    ("explore --max-states many", "expected a whole number of at least 1, not 'many'"),
    ("fuzz", "the following arguments are required: --engine (see kvoracle fuzz --help)"),
    ("fuzz --engine model --profile stor", "no profile 'stor'; did you mean storing?"),
    ("fuzz --engine model --steps -4", "expected a whole number of at least 1, not '-4'"),
    ("replay", "the following arguments are required: FILE"),
    ("replay sed", "no scenario 'sed'; did you mean seed"),
    ("replay nofile.jsonl", "cannot read nofile.jsonl: No such file or directory"),
    ("replay .", "cannot read .: Is a directory"),
    ("replay binary.jsonl", "binary.jsonl:1: expected lines of JSON in UTF-8"),
    ("replay foreign.jsonl", "foreign.jsonl:1: no engine 'mine'"),
    ("replay never.jsonl", "never.jsonl:2: request 'a' never fits"),
    ("engines", "the following arguments are required: list|install|remove"),
    ("engines lst", "invalid choice: 'lst'"),
    ("engines install vllm",
     "no installable engine 'vllm'; did you mean vllm>=VERSION or vllm==VERSION?"),
    ("engines install vllm==1", "'1' is not a version"),
    ("engines remove impl", "no installable engine 'impl'"),
])
def test_bad_input_is_one_line_and_exit_2(arguments: str, says: str, bad: Line) -> None:
    Path("file").write_text("")
    Path("binary.jsonl").write_bytes(bytes(range(128, 256)))
    Path("foreign.jsonl").write_text(HEADER.replace(
        '"config"', '"found": {"engine": "mine", "property": "", "because": ""}, "config"'))
    Path("never.jsonl").write_text(
        HEADER + '\n{"do": "arrive", "r": "a", "prompt": [[0, 1000]]}\n')
    assert says in bad(exits.USAGE, *arguments.split())


@pytest.mark.parametrize("arguments", [
    "replay seed --engine vllm==0.30.0", "fuzz --engine vllm==9.9.9",
    "engines remove vllm==0.30.0",
])
def test_an_engine_that_is_not_installed_is_exit_3_and_says_what_to_do(
        arguments: str, bad: Line) -> None:
    assert "is not installed: run `kvoracle engines install vllm==" in bad(
        exits.UNJUDGED, *arguments.split())


def test_a_cache_that_cannot_be_used_is_one_line(
        bad: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("file").write_text("")
    monkeypatch.setenv("KVORACLE_CACHE", "file")
    said = bad(exits.USAGE, "engines", "install", "vllm==0.30.0")
    assert "cannot use file/vllm: Not a directory" in said and "KVORACLE_CACHE" in said


def test_a_run_that_only_this_engine_cannot_do_is_exit_3(bad: Line) -> None:
    caching = HEADER.replace("}]}", '}], "gpu_prefix_caching": true}')
    Path("caching.jsonl").write_text(caching + '\n{"do": "step"}\n')
    said = bad(exits.UNJUDGED, "replay", "caching.jsonl", "--engine", "model")
    assert "caching.jsonl: model cannot do this run: " in said


def test_a_message_of_several_lines_is_told_in_one(
        bad: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise exits.UserError("first\nsecond", exits.UNJUDGED)

    monkeypatch.setattr(fuzz, "open_engine", fails)
    assert bad(exits.UNJUDGED, "fuzz", "--engine", "model") == "kvoracle: first second\n"


@pytest.mark.parametrize("arguments", ["--help", "check --help", "--version"])
def test_help_is_no_error(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments.split()) == exits.HOLDS
    assert "kvoracle" in capsys.readouterr().out


def test_every_command_of_the_grammar_is_a_module_and_known() -> None:
    grammar = cli.parser()
    (commands,) = (a for a in grammar._actions if a.dest == "command")
    assert tuple(commands.choices or ()) == cli.COMMANDS
    folder = Path(fuzz.__file__).parent
    assert set(cli.COMMANDS) <= {p.stem for p in folder.glob("[a-z]*.py")}


# --- exit codes of a search -------------------------------------------------------------


def test_the_limit_of_states_is_exit_3_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explore", "--max-states", "50"]) == exits.UNJUDGED
    said = capsys.readouterr().out
    assert "not everything was searched: the limit of 50 states was reached" in said
    assert "holds so far" in said


def test_a_scope_searched_to_its_end_is_exit_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explore"]) == exits.HOLDS
    assert "holds so far" not in capsys.readouterr().out


def test_a_property_without_meaning_in_the_scope_is_not_said_to_hold(
        capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explore", "--property", "TailNotHeld"]) == exits.UNJUDGED
    assert "not judged" in capsys.readouterr().out


def test_all_scopes_and_one_twice_are_each_searched_once(
        capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["explore", "--scope", "seed", "--scope", "seed", "--max-states", "5",
                 "--backend", "python"]
    assert cli.main(arguments) == exits.UNJUDGED
    assert capsys.readouterr().out.count("scope seed,") == 1
    assert cli.main([*arguments, "--scope", "all"]) == exits.UNJUDGED
    assert capsys.readouterr().out.count("scope seed,") == 1


def test_the_replay_line_of_a_broken_design_finds_the_same_run(
        capsys: pytest.CaptureFixture[str]) -> None:
    proof = ["prove", "KeysEqBlocks", "--variant", "no-key-bound", "--json", "f.json"]
    assert cli.main(proof) == exits.VIOLATION
    said = capsys.readouterr().out
    document = json.loads(Path("f.json").read_text())
    assert (document["kvoracle"], document["exit_code"]) == (1, exits.VIOLATION)
    assert document["counterexamples"]["KeysEqBlocks"]["scope"] == "seed"
    (line,) = re.findall(r"^replay: kvoracle (.*)$", said, re.M)
    run = re.findall(r"^ {2,4}\d+  .*$", said, re.M)
    assert run
    assert cli.main(line.split()) == exits.VIOLATION
    assert re.findall(r"^ {2,4}\d+  .*$", capsys.readouterr().out, re.M) == run


def test_a_search_that_has_no_room_is_exit_3(bad: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    def search(*_: Any, **__: Any) -> Any:
        raise explore.OutOfMemory("no room for more states")

    monkeypatch.setattr(explore, "search", search)
    assert "no room for more states" in bad(exits.UNJUDGED, "explore")


# --- Ctrl-C, readers that go away, full disks -------------------------------------------


def test_ctrl_c_is_one_line(bad: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(explore, "search", interrupted)
    assert bad(exits.INTERRUPTED, "explore") == "kvoracle: interrupted\n"


@pytest.mark.parametrize(("engine", "after", "code"), [
    ("model", 3, exits.INTERRUPTED), ("model:no-token-bound", 150, exits.VIOLATION)])
def test_what_was_found_before_ctrl_c_is_reported(
        engine: str, after: int, code: int, capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch) -> None:
    starts = 0

    def open_engine(name: str) -> Any:
        opened = registry.open_engine(name)
        start = opened.start

        def counted(config: Any) -> Any:
            nonlocal starts
            starts += 1
            if starts == after + 1:
                raise KeyboardInterrupt
            return start(config)

        monkeypatch.setattr(opened, "start", counted)
        return opened

    monkeypatch.setattr(fleet, "open_engine", open_engine)
    assert cli.main(["fuzz", "--engine", engine, "--steps", "999999", "--json", "f"]) == code
    said = capsys.readouterr().out
    assert "not everything was run: interrupted" in said
    assert ("breaks NoVolatileStore" in said) == (code == exits.VIOLATION)
    assert json.loads(Path("f").read_text())["stopped"] == "interrupted"


@pytest.mark.parametrize(("arguments", "code"), [
    ("prove KeysEqBlocks", exits.HOLDS),
    ("explore --variant no-key-bound", exits.VIOLATION),
    ("explore --max-states 9 --json -", exits.UNJUDGED),
    ("--help", exits.HOLDS),
])
def test_a_reader_that_goes_away_changes_no_exit_code(arguments: str, code: int) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    with os.fdopen(writes, "w") as pipe:
        done = subprocess.run([*MODULE, *arguments.split()], stdout=pipe, stderr=subprocess.PIPE,
                              text=True, check=False)
    assert done.returncode == code
    assert "Traceback" not in done.stderr and "Broken" not in done.stderr


def test_both_readers_may_go_away() -> None:
    reads, writes = os.pipe()
    os.close(reads)
    with os.fdopen(writes, "w") as pipe:
        done = subprocess.run([*MODULE, "explore"], stdout=pipe, stderr=pipe, check=False)
    assert done.returncode == exits.HOLDS


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_told() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([*MODULE, "explore"], stdout=full, stderr=subprocess.PIPE, text=True,
                              check=False)
    assert done.returncode == exits.USAGE
    assert done.stderr.splitlines()[-1] == \
        "kvoracle: cannot write standard output: No space left on device"
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_document_that_cannot_be_written_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explore", "--json", "/dev/full"]) == exits.USAGE
    assert "kvoracle: cannot write /dev/full: No space left" in capsys.readouterr().err


def test_names_that_the_terminal_cannot_show_are_escaped() -> None:
    Path("names.jsonl").write_text(
        HEADER + '\n{"do": "arrive", "r": "été", "prompt": [[0, 4]]}\n'
        '{"expect": {"r": "été", "jobs": 7}}\n', encoding="utf-8")
    done = subprocess.run(
        [*MODULE, "replay", "names.jsonl", "--engine", "model"], capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"}, check=False)
    assert done.returncode == exits.VIOLATION, done.stderr
    assert rb"\xe9t\xe9" in done.stdout


# --- machine-readable documents ---------------------------------------------------------

DOCUMENTS = {
    "prove KeysEqBlocks": exits.HOLDS,
    "explore --scope seed --scope limits": exits.HOLDS,
    "explore --variant no-exclusion": exits.VIOLATION,
    "fuzz --engine model --steps 240": exits.HOLDS,
    "fuzz --engine model:no-exclusion --steps 240": exits.VIOLATION,
    "replay seed --engine model": exits.HOLDS,
    "replay seed --engine model:no-key-bound": exits.VIOLATION,
}


@pytest.mark.parametrize("arguments", DOCUMENTS)
def test_a_document_says_what_the_text_says(
        arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = DOCUMENTS[arguments]
    assert cli.main([*arguments.split(), "--json", "f.json"]) == code
    text = capsys.readouterr().out
    document = json.loads(Path("f.json").read_text())
    assert document["kvoracle"] == 1
    assert document["kind"] == arguments.split()[0]
    assert document["exit_code"] == code
    findings = document.get("findings", [document["finding"]] if document.get("finding") else [])
    for finding in findings:
        assert f"breaks {finding['property']}" in text
        assert f"replay: {finding['replay']}" in text
    assert text.count("\nreplay: ") == len(findings) + len(
        document.get("counterexamples", {})) + sum(
        len(r["violations"]) for r in document.get("results", ()))
    for result in document.get("results", ()):
        for name, times in result["evaluated"].items():
            assert re.search(rf"^{name} +(holds|broken).* {times:,} ", text, re.M)


@pytest.mark.parametrize("arguments", DOCUMENTS)
def test_a_document_on_standard_output_is_alone_there(
        arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*arguments.split(), "--json", "-"]) == DOCUMENTS[arguments]
    said = capsys.readouterr()
    assert json.loads(said.out)["kvoracle"] == 1
    assert said.err
    assert cli.main(arguments.split()) == DOCUMENTS[arguments]
    assert len(capsys.readouterr().out) > 100 or arguments == "replay seed --engine model"


# --- nothing but the seed matters -------------------------------------------------------

FEW_RUNS = ("import sys; from kvoracle.oracle import cli; from kvoracle.oracle.commands import "
            "check; check.RUNS = 3; check.DEFAULT_SCOPES = ('seed', 'draft'); "
            "sys.exit(cli.main(sys.argv[1:]))")


@pytest.mark.parametrize("arguments", [
    "check --engine model --engine model:no-block-bound",
    "fuzz --engine model:rewind-at-clear --steps 480 --seed 3",
    "fuzz --engine impl --steps 240 --profile resets",
    "replay seed --engine model:no-key-bound",
    "explore --scope draft --variant no-exclusion",
    "prove KeysEqBlocks",
])
def test_the_same_seed_gives_the_same_bytes_in_every_process(arguments: str) -> None:
    running = [
        subprocess.Popen(
            [sys.executable, "-c", FEW_RUNS, *arguments.split()], stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, env={**os.environ, "PYTHONHASHSEED": seed})
        for seed in ("1", "2")
    ]
    said = [process.communicate() for process in running]
    codes = {process.returncode for process in running}
    assert len(codes) == 1 and codes <= {0, 1}, said
    first, second = (
        re.sub(rb"\d+\.\d{3} s", b"", out) if arguments.startswith("prove") else out
        for out, _ in said)
    assert first == second
    assert len(first) > 90


def test_another_seed_gives_another_run(capsys: pytest.CaptureFixture[str]) -> None:
    said = set()
    for seed in ("0", "1", "-1"):
        assert cli.main(["fuzz", "--engine", "model", "--steps", "240", "--seed", seed]) == 0
        said.add(capsys.readouterr().out)
    assert len(said) == 3


# --- light commands ---------------------------------------------------------------------


@pytest.mark.parametrize(("arguments", "code"), [
    ("--help", 0), ("--version", 0), ("engines list", 0), ("engines install vllm", 2),
    ("explore --max-states 5", 3), ("replay seed --engine model", 0), ("chekc", 2),
    ("replay seed --engine vllm==0.30.0", 3),
])
def test_what_needs_neither_torch_nor_a_solver_imports_neither(arguments: str, code: int) -> None:
    script = (
        "import sys; from kvoracle.oracle.cli import main; code = main(sys.argv[1:]); "
        "print(code, *sorted({'torch', 'z3', 'numba'} & sys.modules.keys()))")
    done = subprocess.run([sys.executable, "-c", script, *arguments.split()], capture_output=True,
                          text=True, check=True)
    assert done.stdout.splitlines()[-1] == str(code)


# --- what is printed --------------------------------------------------------------------


def test_engines_that_can_be_had_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["engines", "list"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"^impl +.* ready$", said, re.M)
    assert "no release of vLLM is installed: kvoracle engines install vllm==" in said


def test_a_budget_too_small_for_one_run_is_exit_3(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["fuzz", "--engine", "model", "--budget", "0.000000001"]) == exits.UNJUDGED
    assert "the budget is too small" in capsys.readouterr().out


def test_cells_of_several_lines_stay_in_their_column() -> None:
    assert console.table(("a", "bb"), [("1\n22", "x"), ("3", "y\nz")]).split("\n") == [
        "a   bb", "--  --", "1   x", "22", "3   y", "    z"]


def test_progress_leaves_nothing_on_a_terminal(
        capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    status = console.Status()
    status.show("a long line")
    status.show("short")
    status.clear()
    said = capsys.readouterr().err
    screen = ""
    for part in said.split("\r"):
        screen = part + screen[len(part):]
    assert "short" in said and screen.strip() == ""


def test_a_log_gets_no_line_of_progress_for_what_is_quick(
        capsys: pytest.CaptureFixture[str]) -> None:
    console.Status().show("working")
    assert capsys.readouterr().err == ""


def test_shipped_scenarios_are_found_by_name_and_by_file(
        capsys: pytest.CaptureFixture[str]) -> None:
    Path("copy.jsonl").write_text(scenario.named("seed").text())
    assert cli.main(["replay", "copy.jsonl", "--engine", "model"]) == 0
    by_file = capsys.readouterr().out
    assert cli.main(["replay", "seed", "--engine", "model"]) == 0
    assert capsys.readouterr().out == by_file
