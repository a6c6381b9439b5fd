"""CUDA: the third home of the scalar functions and primitives, and the kernels around them.

Nothing here is imported by the host's path. Importing a module of this package needs no GPU and no CUDA compiler;
compiling does (:mod:`multiring.kernels.cuda.compile`), and launching needs both or Numba's simulator
(:mod:`multiring.kernels.cuda.launch`).
"""
