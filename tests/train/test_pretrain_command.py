"""`albertkit pretrain` as people type it: what it says, what it writes, and how it refuses."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from albertkit.cli import entry_point as cli
from albertkit.model import AlbertModel
from albertkit.tokenizer import Tokenizer
from albertkit.train.train_settings import PretrainSettings, TrainSettings
from tests.conftest import tiny
from tests.train.conftest import write_shards


@pytest.fixture
def say(monkeypatch, capsys):
    """Run a command in this process: exit code, stdout, stderr."""

    def run(*args) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["albertkit", *(str(a) for a in args)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return (ended.value.code, *capsys.readouterr())

    return run


@pytest.fixture
def shape(bench, tmp_path) -> Path:
    path = tmp_path / "shape.json"
    path.write_text(json.dumps(bench.config.to_dict()))
    return path


QUICK = ("--lengths", "16", "--batch-size", "4", "--device", "cpu", "--eval-rows", "16", "--no-tensorboard")


def test_a_whole_run(bench, shape, tmp_path, say):
    code, out, err = say("pretrain", bench.shards, "-o", tmp_path / "run", "--shape", shape, "--steps", 3, *QUICK)
    assert code == 0, err
    found = json.loads(out)
    assert found["model"] == str(tmp_path / "run" / "model") and found["tokens"] == 3 * 4 * 16
    assert 0 < found["mlm_loss"] < 6
    assert {p.name for p in (tmp_path / "run").iterdir()} == {
        ".lock", "checkpoints", "metrics.jsonl", "settings.json", "model",
    }  # fmt: skip
    code, out, err = say("fill", "one cat [MASK] cow .", "-m", tmp_path / "run" / "model")
    assert code == 0 and out


def test_a_dry_run_writes_nothing(bench, shape, tmp_path, say):
    before = sorted(tmp_path.rglob("*"))
    code, out, err = say(
        "pretrain", bench.shards, "-o", tmp_path / "run", "--shape", shape, "--steps", 3, *QUICK, "--dry-run"
    )
    assert code == 0, err
    assert sorted(tmp_path.rglob("*")) == before
    told = dict(line.rsplit(maxsplit=1) for line in out.splitlines())
    assert told["vocabulary"] == "56" and told["tokens per step"] == "64" and told["steps"] == "3"
    config = bench.config.replace(vocab_size=56)
    from albertkit.model.albert_model import build_head

    model = AlbertModel(config, {name: build_head(name, config) for name in ("mlm", "sop")})
    assert told["parameters"] == f"{sum(p.numel() for p in model.parameters()):,}"


def test_without_a_budget_it_says_how_long(bench, shape, tmp_path, say):
    code, _, err = say("pretrain", bench.shards, "-o", tmp_path / "run", "--shape", shape, *QUICK, "--dry-run")
    assert code == 0 and "no budget was passed: training for 10 minutes" in err


def test_a_start_is_trained_on(bench, shape, tmp_path, say):
    first, second = tmp_path / "first", tmp_path / "second"
    assert say("pretrain", bench.shards, "-o", first, "--shape", shape, "--steps", 2, *QUICK)[0] == 0
    code, _, err = say("pretrain", bench.shards, "-o", second, "--model", first / "model", "--steps", 2, *QUICK)
    assert code == 0, err
    made = json.loads((second / "model" / "albertkit.json").read_text())["history"]
    assert [step["steps"] for step in made] == [2, 2]


def refused(result: tuple[int, str, str], *texts: str) -> None:
    """One sentence on stderr, exit code 2, and nothing on stdout."""
    code, out, err = result
    assert code == 2 and out == "" and "Traceback" not in err
    for text in texts:
        assert text in err, err


def test_errors_are_sentences(bench, shape, tmp_path, say):
    run = tmp_path / "run"
    given = ("-o", run, "--shape", shape, "--steps", 2, *QUICK)
    refused(say("pretrain", bench.shards, "-o", run, "--shape", "smal", "--steps", 2), "did you mean 'small'?", ".json")
    refused(say("pretrain", tmp_path / "nowhere", *given), "is not a folder. Build a corpus with")
    (tmp_path / "empty").mkdir()
    refused(say("pretrain", tmp_path / "empty", *given), "is empty. Build a corpus with")
    refused(say("pretrain", bench.shards, *given, "--tokens", 5), "set by steps and tokens", "exactly one of")
    refused(say("pretrain", bench.shards, "-o", run, "--shape", shape, "--steps", 0), "steps is 0; it must be above 0")
    refused(say("pretrain", bench.shards, *given, "--optimizer", "adam"), "choose one of adamw, lamb, muon")
    refused(say("pretrain", bench.shards, *given, "--device", "cuda:99"), "Use --device cpu")
    refused(say("pretrain", bench.shards, *given, "--device", "abacus"), "'abacus' cannot be used", "Use --device cpu")
    refused(
        say("pretrain", bench.shards, *given, "--lengths", "512"), "rows of 512 tokens do not fit: this shape has 40"
    )
    refused(say("pretrain", bench.shards, *given, "--mask-ratio", "2"), "mask_ratio is 2.0")
    refused(say("pretrain", bench.shards, *given, "--seed", "-1"), "seed is -1")
    refused(say("pretrain", bench.shards, *given, "--learning-rat", "1"), "learning-rat")
    refused(say("pretrain", bench.shards, *given, "--model", tmp_path / "nowhere"), "is not a folder")
    assert not run.exists()


def test_a_folder_with_a_training_needs_resume(bench, shape, tmp_path, say):
    given = ("pretrain", bench.shards, "-o", tmp_path / "run", "--shape", shape, "--steps", 2, *QUICK)
    assert say(*given)[0] == 0
    refused(say(*given), "contains a run at step 2. Resume it with --resume")
    code, _, err = say(*given, "--resume")
    assert code == 0 and "resuming from step 2" in err


def test_a_tokenizer_without_a_mask_is_refused(bench, shape, tmp_path, say):
    symbols = Tokenizer.from_symbols(["$", *"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVW"])
    shards = write_shards(tmp_path / "shards", train=20, held=0, parts=1, symbols=symbols)
    result = say("pretrain", shards, "-o", tmp_path / "run", "--shape", shape, "--steps", 2, *QUICK)
    refused(result, "no [CLS], [SEP] or [MASK]")


def test_every_setting_is_an_option_with_its_sentence(say):
    import dataclasses

    code, out, _ = say("pretrain", "--help")
    flat = "".join(out.split())
    for kind in (TrainSettings, PretrainSettings):
        for field in dataclasses.fields(kind):
            assert f"--{field.name.replace('_', '-')}" in out
            assert "".join(field.metadata["help"].split()) in flat, field.name
    assert code == 0


def test_the_verbs_say_which_install_they_need(monkeypatch, bench, tmp_path, say):
    monkeypatch.setitem(sys.modules, "torch", None)
    refused(say("pretrain", bench.shards, "-o", tmp_path / "run", "--steps", 2), "pip install 'albertkit[train]'")


def test_a_shape_may_be_a_folder(bench, tmp_path, say):
    folder = AlbertModel(tiny(hidden_size=64)).save(tmp_path / "model")
    code, _, err = say(
        "pretrain", bench.shards, "-o", tmp_path / "run", "--shape", folder, "--steps", 1, *QUICK, "--dry-run"
    )
    assert code == 0, err
