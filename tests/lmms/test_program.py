"""The real lmms-eval, as a program: its answers and scores are those of `covist eval`.

Starting it takes longer than answering, so all runs are one call with a file of configurations.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.cases import first_of
from support.checkpoints import saved

from covist.eval import Score, evaluate, load_suite
from covist.lmms.answering import Answerer
from covist.lmms.arguments import Arguments
from covist.lmms.conversations import from_visuals
from covist.lmms.export import MAX_NEW_TOKENS, export_suite
from covist.lmms.generation import Generation

pytest.importorskip("lmms_eval", reason="lmms-eval is not installed; make test-lmms has it")
pytestmark = pytest.mark.lmms

SUITE = load_suite("scenes")
TASK = "covist_scenes"
EXPORTED = 32  # images that give the concentration reference, in both programs
ITEMS = SUITE.items(5)  # the fifth is a crowded one
QUESTIONS = [question for item in ITEMS for question in item.questions]
VISPRUNER = "vispruner:important=0.75,positions=keep"
TOKENS = 576
FEW = 8  # so few tokens that answers go wrong, each method's in its own way
FAMILIES = ("llava-next", "qwen2.5-vl", "internvl")
ASKED_OF_FAMILIES = 16  # about three images: an untrained model says much the same about one


@dataclass(frozen=True)
class Run:
    """One configuration of lmms-eval, and the run of `covist eval` that it must equal."""

    arguments: str
    batch_size: int
    simple: bool = False
    method: str = "vanilla"
    budget: int = TOKENS

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


def compressed(arguments: str, budget: int, method: str, batch_size: int, simple: bool = False) -> Run:
    return Run(f"pretrained=tiny,budget={budget},{arguments}", batch_size, simple, method, budget)


RUNS = {
    "plain": Run("pretrained=tiny,budget=none", 8),
    "plain-simple": Run("pretrained=tiny,budget=none", 1, simple=True),
    "fixed": compressed("strategy=fixed", 64, "covist-fixed", 8),
    "fixed-few": compressed("strategy=fixed", FEW, "covist-fixed", 1, simple=True),
    "pro": compressed("strategy=pro", 64, "covist-pro", 8, simple=True),
    "pro-few": compressed("strategy=pro", FEW, "covist-pro", 1),
    "rival": compressed(f"method={VISPRUNER.replace(',', ';')}", FEW, VISPRUNER, 8),
    "combined": compressed("method=divprune+csc+sca", FEW, "divprune+csc+sca", 8, simple=True),
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
def checkpoints(folder) -> dict[str, str]:
    """Small random models of several families."""
    return {family: saved(first_of(family), folder / f"model-{family}") for family in FAMILIES}


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
def ours(folder) -> dict[tuple[str, int], tuple[list[str], Score]]:
    """Method and budget -> the answers and the score of `covist eval`."""
    methods = list(dict.fromkeys(run.method for run in RUNS.values()))
    results = evaluate(methods, [64, FEW], limit=len(ITEMS), out=folder / "ours")
    answers: dict[tuple[str, int], dict[int, list[str]]] = {}
    for path in (folder / "ours" / "answers").glob("*.jsonl"):
        for line in map(json.loads, path.read_text().splitlines()):
            answers.setdefault((line["method"], line["budget"]), {})[line["image"]] = line["answers"]
    return {
        (score.method, score.budget.written): (
            [answer for _, own in sorted(answers[score.method, score.budget.written].items()) for answer in own],
            score,
        )
        for score in results.scores
    }


@pytest.mark.parametrize("name", RUNS)
def test_answers_and_scores_equal_those_of_covist_eval(name, outcomes, ours):
    answers, score = ours[RUNS[name].method, RUNS[name].budget]
    outcome = outcomes[name]
    assert outcome.answers == [answer.strip() for answer in answers]
    assert RUNS[name].budget != FEW or score.accuracy < 100, "equal answers say little where all are right"
    assert 100 * outcome.accuracy == pytest.approx(score.accuracy)
    for family, right in score.families.items():
        if family in {question.family for question in QUESTIONS}:
            assert 100 * outcome.results["results"][TASK][f"{family},none"] == pytest.approx(right)


@pytest.mark.parametrize("name", RUNS)
def test_the_results_name_the_real_budget(name, outcomes, ours):
    _, score = ours[RUNS[name].method, RUNS[name].budget]
    throughput = outcomes[name].results["throughput"]
    assert throughput["avg_visual_tokens"] == TOKENS
    assert throughput["avg_visual_tokens_kept"] == pytest.approx(score.mean_cached_tokens)
    assert throughput["avg_visual_tokens_prefill"] == pytest.approx(score.mean_tokens)
    (counts,) = outcomes[name].samples[0]["token_counts"]
    assert (counts["views"], counts["visual_tokens"]) == (1, TOKENS)
    assert counts["visual_tokens_kept"] == pytest.approx(score.mean_cached_tokens, abs=1)


@pytest.mark.filterwarnings("ignore:no clip= given")
@pytest.mark.parametrize("family", FAMILIES)
def test_other_families_answer_in_batches_as_the_library_does_one_by_one(family, outcomes, checkpoints):
    arguments = Arguments.of({"pretrained": checkpoints[family], "budget": 6, "concentration": 0.05})
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
    configuration = RUNS["pro-few"].configuration(exported, folder / "parallel", batch_size=4, limit=9)
    log = lmms_eval(
        *("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"),
        configurations=[configuration],
        folder=folder,
        ACCELERATE_USE_CPU="true",
    )
    assert "Running on rank 1" in log
    assert Outcome.of(folder / "parallel").answers == outcomes["pro-few"].answers[:9]
