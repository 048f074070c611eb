"""The real lmms-eval, as a program: its answers and scores are those of `covist eval`.

Starting it takes longer than answering, so all runs are one call with a file of configurations.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.cases import first_of

from covist.eval import evaluate, load_suite
from covist.lmms.answering import Answerer
from covist.lmms.arguments import Arguments
from covist.lmms.conversations import from_visuals
from covist.lmms.export import MAX_NEW_TOKENS, export_suite
from covist.lmms.generation import Generation

pytest.importorskip("lmms_eval", reason="lmms-eval is not installed; make test-lmms has it")
pytestmark = pytest.mark.lmms

SUITE = load_suite("scenes")
TASK = "covist_scenes"
EXPORTED = 32  # images that settle the concentration reference, in both programs
ITEMS = SUITE.items(4)
QUESTIONS = [question for item in ITEMS for question in item.questions]
VISPRUNER = "vispruner:important=0.75,positions=keep"
FAMILIES = ("llava-next", "qwen2.5-vl", "internvl")
ASKED_OF_FAMILIES = 6


@dataclass(frozen=True)
class Run:
    """One configuration of lmms-eval, and the method of `covist eval` that it must equal."""

    arguments: str
    batch_size: int
    simple: bool = False
    method: str | None = None

    def configuration(self, exported: Path, output: Path, **others: Any) -> dict[str, Any]:
        return {
            "model": "covist",
            "model_args": self.arguments,
            "batch_size": self.batch_size,
            "force_simple": self.simple,
            "tasks": TASK,
            "include_path": str(exported),
            "limit": len(QUESTIONS),
            "output_path": str(output),
            "log_samples": True,
            **others,
        }


RUNS = {
    "plain": Run("pretrained=tiny,budget=none", 8, method="vanilla"),
    "plain-simple": Run("pretrained=tiny,budget=none", 1, simple=True, method="vanilla"),
    "fixed": Run("pretrained=tiny,budget=64", 8, method="covist-fixed"),
    "fixed-simple": Run("pretrained=tiny,budget=64,strategy=fixed", 1, simple=True, method="covist-fixed"),
    "pro": Run("pretrained=tiny,budget=64,strategy=pro", 1, method="covist-pro"),
    "pro-simple": Run("pretrained=tiny,budget=64,strategy=pro", 8, simple=True, method="covist-pro"),
    "rival": Run(f"pretrained=tiny,budget=64,method={VISPRUNER.replace(',', ';')}", 8, method=VISPRUNER),
    "combined": Run("pretrained=tiny,budget=64,method=divprune+csc+sca", 8, simple=True, method="divprune+csc+sca"),
}


def lmms_eval(*launcher: str, configurations: list[dict[str, Any]], folder: Path, **environment: str) -> str:
    """Run the program on some configurations; what it printed."""
    path = folder / "runs.yaml"
    path.write_text(yaml.safe_dump(configurations))
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(folder / "datasets"), "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [sys.executable, *launcher, "-m", "lmms_eval", "--config", str(path)],
        capture_output=True,
        text=True,
        env={**os.environ, **offline, **environment},
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout + ran.stderr


@dataclass(frozen=True)
class Outcome:
    """What one run left on disk."""

    results: dict[str, Any]
    samples: list[dict[str, Any]]

    @classmethod
    def of(cls, output: Path) -> Outcome:
        (results,) = output.glob("*/*_results.json")
        (samples,) = output.glob("*/*_samples_*.jsonl")
        lines = [json.loads(line) for line in samples.read_text().splitlines()]
        return cls(json.loads(results.read_text()), sorted(lines, key=lambda line: line["doc_id"]))

    @property
    def answers(self) -> list[str]:
        return [sample["filtered_resps"] for sample in self.samples]

    @property
    def accuracy(self) -> float:
        return self.results["results"][TASK]["accuracy,none"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("lmms")


@pytest.fixture(scope="module")
def exported(folder) -> Path:
    assert export_suite(SUITE, folder / "task", limit=EXPORTED) == TASK
    return folder / "task"


@pytest.fixture(scope="module")
def checkpoints(folder) -> dict[str, Path]:
    """Small random models of several families, as anybody would save them."""
    saved = {family: folder / f"model-{family}" for family in FAMILIES}
    for family, path in saved.items():
        case = first_of(family)
        case.model.save_pretrained(path)
        case.chatting_processor().save_pretrained(path)
    return saved


@pytest.fixture(scope="module")
def log(folder, exported, checkpoints) -> str:
    """What the program printed over all runs."""
    configurations = [run.configuration(exported, folder / name) for name, run in RUNS.items()]
    for family, path in checkpoints.items():
        run = Run(f"pretrained={path},budget=6,concentration=0.05", 4)
        configurations.append(run.configuration(exported, folder / family, limit=ASKED_OF_FAMILIES))
    cached = {"use_cache": str(folder / "cache"), "limit": 5}
    for name in ("first", "again"):
        configurations.append(RUNS["fixed"].configuration(exported, folder / name, **cached))
    wrong = Run("pretrained=tiny,budgit=64", 1)
    configurations.append(wrong.configuration(exported, folder / "wrong"))
    return lmms_eval(configurations=configurations, folder=folder)


@pytest.fixture(scope="module")
def outcomes(folder, log) -> dict[str, Outcome]:
    return {name: Outcome.of(folder / name) for name in (*RUNS, *FAMILIES, "first", "again")}


@pytest.fixture(scope="module")
def ours(folder) -> dict[str, tuple[list[str], Any]]:
    """Method -> the answers and the score of `covist eval`."""
    methods = list(dict.fromkeys(run.method for run in RUNS.values()))
    results = evaluate(methods, "64", limit=len(ITEMS), out=folder / "ours")
    answers = {
        method: [answer for _, own in sorted(found.items()) for answer in own]
        for method, found in _stored(folder / "ours" / "answers").items()
    }
    return {score.method: (answers[score.method], score) for score in results.scores}


def _stored(answers: Path) -> dict[str, dict[int, list[str]]]:
    """Method -> image -> answers, from the files that `covist eval` wrote."""
    found: dict[str, dict[int, list[str]]] = {}
    for line in _lines(answers):
        found.setdefault(line["method"], {})[line["image"]] = line["answers"]
    return found


def _lines(answers: Path) -> Iterator[dict[str, Any]]:
    return (json.loads(line) for path in answers.glob("*.jsonl") for line in path.read_text().splitlines())


@pytest.mark.parametrize("name", RUNS)
def test_answers_and_scores_equal_those_of_covist_eval(name, outcomes, ours):
    answers, score = ours[RUNS[name].method]
    outcome = outcomes[name]
    assert outcome.answers == [answer.strip() for answer in answers]
    assert 100 * outcome.accuracy == pytest.approx(score.accuracy)
    for family, right in score.families.items():
        if family in {question.family for question in QUESTIONS}:
            assert 100 * outcome.results["results"][TASK][f"{family},none"] == pytest.approx(right)


@pytest.mark.parametrize("name", RUNS)
def test_the_results_name_the_real_budget(name, outcomes, ours):
    _, score = ours[RUNS[name].method]
    throughput = outcomes[name].results["throughput"]
    assert throughput["avg_visual_tokens"] == 576
    assert throughput["avg_visual_tokens_kept"] == pytest.approx(score.mean_cached_tokens)
    assert throughput["avg_visual_tokens_prefill"] == pytest.approx(score.mean_tokens)
    (counts,) = outcomes[name].samples[0]["token_counts"]
    assert (counts["views"], counts["visual_tokens"]) == (1, 576)
    assert counts["visual_tokens_kept"] == pytest.approx(score.mean_cached_tokens, abs=1)


@pytest.mark.filterwarnings("ignore:no clip= given")
@pytest.mark.parametrize("family", FAMILIES)
def test_other_families_answer_in_batches_as_the_library_does_one_by_one(family, outcomes, checkpoints):
    arguments = Arguments.of({"pretrained": str(checkpoints[family]), "budget": 6, "concentration": 0.05})
    library = Answerer(arguments, "cpu")
    generation = Generation.of({"max_new_tokens": MAX_NEW_TOKENS})
    shown = [(item.image, question.question) for item in ITEMS for question in item.questions][:ASKED_OF_FAMILIES]
    alone = [library.answer([from_visuals([image], text, 4)], generation)[0] for image, text in shown]
    assert outcomes[family].answers == [one.text for one in alone]
    assert len(set(outcomes[family].answers)) > 1, "the answers say nothing"


def test_a_cached_run_asks_the_model_nothing(outcomes, log):
    assert outcomes["first"].answers == outcomes["again"].answers == outcomes["fixed"].answers[:5]
    assert "all 5 requests served from cache" in log
    assert "throughput" not in outcomes["again"].results


def test_an_unknown_argument_is_refused_by_name(log, folder):
    assert "covist has no model argument 'budgit'" in log
    assert not (folder / "wrong").exists()


def test_two_processes_share_the_questions_and_change_no_answer(folder, exported, outcomes):
    configuration = RUNS["pro"].configuration(exported, folder / "parallel", batch_size=4, limit=9)
    log = lmms_eval(
        *("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"),
        configurations=[configuration],
        folder=folder,
        ACCELERATE_USE_CPU="true",
    )
    assert "Running on rank 1" in log
    assert Outcome.of(folder / "parallel").answers == outcomes["pro"].answers[:9]
