"""From a served model to a measured EAGLE-3 drafter: one declarative experiment."""

__version__ = "0.1.0"
