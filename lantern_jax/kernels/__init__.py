"""Operations that XLA leaves in many pieces on an NVIDIA GPU, as one kernel each: Pallas through Triton.

In a pass over a few positions most of XLA's kernels take longer to start than to run. Each function here repeats one of
``models.transformer`` or ``decoding.cache``, which serve every other device and define the derivatives.
"""
