"""Trained drafters: small networks that guess what a target will decode. ``decoding/drafting/`` runs them."""
