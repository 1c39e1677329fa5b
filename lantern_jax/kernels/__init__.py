"""Operations that XLA leaves in many pieces on an NVIDIA GPU, as one kernel of Triton's or a few of XLA's.

In a pass over a few positions most kernels take longer to start than to run. Each function here repeats one of
``models.transformer`` or ``decoding.cache``, which serve every other device and define the derivatives; ``ways`` says
which is taken where.
"""
