"""CUDA C++ compiled, run and checked on the CPU. `load_cuda` is where to start."""
