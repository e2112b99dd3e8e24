"""Typed configuration: composed by Hydra, checked before anything starts."""

from eagle3.config.load import PROJECT, load, load_file, register
from eagle3.config.schema import Config

__all__ = ["PROJECT", "Config", "load", "load_file", "register"]
