"""The benchmark beside its peers: each measures the same server, whose every send is known, and what each reports is held
against the truth. `python -m bench.peers`; each peer lives in an environment of its own, and in one small file here."""
