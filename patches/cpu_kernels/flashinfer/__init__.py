"""Stand-in for FlashInfer on a CPU: as if it were not installed, which SGLang provides for (its CPU build has none).

The real one is for GPUs only, and with what it imports in turn (CUTLASS) costs each of the server's three processes a
second of CPU and 130 MiB.
"""

raise ImportError("flashinfer needs a GPU; eagle3 hides it from a server on the CPU (patches/cpu_kernels)")
