"""Ways of guessing ahead: each fills the record ``Drafting``, in a file of its own."""
