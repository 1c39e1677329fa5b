"""Pictures: their files, grids and overlays, and how a notebook shows them."""
