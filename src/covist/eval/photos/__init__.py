"""Photographs with captions that people wrote, or with questions: how much of what a model sees compression keeps.

results = evaluate_photos("covist-max,random", "64,32", suite=photo_suite("flickr8k"), model="my-llava", out="results")
print(results.to_markdown())
"""

from covist.eval.photos.question_results import QuestionResults
from covist.eval.photos.results import PhotoResults
from covist.eval.photos.runner import evaluate_photos
from covist.eval.photos.suite import photo_suite

__all__ = ["PhotoResults", "QuestionResults", "evaluate_photos", "photo_suite"]
