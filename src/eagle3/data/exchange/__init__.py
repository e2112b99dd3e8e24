"""Datasets of hidden states in the formats of other projects: read into ours, and written from ours."""
