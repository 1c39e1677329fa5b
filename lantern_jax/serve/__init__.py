"""``lantern serve``: a page and an image endpoint. One thread owns the devices; the one that answers only waits."""
