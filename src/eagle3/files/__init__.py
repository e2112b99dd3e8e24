"""Files that a reader finds whole or not at all, and what a disk that refuses them says."""
