"""The names that options of couplings and windows have. Needs no JAX."""

# Which accepted path ``Gumbel`` takes.
PATHS = ("longest", "exact_first", "followed")
# What ``Rejection`` leaves of the target after a refusal.
RESIDUALS = ("exact", "published", "published_lumina")
# How the guesses of a window are drawn again, and where those of its new positions come from.
REDRAWS = ("independent", "maximal", "shared")
INITIALS = ("repeat", "left", "above", "mixed", "random")
