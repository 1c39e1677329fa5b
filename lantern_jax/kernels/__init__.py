"""What XLA leaves in many pieces on an NVIDIA GPU, as one kernel each: Pallas by way of Triton.

In a pass of a few positions most of XLA's kernels take longer to begin than to run. Each function here does what one of
``models.transformer`` or ``decoding.cache`` does with JAX's own operations, which say what is meant, serve every other
device, and are what derivatives are taken of.
"""
