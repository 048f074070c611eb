"""Film strips: frames, what was kept in each, and how it moves through time."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.films import moving_square, place_of
from support.reports import image_report

from covist.grid import Grid
from covist.viz import draw_answer, draw_film, draw_html, save_figure, seen_views
from covist.viz.svg import spread


def film(frames=6, counts=(24,), view=(4, 6), composed=True):
    return image_report(Grid((view,) * frames, "frames"), counts, composed)


def titles(figure):
    return [axes.get_title() or axes.get_title(loc="left") for axes in figure.axes]


def heights(axes):
    return [bar.get_height() for bar in axes.patches]


@pytest.mark.parametrize("counts", [(24,), (30, 12, 6)])
def test_every_frame_is_drawn_with_what_was_kept_in_it(counts):
    video = film(counts=counts)
    names = titles(draw_film(video, seen_views(video), seconds=[0.5 * number for number in range(6)]))
    assert names[:6] == ["0.0 s", "0.5 s", "1.0 s", "1.5 s", "2.0 s", "2.5 s"]
    for stage in range(len(counts)):
        own = names[6 * (stage + 1) : 6 * (stage + 2)]
        assert own == [f"{count} kept" for count in video.kept_per_frame(stage).tolist()]


def test_of_many_frames_an_even_choice_is_drawn_and_all_are_counted():
    video = film(frames=40, counts=(100,))
    figure = draw_film(video, seen_views(video))
    names = titles(figure)
    assert names[:16] == [str(1 + round(place * 39 / 15)) for place in range(16)]
    kept = figure.axes[names.index("tokens kept per frame")]
    assert heights(kept) == video.kept_per_frame().tolist()


def test_bars_show_tokens_and_weight_of_every_frame():
    video = film(counts=(30, 12))
    figure = draw_film(video, seen_views(video))
    kept, weight = (axes for axes in figure.axes if "per frame" in axes.get_title(loc="left"))
    assert heights(kept) == [*video.kept_per_frame(0).tolist(), *video.kept_per_frame(1).tolist()]
    assert heights(weight) == pytest.approx(video.weight_per_frame().tolist())
    assert [text.get_text() for text in kept.get_legend().get_texts()] == ["layers 0-1", "layers 2-3"]


def test_a_curve_shows_how_well_every_frame_is_covered():
    video = film()
    measured = replace(video.stages[0], covered=torch.linspace(0, 1, video.tokens))
    covered = draw_film(replace(video, stages=(measured,)), seen_views(video)).axes[-1]
    assert covered.get_title(loc="left").startswith("coverage per frame")
    shown = covered.lines[0].get_ydata()
    assert shown == pytest.approx(100 * torch.linspace(0, 1, video.tokens).view(6, -1).mean(1).numpy())


def test_a_line_stands_between_segments():
    video = replace(film(), segments=(4, 2))
    figure = draw_film(video, seen_views(video))
    kept = next(axes for axes in figure.axes if axes.get_title(loc="left") == "tokens kept per frame")
    assert [line.get_xdata()[0] for line in kept.lines] == [3.5]


@pytest.mark.parametrize("view", [(4, 6), (12, 3), (2, 9), (1, 1)])
@pytest.mark.parametrize("frames", [1, 3, 8, 16])
def test_panels_stay_on_the_sheet_and_apart(frames, view):
    video = film(frames, (min(8, frames * view[0] * view[1]),), view, composed=False)
    figure = draw_film(video, seen_views(video), "question", "method")
    boxes = [axes.get_position() for axes in figure.axes]
    assert all(box.x0 >= 0 and box.y0 >= 0 and box.x1 <= 1.0001 and box.y1 <= 1 for box in boxes)
    for number, one in enumerate(boxes):
        for other in boxes[number + 1 :]:
            assert min(one.x1, other.x1) <= max(one.x0, other.x0) + 1e-9 or (
                min(one.y1, other.y1) <= max(one.y0, other.y0) + 1e-9
            )


def test_the_frames_at_hand_are_shown_where_the_encoder_sees_two_as_one():
    video = film(frames=3)
    views = seen_views(video, moving_square(5))
    from PIL import Image

    places = [place_of(Image.fromarray(view.image)) for view in views]
    assert places == pytest.approx([0, 0.5, 1], abs=0.06)


def test_an_answer_about_a_video_is_a_film_strip(tmp_path):
    video = film()
    figure = draw_answer(video, moving_square(12), method="covist-fixed", prompt="where?", answer="right")
    assert figure.texts[0].get_text().startswith("where?") and "6 frames" in figure.texts[2].get_text()
    save_figure(figure, tmp_path / "film.png")
    assert (tmp_path / "film.png").stat().st_size > 10_000


def test_sixteen_frames_lie_in_a_square_on_a_page():
    places = spread(seen_views(film(frames=16, view=(4, 4))))
    assert sorted({left for _, left, _ in places}) == sorted({top for _, _, top in places}) == [0, 5, 10, 15]
    cells = [(left + x, top + y) for view, left, top in places for y in range(view.rows) for x in range(view.columns)]
    assert len(cells) == len(set(cells)) == 16 * 16


def test_a_page_names_frames_and_holds_every_token_once():
    video = film(frames=16, counts=(64,))
    html = draw_html([video], [seen_views(video, moving_square(16))])
    assert html.count('<g class="one">') == 64 and "frame 15, row" in html and "view 1" not in html
    assert html.count("data:image/jpeg") == 16 and 'class="stages film"' in html
    assert len(html) < 400_000


def test_views_of_a_video_are_small():
    assert max(np.max(view.image.shape) for view in seen_views(film(view=(8, 8)), moving_square(6))) <= 240
