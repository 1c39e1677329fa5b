"""Speculative decoding: sampling, draft trees, acceptance rules, verification and the decoding loops."""
