"""Imports Lightning without what its torchmetrics takes along wherever it is installed.

SciPy, torchvision and transformers are imported for metrics that nobody here uses, and are about half of the ten
seconds that a training child would spend on imports on two cores. To torchmetrics they seem not to be installed.
"""

import gc
from typing import Any
from unittest import mock

NEEDLESS = ("scipy", "torchvision", "torchaudio", "transformers", "matplotlib", "onnxruntime")


def import_lightning() -> None:
    """Before anything else imports Lightning; afterwards there is nothing to win, and nothing happens."""
    from lightning_utilities.core import imports

    available, met = imports.package_available, imports.RequirementCache.__bool__

    def package_available(name: str) -> bool:
        return name not in NEEDLESS and available(name)

    def requirement_met(self: Any) -> bool:
        return not str(self.requirement).startswith(NEEDLESS) and met(self)

    gc.disable()  # what imports make stays
    with (
        mock.patch.object(imports, "package_available", package_available),
        mock.patch.object(imports.RequirementCache, "__bool__", requirement_met),
    ):
        import torchmetrics  # noqa: F401
    import lightning.pytorch  # noqa: F401

    gc.freeze()
    gc.enable()
