"""Stage 2 of small-zh: sentence vectors from two teachers, at several depths and widths 64 to 384.

    python studies/small-zh/distill.py SHARDS -o RUN --model small-zh --minutes 20
        --teacher m3e=TEACHERS/m3e --teacher use=TEACHERS/use [--weights 1,1] [--tatoeba cmn.txt] [--data DATA]

SHARDS is a corpus folder, a teacher a folder of `teachers.py`, cmn.txt the sentence pairs of Tatoeba. The command
draws texts (`texts.py`), computes the teachers' vectors once and trains; rerun it to resume. RUN/texts has the texts,
their targets and `mixture.npz`: how the vectors of the teachers become targets. To train a model of this file further
in another folder, pass that file as --mixture, so that the targets stay the same; with --search-mixture the best of
`MIXTURES` is chosen and rotated onto the targets of that file. Pass --deadline instead of --minutes
to end at a time of day, also after a resume.

Every evaluation uses held-out sentences: `cosine_12` is the cosine with the target at depth 12, `m3e_12` the
correlation of the similarities of all pairs of sentences with those of the teacher m3e. With --data, the folder of
`evaluate.py`, it also measures the tasks in `CHOICE` at three depths; `choice` is their mean.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import os
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

sys.path[:0] = [str(Path(__file__).parents[2] / "src"), str(Path(__file__).parent)]

from evaluate import named, tasks  # noqa: E402
from teachers import WIDTH, open_teacher, open_tokenizer, tokenize  # noqa: E402
from texts import CHUNK, MAX_TOKENS, TextCounts, TextDecoder, draw_texts, held_out_sentences, read_excluded  # noqa: E402

from albertkit.artifact import Artifact  # noqa: E402
from albertkit.data.passages import Passages  # noqa: E402
from albertkit.data.shards import Shards, write_array  # noqa: E402
from albertkit.file_io import read_json  # noqa: E402
from albertkit.interop.convert import open_model  # noqa: E402
from albertkit.tokenizer import Tokenizer  # noqa: E402
from albertkit.train.checkpoint import checkpoint_folder, saved_steps  # noqa: E402
from albertkit.train.distill_data import VectorDistillSettings  # noqa: E402
from albertkit.train.distill_vectors import TARGETS, PassageTable, VectorDistillTask  # noqa: E402
from albertkit.train.loop import train  # noqa: E402
from albertkit.train.run_lock import lock_run  # noqa: E402
from albertkit.train.train_settings import TrainSettings  # noqa: E402

SAMPLE = 100_000  # texts from which the mixture is computed
ROWS = 65_536  # texts mixed at once
CHOICE = ("STS-B-train Spearman", "AFQMC Spearman", "OPPO AUC", "CMRC nDCG@10")  # their mean chooses a model
MEASURED = ("STS-B", "STS-B-train", "AFQMC", "OPPO", "CMRC")  # tasks of evaluate.py
MEASURED_DEPTHS = (3, 4, 6, 12)
MIXTURES = (  # weight of USE, share of the mean, power
    (1.0, 1.0, 0.0), (0.6, 0.7, 0.0), (0.6, 0.5, 0.0), (0.6, 0.7, 0.2), (0.6, 0.7, 0.4), (0.6, 0.7, 0.6), (0.6, 0.4, 0.4), (0.4, 0.7, 0.4),
)  # fmt: skip
MEASURED_TOKENS = 65_536  # of a batch
log = partial(print, flush=True)


# Targets ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mixture:
    """Vectors of several teachers to targets: centred, of length 1, weighted, concatenated, rotated and cut.

    The rotation puts the strongest principal components first, so that targets can be cut to any width.
    """

    mean: Tensor  # (teachers × 512,)
    basis: Tensor  # (teachers × 512, width)
    weights: Tensor  # (teachers,)

    @classmethod
    def fit(
        cls, raw: Tensor, weights: Sequence[float], width: int, mean_share: float = 1.0, power: float = 0.0
    ) -> Mixture:
        """From a sample, (texts, teachers × 512).

        mean_share: the share of the mean that is subtracted. power: 0 keeps the variance of each component, 1 makes all
        variances equal.
        """
        mixture = cls(mean_share * raw.float().mean(0), torch.empty(0), torch.tensor(weights, device=raw.device))
        weighted = mixture.weigh(raw).double()
        values, vectors = torch.linalg.eigh(weighted.T @ weighted / len(weighted))
        values, vectors = values.flip(0)[:width], vectors.flip(1)[:, :width]
        return cls(mixture.mean, (vectors * (values / values[0]) ** (-power / 2)).float(), mixture.weights)

    def rotated(self, raw: Tensor, other: Mixture) -> Mixture:
        """With targets that are rotated onto those of another mixture, so that its student can be trained further."""
        cross = self.targets(raw).double().T @ other.targets(raw).double()
        left, _, right = torch.linalg.svd(cross)
        return Mixture(self.mean, self.basis @ (left @ right).float(), self.weights)

    def weigh(self, raw: Tensor) -> Tensor:
        """Before the rotation."""
        parts = (raw.float() - self.mean).view(len(raw), len(self.weights), WIDTH)
        return (F.normalize(parts, dim=-1) * self.weights[:, None]).flatten(1)

    def targets(self, raw: Tensor) -> Tensor:
        """(texts, width), length 1."""
        return F.normalize(self.weigh(raw) @ self.basis)

    def save(self, file: Path) -> None:
        """As arrays."""
        np.savez(file, **{name: value.cpu().numpy() for name, value in vars(self).items()})

    @classmethod
    def load(cls, file: Path, device: torch.device) -> Mixture:
        """From a file of `save`."""
        with np.load(file, allow_pickle=False) as stored:
            return cls(
                **{name: torch.from_numpy(stored[name]).float().to(device) for name in ("mean", "basis", "weights")}
            )


TeacherTokens = list[tuple[np.ndarray, np.ndarray]]  # for each teacher, ids and lengths of some texts


@cache
def open_decoder(folder: Path) -> TextDecoder:
    """Once in each process."""
    return TextDecoder(Tokenizer.load(folder))


open_tokenizer_once = cache(open_tokenizer)


def translate(student: Path, teachers: Sequence[Path], flat: np.ndarray, ends: np.ndarray) -> TeacherTokens:
    """Texts in tokens of the student to tokens of each teacher, in a worker."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there are as many workers as cores
    texts = open_decoder(student).decode(flat, ends)
    return [tokenize(open_tokenizer_once(teacher), texts) for teacher in teachers]


def translated_passages(
    passages: Passages, student: Path, teachers: Sequence[Path], workers: int
) -> Iterator[TeacherTokens]:
    """The passages in tokens of each teacher, `CHUNK` at a time, in order."""
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        waiting: deque[Future[TeacherTokens]] = deque()
        for start in range(0, len(passages), CHUNK):
            first, ends = int(passages.ends[start - 1]) if start else 0, passages.ends[start : start + CHUNK]
            ids = np.array(passages.ids[first : ends[-1]])
            waiting.append(pool.submit(translate, student, teachers, ids, ends - first))
            if len(waiting) >= 4 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def teacher_vectors(
    passages: Passages, tokenizer: Path, folders: Sequence[Path], device: torch.device, workers: int
) -> Tensor:
    """(texts, teachers × 512), float16, on the device."""
    teachers = [open_teacher(folder, device) for folder in folders]
    raw = torch.empty(len(passages), len(folders) * WIDTH, dtype=torch.float16, device=device)
    done, started = 0, time.perf_counter()
    for number, tokens in enumerate(translated_passages(passages, tokenizer, folders, workers)):
        vectors = [teacher.encode_tokens(*part) for teacher, part in zip(teachers, tokens, strict=True)]
        stop = done + len(vectors[0])
        raw[done:stop] = torch.cat(vectors, 1).half()
        done = stop
        if number % 20 == 0 or done == len(passages):
            log(
                f"teachers: {done:,} of {len(passages):,} texts, {done / (time.perf_counter() - started):,.0f} per second"
            )
    return raw


def prepare_texts(args: argparse.Namespace, folder: Path) -> None:
    """Texts to train on and held-out ones."""
    started, corpus = time.perf_counter(), Shards.open(args.shards)
    counts = TextCounts(args.everyday, args.questions, args.variants, args.passages)
    passages = draw_texts(corpus, args.tatoeba, counts, read_excluded(args.exclude), args.seed)
    log(f"{len(passages):,} texts, {len(passages.ids):,} tokens, {time.perf_counter() - started:.0f} s")
    log("tokens of a text, deciles:", np.quantile(passages.lengths, np.linspace(0, 1, 11)).astype(int).tolist())
    passages.save(folder)
    held_out_sentences(corpus, args.held_out).save(folder / "held-out")


def best_mixture(
    sample: Tensor, teachers: Sequence[Path], data: Path, width: int, device: torch.device
) -> tuple[Mixture, str]:
    """The mixture of `MIXTURES` whose targets have the best mean over the tasks of `CHOICE`."""
    encoders, raw = [open_teacher(folder, device) for folder in teachers], dict[str, Tensor]()

    def embed(texts: list[str], mixture: Mixture) -> np.ndarray:
        new = [text for text in dict.fromkeys(texts) if text not in raw]
        if new:
            vectors = torch.cat([torch.from_numpy(encoder.embed(new)).to(device) for encoder in encoders], 1).half()
            raw.update(zip(new, vectors, strict=True))
        return mixture.targets(torch.stack([raw[text] for text in texts])).cpu().numpy()

    found, measured = [], tasks(data, None, MEASURED)
    for weight, share, power in MIXTURES:
        mixture = Mixture.fit(sample, [1.0, weight], width, share, power)
        scores = {}
        for task, score in measured.items():
            scores |= {f"{task} {metric}": value for metric, value in score(partial(embed, mixture=mixture)).items()}
        mean = sum(scores[name] for name in CHOICE) / len(CHOICE)
        found.append((mean, mixture, f"USE {weight}, mean {share}, power {power}"))
        log(f"{found[-1][2]}: {mean:.2f},", ", ".join(f"{name} {value:.2f}" for name, value in scores.items()))
    return max(found, key=lambda one: one[0])[1:]


def prepare_targets(args: argparse.Namespace, width: int, folder: Path, device: torch.device) -> None:
    """The targets of the texts."""
    started, tokenizer = time.perf_counter(), args.shards / "tokenizer"
    passages, held_out = Passages.open(folder), Passages.open(folder / "held-out")
    folders = [place for _, place in args.teacher]
    raw = teacher_vectors(passages, tokenizer, folders, device, args.workers)
    held_out_raw = teacher_vectors(held_out, tokenizer, folders, device, 1)

    sample = raw[torch.from_numpy(np.sort(np.random.default_rng(0).permutation(len(raw))[:SAMPLE])).to(device)]
    if args.search_mixture:
        mixture, name = best_mixture(sample, folders, args.data, width, device)
        log(f"the mixture is {name}")
        if args.mixture:
            before = Mixture.load(args.mixture, device)
            mixture = mixture.rotated(sample, before)
            log(
                f"cosine of old and new targets: {(before.targets(sample) * mixture.targets(sample)).sum(1).mean():.3f}"
            )
    elif args.mixture:
        mixture = Mixture.load(args.mixture, device)
    else:
        mixture = Mixture.fit(sample, args.weights, width)
    mixture.save(folder / "mixture.npz")
    targets = np.empty((len(raw), width), np.float16)
    for start in range(0, len(raw), ROWS):
        targets[start : start + ROWS] = mixture.targets(raw[start : start + ROWS]).half().cpu().numpy()
    write_array(folder / "held-out" / "teachers.npy", held_out_raw.cpu().numpy())
    held_out_targets = mixture.targets(held_out_raw)
    write_array(folder / "held-out" / TARGETS, held_out_targets.half().cpu().numpy())
    write_array(folder / TARGETS, targets)  # last: with it the folder is complete
    log(f"targets after {time.perf_counter() - started:.0f} s")


# Training --------------------------------------------------------------------------------------------------------


class HeldOutDistillTask(VectorDistillTask):
    """Distillation that is evaluated on held-out sentences, with each teacher."""

    def __init__(
        self,
        student: Artifact,
        folder: Path,
        settings: TrainSettings,
        goals: VectorDistillSettings,
        teachers: Sequence[str],
        data: Path | None = None,
    ) -> None:
        super().__init__(student, folder, settings, goals)
        self.measured = tasks(data, None, MEASURED) if data else {}
        self.measured_ids: dict[str, list[int]] = {}
        if data:
            self.selection_metric = "choice"
        self.held_out, self.teachers = Passages.open(folder / "held-out"), teachers
        self.held_out_targets = torch.from_numpy(np.load(folder / "held-out" / TARGETS)).float()
        self.held_out_raw = torch.from_numpy(np.load(folder / "held-out" / "teachers.npy")).float()
        self.started = time.perf_counter()

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Cosine with the target, and correlation of similarities with each teacher, at every depth."""
        device = next(self.model.parameters()).device
        table, depths = PassageTable(self.held_out, self.tokenizer, device), self.objective.depths
        lengths = self.held_out.lengths
        rows: list[list[Tensor]] = [[] for _ in depths]
        with torch.compiler.set_stance("force_eager"):
            for length in np.unique(lengths):
                ids = table.rows(np.flatnonzero(lengths == length))
                for found, vectors in zip(rows, self.objective.vectors(ids, depths), strict=True):
                    found.append(F.normalize(vectors))
        students = [torch.cat(found) for found in rows]
        targets, raw = self.held_out_targets.to(device), self.held_out_raw.to(device)
        similarities = {"targets": targets @ targets.T}
        for name, vectors in zip(self.teachers, raw.split(WIDTH, 1), strict=True):
            centred = F.normalize(vectors - vectors.mean(0))
            similarities[name] = centred @ centred.T
        scores = {f"cosine_{d}": float((v * targets).sum(1).mean()) for d, v in zip(depths, students, strict=True)}
        pairs = ~torch.eye(len(targets), dtype=torch.bool, device=device)
        for depth, (name, teacher) in itertools.product(depths[::-1], similarities.items()):
            student = students[depths.index(depth)]
            stacked = torch.stack([(student @ student.T)[pairs], teacher[pairs]])
            scores[f"{name}_{depth}"] = float(torch.corrcoef(stacked)[0, 1])
        scores = self.measure() | scores
        log(f"{time.perf_counter() - self.started:.0f} s:", ", ".join(f"{k} {v:.4f}" for k, v in scores.items()))
        return scores

    def measure(self) -> dict[str, float]:
        """The scores of tasks at several depths, and their mean at the last two depths."""
        scores = {}
        for task, score in self.measured.items():
            known: dict[str, np.ndarray] = {}
            for at, depth in enumerate(MEASURED_DEPTHS):
                found = score(partial(self.embed, at=at, known=known))
                scores |= {f"{task} {metric}_{depth}": value for metric, value in found.items()}
        if scores:
            chosen = [scores[f"{name}_{depth}"] for name in CHOICE for depth in MEASURED_DEPTHS[2:]]
            scores = {"choice": sum(chosen) / len(chosen), **scores}
        return scores

    @torch.no_grad()
    def embed(self, texts: list[str], at: int, known: dict[str, np.ndarray]) -> np.ndarray:
        """Texts to vectors of length 1, at one of `MEASURED_DEPTHS`; known: the vectors of texts at all of them."""
        device, new = next(self.model.parameters()).device, [text for text in dict.fromkeys(texts) if text not in known]
        unread = [text for text in new if text not in self.measured_ids]
        for text, ids in zip(unread, self.tokenizer.ids_batch(unread), strict=True):
            self.measured_ids[text] = [self.tokenizer.cls_id or 0, *ids[:MAX_TOKENS], self.tokenizer.sep_id or 0]
        lengths = np.array([len(self.measured_ids[text]) for text in new])
        with torch.compiler.set_stance("force_eager"):
            for length in np.unique(lengths):
                places, size = np.flatnonzero(lengths == length), max(1, MEASURED_TOKENS // int(length))
                for some in np.split(places, range(size, len(places), size)):
                    ids = torch.tensor([self.measured_ids[new[place]] for place in some], device=device)
                    vectors = torch.stack(self.objective.vectors(ids, MEASURED_DEPTHS), 1)
                    rows = F.normalize(vectors.float(), dim=-1).cpu().numpy()
                    known.update(zip([new[place] for place in some], rows, strict=True))
        return np.stack([known[text][at] for text in texts])


def minutes_until(deadline: float, output: Path) -> float:
    """The budget with which a training that is started or resumed now ends at a time, in seconds since 1970."""
    steps = saved_steps(output)
    spent = read_json(checkpoint_folder(output, steps[-1]) / "training.json")["seconds"] if steps else 0.0
    return max(0.01, (spent + deadline - time.time()) / 60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--teacher", type=named, action="append", default=[])
    parser.add_argument("--weights", default="", help="weights of the teachers, such as 1,1.5 [default: all 1]")
    parser.add_argument("--mixture", type=Path, help="mixture.npz of the run that the model comes from")
    parser.add_argument("--search-mixture", action="store_true", help="choose one of MIXTURES; needs --data")
    parser.add_argument("--depths", default=VectorDistillSettings.depths)
    parser.add_argument("--sampled-depths", type=int, default=0)
    parser.add_argument("--texts", type=Path, help="folder of texts and targets [default: RUN/texts]")
    parser.add_argument("--tatoeba", type=Path)
    parser.add_argument("--exclude", type=Path, help="keys of texts not to train on, from evaluate.py --keys")
    parser.add_argument("--everyday", type=int, default=TextCounts.everyday, help="sentences of the grammar")
    parser.add_argument("--questions", type=int, default=TextCounts.questions, help="questions about the corpus")
    parser.add_argument("--variants", type=int, default=TextCounts.variants, help="of each sentence of Tatoeba")
    parser.add_argument("--passages", type=float, default=TextCounts.passages, help="passages per sentence")
    parser.add_argument("--held-out", type=int, default=1_024)
    parser.add_argument("--workers", type=int, default=1)
    budget = parser.add_mutually_exclusive_group(required=True)
    budget.add_argument("--minutes", type=float, help="of training")
    budget.add_argument("--deadline", type=float, help="end of the training, in seconds since 1970")
    parser.add_argument("--data", type=Path, help="folder of evaluate.py, to measure tasks at every evaluation")
    parser.add_argument("--batch-tokens", type=int, default=131_072)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--evaluations", type=int, default=12)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only-texts", action="store_true", help="draw the texts, which needs no GPU and no teacher")
    parser.add_argument("--only-targets", action="store_true", help="draw the texts and compute their targets")
    args = parser.parse_args()
    args.weights = [float(part) for part in args.weights.split(",")] if args.weights else [1.0] * len(args.teacher)
    if len(args.weights) != len(args.teacher):
        parser.error(f"{len(args.weights)} weights for {len(args.teacher)} teachers; pass one for each")
    device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if args.device == "auto" else args.device)
    student, texts = open_model(args.model), args.texts or args.output / "texts"
    with lock_run(args.output):
        if not (texts / "held-out" / "ends.npy").is_file():
            prepare_texts(args, texts)
        if args.only_texts:
            return
        if not (texts / TARGETS).is_file():
            prepare_targets(args, student.config.hidden_size, texts, device)
        if args.only_targets:
            return
    torch.set_float32_matmul_precision("high")
    settings = TrainSettings(
        minutes=args.minutes or 1.0, optimizer="muon", learning_rate=args.learning_rate, warmup_ratio=0.02, device=str(device),
        seed=args.seed, log_every=50, evaluations=args.evaluations, save_minutes=2.0, tensorboard=False, compile="no",
    )  # fmt: skip
    goals = VectorDistillSettings(
        depths=args.depths, sampled_depths=args.sampled_depths, batch_tokens=args.batch_tokens,
        neighbor_share=0.5, shallow_share=0.5,
    )  # fmt: skip
    task = HeldOutDistillTask(student, texts, settings, goals, [name for name, _ in args.teacher], args.data)
    if not saved_steps(args.output):
        task.objective.to(device).eval()
        log("before the training:", ", ".join(f"{name} {score:.2f}" for name, score in task.measure().items()))
    if args.deadline:
        settings = dataclasses.replace(settings, minutes=minutes_until(args.deadline, args.output))
    result = train(task, settings, args.output, resume=True, log=log)
    log(f"finished after {result.state.step:,} steps and {result.state.tokens:,} tokens: {result.model}")


if __name__ == "__main__":
    main()
