"""Folders of pictures: both layouts, cropping, and one clear line for what is missing."""

import numpy as np
from PIL import Image

from tests.refused import refused, refused_each
from train.picture_folder import PictureFolder


def _save(path, colour, size=(12, 8)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.broadcast_to(np.uint8(colour), (*size[::-1], 3))).save(path)


def test_captions_beside_pictures(tmp_path):
    for name, colour, text in (("b", (0, 0, 255), "Blue sky\n"), ("a", (255, 0, 0), "a red wall")):
        _save(tmp_path / f"{name}.png", colour)
        (tmp_path / f"{name}.txt").write_text(text)
    folder = PictureFolder(tmp_path, 4)
    images = folder.load([0, 1])
    assert len(folder) == 2 and folder.texts == ("a red wall", "Blue sky")
    assert images.shape == (2, 4, 4, 3) and images.dtype == np.uint8
    np.testing.assert_array_equal(images[1], np.broadcast_to([0, 0, 255], (4, 4, 3)))


def test_class_folders(tmp_path):
    for name in ("zebra", "red_fox"):
        for row in range(2):
            _save(tmp_path / name / f"{row}.webp", (row, 9, 9))
    assert PictureFolder(tmp_path, 4).texts == ("red fox", "red fox", "zebra", "zebra")


def test_centre_crop_and_unreadable_pictures(tmp_path):
    wide = np.zeros((4, 12, 3), np.uint8)
    wide[:, 4:8] = 200
    _save(tmp_path / "c" / "large.png", (1, 2, 3), (64, 64))
    Image.fromarray(wide).save(tmp_path / "c" / "wide.png")
    whole = (tmp_path / "c" / "large.png").read_bytes()
    (tmp_path / "c" / "cut.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "c" / "text.jpg").write_text("no picture")
    folder = PictureFolder(tmp_path, 4)
    np.testing.assert_array_equal(folder.load([3]), np.full((1, 4, 4, 3), 200))
    for row, name in ((0, "cut.png"), (2, "text.jpg")):
        with refused(f"{name}: not a readable picture"):
            folder.load([row])
    assert folder.load([1]).shape == (1, 4, 4, 3)


def test_what_is_missing_is_named(tmp_path):
    def read():
        return PictureFolder(tmp_path, 4)

    refused_each({
        "not a folder": lambda: PictureFolder(tmp_path / "none", 4),
        r"no pictures; expected files ending in \.jpg": read,
    })  # fmt: skip
    _save(tmp_path / "a.png", (1, 2, 3))
    refused_each({r"a\.png: no caption; expected a\.txt": read})
    (tmp_path / "a.txt").write_text(" \n")
    refused_each({r"a\.png: empty caption": read, "size 0": lambda: PictureFolder(tmp_path, 0)})
