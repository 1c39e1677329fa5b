"""The race of plain and speculative decoding, and how a generation shows itself."""

import base64
import html
import io
import re
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from lantern_jax.apps.display import race
from lantern_jax.engine.generation import Generation, Statistics
from lantern_jax.pictures import images

SIDE, COLUMNS = 64, 4
TOKENS = COLUMNS * COLUMNS


def generation(rounds, seconds: float, prompts=("a lake",), **more) -> Generation:
    """Makes pictures of one colour per cell, whose tokens came in these rounds."""
    rounds = np.atleast_2d(np.asarray(rounds, np.int32))
    count = len(rounds)
    cells = np.arange(40, 40 + 12 * TOKENS, 12, dtype=np.uint8).reshape(COLUMNS, COLUMNS)
    pictures = np.repeat(np.repeat(cells, SIDE // COLUMNS, 0), SIDE // COLUMNS, 1)[None, :, :, None]
    statistics = Statistics(
        pictures=count, tokens=count * TOKENS, rounds=int(rounds.max(axis=1).sum()), step_compression=1.0,
        seconds=seconds, picture_seconds=0.1, compile_seconds=0.0, tokens_per_second=1.0, substituted=0.0,
        mean_distance=0.0, accepted=(1,), **more,
    )  # fmt: skip
    return Generation(
        tuple(prompts), np.broadcast_to(pictures, (count, SIDE, SIDE, 3)).copy(), rounds, rounds, statistics,
        np.arange(count),
    )  # fmt: skip


# Plain: a token per round, two seconds. Speculative: rounds of five, three, three and four tokens, one second.
PLAIN = generation(np.arange(TOKENS), 2.0)
BOTH = replace(generation(np.repeat([0, 1, 2, 3, 4], [1, 5, 3, 3, 4]), 1.0), plain=PLAIN)


def halves(frame: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the two pictures of a frame, a value per cell."""
    scale = race.SIDE // COLUMNS
    middle = slice(scale // 2, race.SIDE, scale)
    return frame[middle, : race.SIDE][:, middle, 0], frame[middle, -race.SIDE :][:, middle, 0]


def test_each_runner_is_shown_as_far_as_it_was():
    frames, milliseconds = race.Race(BOTH).frames()
    assert len(frames) == len(milliseconds) == 1 + 2 * race.FRAMES_A_SECOND
    plain, speculative = halves(frames[0])
    for half in (plain, speculative):
        assert (half == race._UNKNOWN).sum() == TOKENS - 1, "the first token alone is known at first"
    # After 0.6 seconds plain decoding is in round 4 of 15 (of 2 seconds), speculative in round 2 of 4 (of 1 second).
    plain, speculative = halves(frames[round(0.6 * race.FRAMES_A_SECOND)])
    assert (plain == race._UNKNOWN).sum() == TOKENS - 5
    assert (speculative == race._UNKNOWN).sum() == TOKENS - 9
    whole, _ = halves(frames[-1])
    lit = np.flatnonzero((speculative != whole) & (speculative != race._UNKNOWN))
    assert lit.tolist() == [6, 7, 8], "the tokens of the last round, and no others"
    # The faster one is done half way, and stays.
    assert not (halves(frames[race.FRAMES_A_SECOND])[1] != whole).any()
    assert np.array_equal(*halves(frames[-1]))


def test_pictures_of_one_call_share_its_time_by_their_rounds():
    rounds = np.stack([BOTH.round_of_token[0], np.minimum(BOTH.round_of_token[0], 2)])
    plain = generation(np.stack([np.arange(TOKENS)] * 2), 6.0)
    both = replace(generation(rounds, 3.0, ("a", "b")), plain=plain)
    seconds = [race._Runner(both, number, passes=False).length for number in (0, 1)]
    assert seconds == pytest.approx([2.0, 1.0])


def test_a_race_by_passes_ignores_time_and_is_sped_up(monkeypatch):
    monkeypatch.setattr(race, "LONGEST_SECONDS", 3)
    frames, milliseconds = race.Race(BOTH, passes=True).frames()
    assert len(frames) == len(milliseconds) == 1 + race.LONGEST_SECONDS * race.FRAMES_A_SECOND
    assert sum(milliseconds[:-1]) / 1000 == pytest.approx(race.LONGEST_SECONDS, rel=0.02)
    # Plain decoding takes 15 passes, speculative 4: it is done with plain decoding's fourth.
    at = 4 / 15 * (len(frames) - 1)
    before, after = halves(frames[round(at) - 1]), halves(frames[round(at) + 1])
    assert [int((half == race._UNKNOWN).sum()) for half in before] == [TOKENS - 4, 4]
    assert [int((half == race._UNKNOWN).sum()) for half in after] == [TOKENS - 5, 0]
    slow = replace(BOTH, statistics=replace(BOTH.statistics, seconds=50.0))
    assert np.array_equal(race.Race(slow, passes=True).frames()[0], frames)


@pytest.mark.parametrize("suffix", race.FORMATS)
def test_files_are_animated_for_as_long_as_they_should_and_end_right(suffix):
    image = Image.open(io.BytesIO(race.Race(BOTH).encode(suffix)))
    frames, milliseconds = race.Race(BOTH).frames()
    assert 5 < image.n_frames <= len(frames)
    shown = []
    for number in range(image.n_frames):
        image.seek(number)
        image.load()
        shown.append(image.info["duration"])
    assert sum(shown) == pytest.approx(sum(milliseconds), rel=0.1)
    last = np.asarray(image.convert("RGB"))
    # Except for what the format loses.
    assert np.abs(halves(last)[1].astype(int) - halves(frames[-1])[1]).max() < 12


def test_a_race_runs_in_a_notebook_and_is_saved(tmp_path):
    shown = race.Race(BOTH)
    data = re.fullmatch(r'<img alt="[^"<>]*" src="data:image/webp;base64,(.+)">', shown._repr_html_())[1]
    assert Image.open(io.BytesIO(base64.b64decode(data))).n_frames > 5
    shown.save(tmp_path / "race.gif")
    assert (tmp_path / "race.gif").read_bytes() == race.Race(BOTH).encode(".gif")
    with pytest.raises(ValueError, match=r"give a file that ends in .webp, .gif, .png"):
        shown.save("race.mp4")
    with pytest.raises(ValueError, match="generate with compare=True"):
        race.Race(PLAIN)
    with pytest.raises(ValueError, match="there is no picture 1: give 0 to 0"):
        race.Race(BOTH, 1)


def pictures_of(page: str) -> list[tuple[str, str]]:
    """Returns the alternative text and the data of each picture of a page."""
    return re.findall(r'<img alt="([^"]*)" [^>]*src="data:image/png;base64,([\w+/=]+)">', page)


def test_a_generation_shows_itself(tmp_path):
    hostile, rounds = '<script>alert("a lake")</script>', np.stack([np.arange(TOKENS)] * 2)
    shown = generation(rounds, 2.0, (hostile, "hills"), speedup=1.5, same_tokens=1.0)
    assert "2 pictures of 64 x 64 pixels, 32 tokens in 30 rounds" in repr(shown)
    shown.save(tmp_path / "both.png")
    with Image.open(tmp_path / "both.png") as saved:
        assert saved.size == shown.sheet.size == (2 * 64 + 4, 64)
    page = shown._repr_html_()
    assert set(re.findall(r"<(\w+)", page)) == {"div", "figure", "img", "figcaption", "p"}
    assert page.count(html.escape(hostile)) == 2
    (first, _), (second, data) = pictures_of(page)
    assert (html.unescape(first), second) == (hostile, "hills")
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(base64.b64decode(data)))), shown.pictures[1])
    assert Image.open(io.BytesIO(shown._repr_png_())).size == (2 * SIDE + 4, SIDE)


def test_a_generation_without_pictures_shows_figures_alone():
    tokens = replace(PLAIN, pictures=None)
    with pytest.raises(ValueError, match="tokens and no pictures"):
        tokens.save("none.png")
    assert tokens._repr_png_() is None and "<img" not in tokens._repr_html_()
    assert "1 picture, 16 tokens in 15 rounds (1.00 per round)" in repr(tokens)


def test_many_pictures_are_cut():
    many = generation(np.stack([np.arange(TOKENS)] * 70), 2.0, ["lake"] * 70)
    page = many._repr_html_()
    assert len(pictures_of(page)) == images.MOST_PICTURES and "and 6 more" in page
