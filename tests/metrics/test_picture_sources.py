"""Sets of pictures with their prompts: the order, the pairs, and what is refused."""

import types

import numpy as np
from PIL import Image, PngImagePlugin

from lantern_jax.apps.metrics import picture_sources as sources
from lantern_jax.apps.metrics.picture_sources import read_pictures, with_prompts
from lantern_jax.apps.sets.reading import SetPicture
from tests.refused import refused_with


def picture(level, height=4, width=5):
    return np.full((height, width, 3), level, np.uint8)


def write(path, level, **texts):
    path.parent.mkdir(parents=True, exist_ok=True)
    information = PngImagePlugin.PngInfo()
    for name, text in texts.items():
        information.add_text(name, text)
    Image.fromarray(picture(level)).save(path, pnginfo=information)


def levels(path):
    return [int(one.picture[0, 0, 0]) for one in read_pictures(path)]


def test_a_folder_is_read_in_the_order_of_its_numbers(tmp_path):
    for level, name in enumerate(("prompt_9.png", "prompt_10.png", "prompt_100.png", "z/prompt_1.png")):
        write(tmp_path / name, level)
    write(tmp_path / "grid.png", 99)
    write(tmp_path / ".hidden.png", 98)
    (tmp_path / "notes.txt").write_text("no picture")
    assert levels(tmp_path) == [0, 1, 2, 3]
    one = next(read_pictures(tmp_path))
    assert (one.number, one.prompt, one.picture.shape, one.picture.dtype) == (None, None, (4, 5, 3), np.uint8)


def test_texts_of_png_files_and_other_modes(tmp_path):
    write(tmp_path / "a.png", 3, prompt="a läke", number="12")
    Image.fromarray(picture(7)).convert("L").save(tmp_path / "b.webp", lossless=True)
    Image.fromarray(np.full((4, 5, 4), 9, np.uint8)).save(tmp_path / "c.png")
    Image.fromarray(np.full((4, 5), 11 * 256 + 99, np.uint16)).save(tmp_path / "d.png")
    first, second, third, fourth = read_pictures(tmp_path)
    assert (first.number, first.prompt) == (12, "a läke")
    np.testing.assert_array_equal(second.picture, picture(7))
    np.testing.assert_array_equal(third.picture, picture(9))
    np.testing.assert_array_equal(fourth.picture, picture(11))


def test_pictures_in_an_array_are_read_one_by_one(tmp_path):
    pictures = np.random.default_rng(0).integers(0, 256, (5, 4, 6, 3), np.uint8)
    for name, save in (("plain", np.savez), ("packed", np.savez_compressed)):
        save(tmp_path / f"{name}.npz", pictures)
        found = [one.picture for one in read_pictures(tmp_path / f"{name}.npz")]
        np.testing.assert_array_equal(np.stack(found), pictures)


def test_a_picture_set_is_read_as_one(tmp_path, monkeypatch):
    (tmp_path / "set.json").write_text("{}")
    write(tmp_path / "preview.png", 1)
    one = types.SimpleNamespace(number=4, prompt="a lake", picture=picture(2), tokens=None)
    monkeypatch.setattr(sources, "read_set", lambda directory: iter([one]))
    [found] = read_pictures(tmp_path)
    assert (found.number, found.prompt, int(found.picture.max())) == (4, "a lake", 2)


def test_what_is_not_a_set_is_refused(tmp_path):
    refused_with(lambda: read_pictures(tmp_path / "nowhere"), "nowhere is not a folder of pictures")
    refused_with(lambda: read_pictures(tmp_path), "holds no pictures")
    (tmp_path / "a.png").write_text("no picture")
    refused_with(lambda: read_pictures(tmp_path), "a.png", "not a readable picture")
    write(tmp_path / "a.png", 1)
    whole = (tmp_path / "a.png").read_bytes()
    (tmp_path / "a.png").write_bytes(whole[: len(whole) // 2])
    refused_with(lambda: read_pictures(tmp_path), "a.png")
    for array, word in (
        (np.full((2, 4, 4, 3), np.nan), "float64"),
        (np.zeros((2, 4, 4), np.uint8), "[2, 4, 4]"),
        (np.zeros((0, 4, 4, 3), np.uint8), "at least one"),
    ):
        np.savez(tmp_path / "a.npz", array)
        refused_with(lambda: read_pictures(tmp_path / "a.npz"), word, "uint8 [n, H, W, 3]")
    np.savez(tmp_path / "a.npz", pictures=np.zeros((2, 4, 4, 3), np.uint8))
    refused_with(lambda: read_pictures(tmp_path / "a.npz"), "arr_0")
    (tmp_path / "a.npz").write_text("no archive")
    refused_with(lambda: read_pictures(tmp_path / "a.npz"), "a.npz")


def numbered(*numbers, prompts=None):
    prompts = prompts or [None] * len(numbers)
    return [SetPicture(number, prompt, picture(1)) for number, prompt in zip(numbers, prompts, strict=True)]


def test_numbers_decide_which_prompt_belongs_to_a_picture():
    found = list(with_prompts(numbered(2, 0), ["a", "b", "c"]))
    assert [(one.number, one.prompt) for one in found] == [(2, "c"), (0, "a")]
    found = list(with_prompts(numbered(None, None), ["a", "b"]))
    assert [(one.number, one.prompt) for one in found] == [(0, "a"), (1, "b")]
    found = list(with_prompts(numbered(7, 8, prompts=["x", "y"])))
    assert [one.prompt for one in found] == ["x", "y"]


def test_prompts_that_do_not_match_are_refused():
    pictures = numbered(0, 1, prompts=["a lake", "a hill"])
    refused_with(lambda: with_prompts(pictures, ["a lake", "a house"]), "1 is of 'a hill'", "say 'a house'")
    refused_with(lambda: with_prompts(numbered(0, 5), ["a", "b"]), "picture 5 has no prompt")
    refused_with(lambda: with_prompts(numbered(None), ["a", "b"]), "1 pictures for 2 prompts")
    refused_with(lambda: with_prompts(numbered(3)), "picture 3 has no prompt", "--prompts")


def test_pictures_of_several_calls_are_read_together(tmp_path):
    """Each call begins with number 0, as `lantern generate` writes them."""
    for name, level in {"forest-0.png": 1, "forest-0-2.png": 2}.items():
        write(tmp_path / name, level, prompt=name, number="0")
    write(tmp_path / "forest-0-compare.png", 99)
    found = list(with_prompts(read_pictures(tmp_path)))
    assert sorted(one.prompt for one in found) == ["forest-0-2.png", "forest-0.png"]
    (alone,) = read_pictures(tmp_path / "forest-0.png")
    assert (alone.number, alone.prompt) == (0, "forest-0.png")
