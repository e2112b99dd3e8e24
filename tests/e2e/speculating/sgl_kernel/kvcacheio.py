"""Up to 0.5.12 SGLang imports copies between caches from here, on a CPU too; only a hierarchical cache calls them."""

from sgl_kernel import __getattr__ as __getattr__
