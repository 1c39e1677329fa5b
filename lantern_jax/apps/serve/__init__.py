"""``lantern serve``: a page and an image endpoint. One thread owns the devices; the event loop only waits for it."""
