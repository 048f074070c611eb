"""The models that lmms-eval calls: one for chat tasks, one for simple ones, both over the same `Answerer`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from time import perf_counter
from typing import Any

from accelerate import Accelerator
from lmms_eval.api.instance import GenerationResult, Instance, TokenCounts
from lmms_eval.api.model import lmms
from lmms_eval.models.model_utils.gen_metrics import log_metrics
from loguru import logger
from tqdm import tqdm

from covist.engine.capture import execution_device
from covist.errors import CovistError
from covist.lmms.answering import Answerer, LmmsAnswer
from covist.lmms.arguments import Arguments
from covist.lmms.conversations import from_messages, from_visuals
from covist.lmms.generation import Generation
from covist.lmms.questions import TaskQuestion, batches
from covist.request.conversations import Conversation
from covist.request.together import Shown


class VisualTokenCounts(TokenCounts):
    """Token counts of a sample, with its visual tokens; lmms-eval writes them to the samples file."""

    def __init__(self, answered: LmmsAnswer):
        super().__init__(output_tokens=answered.new_tokens)
        self.shown = answered.shown

    def to_dict(self) -> dict[str, Any]:
        shown = self.shown
        return {
            **super().to_dict(),
            "views": shown.views,
            "visual_tokens": shown.tokens,
            "visual_tokens_kept": round(shown.kept, 3),
            "visual_tokens_prefill": round(shown.prefill, 3),
        }


class _Covist(lmms):
    """What both kinds of model share."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__()
        self.arguments = Arguments.of(arguments)
        self.accelerator = Accelerator()
        self._rank, self._world_size = self.accelerator.process_index, self.accelerator.num_processes
        # Each of several processes has a device of its own, unless they are told how to share them.
        own = None if self._world_size == 1 or self.arguments.loading.device_map else str(self.accelerator.device)
        self._answerer = Answerer(self.arguments, own)
        self._references: dict[tuple[str, str], float | None] = {}
        self._mentioned: set[str] = set()

    @property
    def device(self) -> Any:
        return execution_device(self._answerer.loaded.model)

    @property
    def batch_size(self) -> int:
        return self.arguments.batch_size

    def generate_until(self, requests: list[Instance]) -> list[GenerationResult]:
        """Answers in the order of the requests."""
        questions = [self._question(request) for request in requests]
        answers: dict[int, LmmsAnswer] = {}
        started = perf_counter()
        with tqdm(total=len(questions), disable=self._rank != 0, desc="covist") as bar:
            for numbers in batches(questions, self.batch_size):
                answers.update(zip(numbers, self._answer([questions[number] for number in numbers]), strict=True))
                bar.update(len(numbers))
        ordered = [answers[number] for number in range(len(requests))]
        asked = [one for one, request in zip(ordered, requests, strict=True) if not _is_filling(request)]
        self._log(asked, perf_counter() - started)
        return [GenerationResult(one.text, VisualTokenCounts(one)) for one in ordered]

    def generate_until_multi_round(self, requests: list[Instance]) -> list[str]:
        raise CovistError("covist answers in one round; leave out tasks of type generate_until_multi_round")

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        # lmms-eval documents log-likelihoods, but its tasks choose the smallest number, as if they were losses.
        raise CovistError("covist does not rate given answers; use the variant of the task that generates them")

    def clean(self) -> None:
        """Free the memory, for a judge model that may come next."""
        del self._answerer
        super().clean()

    @abstractmethod
    def _question(self, request: Instance) -> TaskQuestion:
        """Read a request of this kind of task."""

    @abstractmethod
    def _conversation(self, question: TaskQuestion, document: Any) -> Conversation:
        """The conversation of a question about a document of its task."""

    def _answer(self, questions: Sequence[TaskQuestion]) -> list[LmmsAnswer]:
        """Answer a batch of questions of one task."""
        first = questions[0]
        if self._answerer.needs_reference:
            self._answerer.freeze(self._reference(first))
        documents = self.task_dict[first.task][first.split]
        conversations = [self._conversation(question, documents[question.document]) for question in questions]
        return self._answerer.answer(conversations, self._generation(first))

    def _generation(self, question: TaskQuestion) -> Generation:
        made = Generation.of(question.generation)
        for name in sorted({*made.ignored} - self._mentioned):
            logger.warning(f"covist: {question.task} sets {name}, which covist ignores")
        self._mentioned |= {*made.ignored}
        return made

    def _reference(self, question: TaskQuestion) -> float | None:
        """The concentration reference of a task, from its first images, whichever of them this process answers."""
        key = (question.task, question.split)
        if key not in self._references:
            documents = self.task_dict[question.task][question.split]
            shown = (self._conversation(question, documents[number]) for number in range(len(documents)))
            self._references[key] = self._answerer.measure_reference(shown)
            logger.info(f"covist: concentration reference of {question.task}: {self._references[key]}")
        return self._references[key]

    def _log(self, answers: Sequence[LmmsAnswer], seconds: float) -> None:
        """Log speed and visual tokens in `throughput` of the results file, as means over this process's answers."""
        total = sum((answer.shown for answer in answers), Shown())
        written = sum(answer.new_tokens for answer in answers)
        views = max(total.views, 1)
        log_metrics(
            total_elapsed_time=seconds,
            total_gen_tokens=written,
            avg_speed=written / seconds,
            additional_metrics={
                "visual_tokens": total.tokens / views,
                "visual_tokens_kept": total.kept / views,
                "visual_tokens_prefill": total.prefill / views,
            },
        )


class CovistChat(_Covist):
    """For tasks whose `doc_to_messages` gives whole conversations."""

    is_simple = False

    def _question(self, request: Instance) -> TaskQuestion:
        text, messages, generation, document, task, split = request.args
        return TaskQuestion(task, split, document, str(text), messages, generation)

    def _conversation(self, question: TaskQuestion, document: Any) -> Conversation:
        return from_messages(question.show(document), self.arguments.frames)


class CovistSimple(_Covist):
    """For tasks whose `doc_to_visual` gives the visuals, with a text about them."""

    is_simple = True

    def _question(self, request: Instance) -> TaskQuestion:
        text, generation, visuals, document, task, split = request.args
        return TaskQuestion(task, split, document, text, visuals, generation)

    def _conversation(self, question: TaskQuestion, document: Any) -> Conversation:
        return from_visuals(question.show(document), question.text, self.arguments.frames)


def _is_filling(request: Instance) -> bool:
    """Whether lmms-eval only repeats a request so that all processes have the same number."""
    return "__padding_only__" in request.metadata
