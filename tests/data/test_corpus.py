"""Texts into a corpus folder: what is kept, the same bytes however it was made, and every way it can fail."""

from __future__ import annotations

import errno
import gzip
import itertools
import json
import os
import shutil
import signal
import sys

import numpy as np
import pytest

from albertkit.data import documents as reading
from albertkit.data import shards as writing
from albertkit.data.corpus import CorpusSettings, build_corpus
from albertkit.data.corpus_folder import RESUME_LOG, ResumeLog
from albertkit.data.sentences import split_sentences
from albertkit.data.shards import Shards, token_ids
from albertkit.errors import AlbertkitError
from albertkit.tokenizer import Tokenizer
from tests.conftest import SHARED, SPIECE, real
from tests.data.sample_texts import contents, text
from tests.waiting import wait_until

SMALL = CorpusSettings(shard_tokens=3000, held_out=0.1, min_tokens=1)


@pytest.fixture(scope="module")
def english():
    return Tokenizer.from_spiece(SPIECE)


@pytest.fixture(scope="module")
def tokenizer():
    """A small one, which opens in no time."""
    return Tokenizer.train(text(200).split("\n"), vocab_size=200)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(reading, "BLOCK_BYTES", 6000)


@pytest.fixture
def texts(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text(text(100, seed=1), encoding="utf-8")
    (folder / "b.txt.gz").write_bytes(gzip.compress(text(60, seed=2).encode()))
    rows = [json.dumps({"text": document}) for document in text(40, seed=3).split("\n\n")]
    (folder / "c.jsonl").write_text("\n".join(rows), encoding="utf-8")
    return folder


def sentences_in(shards: Shards, split_name: str = "train") -> list[list[list[int]]]:
    """The ids of each sentence of each document."""
    found = []
    for shard in shards.split(split_name):
        sentences = np.split(token_ids(shard.tokens), shard.sentences[:-1].astype(int))
        bounds = [0, *shard.documents.tolist()]
        found += [[s.tolist() for s in sentences[a:b]] for a, b in itertools.pairwise(bounds)]
    return found


# What is kept --------------------------------------------------------------------------------------------------------


def test_shards_contain_the_texts(tmp_path, texts, english):
    """Every sentence of every document comes back, once, in order; all sizes are as the manifest says."""
    built = build_corpus([texts], tmp_path / "out", english, SMALL, workers=1)
    shards = Shards.open(tmp_path / "out", verify=True)
    assert not built.was_complete and not built.was_resumed and shards.manifest == built.shards.manifest
    originals = [text(100, seed=1), text(60, seed=2), text(40, seed=3)]
    wanted = [
        [english.ids_batch([s])[0] for paragraph in document.split("\n") for s in split_sentences(paragraph)]
        for whole in originals
        for document in whole.split("\n\n")
    ]
    train, held = sentences_in(shards), sentences_in(shards, "held-out")
    assert len(train) + len(held) == 200 and 5 < len(held) < 40
    assert [d for d in wanted if d in train] == train and [d for d in wanted if d in held] == held
    assert not [d for d in held if d in train]
    assert split_sentences("Document 1 7.")[0] and english.decode(train[0][0]).startswith("document 1")
    counts = shards.manifest["counts"]
    assert counts["documents_read"] == counts["documents_kept"] == 200
    entries = [e for part in shards.manifest["splits"].values() for e in part]
    for name in ("sentences", "tokens", "words"):
        assert counts[name] == sum(entry[name] for entry in entries)
    assert all(entry["tokens"] <= 3000 for entry in entries) and len(entries) > 5
    seen = np.concatenate([token_ids(shard.tokens) for shard in shards.split("train")])
    assert (shards.unigrams() == np.bincount(seen, minlength=30000)).all()
    assert shards.tokenizer().fingerprint() == english.fingerprint()
    assert shards.split("train")[0].tokens.dtype == np.uint16 and isinstance(shards.split("train")[0].tokens, np.memmap)
    assert sorted(p.name for p in (tmp_path / "out").iterdir() if "-0" not in p.name) == [
        "manifest.json",
        "tokenizer",
        "unigrams.npy",
    ]


def test_duplicate_documents_are_dropped(tmp_path, tokenizer):
    one, two = text(30, seed=1), text(30, seed=2)
    (tmp_path / "a.txt").write_text(f"{one}\n\n{two}\n\n{one}", encoding="utf-8")
    (tmp_path / "b.txt").write_text(two, encoding="utf-8")
    plain = build_corpus([tmp_path / "a.txt", tmp_path / "b.txt"], tmp_path / "x", tokenizer, SMALL, workers=1)
    counts = plain.shards.manifest["counts"]
    assert (counts["documents_read"], counts["documents_kept"], counts["duplicates"]) == (120, 60, 60)


def test_short_documents_are_dropped(tmp_path, tokenizer):
    (tmp_path / "a.txt").write_text("Too short.\n\n" + "This one is long enough to be kept, is it not? " * 2)
    shards = build_corpus([tmp_path / "a.txt"], tmp_path / "x", tokenizer, CorpusSettings(held_out=0), workers=1).shards
    assert shards.manifest["counts"]["too_short"] == 1 and len(sentences_in(shards)) == 1
    assert shards.split("held-out") == []


def test_what_is_held_out_stays_held_out(tmp_path, tokenizer):
    (tmp_path / "a.txt").write_text(text(100, seed=1), encoding="utf-8")
    (tmp_path / "b.txt").write_text(text(100, seed=2), encoding="utf-8")
    few = build_corpus([tmp_path / "b.txt"], tmp_path / "x", tokenizer, SMALL, workers=1).shards
    many = build_corpus([tmp_path / "a.txt", tmp_path / "b.txt"], tmp_path / "y", tokenizer, SMALL, workers=1).shards
    held = sentences_in(many, "held-out")
    assert all(document in held for document in sentences_in(few, "held-out"))
    assert all(document not in held for document in sentences_in(few))


def test_a_document_larger_than_a_shard_has_its_own(tmp_path, tokenizer):
    long, short = text(60).replace("\n\n", "\n"), "A short one. It fits."
    (tmp_path / "a.txt").write_text(f"{short}\n\n{long}\n\n{short} Yes.", encoding="utf-8")
    rules = CorpusSettings(shard_tokens=700, min_tokens=1, held_out=0)
    shards = build_corpus([tmp_path / "a.txt"], tmp_path / "x", tokenizer, rules, workers=1).shards
    assert [len(shard.documents) for shard in shards.split("train")] == [1, 1, 1]
    assert len(shards.split("train")[1].tokens) > 700
    whole = [s for line in long.split("\n") for s in split_sentences(line)]
    assert sentences_in(shards)[1] == tokenizer.ids_batch(whole)


def test_parts_of_one_long_document_are_in_one_split(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(reading, "DOCUMENT_LIMIT", 12_000)
    lines = [f"Paragraph {i} of a document without an empty line anywhere." for i in range(3000)]
    (tmp_path / "a.txt").write_text("\n".join(lines) + "\n\n" + text(40))
    rules = CorpusSettings(held_out=0.5, min_tokens=1)
    shards = build_corpus([tmp_path / "a.txt"], tmp_path / "x", tokenizer, rules, workers=1).shards
    sides = {
        name
        for name in ("train", "held-out")
        for d in sentences_in(shards, name)
        if tokenizer.decode(d[0])[:9] == "paragraph"
    }
    assert shards.manifest["counts"]["documents_read"] > 45 and len(sides) == 1


# The same bytes --------------------------------------------------------------------------------------------------


@pytest.fixture
def whole(tmp_path, texts, tokenizer):
    build_corpus([texts], tmp_path / "whole", tokenizer, SMALL, workers=1)
    return contents(tmp_path / "whole")


def test_workers_change_no_byte(tmp_path, texts, tokenizer, whole):
    build_corpus([texts], tmp_path / "two", tokenizer, SMALL, workers=2)
    assert contents(tmp_path / "two") == whole


def killed(work, at: int) -> bool:
    """Run something in a copy of this process that is killed at its nth step to disk; whether it came so far."""
    child = os.fork()
    if child == 0:
        count = 0

        def strike(real):
            def step(*args, **kwargs):
                nonlocal count
                count += 1
                if count == at:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*args, **kwargs)

            return step

        try:
            os.fsync, os.replace = strike(os.fsync), strike(os.replace)
            ResumeLog.save = strike(ResumeLog.save)
            work()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_run_killed_at_any_step_resumes(tmp_path, texts, tokenizer, monkeypatch):
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    rules = CorpusSettings(shard_tokens=4000, held_out=0.2, min_tokens=1)
    build_corpus([texts], tmp_path / "whole", tokenizer, rules, workers=1)
    wanted = contents(tmp_path / "whole")
    out, step, resumed = tmp_path / "out", 1, 0
    while killed(lambda: build_corpus([texts], out, tokenizer, rules, workers=1), step):
        if not (out / "manifest.json").is_file():
            with pytest.raises(AlbertkitError, match="Rerun the command to resume|is empty"):
                Shards.open(out)
        if step % 3 == 0:  # killed a second time, soon after it went on
            killed(lambda: build_corpus([texts], out, tokenizer, rules, workers=1), 9)
        built = build_corpus([texts], out, tokenizer, rules, workers=1)
        resumed += built.was_resumed
        assert contents(out) == wanted, f"killed at step {step}"
        shutil.rmtree(out)
        step += 5
    assert step > 40 and resumed > 3


def test_a_killed_run_ends_its_workers_and_resumes(tmp_path, texts, tokenizer, whole):
    """A real process with two workers, killed from outside: nobody is left behind, and the next one goes on."""
    import subprocess

    out = tmp_path / "out"
    code = (
        "import sys; from albertkit.data import documents as reading, corpus; from albertkit.data.corpus import CorpusSettings\n"
        "from albertkit.tokenizer import Tokenizer; import signal; from pathlib import Path\n"
        "reading.BLOCK_BYTES = 6000\n"
        f"rules = CorpusSettings(shard_tokens=3000, held_out=0.1, min_tokens=1)\n"
        f"def stop(*a):\n"
        f"    if Path({str(out / 'train-00001.tokens.npy')!r}).is_file(): signal.pause()\n"
        f"corpus.build_corpus([{str(texts)!r}], {str(out)!r}, Tokenizer.load({str(tmp_path / 'whole' / 'tokenizer')!r}), rules, "
        "workers=2, progress=stop)"
    )
    child = subprocess.Popen([sys.executable, "-c", code])
    wait_until(lambda: (out / "train-00001.tokens.npy").is_file())
    with pytest.raises(AlbertkitError, match="another process is writing"):
        build_corpus([texts], tmp_path / "out", tokenizer, SMALL, workers=1)
    with pytest.raises(AlbertkitError, match="another process is writing"):
        build_corpus([texts], tmp_path / "out", tokenizer, SMALL, workers=1, force=True)
    workers = _children(child.pid)
    child.kill()
    child.wait()
    assert len(workers) >= 2
    wait_until(lambda: not any(_alive(pid) for pid in workers), "the workers live on")
    assert build_corpus([texts], tmp_path / "out", tokenizer, SMALL, workers=2).was_resumed
    assert contents(tmp_path / "out") == whole


def _children(pid: int) -> list[int]:
    from pathlib import Path

    if not Path("/proc").is_dir():
        pytest.skip("needs /proc")
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.append(int(stat.parent.name))
    return found


def _alive(pid: int) -> bool:
    from pathlib import Path

    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_complete_corpus_is_not_built_again(tmp_path, texts, tokenizer, whole):
    again = build_corpus([texts], tmp_path / "whole", tokenizer, SMALL, workers=1)
    assert again.was_complete and contents(tmp_path / "whole") == whole
    moved = tmp_path / "moved"
    shutil.copytree(texts, moved)
    assert build_corpus(
        [moved], tmp_path / "whole", tokenizer, SMALL, workers=1
    ).was_complete  # contents count, not names


@pytest.mark.parametrize("change", ["setting", "input", "tokenizer", "stdin"])
@pytest.mark.parametrize("state", ["finished", "unfinished"])
def test_another_corpus_is_not_mixed_in(tmp_path, texts, tokenizer, change, state, monkeypatch):
    out, rules, given, vocabulary = tmp_path / "out", SMALL, [texts], tokenizer
    if state == "finished":
        build_corpus([texts], out, tokenizer, SMALL, workers=1)
    else:
        stop_after(monkeypatch, 3)
        with pytest.raises(KeyboardInterrupt):
            build_corpus([texts], out, tokenizer, SMALL, workers=1)
        monkeypatch.undo()
    before = contents(out)
    if change == "setting":
        rules, said = CorpusSettings(shard_tokens=3000, held_out=0.2, min_tokens=1), r"held_out \(0.1 there, 0.2 now\)"
    elif change == "input":
        (texts / "a.txt").write_text(text(100, seed=9), encoding="utf-8")
        said = "the inputs"
    elif change == "stdin":
        given, said = [texts, "-"], "stdin"
    else:
        vocabulary, said = Tokenizer.train(text(100).split("\n"), vocab_size=150), "the tokenizer"
    with pytest.raises(AlbertkitError, match=f"{said}.*--force"):
        build_corpus(given, out, vocabulary, rules, workers=1)
    assert contents(out) == before
    if change != "stdin":
        build_corpus(given, out, vocabulary, rules, workers=1, force=True)
        build_corpus(given, tmp_path / "new", vocabulary, rules, workers=1)
        assert contents(out) == contents(tmp_path / "new")


def stop_after(monkeypatch, shards: int) -> None:
    """End the work when so many shards are saved."""
    save, count = ResumeLog.save, 0

    def stop(self, *args):
        nonlocal count
        save(self, *args)
        count += 1
        if count > shards:
            raise KeyboardInterrupt

    monkeypatch.setattr(ResumeLog, "save", stop)


def test_finished_shards_that_were_touched_are_noticed(tmp_path, texts, tokenizer, monkeypatch):
    stop_after(monkeypatch, 3)
    with pytest.raises(KeyboardInterrupt):
        build_corpus([texts], tmp_path / "out", tokenizer, SMALL, workers=1)
    monkeypatch.undo()
    (tmp_path / "out" / "train-00000.tokens.npy").unlink()
    with pytest.raises(AlbertkitError, match=r"train-00000.tokens.npy is missing or has changed"):
        build_corpus([texts], tmp_path / "out", tokenizer, SMALL, workers=1)


# What can go wrong ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("full", ["tokens", "documents", "journal", "unigrams", "manifest", "tokenizer"])
def test_a_full_disk_is_an_error_and_the_run_resumes(tmp_path, texts, tokenizer, whole, full, monkeypatch):
    real_replace = writing._replace
    count = 0

    def replace(path):
        nonlocal count
        count += full in path.name
        if full in path.name and (count == 3 or full in ("unigrams", "manifest")):
            (path.parent / f".{path.name}.part").write_bytes(b"half")
            (path.parent / f".{path.name}.part").unlink()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real_replace(path)

    monkeypatch.setattr(writing, "_replace", replace)
    if full == "journal":
        import sqlite3

        def save(self, *args):
            raise sqlite3.OperationalError("database or disk is full")

        monkeypatch.setattr(ResumeLog, "save", save)
    if full == "tokenizer":

        def write(self, folder):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(Tokenizer, "save", write)
    out = tmp_path / "out"
    with pytest.raises(
        AlbertkitError, match=r"writing .* failed: (No space left|database or disk is full).*rerun the command"
    ):
        build_corpus([texts], out, tokenizer, SMALL, workers=1)
    if full in ("journal", "tokenizer"):
        assert not out.exists()  # nothing was finished, so nothing is left
    else:
        assert (out / RESUME_LOG).is_file() and not (out / "manifest.json").exists() and not list(out.glob(".*"))
    monkeypatch.undo()
    monkeypatch.setattr(reading, "BLOCK_BYTES", 6000)
    build_corpus([texts], out, tokenizer, SMALL, workers=1)
    assert contents(out) == whole


def test_a_file_size_limit_is_an_error(tmp_path, texts, tokenizer, whole):
    """The system itself refuses to write."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
    try:
        with pytest.raises(AlbertkitError, match=r"writing .* failed: .*rerun the command"):
            build_corpus([texts], tmp_path / "out", tokenizer, SMALL, workers=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    build_corpus([texts], tmp_path / "out", tokenizer, SMALL, workers=1)
    assert contents(tmp_path / "out") == whole


@pytest.mark.parametrize(
    ("data", "workers", "said"),
    [
        ("", 1, "the inputs contain no text"),
        ("\n\n \n\n", 1, "the inputs contain no text"),
        ("short\n\nshort\n\nalso", 1, "none of 3 documents was kept: 2 have fewer than 16 tokens, 1 are duplicates"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", 1, "line 1 of .* is not UTF-8"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", 2, "line 1 of .* is not UTF-8"),
        ("它不认识中文。它不认识中文！" * 40, 1, r"\d\d% of the first [\d,]+ tokens are unknown .*albertkit tokenizer"),
    ],
)
def test_inputs_without_a_corpus_are_errors(tmp_path, tokenizer, data, workers, said):
    (tmp_path / "a.txt").write_bytes(data.encode() if isinstance(data, str) else data)
    with pytest.raises(AlbertkitError, match=said):
        build_corpus([tmp_path / "a.txt"], tmp_path / "out", tokenizer, workers=workers)
    assert not (tmp_path / "out").exists()


def test_a_corpus_without_training_documents_is_an_error(tmp_path, tokenizer):
    documents = [f"Document {i} is a text that is long enough to be kept, or so I believe." for i in range(40)]
    for document in documents:  # some of them are held out
        (tmp_path / "a.txt").write_text(document)
        try:
            build_corpus(
                [tmp_path / "a.txt"], tmp_path / "out", tokenizer, CorpusSettings(held_out=0.5), workers=1, force=True
            )
        except AlbertkitError as error:
            assert "all 1 documents were held out" in str(error)
            return
    raise AssertionError("none was held out")


def test_a_line_over_the_limit_is_an_error(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(reading, "DOCUMENT_LIMIT", 50_000)
    (tmp_path / "a.txt").write_text(text(10) + "\n" + "giant " * 20_000, encoding="utf-8")
    with pytest.raises(AlbertkitError, match=r"line \d+ of .*a.txt has over 50,000 bytes"):
        build_corpus([tmp_path / "a.txt"], tmp_path / "out", tokenizer, SMALL, workers=1)


def test_a_large_vocabulary_takes_32_bits(tmp_path, texts, tokenizer, monkeypatch):
    build_corpus([texts], tmp_path / "small", tokenizer, SMALL, workers=1)
    monkeypatch.setattr("albertkit.data.shards.UINT16_VOCABULARY", 150)
    build_corpus([texts], tmp_path / "large", tokenizer, SMALL, workers=1)
    large = Shards.open(tmp_path / "large", verify=True)
    assert large.manifest["dtype"] == "uint32" and large.split("train")[0].tokens.dtype == np.uint32
    found = sentences_in(large)
    monkeypatch.undo()
    assert found == sentences_in(Shards.open(tmp_path / "small"))


def test_bad_lines_can_be_skipped_when_resuming(tmp_path, tokenizer):
    """A run that stopped at a bad line goes on when told to pass over it."""
    (tmp_path / "a.txt").write_bytes(text(100).encode() + b"\n\nbad \xff line\n\n" + text(20, seed=5).encode())
    with pytest.raises(AlbertkitError, match="is not UTF-8"):
        build_corpus([tmp_path / "a.txt"], tmp_path / "out", tokenizer, SMALL, workers=1)
    rules = CorpusSettings(shard_tokens=3000, held_out=0.1, min_tokens=1, skip_bad=True)
    built = build_corpus([tmp_path / "a.txt"], tmp_path / "out", tokenizer, rules, workers=1)
    assert built.was_resumed and built.shards.manifest["counts"]["bad_lines"] == 1


def test_folders_with_other_files_are_errors(tmp_path, texts, tokenizer):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.doc").write_text("years of work")
    for force in (False, True):
        with pytest.raises(AlbertkitError, match="contains no corpus"):
            build_corpus([texts], tmp_path / "out", tokenizer, SMALL, workers=1, force=force)
    with pytest.raises(AlbertkitError, match="is a file"):
        build_corpus([texts], tmp_path / "out" / "thesis.doc", tokenizer, SMALL, workers=1)
    build_corpus([texts], tmp_path / "mine", tokenizer, SMALL, workers=1)
    (tmp_path / "mine" / "notes.txt").write_text("keep me")
    build_corpus([texts], tmp_path / "mine", tokenizer, SMALL, workers=1, force=True)
    assert (tmp_path / "mine" / "notes.txt").read_text() == "keep me"


def test_leftovers_of_an_earlier_run_are_replaced(tmp_path, texts, tokenizer, whole):
    """As after a kill in the middle of --force."""
    shutil.copytree(tmp_path / "whole", tmp_path / "out")
    (tmp_path / "out" / "manifest.json").unlink()
    shutil.copy(tmp_path / "out" / "unigrams.npy", tmp_path / "out" / "train-00099.tokens.npy")
    build_corpus([texts], tmp_path / "out", tokenizer, SMALL, workers=1)
    assert contents(tmp_path / "out") == whole


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_tokens": 0},
        {"held_out": 0.9},
        {"held_out": float("nan")},
        {"max_sentence": 3},
        {"shard_tokens": 100},
        {"max_unknown": 2},
    ],
)
def test_settings_are_checked(wrong):
    with pytest.raises(AlbertkitError, match=next(iter(wrong))):
        CorpusSettings(**wrong)


def test_a_worker_that_dies_is_one_sentence(tmp_path, texts, tokenizer, monkeypatch):
    from concurrent.futures import ProcessPoolExecutor

    submit = ProcessPoolExecutor.submit

    def submit_and_kill(self, *args):
        future = submit(self, *args)
        for process in (self._processes or {}).values():
            process.kill()
        return future

    monkeypatch.setattr(ProcessPoolExecutor, "submit", submit_and_kill)
    with pytest.raises(AlbertkitError, match="a worker process was killed"):
        build_corpus([texts], tmp_path / "out", tokenizer, SMALL, workers=2)


def test_other_tokenizers_build_a_corpus_or_an_error(tmp_path, tokenizer):
    with pytest.raises(AlbertkitError, match="phoneme"):
        build_corpus([tmp_path], tmp_path / "out", Tokenizer.from_symbols(["$", "a"]), SMALL)


# Real text ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "model"), [("enwiki-00", None), ("books-00", None), ("zhwiki-00", "zh-tiny")])
def test_real_text_is_tokenized_as_by_the_tokenizer(tmp_path, english, name, model, monkeypatch):
    import lzma

    path = SHARED / "corpus" / f"{name}.txt.xz"
    if not path.is_file():
        pytest.skip("the corpus is not here")
    monkeypatch.setattr(reading, "BLOCK_BYTES", 1 << 17)
    with lzma.open(path) as file:
        data = file.read(400_000).decode("utf-8", "ignore")
    (tmp_path / "a.txt").write_text(data, encoding="utf-8")
    vocabulary = english if model is None else Tokenizer.load(real(model))
    rules = CorpusSettings(shard_tokens=30_000, held_out=0.05)
    build_corpus([tmp_path / "a.txt"], tmp_path / "out", vocabulary, rules, workers=1)
    shards = Shards.open(tmp_path / "out", verify=True)
    counts = shards.manifest["counts"]
    assert counts["unknown"] < 0.02 * counts["tokens_read"] and counts["tokens"] > 60_000
    assert 0.5 < counts["words"] / counts["tokens"] < 1
    wanted = [
        vocabulary.ids_batch([s for paragraph in document.split("\n") for s in split_sentences(paragraph.strip())])
        for document in data.split("\n\n")
    ]
    found = [*sentences_in(shards), *sentences_in(shards, "held-out")]
    assert sum(document in wanted for document in found) >= len(found) - 2 * len(shards.split("train"))
