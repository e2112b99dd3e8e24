"""Other EAGLE-3 trainers, driven as their own command lines drive them: same weights, same documents.

`tests/parity` holds the same adapters against ours, so that what is timed here is what was compared there. The peers
must be importable: `bench/pack_peers.sh`. Nothing here imports a peer before one of its trainers is built.
"""
