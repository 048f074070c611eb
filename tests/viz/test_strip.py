"""The strip of a prompt with many images."""

import pytest
from support.reports import SQUARE, TILED, WIDE, image_report

from covist.viz import DARK, draw_strip, save_figure, seen_views


def strip(images, **options):
    return draw_strip(images, [seen_views(image) for image in images], **options)


def test_every_image_is_drawn_with_the_tokens_that_it_has(tmp_path):
    images = [image_report(SQUARE, (4,)), image_report(WIDE, (9,)), image_report(TILED, (30,))]
    figure = strip(images, title="a chat", theme=DARK)
    assert [axes.get_title() for axes in figure.axes[:3]] == ["1: 4 of 36", "2: 9 of 27", "3: 30 of 84"]
    chart = figure.axes[3]
    assert [bar.get_height() for bar in chart.patches] == [4, 9, 30]
    assert chart.get_title(loc="left") == "visual tokens of each image: 43 of 147 tokens"
    save_figure(figure, tmp_path / "strip.png")
    assert (tmp_path / "strip.png").stat().st_size > 10_000


def test_of_very_many_images_an_even_choice_is_drawn_and_all_are_counted():
    figure = strip([image_report(SQUARE, (1 + number % 9,)) for number in range(70)])
    names = [axes.get_title() for axes in figure.axes if axes.get_title()]
    assert len(names) == 64 and names[0].startswith("1:") and names[-1].startswith("70:")
    assert sum(len(axes.patches) == 70 for axes in figure.axes) == 1


@pytest.mark.parametrize("composed", [True, False])
def test_one_image_is_a_strip_too(composed):
    assert strip([image_report(SQUARE, (9,), composed)]).axes[0].get_title() == "1: 9 of 36"
