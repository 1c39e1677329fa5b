"""The option names of couplings and windows. Needs no JAX."""

# Which accepted path ``Gumbel`` takes.
PATHS = ("longest", "exact_first", "followed")
# What ``Rejection`` leaves of the target after a refusal.
RESIDUALS = ("exact", "published", "published_lumina")
# How a window's guesses are redrawn, and where the guesses at its new positions come from.
REDRAWS = ("independent", "maximal", "shared")
INITIALS = ("repeat", "left", "above", "mixed", "random")
