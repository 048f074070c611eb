"""What a compressed prefill does on an accelerator, on one that is not there (benchmarks/accelerator.py).

Tensors of the device and of the host must not meet on it, so these tests also find what a GPU would refuse.
"""

import warnings

import pytest
import torch
from accelerator import Accelerator, move, on_device
from support.cases import first_of
from support.llava import ask

from covist import state
from covist.engine.sequence.host import HostCopies
from covist.methods.create import create_method

pytestmark = pytest.mark.own_rounding
PROMPT = "USER: <image> what color is this ? ASSISTANT:"


@pytest.fixture(autouse=True)
def as_in_production(monkeypatch):
    """States are checked in tests, which reads them."""
    monkeypatch.setattr(state, "VALIDATE", False)


def prefill(model, inputs):
    """Operators, host reads and logits of a prefill on the accelerator, after a first one."""
    given = {name: on_device(value) for name, value in inputs.items()}
    move(model)
    try:
        for _ in range(2):
            accelerator = Accelerator()
            with torch.no_grad(), accelerator:
                logits = model(**given).logits
        return accelerator.operators.total(), accelerator.reads.total(), logits.as_subclass(torch.Tensor)
    finally:
        move(model, back=True)


def batch_of(count):
    prompts = [ask(PROMPT, seeds=(seed,)) for seed in range(count)]
    return {name: torch.cat([prompt[name] for prompt in prompts]) for name in prompts[0]}


def test_a_prefill_waits_twice_more_and_a_batch_launches_hardly_more_than_one(multi_head, compress):
    plain = [prefill(multi_head, batch_of(count)) for count in (1, 4)]
    compress(multi_head, method=create_method("covist-max"), budget=24)
    found = [prefill(multi_head, batch_of(count)) for count in (1, 4)]
    one, four = (made[0] - before[0] for made, before in zip(found, plain, strict=True))
    assert [made[1] - before[1] for made, before in zip(found, plain, strict=True)] == [2, 2]
    assert one <= 4 * 24 + 92 and four <= 1.2 * one


@pytest.mark.parametrize("method", ["covist-max", "covist-fixed", "covist-pro", "divprune", "fastv"])
def test_on_an_accelerator_the_logits_are_those_of_the_cpu(multi_head, compress, method):
    frozen = {} if method in ("covist-fixed", "covist-pro") else {"concentration": None}
    compress(multi_head, method=method, budget=24, **frozen)
    inputs = batch_of(2)
    with torch.no_grad():
        expected = multi_head(**inputs).logits
    torch.testing.assert_close(prefill(multi_head, inputs)[2], expected, atol=1e-4, rtol=1e-4)


def test_features_that_are_not_numbers_are_refused_there_too(multi_head, compress):
    compress(multi_head, method=create_method("covist-max"), budget=24)
    inputs = batch_of(2)
    inputs["pixel_values"][1] = torch.nan
    with pytest.raises(Exception, match="coverage: features contains NaN or infinite values"):
        prefill(multi_head, inputs)


@pytest.mark.parametrize("family, reads", [("llava-next", 3), ("qwen2.5-vl", 15)])
def test_images_with_markers_and_positions_with_axes(family, reads, compress):
    """The generic family tries in every call how patches make tokens, which is most of what it reads."""
    case = first_of(family)
    inputs = dict(case.ask("{image} what color is this ?"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = prefill(case.model, inputs)
        compress(case.model, method=create_method("covist-max"), budget=8, processor=case.processor())
        found = prefill(case.model, inputs)
        assert found[1] - plain[1] <= reads
        with torch.no_grad():
            expected = case.model(**inputs).logits
    torch.testing.assert_close(found[2], expected, atol=1e-4, rtol=1e-4)


def test_what_a_call_needs_on_the_host_is_read_together_and_once():
    ids, mask, later = (on_device(torch.arange(6).view(2, 3)) for _ in range(3))
    host, accelerator = HostCopies(), Accelerator()
    with accelerator:
        first = host.read(ids, None, mask == 1)
        again = host.read(ids, later)
    assert accelerator.reads.total() == 2
    assert first[0] is again[0] and first[1] is None and type(first[2]) is torch.Tensor
    assert first[2].tolist() == [[0, 1, 0], [0, 0, 0]] and again[1].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_the_accelerator_refuses_what_a_device_refuses():
    there, here = on_device(torch.ones(3)), torch.ones(3)
    with Accelerator() as accelerator:
        assert (there + 1).device.type == "cuda" and (here + 1).device.type == "cpu"
        with pytest.raises(RuntimeError, match="on the host"):
            there + here
        assert (there + here.to(there.device, non_blocking=True)).tolist() == [2, 2, 2]
    assert accelerator.operators == {"add": 2, "upload": 1} and accelerator.reads == {"tolist": 1}
