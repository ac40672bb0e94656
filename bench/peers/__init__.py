"""Cellwall beside other sandboxes: the same work and the same attacks, as an ordinary user.

`bench.py` prepares the host and starts `worker.py` as that user. A peer is one small module with a
subclass of `Peer`; `products.toml` says what each product is for.
"""
